"""What init's services share: how requests are read and answered, and long work in short steps.

A service offers ``operations()``: the name of an operation → a handler, called with the request's header
and body.  A handler returns the reply's result, raises an error of :data:`~cellfork.model.errors.GUEST_ERRORS`
to refuse, or returns ``None`` when the reply is sent later.
"""

import os
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from cellfork.guest.link import HostLink
from cellfork.guest.loop import Loop
from cellfork.model.errors import CODES, CellforkError, InternalError, InvalidRequest

Result = dict[str, Any]
Handler = Callable[[dict[str, Any], bytes], Result | None]
T = TypeVar("T")
Work = Generator[None, None, T]
"""Work that yields wherever other work may run, and returns its outcome."""

_END = object()


class Turns:
    """Runs jobs side by side, one step of each whenever it is their turn in the loop.

    ``loop.later(0, …)`` would not do: a timer that is due at once runs before descriptors are looked at again.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._always_readable = os.eventfd(1, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._jobs: list[Work[None]] = []

    def start(self, job: Work[None]) -> None:
        """Run ``job`` until it returns.  It answers for its own errors."""
        if not self._jobs:
            self._loop.watch(self._always_readable, self._step)
        self._jobs.append(job)

    def forget(self) -> None:
        """End every job where it is."""
        self._loop.unwatch(self._always_readable)
        for job in self._jobs:
            job.close()
        self._jobs.clear()

    def close(self) -> None:
        """End every job where it is and give the descriptor back."""
        self.forget()
        os.close(self._always_readable)

    def _step(self) -> None:
        for job in list(self._jobs):
            if next(job, _END) is _END:
                self._jobs.remove(job)
        if not self._jobs:
            self._loop.unwatch(self._always_readable)


def answering(link: HostLink, request: int, work: Work[Result]) -> Work[None]:
    """Do ``work``, then answer ``request`` with what it returned or raised."""
    try:
        result = yield from work
    except CellforkError as error:
        refuse(link, request, error)
    except Exception as error:  # noqa: BLE001 - whoever waits must hear of a bug as well
        refuse(link, request, InternalError(f"{type(error).__name__}: {error}"))
    else:
        reply(link, request, result)


def reply(link: HostLink, request: int, result: Result) -> None:
    """Answer ``request`` with its result."""
    link.send({"op": "reply", "id": request, "ok": True, "result": result})


def refuse(link: HostLink, request: int, error: CellforkError) -> None:
    """Answer ``request`` with an error; one that a guest may not answer with counts as internal."""
    code = error.code if error.code in CODES else InternalError.code
    link.send({"op": "reply", "id": request, "ok": False, "code": code, "message": str(error)})


def number(header: dict[str, Any], name: str, least: int = 0, most: int = 2**63 - 1) -> int:
    """Return a whole number of the request, or raise :class:`InvalidRequest`."""
    value = header.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidRequest(f"{name} is a whole number from {least} to {most}")
    return value


def flag(header: dict[str, Any], name: str) -> bool:
    """Return a truth value of the request (absent: false), or raise :class:`InvalidRequest`."""
    value = header.get(name, False)
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} is true or false")
    return value
