"""The common form of what a cell produced, and how each side's report becomes it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from cellfork.model import events
from cellfork.model.execution import outcome_of
from cellfork.model.results import CHART_MIME, DATA_MIME, Result

Kind = Literal["stdout", "stderr", "display", "result", "error"]

NOT_SHOWN = "(told in the reply only)"
"""Traceback of an error that ipykernel writes to stderr and does not show: usage errors, exception groups."""
PRIVATE_MIMES = frozenset({DATA_MIME, CHART_MIME, "data", "chart"})


@dataclass(frozen=True, slots=True)
class Output:
    """One output: a stream's ``text``, a MIME bundle, or an error whose traceback is ``text``."""

    kind: Kind
    text: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    value: str = ""
    display_id: str | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell that ran: its title, its number, its outputs in order."""

    title: str
    count: int | None
    outputs: tuple[Output, ...]


class Fold:
    """What a frontend shows of a notebook's events: updates reach displays of earlier cells, clearing clears."""

    def __init__(self) -> None:
        self._cells: list[list[Output]] = []
        self._titles: list[tuple[str, int | None]] = []

    def add(self, title: str, stream: Iterable[events.Event]) -> None:
        """Fold in the events of one cell."""
        outputs: list[Output] = []
        self._cells.append(outputs)
        clear_pending = False
        count: int | None = None
        for event in stream:
            match event:
                case events.Clear(wait=True):
                    clear_pending = True
                    continue
                case events.Clear():
                    outputs.clear()
                    continue
                case events.Update():
                    self._update(event)
                    continue
                case events.Terminal():
                    count = event.execution_count
            new = list(_outputs_of(event))
            if new and clear_pending:
                outputs.clear()
                clear_pending = False
            outputs += new
        self._titles.append((title, count))

    def cells(self) -> list[Cell]:
        """Return the cells so far."""
        return [
            Cell(title, count, tuple(outputs))
            for (title, count), outputs in zip(self._titles, self._cells, strict=True)
        ]

    def _update(self, event: events.Update) -> None:
        for outputs in self._cells:
            for index, output in enumerate(outputs):
                if output.display_id == event.display_id:
                    content = _content(event.data)
                    outputs[index] = replace(output, data=content, metadata=dict(event.metadata))


def _outputs_of(event: events.Event) -> Iterator[Output]:
    match event:
        case events.Stdout():
            yield Output("stdout", event.text)
        case events.Stderr():
            yield Output("stderr", event.text)
        case events.Display():
            kind: Kind = "result" if event.is_main_result else "display"
            yield Output(
                kind,
                data=_content(event.data),
                metadata=dict(event.metadata),
                display_id=event.display_id,
            )
        case events.Terminal():
            error = outcome_of(event)[1]
            if error is not None:
                yield Output("error", error.traceback, name=error.name, value=error.value)


def _content(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bundle as Jupyter's JSON has it: binary content as base64 text."""
    raw = Result.from_bundle(data).raw
    return {mime: content for mime, content in raw.items() if mime not in PRIVATE_MIMES}


def cell_of_notebook(title: str, ran: Mapping[str, Any]) -> Cell:
    """Return the common form of what ``peer.py`` reports of one cell."""
    outputs = [_output_of_notebook(output) for output in ran["outputs"]]
    outputs += [Output("display", data=page) for page in ran["pages"]]
    if ran["error"] is not None and not any(output.kind == "error" for output in outputs):
        outputs.append(Output("error", NOT_SHOWN, **ran["error"]))
    return Cell(title, ran["execution_count"], tuple(outputs))


def _output_of_notebook(output: Mapping[str, Any]) -> Output:
    match output["output_type"]:
        case "stream":
            return Output("stdout" if output["name"] == "stdout" else "stderr", output["text"])
        case "error":
            return Output(
                "error", "\n".join(output["traceback"]), name=output["ename"], value=output["evalue"]
            )
        case "execute_result":
            return Output("result", data=output["data"], metadata=output["metadata"])
        case _:
            return Output("display", data=output["data"], metadata=output["metadata"])
