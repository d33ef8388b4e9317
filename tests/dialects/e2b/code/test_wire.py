"""``/execute`` on a real socket: what leaves when, what a slow client costs, how a torn stream looks."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx2
import pytest

from cellfork.testing.fakes import FakeGuest, FakeRuntime
from tests.served import KEY, Served, served


@dataclass
class Plane:
    """A sandbox of a server that runs."""

    server: Served
    runtime: FakeRuntime
    id: str
    token: str

    @property
    def guest(self) -> FakeGuest:
        return self.runtime.guests[0]

    @contextmanager
    def execute(self, code: str) -> Iterator[socket.socket]:
        """Send a request; what comes back is the caller's."""
        host, port = self.server.url.removeprefix("http://").split(":")
        body = json.dumps({"code": code, "context_id": None, "language": None, "env_vars": None}).encode()
        head = (
            f"POST /execute HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
            f"e2b-sandbox-id: {self.id}\r\ne2b-sandbox-port: 49999\r\nx-access-token: {self.token}\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        with socket.create_connection((host, int(port))) as connection:
            connection.settimeout(10)
            connection.sendall(head.encode() + body)
            yield connection

    def say(self, text: str) -> None:
        self.server.run(self.guest.kernels[1].stdout, text)

    def until_running(self) -> None:
        deadline = time.monotonic() + 5
        while not (self.guest.kernels and self.guest.kernels[1].execution) and time.monotonic() < deadline:
            time.sleep(0.001)


@pytest.fixture
def plane() -> Iterator[Plane]:
    runtime = FakeRuntime()
    with served({"fake": runtime}) as server:
        answer = httpx2.post(
            server.url + "/v2/sandboxes", json={"templateID": "t"}, headers={"x-api-key": KEY}
        ).json()
        yield Plane(server, runtime, answer["sandboxID"], answer["envdAccessToken"])


def read_until(connection: socket.socket, text: bytes) -> bytes:
    got = b""
    while text not in got:
        piece = connection.recv(65536)
        assert piece, got
        got += piece
    return got


def test_a_line_leaves_at_once(plane: Plane):
    """Each line of a running cell is on the wire before the next one is written."""
    with plane.execute("hang") as connection:
        plane.until_running()
        read_until(connection, b"number_of_executions")
        for number in range(20):
            begun = time.monotonic()
            plane.say(f"line {number}\n")
            read_until(connection, f"line {number}".encode())
            assert time.monotonic() - begun < 1


def test_a_whole_answer_has_its_length(plane: Plane):
    """Short code is one answer of known length on a connection that stays open."""
    with plane.execute("7") as connection:
        got = read_until(connection, b"end_of_execution")
    assert b"content-length" in got.lower()
    assert b"chunked" not in got.lower()


@pytest.mark.parametrize("before", ["", "text\n"])
def test_a_kill_tears_the_connection(plane: Plane, before: str):
    """The connection ends without the final chunk, and what was written before has arrived."""
    with plane.execute("hang") as connection:
        plane.until_running()
        got = read_until(connection, b"number_of_executions")
        if before:
            plane.say(before)
            got += read_until(connection, b"text")
        plane.server.run(plane.server.engine.kill, plane.id)
        try:
            while piece := connection.recv(65536):
                got += piece
        except ConnectionResetError:
            pass
    assert b"\r\n0\r\n\r\n" not in got
    assert b"end_of_execution" not in got
    health = httpx2.get(
        plane.server.url + "/health", headers={"e2b-sandbox-id": plane.id, "e2b-sandbox-port": "49983"}
    )
    assert (health.status_code, health.json()["message"]) == (502, "The sandbox was not found")


def test_a_client_that_leaves_is_noticed(plane: Plane):
    """When the connection is closed the cell is interrupted, without waiting for a keepalive."""
    with plane.execute("hang") as connection:
        plane.until_running()
        read_until(connection, b"number_of_executions")
    deadline = time.monotonic() + 3
    while not plane.guest.requests("interrupt") and time.monotonic() < deadline:
        time.sleep(0.005)
    assert plane.guest.requests("interrupt")


def test_a_client_that_does_not_read_holds_nobody_up(plane: Plane):
    """Code whose client does not read runs to its end; the lines wait, and arrive when they are read."""
    with plane.execute("hang") as connection:
        plane.until_running()
        for number in range(150):
            plane.say(f"{number} " + "x" * 60_000 + "\n")
        plane.server.run(plane.guest.kernels[1].done)
        time.sleep(0.2)
        running = plane.server.engine.get(plane.id)._executions
        assert [execution.state for execution in running] == ["ended"]
        got = read_until(connection, b"0\r\n\r\n")
    assert got.count(b"x" * 59_000) == 150
    assert b"end_of_execution" in got
