// Cases over OpenSandbox's JavaScript package, whose directory of modules is the argument.
// OPEN_SANDBOX_DOMAIN and OPEN_SANDBOX_API_KEY tell where the server is.  Exits with 1 where a case failed.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(pathToFileURL(`${process.argv[2]}/`));
const name = "@alibaba-group/opensandbox";
const { ConnectionConfig, Sandbox, SandboxManager } = await import(pathToFileURL(require.resolve(name)));
const { version } = JSON.parse(readFileSync(`${process.argv[2]}/node_modules/${name}/package.json`, "utf8"));

const image = "opensandbox/code-interpreter:latest";
const resource = { cpu: "1", memory: "512Mi" };
const cases = [];
const rule = (title, run) => cases.push({ title, run });

async function withSandbox(config, options, body) {
  const sandbox = await Sandbox.create({ connectionConfig: config, image, resource, timeoutSeconds: 300, ...options });
  try {
    return await body(sandbox);
  } finally {
    await sandbox.kill();
    await sandbox.close();
  }
}

rule("a sandbox runs when it was created, and tells what it was asked for", (config) =>
  withSandbox(config, { metadata: { tag: "js" }, env: { WHO: "me" } }, async (sandbox) => {
    const info = await sandbox.getInfo();
    assert.equal(info.status.state, "Running");
    assert.equal(info.metadata.tag, "js");
    const ran = await sandbox.commands.run("echo $WHO");
    assert.deepEqual(ran.logs.stdout.map((line) => line.text), ["me"]);
    assert.equal(ran.error, undefined);
  }));

rule("a failing command tells its exit code", (config) =>
  withSandbox(config, {}, async (sandbox) => {
    const ran = await sandbox.commands.run("echo out; echo err >&2; exit 3");
    assert.deepEqual(ran.logs.stderr.map((line) => line.text), ["err"]);
    assert.equal(ran.error.value, "3");
    assert.equal(ran.complete, undefined);
  }));

rule("files are written, read, found and deleted", (config) =>
  withSandbox(config, {}, async (sandbox) => {
    await sandbox.files.createDirectories([{ path: "/home/user/place", mode: 755 }]);
    await sandbox.files.writeFiles([
      { path: "/home/user/place/a.txt", data: "one" },
      { path: "/home/user/place/b.txt", data: "two" },
    ]);
    assert.equal(await sandbox.files.readFile("/home/user/place/b.txt"), "two");
    const found = await sandbox.files.search({ path: "/home/user/place", pattern: "*.txt" });
    assert.equal(found.length, 2);
    await sandbox.files.deleteFiles(["/home/user/place/a.txt"]);
    await assert.rejects(sandbox.files.readFile("/home/user/place/a.txt"));
  }));

rule("the manager lists, pauses and resumes", async (config) => {
  const tag = `js-${process.pid}-${Date.now()}`;
  const manager = SandboxManager.create({ connectionConfig: config });
  await withSandbox(config, { metadata: { tag } }, async (sandbox) => {
    await manager.pauseSandbox(sandbox.id);
    const paused = await manager.listSandboxInfos({ states: ["Paused"], metadata: { tag } });
    assert.deepEqual(paused.items.map((item) => item.id), [sandbox.id]);
    await manager.resumeSandbox(sandbox.id);
    assert.equal((await manager.getSandboxInfo(sandbox.id)).status.state, "Running");
  });
  await manager.close();
});

rule("the network policy is seen and changed", (config) =>
  withSandbox(
    config,
    { networkPolicy: { defaultAction: "deny", egress: [{ action: "allow", target: "one.example.com" }] } },
    async (sandbox) => {
      await sandbox.patchEgressRules([{ action: "allow", target: "two.example.com" }]);
      const policy = await sandbox.getEgressPolicy();
      assert.deepEqual(policy.egress.map((each) => each.target), ["two.example.com", "one.example.com"]);
    },
  ));

rule("what cannot be had is refused with a code, a message and the id of the request", async (config) => {
  await assert.rejects(
    Sandbox.create({ connectionConfig: config, image: "example.com/unknown:1", resource, timeoutSeconds: 300 }),
    (error) => /stands for no template/.test(error.message) && Boolean(error.requestId),
  );
});

let failed = 0;
for (const useServerProxy of [false, true]) {
  for (const { title, run } of cases) {
    try {
      await run(new ConnectionConfig({ useServerProxy, requestTimeoutSeconds: 60 }));
      console.log(`passed ${title}`);
    } catch (error) {
      failed += 1;
      console.log(`FAILED ${title}\n${error.stack}`);
    }
  }
}
console.log(`${2 * cases.length - failed} of ${2 * cases.length} cases passed (${name} ${version})`);
process.exit(failed ? 1 : 0);
