"""Serving an app on sockets: listening, signals, draining.

The first SIGTERM or SIGINT lets running requests end, for as long as the settings say; the second one ends the
process at once.
"""

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

import uvicorn
import uvloop
from uvicorn.lifespan.off import LifespanOff

from cellfork.dialects.asgi import ASGIApp, Receive, Scope, Send
from cellfork.model.errors import InvalidRequest
from cellfork.server.logs import Forwarder
from cellfork.server.protocol import speaker, uvicorn_config
from cellfork.server.settings import Settings

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

BACKLOG = 1024
MOST_DESCRIPTORS = 1 << 18
SIGNALS = (signal.SIGTERM, signal.SIGINT)
AT_ONCE = 130
"""Exit code after a second signal."""

Started = Callable[[str], None]


class Served(Protocol):
    """An app with a beginning and an end, that listens where its settings say."""

    settings: Settings
    logger: "FilteringBoundLogger"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection's scope."""

    async def start(self) -> None:
        """Make everything, begin to serve."""

    def extra_listeners(self) -> Sequence[tuple[str, int, ASGIApp]]:
        """Return further addresses to listen on, and what answers there."""

    async def aclose(self) -> None:
        """Give everything back.  Idempotent."""


class Listener(NamedTuple):
    """A socket that listens, the app behind it, and with what it speaks TLS (``None``: it does not)."""

    socket: socket.socket
    app: ASGIApp
    tls: ssl.SSLContext | None = None


def run(app: Served, on_started: Started) -> None:
    """Serve until a signal; return when everything was given back.  ``on_started`` is told the address.

    Raises :class:`InvalidRequest` where an address cannot be listened on, and what the app's start raises.
    """
    allow_descriptors()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(app, on_started))


def allow_descriptors() -> None:
    """Let this process have as many descriptors as it may: some for each sandbox, one for each connection.

    The usual soft limit of 1,024 is for programs that use ``select``.  Sandboxes have a limit of their own.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(app: Served, on_started: Started) -> None:
    with _signals() as told:
        async with serving(app) as address:
            on_started(address)
            await told.wait()


@contextlib.asynccontextmanager
async def serving(app: Served) -> AsyncIterator[str]:
    """Start an app in the running loop and serve it, at the address that is yielded; drain and close it at the end.

    Raises as :func:`run` does.
    """
    settings = app.settings
    context = _tls(settings) if settings.tls_cert is not None else None
    with contextlib.ExitStack() as stack:
        main = stack.enter_context(listen(settings.host, settings.port))
        port = main.getsockname()[1]
        stack.enter_context(_forwarded_logs(app))
        try:
            await app.start()
            listeners = [Listener(main, app, context)]
            for host, number, debug in app.extra_listeners():
                listeners.append(Listener(stack.enter_context(listen(host, number)), debug))
            async with Server(settings, listeners):
                yield url(settings, port)
        finally:
            await app.aclose()


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens.  Raises :class:`InvalidRequest`, which says why it cannot."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise InvalidRequest(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
    return listener


def url(settings: Settings, port: int | None = None) -> str:
    """Return the address under which this machine's programs reach a server."""
    scheme = "https" if settings.tls_cert else "http"
    host = settings.host.strip("[]")
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"{scheme}://{host}:{settings.port if port is None else port}"


class Server(uvicorn.Server):
    """uvicorn's server, on several sockets with an app each.  Leaving the context drains it."""

    def __init__(self, settings: Settings, listeners: Sequence[Listener]) -> None:
        super().__init__(uvicorn_config(listeners[0].app, settings))
        self.lifespan = LifespanOff(self.config)  # apps are started before, and closed afterwards
        self._settings = settings
        self._listeners = listeners

    async def __aenter__(self) -> Self:
        """Accept connections."""
        self.servers = [await self._open(listener) for listener in self._listeners]
        self.started = True
        self._ticks = asyncio.create_task(self.main_loop())
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Accept nothing any more; let running requests end, for as long as the settings say."""
        self.should_exit = True
        await self._ticks
        await self.shutdown()

    async def _open(self, listener: Listener) -> asyncio.base_events.Server:
        speaks = speaker(listener.app, self._settings, self.server_state)
        loop = asyncio.get_running_loop()
        return await loop.create_server(
            lambda: speaks({}), sock=listener.socket, ssl=listener.tls, backlog=BACKLOG
        )


@contextlib.contextmanager
def _signals() -> Iterator[asyncio.Event]:
    """Yield what is set by the first signal; the second one ends the process."""
    loop, told = asyncio.get_running_loop(), asyncio.Event()

    def on_signal() -> None:
        if told.is_set():
            # Whoever asks twice does not want to wait; sandboxes end, or are kept, without us.
            os._exit(AT_ONCE)
        told.set()

    for number in SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        yield told
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


def _tls(settings: Settings) -> ssl.SSLContext:
    """Return what HTTPS is served with.  Raises :class:`InvalidRequest`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(str(settings.tls_cert), str(settings.tls_key))
    except (OSError, ssl.SSLError) as error:
        raise InvalidRequest(f"the certificate cannot be used: {error}") from error
    return context


@contextlib.contextmanager
def _forwarded_logs(app: Served) -> Iterator[None]:
    """Let uvicorn and asyncio log what the server logs."""
    handler = Forwarder(app.logger)
    loggers = [logging.getLogger(name) for name in ("uvicorn", "asyncio")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
