"""Names to addresses, in bounded time and number.

Each lookup has a thread of its own that nobody waits for longer than it may take: a resolver that does not
answer holds up neither the event loop, nor other work of this process, nor its end.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from ipaddress import ip_address
from typing import Protocol

from cellfork.runtimes.egress.addresses import Address

LOOKUP_SECONDS = 8.0
LOOKUPS = 32
MAX_ANSWERS = 64

Lookup = Callable[[str, int], list[str]]


class LookupFailed(Exception):
    """A name has no address, or nobody answered; ``status`` is 502 or 504."""

    def __init__(self, message: str, status: int = 502) -> None:
        super().__init__(message)
        self.status = status


class Resolver(Protocol):
    """Looks names up."""

    async def resolve(self, name: str, port: int, *, own: bool) -> list[Address]:
        """Return every address of ``name``, at least one; raises :class:`LookupFailed`.

        ``own``: the name comes from this machine's configuration, and means what it means on this machine
        (``/etc/hosts``, search domains).  Other names are absolute.
        """
        ...


class SystemResolver:
    """Asks the C library.  At most 32 lookups run at a time; one that hangs keeps its place until it ends."""

    def __init__(self, lookup: Lookup | None = None, seconds: float = LOOKUP_SECONDS) -> None:
        self._lookup = lookup or look_up
        self._seconds = seconds
        self._running = 0

    async def resolve(self, name: str, port: int, *, own: bool) -> list[Address]:
        """Return every address of ``name``; raises :class:`LookupFailed`."""
        if self._running >= LOOKUPS:
            raise LookupFailed("too many names are being looked up", 504)
        answer = self._ask(name if own else name + ".", port)
        try:
            async with asyncio.timeout(self._seconds):
                found = await asyncio.shield(answer)
        except TimeoutError:
            raise LookupFailed(f"{name} could not be looked up within {self._seconds:g} s", 504) from None
        except OSError as error:
            raise LookupFailed(f"{name} could not be looked up: {error.strerror}") from error
        addresses = [ip_address(text.partition("%")[0]) for text in dict.fromkeys(found)]
        if not 0 < len(addresses) <= MAX_ANSWERS:
            raise LookupFailed(f"{name} has no address that can be used")
        return addresses

    def _ask(self, name: str, port: int) -> "asyncio.Future[list[str]]":
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[str]] = loop.create_future()

        def finish(found: list[str], error: OSError | None) -> None:
            self._running -= 1
            if not answer.done():
                answer.set_result(found) if error is None else answer.set_exception(error)
                answer.exception()  # mark as looked at: not everybody waits any more

        def work() -> None:
            found: list[str] = []
            failure: OSError | None = None
            try:
                found = self._lookup(name, port)
            except OSError as error:
                failure = error
            except ValueError:
                failure = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(finish, found, failure)

        threading.Thread(target=work, name="cellfork-lookup", daemon=True).start()
        self._running += 1
        return answer


def look_up(name: str, port: int) -> list[str]:
    """Return the addresses that the C library knows: getaddrinfo(3)."""
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return [str(place[0]) for _family, _kind, _protocol, _name, place in found]
