// Every name under the domain of E2B_DOMAIN leads to this machine, as a wildcard record would make it.
// Load it with `node --import`, or call it.

import dns from 'node:dns'

export function resolveLocally(domain) {
  const suffix = `.${domain.split(':')[0]}`
  const ask = dns.lookup
  dns.lookup = (name, ...rest) => ask(name.endsWith(suffix) ? '127.0.0.1' : name, ...rest)
}

if (process.env.E2B_DOMAIN) resolveLocally(process.env.E2B_DOMAIN)
