"""The server is killed with ``kill -9``: its clients go on with the next one, with the ids and tokens that they have."""

import json
import os
import struct
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.held import held
from tests.server.conftest import KEY
from tests.server.processes import Served, served

from .kept import doors, groups, nothing_is_left, processes
from .programs import alive

SECONDS = 5
"""In which the next server has to listen, with everything adopted."""
WAITS = "echo before; while [ ! -e /tmp/go ]; do sleep 0.05; done; echo after; echo wrong >&2; exit 7"
RUNS = "import time; more = 2; open('/tmp/began', 'w').close(); time.sleep(600); never = 1"
STAYS = ["id", "lock", "records.sqlite"]
"""Files of a state directory that belong to no sandbox."""
END = 2
"""Flags of the last message of a stream."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="control groups of the state directory need root")


class Client:
    """E2B's wire with nothing around it; what it knows of sandboxes outlives the servers."""

    def __init__(self) -> None:
        self._http: httpx2.Client

    def go_to(self, server: Served) -> None:
        self.close()
        self._http = httpx2.Client(base_url=server.told["url"], timeout=30)

    def close(self) -> None:
        if hasattr(self, "_http"):
            self._http.close()

    def call(self, method: str, path: str, **body: Any) -> httpx2.Response:
        content: dict[str, Any] = {"json": body} if body else {}
        return self._http.request(method, path, headers={"X-API-KEY": KEY}, **content)

    def create(self, **fields: Any) -> "Sandbox":
        answer = self.call("POST", "/v2/sandboxes", templateID="base", timeout=600, **fields)
        assert answer.status_code == 201, answer.text
        return Sandbox(self, answer.json())

    @contextmanager
    def stream(self, path: str, headers: dict[str, str], content: bytes) -> Iterator[Iterator[bytes]]:
        with self._http.stream("POST", path, headers=headers, content=content) as answer:
            assert answer.status_code == 200, answer.read()
            yield answer.iter_bytes()

    def post(self, path: str, headers: dict[str, str], content: bytes) -> httpx2.Response:
        return self._http.post(path, headers=headers, content=content)


class Sandbox:
    """An id and a token."""

    def __init__(self, client: Client, told: dict[str, Any]) -> None:
        self.client = client
        self.id, self.token = told["sandboxID"], told["envdAccessToken"]

    def to(self, port: int, kind: str = "application/json") -> dict[str, str]:
        return {
            "E2b-Sandbox-Id": self.id,
            "E2b-Sandbox-Port": str(port),
            "X-Access-Token": self.token,
            "Content-Type": kind,
        }

    def call(self, method: str, path: str, **body: Any) -> Any:
        answer = self.client.call(method, f"/sandboxes/{self.id}{path}", **body)
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else None

    def run(self, code: str) -> str:
        """Run code; return what it printed, and the name of its error."""
        answer = self.client.post("/execute", self.to(49999), json.dumps({"code": code}).encode())
        assert answer.status_code == 200, answer.text
        lines = [json.loads(line) for line in answer.text.splitlines()]
        assert lines[-1]["type"] == "end_of_execution", lines
        texts = [line["text"] for line in lines if line["type"] == "stdout"]
        return "".join([*texts, *(line["name"] for line in lines if line["type"] == "error")]).strip()

    @contextmanager
    def process(self, method: str, **message: Any) -> Iterator[Iterator[dict[str, Any]]]:
        """Follow a process: its events, as they come."""
        data = json.dumps(message).encode()
        headers = self.to(49983, "application/connect+json")
        content = struct.pack(">BI", 0, len(data)) + data
        with self.client.stream(f"/process.Process/{method}", headers, content) as pieces:
            yield (message["event"] for message in messages(pieces))

    def pids(self) -> list[int]:
        answer = self.client.post("/process.Process/List", self.to(49983), b"{}")
        return [process["pid"] for process in answer.json()["processes"]]

    def read(self, path: str) -> str:
        answer = self.client._http.get("/files", params={"path": path}, headers=self.to(49983))
        assert answer.status_code == 200, answer.text
        return answer.text


def messages(pieces: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the messages of a Connect stream, as far as its end."""
    data = b""
    for piece in pieces:
        data += piece
        while len(data) >= 5 and len(data) >= 5 + struct.unpack(">I", data[1:5])[0]:
            flags, size = struct.unpack(">BI", data[:5])
            message, data = json.loads(data[5 : 5 + size]), data[5 + size :]
            if flags == END:
                assert message == {}
                return
            yield message


def text(data: str) -> str:
    return b64encode(data.encode()).decode()


def torn(sandbox: Sandbox, code: str) -> threading.Thread:
    """Run code in a thread that ends well only when the connection breaks under it."""

    def run() -> None:
        with pytest.raises(httpx2.TransportError):
            sandbox.run(code)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def wait_for_file(sandbox: Sandbox, path: str) -> None:
    deadline = time.monotonic() + 10
    headers = sandbox.to(49983)
    while sandbox.client._http.get("/files", params={"path": path}, headers=headers).status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def client() -> Iterator[Client]:
    made = Client()
    yield made
    made.close()


def test_clients_go_on(tmp_path: Path, client: Client):
    """Ids and tokens, variables, files, a command's output and exit code, both kinds of pause outlive the server.

    What ran is interrupted, the next server listens within seconds, and what is ended there leaves nothing behind: no
    process, control group, socket or file.
    """
    state = tmp_path / "state"
    arguments = ("--state", str(state), "--log-level", "warning")
    with served(tmp_path, *arguments, keep=True) as server:
        client.go_to(server)
        busy, quiet, asleep, packed = everything = [client.create() for _ in range(4)]
        for number, sandbox in enumerate(everything):
            sandbox.run(f"x = {number}; open('/home/user/note', 'w').write('note {number}')")
        with busy.process("Start", process={"cmd": "/bin/sh", "args": ["-c", WAITS]}) as events:
            pid = next(events)["start"]["pid"]
            assert next(events) == {"data": {"stdout": text("before\n")}}
        asleep.call("POST", "/pause")
        packed.call("POST", "/pause", memory=False)
        cell = torn(busy, RUNS)
        wait_for_file(busy, "/tmp/began")
        killed = time.monotonic()
        server.process.kill()
        server.process.wait()
        cell.join(10)
        assert not cell.is_alive()
    left = processes(state)
    assert left  # they wait

    with served(tmp_path, *arguments) as server:
        assert time.monotonic() - killed < SECONDS
        client.go_to(server)
        listed = client.call("GET", "/v2/sandboxes?state=running,paused").json()
        assert {told["sandboxID"]: told["state"] for told in listed} == {
            busy.id: "running",
            quiet.id: "running",
            asleep.id: "paused",
            packed.id: "paused",
        }
        assert quiet.run("print(x)") == "1"
        assert quiet.read("note") == "note 1"
        assert busy.run("print(x, more, 'never' in globals())") == "0 2 False"
        wrong = client.post("/execute", {**busy.to(49999), "X-Access-Token": quiet.token}, b'{"code": "1"}')
        assert wrong.status_code == 401

        assert busy.pids() == [pid]
        with busy.process("Connect", process={"pid": pid}) as events:
            assert next(events) == {"start": {"pid": pid}}
            busy.run("open('/tmp/go', 'w').close()")
            *output, end = [event for event in events if "keepalive" not in event]
        assert {"data": {"stdout": text("after\n")}} in output
        assert {"data": {"stderr": text("wrong\n")}} in output
        assert end["end"]["exitCode"] == 7

        asleep.call("POST", "/connect", timeout=600)
        assert asleep.run("print(x)") == "2"
        packed.call("POST", "/connect", timeout=600)
        assert packed.run("print(x)") == "NameError"
        assert packed.read("note") == "note 3"

        packed.call("POST", "/pause", memory=False)  # ends as a file
        left |= processes(state)
        busy.call("DELETE", "")
        gone = client.call("GET", f"/sandboxes/{busy.id}")
        assert gone.status_code == 404
        packed.call("DELETE", "")
        client.close()
        assert server.end() == 0  # and with it quiet and asleep
    nothing_is_left(state)
    assert not alive(left)
    assert (groups(state), doors(state)) == ([], [])
    assert sorted(path.name for path in state.rglob("*") if not path.is_dir()) == STAYS


def test_nothing_is_told_before_it_is_kept(tmp_path: Path, client: Client):
    """An answer comes when the next server would know what it tells: a first run's context, a new deadline, a removal."""
    state = tmp_path / "state"
    arguments = ("--state", str(state), "--log-level", "warning")
    with served(tmp_path, *arguments, keep=True) as server:
        client.go_to(server)
        fresh, used = client.create(), client.create()
        headers = used.to(49999)
        context = client.post("/contexts", headers, b"{}").json()["id"]
        answers: list[Any] = []
        requests: list[Callable[[], Any]] = [
            lambda: fresh.run("x = 1"),
            lambda: used.call("POST", "/timeout", timeout=4321),
            lambda: client._http.delete(f"/contexts/{context}", headers=headers).raise_for_status(),
        ]
        threads = [threading.Thread(target=lambda ask=ask: answers.append(ask())) for ask in requests]
        with held(state / "records.sqlite"):
            for thread in threads:
                thread.start()
            time.sleep(0.5)
            assert answers == []
        for thread in threads:
            thread.join(10)
        server.process.kill()
        server.process.wait()
        assert len(answers) == len(requests)
    with served(tmp_path, *arguments) as server:
        client.go_to(server)
        assert fresh.run("print(x)") == "1"
        assert context not in client._http.get("/contexts", headers=headers).text
        told = client.call("GET", f"/sandboxes/{used.id}").json()
        assert seconds_between(told["startedAt"], told["endAt"]) > 4000
        client.close()
        assert server.end() == 0


def seconds_between(first: str, second: str) -> float:
    return (datetime.fromisoformat(second) - datetime.fromisoformat(first)).total_seconds()
