// Run the cases with the packages of a directory and report as JSON.
//
//   node main.mjs DIRECTORY [--mode url|domain|debug] [--jobs N] [--only TEXT] [--report FILE]
//
// E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY (or E2B_DOMAIN, or E2B_DEBUG) tell where.

import { writeFileSync } from 'node:fs'
import { parseArgs } from 'node:util'

import './cases.mjs'
import { CASES, Client, learn, load, run, untouched } from './harness.mjs'
import './resolving.mjs'

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    mode: { type: 'string', default: 'url' },
    jobs: { type: 'string', default: '4' },
    only: { type: 'string', default: '' },
    report: { type: 'string' },
  },
})

const { sdk, versions } = await load(positionals[0])
const client = new Client(sdk, values.mode)
await learn(client)
const outcomes = await run(client, CASES.filter((each) => each.name.includes(values.only)), Number(values.jobs))
if (!values.only && values.mode === 'url') outcomes.push(untouched(client))

const counts = { passed: 0, failed: 0, skipped: 0 }
for (const each of outcomes) {
  counts[each.outcome] += 1
  if (each.outcome !== 'passed') console.log(`${each.outcome.padEnd(8)}${each.case}: ${each.detail}`)
}
console.log(Object.entries(counts).map(([kind, count]) => `${count} ${kind}`).join(' '))
if (values.report) {
  writeFileSync(values.report, JSON.stringify({ client: 'javascript', versions, flavour: 'async', mode: values.mode, outcomes }, null, 1))
}
process.exit(counts.failed ? 1 : 0)
