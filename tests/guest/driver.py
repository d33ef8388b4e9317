"""A host and an init in one thread, for tests of init's services."""

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from cellfork.guest.link import HostLink
from cellfork.guest.loop import Loop
from cellfork.guest.services import Handler
from cellfork.model.errors import CellforkError, from_code
from cellfork.wire.frames import Decoder, Frame, encode
from cellfork.wire.messages import check_from_guest

TIMEOUT = 60.0


class RecordingLink(HostLink):
    """Keeps what would be sent: every frame is encoded, decoded and checked as the host would."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.max_header = 0
        self._decoder = Decoder()

    def send(self, header: dict[str, Any], body: bytes = b"", channel: int = 0) -> None:
        for frame in self._decoder.feed(encode(header, body, channel)):
            check_from_guest(frame)
            self.frames.append(frame)


class Driver:
    """Calls the operations of services and turns their loop."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.link = RecordingLink()
        self.exited: Callable[[int, int], object] = lambda _pid, _status: None
        self._operations: dict[str, Handler] = {}
        self._last_id = 0
        self._reaping = False

    def serve(self, operations: Mapping[str, Handler]) -> None:
        self._operations |= operations

    def reap_for(self, exited: Callable[[int, int], object]) -> None:
        self.exited = exited
        self._reaping = True

    def begin(self, op: str, body: bytes = b"", /, **fields: Any) -> int:
        """Call an operation as init does; return the id of the request."""
        self._last_id += 1
        request = self._last_id
        try:
            result = self._operations[op]({"op": op, "id": request, **fields}, body)
        except CellforkError as error:
            self.link.send(
                {"op": "reply", "id": request, "ok": False, "code": error.code, "message": str(error)}
            )
        else:
            if result is not None:
                self.link.send({"op": "reply", "id": request, "ok": True, "result": result})
        return request

    def call(self, op: str, body: bytes = b"", /, **fields: Any) -> dict[str, Any]:
        """Call an operation, return its result or raise its error."""
        return self.result(self.begin(op, body, **fields))

    def result(self, request: int) -> dict[str, Any]:
        answer = self.wait(lambda: self.answer(request))
        assert answer is not None
        if answer.header["ok"]:
            result: dict[str, Any] = answer.header["result"]
            return result
        raise from_code(answer.header["code"], answer.header["message"])

    def answer(self, request: int) -> Frame | None:
        answers = [f for f in self.link.frames if f.header["op"] == "reply" and f.header["id"] == request]
        assert len(answers) <= 1, "a request has one answer"
        return answers[0] if answers else None

    def wait(self, condition: Callable[[], Any], timeout: float = TIMEOUT) -> Any:
        """Turn the loop until ``condition`` holds; return what it gave."""
        deadline = time.monotonic() + timeout
        while not (value := condition()):
            assert time.monotonic() < deadline, f"nothing came; frames: {self.link.frames[-5:]}"
            self.turn()
        return value

    def turn(self, timeout: float = 0.01) -> None:
        self.loop.run_once(timeout)
        while self._reaping:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.exited(pid, status)

    def turn_for(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.turn()

    def frames(self, op: str, **fields: Any) -> list[Frame]:
        return [
            frame
            for frame in self.link.frames
            if frame.header["op"] == op
            and all(frame.header.get(name) == value for name, value in fields.items())
        ]

    def body(self, op: str, **fields: Any) -> bytes:
        return b"".join(frame.body for frame in self.frames(op, **fields))

    def close(self) -> None:
        self.loop.close()
