// A table of cases for E2B's JavaScript packages, for every generation of them.
//
// It runs with the packages of a directory given on the command line and nothing of cellfork. What a
// generation does not have is skipped by name, and said. Every public method that a case reaches is noted,
// and those that none reached fail the run: that is how the table stays whole when E2B's packages grow.

import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'

export { assert }

const CASE_TIMEOUT_MS = 90_000

/** Public methods that no case calls, and why. */
const NOT_CALLED = {
  'Sandbox.getMcpToken': 'needs the gateway of the mcp-gateway template, which cellfork does not have',
  'Git.dangerouslyAuthenticate': 'stores a credential for a host that no test can reach',
}

/** Methods that are declared private: they are the SDK's own. */
const OWN = new Set([
  'constructor', 'jupyterUrl', 'getJupyterRequestUrl', 'includeDiagnostics', 'handleRequestError', 'resolveApiOpts',
  'fileUrl', 'start', 'iterateEvents', 'handleEvents', 'flushDecoders', 'createSandbox', 'forkSandbox', 'connectSandbox',
  'resolveOpts', 'getRemoteUrl', 'hasUpstream', 'resolveRemoteName', 'runGit', 'runShell', 'withRemoteCredentials',
  'supportsStdinClose', 'exitCode', 'error', 'stdout', 'stderr', 'hasNext', 'nextToken', 'updatePagination',
])

export class Skipped extends Error {}

/** What a case needs that asks for fields, answers and classes of errors which the first generation (1.x) does not have. */
export const SECOND = 'answers of the second generation'
/** What a case needs that tells how the first generation behaves. */
export const FIRST = 'behaviour of the first generation'

/** Load the SDK that is installed in a directory. */
export async function load(directory) {
  const home = join(directory, 'node_modules', '@e2b', 'code-interpreter')
  const about = JSON.parse(readFileSync(join(home, 'package.json'), 'utf8'))
  const base = JSON.parse(readFileSync(join(directory, 'node_modules', 'e2b', 'package.json'), 'utf8'))
  const sdk = await import(pathToFileURL(join(home, about.module)).href)
  return { sdk, versions: { e2b: base.version, '@e2b/code-interpreter': about.version } }
}

/** What the cases use: the SDK, and what they made with it. */
export class Client {
  constructor(sdk, mode, used = new Set()) {
    this.sdk = sdk
    this.mode = mode
    this.used = used
    this.made = []
    this.Sandbox = this.noted(sdk.Sandbox, 'Sandbox')
  }

  /** Note the public methods of a thing as they are used. */
  noted(thing, kind) {
    return new Proxy(thing, {
      get: (target, name) => {
        const value = Reflect.get(target, name, target)
        if (typeof name === 'string') this.used.add(`${kind}.${name}`)
        if (typeof value === 'function') return (...args) => this.result(value.apply(target, args))
        return this.wrap(value)
      },
    })
  }

  result(value) {
    return value instanceof Promise ? value.then((each) => this.wrap(each)) : this.wrap(value)
  }

  wrap(value) {
    if (Array.isArray(value)) return value.map((each) => this.wrap(each))
    const kind = value?.constructor?.name
    if (value instanceof this.sdk.Sandbox) {
      this.made.push(value)
      return this.noted(value, 'Sandbox')
    }
    const kinds = ['Commands', 'CommandHandle', 'Pty', 'Filesystem', 'WatchHandle', 'Git', 'SandboxPaginator', 'SnapshotPaginator']
    const plain = kind?.replace(/^_|\d+$|\$\d+$/g, '')
    return kinds.includes(plain) ? this.noted(value, plain) : value
  }

  async create(options = {}) {
    const { template, ...rest } = { timeoutMs: 120_000, ...options }
    if (this.mode === 'debug') return this.Sandbox.create()
    return template ? this.Sandbox.create(template, rest) : this.Sandbox.create(rest)
  }

  /** Whether the SDK has a method, as Class.method, or `sandbox.method` for one of a sandbox that is no class method; or answers as SECOND does. */
  has(name) {
    if (name === FIRST) return !this.has(SECOND)
    if (name === SECOND) return this.has('sandbox.connect')
    const [kind, method] = name.split('.')
    if (kind === 'sandbox') return typeof this.sdk.Sandbox.prototype[method] === 'function'
    return this.methods().has(`${kind}.${method}`)
  }

  require(name) {
    if (!this.has(name)) throw new Skipped(`this generation has no ${name}`)
  }

  /** Every public method of the SDK, as Class.method; the classes of parts are found on a sandbox. */
  methods() {
    const found = new Set()
    const add = (kind, owner) => {
      for (let at = owner; at && at !== Object.prototype && at !== Function.prototype; at = Object.getPrototypeOf(at)) {
        for (const [name, property] of Object.entries(Object.getOwnPropertyDescriptors(at))) {
          if (typeof property.value === 'function' && !OWN.has(name) && !name.startsWith('_')) found.add(`${kind}.${name}`)
        }
      }
    }
    add('Sandbox', this.sdk.Sandbox)
    add('Sandbox', this.sdk.Sandbox.prototype)
    for (const [kind, owner] of Object.entries(Client.parts)) add(kind, owner)
    return found
  }

  async cleanUp() {
    if (this.mode === 'debug') return
    for (const sandbox of this.made.splice(0)) {
      await sandbox.kill().catch((error) => console.log(`# could not kill ${sandbox.sandboxId}: ${error}`))
    }
  }
}

/** Prototypes of the parts of a sandbox, by kind; filled by `learn`. */
Client.parts = {}

/** Learn the classes of the parts of a sandbox from a live one. */
export async function learn(client) {
  const sandbox = await client.create()
  const parts = { Commands: sandbox.commands, Filesystem: sandbox.files, Pty: sandbox.pty, Git: sandbox.git }
  for (const [kind, part] of Object.entries(parts)) if (part) Client.parts[kind] = Object.getPrototypeOf(part)
  const handle = await sandbox.commands.run('true', { background: true })
  Client.parts.CommandHandle = Object.getPrototypeOf(handle)
  await handle.wait()
  const watch = await sandbox.files.watchDir('/tmp', () => {})
  Client.parts.WatchHandle = Object.getPrototypeOf(watch)
  await watch.stop()
  await client.cleanUp()
  client.used.clear()
}

export const CASES = []

/** Add a case: a rule as users see it, what it needs, and the function that tries it. */
export function test(name, rule, run, { needs = [], modes = ['url', 'domain'] } = {}) {
  CASES.push({ name, rule, run, needs, modes })
}

export const ALL = ['url', 'domain', 'debug']

export const sleep = (ms) => new Promise((done) => setTimeout(done, ms))

/** Look until what is seen is true; returns it. */
export async function eventually(look, what, timeoutMs = 10_000) {
  const deadline = performance.now() + timeoutMs
  for (;;) {
    const seen = await look()
    if (seen) return seen
    assert(performance.now() < deadline, `${what}: not within ${timeoutMs} ms`)
    await sleep(50)
  }
}

/** Expect an error whose class, or a base of it, has one of these names; returns it. */
export async function throws(names, run, containing = '') {
  try {
    await run()
  } catch (error) {
    const bases = []
    for (let at = error.constructor; at?.name; at = Object.getPrototypeOf(at)) bases.push(at.name.replace(/^_|\d+$/g, ''))
    assert(bases.some((base) => names.includes(base)), `${bases[0]} instead of ${names}: ${error}`)
    assert(String(error).includes(containing), `${containing} is not in: ${error}`)
    return error
  }
  assert.fail(`nothing was thrown; expected ${names}`)
}

function limited(promise) {
  let timer
  const late = new Promise((_, fail) => {
    timer = setTimeout(() => fail(new Error(`took longer than ${CASE_TIMEOUT_MS} ms`)), CASE_TIMEOUT_MS)
  })
  return Promise.race([promise, late]).finally(() => clearTimeout(timer))
}

async function runCase(client, each) {
  const outcome = { case: each.name, rule: each.rule, outcome: 'passed', seconds: 0, detail: '' }
  const missing = each.needs.filter((need) => !client.has(need))
  if (missing.length) return { ...outcome, outcome: 'skipped', detail: `this generation has no ${missing}` }
  if (!each.modes.includes(client.mode)) {
    return { ...outcome, outcome: 'skipped', detail: client.mode === 'debug' ? 'needs a sandbox of its own' : `not in mode ${client.mode}` }
  }
  const own = new Client(client.sdk, client.mode, client.used)
  const started = performance.now()
  try {
    await limited(each.run(own))
  } catch (error) {
    outcome.outcome = error instanceof Skipped ? 'skipped' : 'failed'
    outcome.detail = error instanceof Skipped ? error.message : String(error.stack ?? error).slice(0, 2000)
  }
  await own.cleanUp()
  outcome.seconds = Math.round(performance.now() - started) / 1000
  return outcome
}

/** Run cases, some at a time; returns their outcomes in the order of the table. */
export async function run(client, cases, jobs) {
  const outcomes = new Array(cases.length)
  let next = 0
  const work = async () => {
    while (next < cases.length) {
      const at = next++
      outcomes[at] = await runCase(client, cases[at])
    }
  }
  await Promise.all(Array.from({ length: client.mode === 'debug' ? 1 : jobs }, work))
  return outcomes
}

/** Report the public methods that no case called. */
export function untouched(client) {
  const missing = [...client.methods()].filter((name) => !client.used.has(name) && !(name in NOT_CALLED)).sort()
  const rule = 'Every public method of the SDK is called by a case.'
  return { case: 'every_method', rule, outcome: missing.length ? 'failed' : 'passed', seconds: 0, detail: missing.join(', ') }
}
