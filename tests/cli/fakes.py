"""A sandbox that is none: what the command line does can be tested without one."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Self

from cellfork.client import Context
from cellfork.model import events
from cellfork.model.execution import Execution, fold
from cellfork.model.results import CHART_MIME, DATA_MIME, ExecutionError, OutputMessage, Result

COST = events.Accounting(wall_time=0.5, cpu_time=0.25, peak_memory=1000, output_bytes=10)
CHART = {"type": "bar", "title": "T", "elements": [{"label": "a", "group": "g", "value": 1.0}]}


def _events(code: str, count: int) -> list[events.Event]:
    """What a piece of code does: its words are what happens."""
    stream: list[events.Event] = [events.Started(count)]
    for word in code.split():
        match word:
            case "out":
                stream.append(events.Stdout("out\n"))
            case "halfline":
                stream.append(events.Stdout("\x1b]0;owned\x07half"))
            case "err":
                stream.append(events.Stderr("err\n"))
            case "four":
                stream.append(events.Display({"text/plain": "4", "application/json": 4}, is_main_result=True))
            case "plot":
                bundle = {
                    "text/plain": "<Figure>",
                    "image/png": b"\x89PNG\r\n\x1a\n" + bytes(600),
                    CHART_MIME: CHART,
                }
                stream.append(events.Display(bundle))
            case "frame":
                bundle = {
                    "text/plain": "  a\n0 1",
                    "text/html": "<table>",
                    DATA_MIME: {"a": [1, None], "b": ["x,y", "z"]},
                }
                stream.append(events.Display(bundle, is_main_result=True))
            case "raise":
                error = ExecutionError("ValueError", "bad", "Traceback …\nValueError: bad")
                return [*stream, events.Failed(error, execution_count=count, accounting=COST)]
            case "slow":
                return [*stream, events.TimedOut(2.0, execution_count=count, accounting=COST)]
            case "die":
                return [*stream, events.Lost("exit code 9", execution_count=count, accounting=COST)]
    return [*stream, events.Finished(execution_count=count, accounting=COST)]


class FakeFiles:
    def __init__(self) -> None:
        self.written: dict[str, bytes] = {}

    async def write(self, path: str, data: bytes) -> None:
        self.written[path] = data


class FakeSandbox:
    """Stands in for ``AsyncSandbox``; ``made`` are those that were created."""

    made: ClassVar[list["FakeSandbox"]] = []
    refusal: ClassVar[Exception | None] = None

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.files = FakeFiles()
        self.codes: list[str] = []
        self.timeouts: list[float] = []
        self.interrupted = asyncio.Event()
        self.killed = False

    @classmethod
    async def create(cls, **options: Any) -> "FakeSandbox":
        if cls.refusal is not None:
            raise cls.refusal
        cls.made.append(cls(options))
        return cls.made[-1]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.killed = True

    async def create_code_context(self, *, language: str) -> Context:
        self.language = language
        return Context("c", language, "/home/user")

    async def interrupt(self, context: Context | None) -> bool:
        self.interrupted.set()
        return True

    async def run_code(
        self,
        code: str,
        *,
        context: Context | None,
        timeout: float,
        on_stdout: Callable[[OutputMessage], object],
        on_stderr: Callable[[OutputMessage], object],
        on_result: Callable[[Result], object],
        on_input: Callable[[events.InputRequest], Awaitable[str]] | None,
    ) -> Execution:
        self.codes.append(code)
        self.timeouts.append(timeout)
        if "wait" in code.split():
            await self.interrupted.wait()
            stopped = ExecutionError("KeyboardInterrupt", "")
            return fold([events.Started(1), events.Interrupted(stopped, execution_count=1)])
        if "ask" in code.split() and on_input is not None:
            on_stdout(OutputMessage(await on_input(events.InputRequest("name? ")) + "\n", 0))
        stream = _events(code, len(self.codes))
        for event in stream:
            if isinstance(event, events.Stdout):
                on_stdout(OutputMessage(event.text, 0))
            elif isinstance(event, events.Stderr):
                on_stderr(OutputMessage(event.text, 0, error=True))
            elif isinstance(event, events.Display):
                on_result(Result.from_bundle(event.data, is_main_result=event.is_main_result))
        execution = fold(stream)
        execution.isolation = self.options["isolation"]
        return execution
