"""I: the server itself is killed, stopped and starved of whoever reads its log; real processes, real sandboxes."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.security.catalogue import row
from tests.server.conftest import KEY
from tests.server.processes import SECONDS, Served, served, token_of


@row("I02", "the next server has the sandbox, its variables and its files; a deleted one leaves nothing")
@pytest.mark.parametrize("running", [False, True])
def test_i02_the_server_is_killed(tmp_path: Path, running: bool):
    """``kill -9``, at rest and in the middle of an execution: whoever comes back with the same id and token goes on."""
    with served(tmp_path, keep=True) as server:
        id = server.create()
        token = token_of(server, id)
        server.run(id, "x = 42\nopen('kept', 'w').write('file')", token)
        if running:
            connection = server.connect()
            code = json.dumps(
                {"code": "import time\nprint('begun', flush=True)\nwhile True: time.sleep(0.01)"}
            )
            connection.request(
                "POST", "/execute", code, {"E2b-Sandbox-Id": id, "E2b-Sandbox-Port": "49999"} | token
            )
            reply = connection.getresponse()
            while b"begun" not in reply.readline():
                pass
        server.end(signal.SIGKILL)
        if running:
            connection.close()
    with served(tmp_path) as server:
        assert b'"text":"[42, \'file\']"' in server.run(id, "[x, open('kept').read()]", token)
        assert server.ask("DELETE", f"/sandboxes/{id}", x_api_key=KEY)[0] == 204
        assert server.ask("GET", f"/sandboxes/{id}", x_api_key=KEY)[0] == 404


@row("I10", "lines are dropped and counted, the server goes on")
def test_i10_nobody_reads_the_log(tmp_path: Path):
    """A log whose pipe is full stops no request."""
    command = [sys.executable, "-m", "cellfork.cli.main", "serve", "--port", "0", "--json", "--no-warm"]
    with subprocess.Popen(
        [*command, "--state", "none", "--api-key", KEY],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    ) as process:
        assert process.stdout is not None
        server = Served(process, json.loads(process.stdout.readline()))
        for _ in range(1500):
            assert server.ask("GET", "/nothing")[0] == 401 or server.ask("GET", "/health")[0] == 200
        process.terminate()
        process.communicate(timeout=SECONDS)
    assert process.returncode == 0


@row("I18", "running requests end and are answered, new ones find nobody, exit code 0")
def test_i18_term_under_load(tmp_path: Path):
    """A signal in the middle of many executions: each that was begun is whole, or visibly cut off."""
    with served(tmp_path, "--drain", "20s") as server:
        id = server.create()
        token = token_of(server, id)
        headers = {"E2b-Sandbox-Id": id, "E2b-Sandbox-Port": "49999"} | token
        connections = [server.connect() for _ in range(6)]
        for connection in connections:
            connection.request(
                "POST", "/execute", json.dumps({"code": "import time; time.sleep(0.2); 'done'"}), headers
            )
        time.sleep(0.3)
        server.process.send_signal(signal.SIGTERM)
        for connection in connections:
            body = connection.getresponse().read()
            assert b"done" in body
            assert b"end_of_execution" in body
            connection.close()
        assert server.process.wait(SECONDS) == 0
