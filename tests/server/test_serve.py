"""``cellfork serve`` as a process: what it prints, how it ends, what it leaves."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cellfork.cli.exits import Exit
from tests.server.conftest import KEY
from tests.server.processes import SECONDS, served, token_of


def test_it_tells_what_clients_need(tmp_path: Path):
    """With ``--json``, one line tells the real address and the key that was made; the key works."""
    with served(tmp_path, CELLFORK_API_KEY="") as server:
        told = server.told
        assert told["url"] == f"http://127.0.0.1:{told['port']}"
        assert told["api_key"].startswith("e2b_")
        assert server.ask("GET", "/v2/sandboxes", x_api_key=told["api_key"]) == (200, b"[]")
        assert server.ask("GET", "/v2/sandboxes", x_api_key=KEY)[0] == 401
    with served(tmp_path, CELLFORK_API_KEY="") as server:
        assert server.told["api_key"] is None  # told once
        assert server.ask("GET", "/v2/sandboxes", x_api_key=told["api_key"])[0] == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_requests_end(tmp_path: Path, number: signal.Signals):
    """A signal ends the server with 0; what runs is finished and answered, what comes later finds nobody."""
    with served(tmp_path) as server:
        id = server.create()
        connection = server.connect()
        code = "import time\nprint('begun', flush=True)\ntime.sleep(1)\nprint('done')"
        connection.request(
            "POST", "/execute", json.dumps({"code": code}), {"E2b-Sandbox-Id": id, "E2b-Sandbox-Port": "49999"} | token_of(server, id)
        )  # fmt: skip
        reply = connection.getresponse()
        while b"begun" not in reply.readline():
            pass
        server.process.send_signal(number)
        rest = reply.read()
        assert b"done" in rest
        assert b"end_of_execution" in rest
        connection.close()
        assert server.process.wait(SECONDS) == 0
        with pytest.raises(ConnectionRefusedError):
            server.ask("GET", "/health")


def test_draining_is_bounded(tmp_path: Path):
    """A request that goes on for longer than the drain is aborted, without the final chunk, and the server ends with 0."""
    with served(tmp_path, "--drain", "300ms") as server:
        id = server.create()
        connection = server.connect()
        connection.request(
            "POST", "/execute", json.dumps({"code": "import time\nprint('begun', flush=True)\ntime.sleep(60)"}),
            {"E2b-Sandbox-Id": id, "E2b-Sandbox-Port": "49999"} | token_of(server, id),
        )  # fmt: skip
        reply = connection.getresponse()
        while b"begun" not in reply.readline():
            pass
        started = time.monotonic()
        assert server.end() == 0
        assert time.monotonic() - started < 10
        with pytest.raises((OSError, EOFError, Exception)) as broken:
            if b"end_of_execution" not in reply.read():
                raise EOFError
        assert broken.value is not None
        connection.close()
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_a_second_signal_ends_at_once(tmp_path: Path):
    """Whoever asks twice is not kept waiting, and nothing of the sandboxes is left."""
    with served(tmp_path, "--drain", "1m", "--state", "none") as server:
        id = server.create()
        connection = server.connect()
        connection.request(
            "POST", "/execute", json.dumps({"code": "import time\nprint('begun', flush=True)\ntime.sleep(60)"}),
            {"E2b-Sandbox-Id": id, "E2b-Sandbox-Port": "49999"} | token_of(server, id),
        )  # fmt: skip
        reply = connection.getresponse()
        while b"begun" not in reply.readline():
            pass
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert server.process.poll() is None
        assert server.end(signal.SIGINT) == Exit.INTERRUPTED
        connection.close()


def test_sandboxes_outlive_a_server_that_was_told_to_end(tmp_path: Path):
    """After a signal, the next server on the same state directory has the sandboxes, with their variables."""
    with served(tmp_path, keep=True) as server:
        id = server.create()
        token = token_of(server, id)
        assert b"end_of_execution" in server.run(id, "x = 42", token)
        server.end(signal.SIGTERM)
    with served(tmp_path) as server:
        assert server.run(id, "x", token).count(b'"text":"42"') == 1
        assert server.ask("DELETE", f"/sandboxes/{id}", x_api_key=KEY)[0] == 204


def test_one_server_at_a_time(tmp_path: Path):
    """A second server on a state directory is refused, and takes nothing from the first."""
    with served(tmp_path, keep=True) as server:
        id = server.create()
        command = [
            sys.executable,
            "-m",
            "cellfork.cli.main",
            "serve",
            "--port",
            "0",
            "--no-warm",
            "--api-key",
            KEY,
        ]
        env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
        ended = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=SECONDS, cwd=tmp_path, check=False
        )
        assert ended.returncode == Exit.USAGE
        assert "Traceback" not in ended.stderr
        assert server.ask("DELETE", f"/sandboxes/{id}", x_api_key=KEY)[0] == 204


def test_a_port_that_is_taken_is_a_plain_error(tmp_path: Path):
    """Where the port is taken, the server says so and ends with the code for wrong usage."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        command = [
            sys.executable,
            "-m",
            "cellfork.cli.main",
            "serve",
            "--state",
            "none",
            "--port",
            str(taken.getsockname()[1]),
        ]
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, cwd=tmp_path, check=False
        )
    assert ended.returncode == Exit.USAGE
    assert "cannot listen on 127.0.0.1" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_keys_are_nowhere_but_with_their_owner(tmp_path: Path):
    """Keys and tokens are in no line of the log, at any level, and not in the environment or arguments of a sandbox."""
    with served(tmp_path, "--log-level", "debug") as server:
        status, body = server.ask("POST", "/v2/sandboxes", json.dumps({"templateID": "base"}), x_api_key=KEY)
        made = json.loads(body)
        tokens = [made["envdAccessToken"], made.get("trafficAccessToken"), KEY]
        code = "import os, subprocess\nprint(os.environ)\nprint(open('/proc/1/environ', 'rb').read())\nprint(subprocess.run(['cat', '/proc/1/cmdline'], capture_output=True).stdout)"
        headers = {
            "e2b_sandbox_id": made["sandboxID"],
            "e2b_sandbox_port": "49999",
            "x_access_token": made["envdAccessToken"],
        }
        status, inside = server.ask("POST", "/execute", json.dumps({"code": code}), **headers)
        assert status == 200
        server.ask("GET", f"/files?path=/x&signature=v1_{KEY}", **{**headers, "e2b_sandbox_port": "49983"})
        server.ask("GET", f"/sandboxes/{KEY}", x_api_key=KEY, authorization=f"Bearer {KEY}")
        for token in filter(None, tokens):
            assert token.encode() not in inside
        assert server.end() == 0
    log = (tmp_path / "log").read_text()
    assert "request" in log
    for token in filter(None, tokens):
        assert token not in log
