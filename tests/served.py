"""A server in a thread of its own, on a real socket: for clients that block."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cellfork.engine.engine import Engine
from cellfork.engine.settings import Settings as EngineSettings
from cellfork.model.limits import Limits
from cellfork.model.specs import Template
from cellfork.runtimes.base import Runtime
from cellfork.server.app import App, create_app
from cellfork.server.logs import make_logger
from cellfork.server.serving import serving
from cellfork.server.settings import Settings
from cellfork.server.templates import Named

KEY = "e2b_" + 40 * "a"
OTHER_KEY = "e2b_" + 40 * "b"
AMPLE = Limits(memory="8G", cpu=64, pids=4096)
"""Limits that no test of the client asks to pass."""


class Silence:
    """Takes log lines."""

    def msg(self, message: str) -> None: ...

    debug = info = warning = error = critical = msg


@dataclass
class Served:
    """A server that runs: its URL, its engine, and a way to run something in its loop."""

    url: str
    app: App
    engine: Engine
    loop: asyncio.AbstractEventLoop

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function in the server's loop; return its result."""

        async def call() -> Any:
            result = function(*args)
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(10)


@contextmanager
def served(
    runtimes: Mapping[str, Runtime], *, engine_settings: EngineSettings | None = None, **settings: Any
) -> Iterator[Served]:
    """Serve with these runtimes, and no state directory."""
    fields: dict[str, Any] = {
        "port": 0,
        "api_key": (f"alice:{KEY}", f"bob:{OTHER_KEY}"),
        "state": None,
        "isolation": next(iter(runtimes)),
        "templates": tuple(Named(Template(name, limits=AMPLE), (), True) for name in ("default", "t")),
        "max_timeout": None,
        "warm": False,
        "drain": 0.5,
    }
    logger: Any = make_logger("error", "json", Silence())  # type: ignore[arg-type]
    ready: threading.Event = threading.Event()
    found: list[Any] = []

    async def serve() -> None:
        engine = Engine(runtimes, engine_settings)
        app = create_app(Settings(**{**fields, **settings}), engine, logger)
        over = asyncio.Event()
        try:
            async with serving(app) as url:
                found.extend((Served(url, app, engine, asyncio.get_running_loop()), over))
                ready.set()
                await over.wait()
        finally:
            await engine.aclose()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            found.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="served")
    thread.start()
    ready.wait()
    if isinstance(found[0], BaseException):
        thread.join()
        raise found[0]
    server, over = found[:2]
    try:
        yield server
    finally:
        server.loop.call_soon_threadsafe(over.set)
        thread.join()
        if isinstance(found[-1], BaseException):
            raise found[-1]
