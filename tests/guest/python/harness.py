"""Drives a kernel through init's handle on it, from the place of the host."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cellfork.wire.bundles import decode_bundle
from cellfork.wire.frames import Decoder, Frame, encode
from cellfork.wire.messages import check_from_guest

TIMEOUT = 30.0
KERNEL_PYTHON = os.environ.get("CELLFORK_KERNEL_PYTHON", sys.executable)
"""The interpreter of the image: another one's IPython can be tried with this variable (and PYTHONPATH)."""
KiB = 1024
MiB = 1024 * KiB


class Server:
    """The process with the prepared image."""

    def __init__(self) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {
            **os.environ,
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "IPYTHONDIR": os.environ["TMPDIR"] + "/ipython",
        }
        self.process = subprocess.Popen(
            [KERNEL_PYTHON, str(Path(__file__).with_name("server.py")), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        report = self.control.recv(65536)
        if not report:
            self.close()
            pytest.exit("the kernel's image could not be prepared; see stderr")
        self.report: dict[str, Any] = eval(report)

    def connect(self, cwd: str) -> socket.socket:
        ours, theirs = socket.socketpair()
        socket.send_fds(self.control, [cwd.encode()], [theirs.fileno()])
        theirs.close()
        return ours

    def close(self) -> None:
        self.control.close()
        self.process.wait(10)


@dataclass
class Ran:
    """What one execution sent."""

    frames: list[Frame]

    def bundle(self, frame: Frame) -> dict[str, Any]:
        return decode_bundle(frame.header["parts"], frame.body)

    def text_of(self, op: str) -> str:
        return b"".join(frame.body for frame in self.frames if frame.header["op"] == op).decode()

    @property
    def stdout(self) -> str:
        return self.text_of("stdout")

    @property
    def stderr(self) -> str:
        return self.text_of("stderr")

    @property
    def end(self) -> dict[str, Any]:
        return self.frames[-1].header

    @property
    def displays(self) -> list[dict[str, Any]]:
        return [self.bundle(frame) for frame in self.frames if frame.header["op"] == "display"]

    @property
    def result(self) -> dict[str, Any] | None:
        mains = [f for f in self.frames if f.header["op"] == "display" and f.header["main"]]
        assert len(mains) <= 1
        return self.bundle(mains[0]) if mains else None

    @property
    def text(self) -> str | None:
        return None if self.result is None else self.result["text/plain"]

    @property
    def error(self) -> dict[str, str]:
        """The error's ``name``, ``value`` and ``traceback``."""
        return {"name": self.end["name"], **self.bundle(self.frames[-1])}

    @property
    def order(self) -> list[tuple[str, Any]]:
        """The frames before the last: text as it is, joined with what follows it, bundles by their plain text."""
        told: list[tuple[str, Any]] = []
        for frame in self.frames[:-1]:
            op = frame.header["op"]
            if op in {"stdout", "stderr"} and told and told[-1][0] == op:
                told[-1] = (op, told[-1][1] + frame.body.decode())
            elif op in {"stdout", "stderr"}:
                told.append((op, frame.body.decode()))
            elif op in {"display", "update"}:
                told.append((op, self.bundle(frame).get("text/plain")))
            else:
                told.append((op, None))
        return told

    def ok(self) -> "Ran":
        """Itself, after a look that the code ran through."""
        assert self.end["op"] == "done" and self.end["status"] == "ok", (
            self.end,
            self.frames[-1].body,
            self.stderr,
        )
        return self


class Session:
    """The host's side of one kernel."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.connection.settimeout(TIMEOUT)
        self.decoder = Decoder()
        self.frames: list[Frame] = []
        self.number = 0

    def next(self) -> Frame:
        while not self.frames:
            data = self.connection.recv(1 << 20)
            if not data:
                raise EOFError("init is gone")
            self.frames.extend(self.decoder.feed(data))
        frame = self.frames.pop(0)
        if frame.channel:
            check_from_guest(frame)
        return frame

    def send(self, code: str | bytes, **options: Any) -> None:
        self.number += 1
        header = {
            "op": "execute",
            "execution": f"e{self.number}",
            "envs": {},
            "stdin": False,
            "output": 16 * MiB,
            "result": 32 * MiB,
            "silent": False,
            **options,
        }
        self.connection.sendall(encode(header, code if isinstance(code, bytes) else code.encode(), 1))

    def answer(self, text: str) -> None:
        self.connection.sendall(encode({"op": "input", "execution": f"e{self.number}"}, text.encode(), 1))

    def interrupt(self) -> None:
        self.connection.sendall(encode({"op": "interrupt"}))

    def terminate(self, signal: int = 9) -> None:
        self.connection.sendall(encode({"op": "terminate", "signal": signal}))

    def ping(self) -> dict[str, Any]:
        """Return the pids of init and of the kernel; only while nothing runs."""
        self.connection.sendall(encode({"op": "ping"}))
        return self.next().header

    def collect(self) -> Ran:
        frames = []
        while True:
            frame = self.next()
            assert frame.header.get("execution") == f"e{self.number}"
            frames.append(frame)
            if frame.header["op"] in {"done", "kernel_exit"}:
                return Ran(frames)

    def run(self, code: str | bytes, **options: Any) -> Ran:
        self.send(code, **options)
        return self.collect()

    def wait_for_text(self, text: str) -> list[Frame]:
        """Return the frames up to the one with which what was written ends in ``text``."""
        frames: list[Frame] = []
        while not b"".join(frame.body for frame in frames).endswith(text.encode()):
            frames.append(self.next())
        return frames


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@contextmanager
def session_on(server: Server, cwd: str) -> Iterator[Session]:
    session = Session(server.connect(cwd))
    try:
        yield session
    finally:
        session.connection.close()


@pytest.fixture
def session(server: Server, tmp_path: Path) -> Iterator[Session]:
    """A fresh kernel whose working directory is ``tmp_path``."""
    with session_on(server, str(tmp_path)) as opened:
        yield opened
