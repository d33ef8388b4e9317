"""Targets: what shows executions to people and to models."""

import io
import json
from typing import Any

from rich.console import Console

from cellfork.cli.saving import files_of
from cellfork.model.execution import Execution
from cellfork.model.results import ExecutionError, Logs, Result
from cellfork.render.terminal import render_execution
from cellfork.render.text import StreamCleaner, as_text, clean
from tests.fuzz.choices import Choices
from tests.render.harmless import HARMFUL, assert_harmless

MIMES = (
    "text/plain",
    "text/html",
    "image/png",
    "image/jpeg",
    "image/svg+xml",
    "application/json",
    "application/vnd.cellfork.data+json",
    "application/vnd.cellfork.chart+json",
    "text/markdown",
    "x/\r\n\x1b]0;title\x07",
)


def terminal(data: bytes) -> None:
    """Nothing that a terminal would obey reaches it but colours, however a stream is cut; nothing raises."""
    choices = Choices(data)
    whole = Console(
        file=io.StringIO(), force_terminal=True, width=60, color_system="standard", legacy_windows=False
    )
    text = data.decode("utf-8", "surrogateescape")
    execution = execution_from(choices)
    render_execution(execution, whole)
    file = whole.file
    assert isinstance(file, io.StringIO)
    assert_harmless(file.getvalue())
    cut = data[0] if data else 0
    for on_terminal in (True, False):
        cleaner = StreamCleaner(terminal=on_terminal)
        shown = cleaner.feed(text[:cut]) + cleaner.feed(text[cut:]) + cleaner.close()
        assert_harmless(shown if on_terminal else shown.replace("\x1b[0m", ""), progress=on_terminal)
    assert_harmless(clean(text), progress=False)
    for result in execution.results:
        assert all(isinstance(content, bytes) for _, content in files_of(result))


def llm(data: bytes) -> None:
    """The text for a model is bounded, can be encoded and holds no control character; nothing raises."""
    choices = Choices(data)
    tokens = 1 + choices.byte() * 4
    execution = execution_from(choices)
    view = execution.to_llm(max_tokens=tokens)
    view.text.encode()
    assert HARMFUL.search(view.text) is None
    assert "\r" not in view.text
    json.loads(execution.to_json())


def execution_from(choices: Choices) -> Execution:
    """Make an execution out of anything."""
    execution = Execution(status="ok")
    while choices and len(execution.results) < 4:
        kind = choices.byte() % 4
        if kind == 0:
            execution.logs = Logs([*execution.logs.stdout, text_from(choices)], execution.logs.stderr)
        elif kind == 1:
            execution.logs = Logs(execution.logs.stdout, [*execution.logs.stderr, text_from(choices)])
        elif kind == 2:
            bundle = {choices.pick(MIMES): content_from(choices) for _ in range(1 + choices.byte() % 3)}
            execution.results.append(Result.from_bundle(bundle, is_main_result=choices.chance(2)))
        else:
            execution.status = "error"
            execution.error = ExecutionError(text_from(choices), text_from(choices), text_from(choices))
    return execution


def text_from(choices: Choices) -> str:
    return as_text(choices.piece(80).decode("utf-8", "replace"))


def content_from(choices: Choices) -> Any:
    kind = choices.byte() % 3
    if kind == 0:
        return choices.piece(80)
    if kind == 1:
        return text_from(choices)
    return value_from(choices, 4)


KEYS = (
    "type",
    "elements",
    "title",
    "x_data",
    "y_data",
    "points",
    "label",
    "value",
    "group",
    "angle",
    "radius",
    "a",
)
WORDS = (
    "bar",
    "pie",
    "line",
    "scatter",
    "superchart",
    "2024-01-01",
    "",
    "\x1b[2J",
    "9999-12-31T23:59:59+00:00",
)


def value_from(choices: Choices, depth: int) -> Any:
    """Make a JSON value; descriptions of charts are likely."""
    kind = choices.byte() % (7 if depth else 5)
    match kind:
        case 0:
            return choices.pick(
                (None, True, 0, -1, 2**63, 10**400, 0.0, 1e308, -1e308, float("nan"), float("inf"))
            )
        case 1 | 2:
            return choices.pick(WORDS)
        case 3:
            return choices.byte()
        case 4:
            return text_from(choices)
        case 5:
            return [value_from(choices, depth - 1) for _ in range(choices.byte() % 4)]
        case _:
            return {choices.pick(KEYS): value_from(choices, depth - 1) for _ in range(1 + choices.byte() % 5)}
