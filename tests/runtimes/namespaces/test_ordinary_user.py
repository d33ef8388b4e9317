"""The namespaces runtime without root: one host id, delegated control groups."""

import json
import subprocess
import textwrap
from collections.abc import Iterator

import pytest

from tests.ordinary import Ordinary, ordinary_user, possible

pytestmark = pytest.mark.skipif(possible() is not None, reason=str(possible()))


@pytest.fixture(scope="module")
def user() -> Iterator[Ordinary]:
    with ordinary_user() as user:
        yield user


def run(user: Ordinary, code: str, *, delegated: bool = True) -> subprocess.CompletedProcess[str]:
    argv = [user.python, "-c", textwrap.dedent(code)]
    return user.run(argv, delegated=delegated, capture_output=True, timeout=100)


PROGRAM = """
import json
from cellfork import Limits, Sandbox
with Sandbox.create(limits=Limits(memory="256M", pids=40)) as sandbox:
    facts = {"isolation": sandbox.isolation, "text": sandbox.run_code("40 + 2").text}
    sandbox.files.write("note.txt", "hello")
    facts["file"] = sandbox.run_code("print(open('note.txt').read())").logs.stdout
    facts["id"] = sandbox.commands.run("id -u; id -un").stdout
    facts["writes"] = sandbox.run_code("open('/usr/x', 'w')").error.name
    facts["memory"] = sandbox.run_code("x = [bytearray(1 << 20) for _ in range(2000)]").error.value[:6]
    facts["again"] = sandbox.run_code("1 + 1").text
    facts["network"] = sandbox.run_code("import socket; socket.create_connection(('192.0.2.1', 80), 5)").error.value
print(json.dumps(facts))
"""


def test_the_same_sandbox_for_an_ordinary_user(user):
    """With user namespaces and delegated groups, an ordinary user gets the same isolation and limits as root."""
    done = run(user, PROGRAM)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts == {
        "isolation": "namespaces",
        "text": "42",
        "file": ["hello\n"],
        "id": "1000\nuser\n",
        "writes": "OSError",
        "memory": "memory",
        "again": "2",
        "network": "[Errno 101] Network is unreachable",
    }


def test_without_control_groups_limits_are_refused_not_forgotten(user):
    """Where no group can be made, a sandbox with limits is refused with what is missing and how to get it."""
    code = """
    from cellfork import IsolationUnavailable, Limits, Sandbox
    try:
        Sandbox.create()
    except IsolationUnavailable as error:
        print(sorted(m.feature for m in error.missing), "Delegate" in str(error))
    with Sandbox.create(limits=Limits(memory=None, cpu=None, pids=None)) as sandbox:
        print(sandbox.run_code("6 * 7").text)
    """
    done = run(user, code, delegated=False)
    assert done.stdout.splitlines() == ["['cgroup cpu', 'cgroup memory', 'cgroup pids'] True", "42"], (
        done.stderr
    )


PORTS = """
import asyncio, json
from cellfork.engine.engine import Engine
from cellfork.model.specs import ExecuteRequest, SandboxSpec
from cellfork.runtimes.namespaces.runtime import NamespacesRuntime

async def main():
    engine = Engine({"namespaces": NamespacesRuntime(pool=0)})
    sandbox = await engine.create(SandboxSpec())
    await sandbox.run(None, ExecuteRequest("import socket; listener = socket.create_server(('127.0.0.1', 8000))"))
    stream = await sandbox.connect(8000)
    await stream.send(b"hello")
    heard = await sandbox.run(None, ExecuteRequest("listener.accept()[0].recv(9)"))
    stream.close()
    listener = await sandbox.listen(49999)
    run = asyncio.create_task(sandbox.run(None, ExecuteRequest("socket.create_connection(('127.0.0.1', 49999)).recv(9)")))
    with await listener.accept() as connection:
        await asyncio.get_running_loop().sock_sendall(connection, b"host")
    print(json.dumps([heard.text, (await run).text]))
    listener.close()
    await engine.aclose()

asyncio.run(main())
"""


def test_ports(user: Ordinary):
    """Init hands sockets over, and the host can tell that they are of the sandbox's network, without root as well."""
    done = run(user, PORTS)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["b'hello'", "b'host'"]
