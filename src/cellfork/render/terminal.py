"""An execution on a terminal.

Everything shown comes from a sandbox, so nothing is shown as it came: escape sequences are removed
(colours excepted), control characters made visible, and Rich's own markup is never interpreted.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.text import Text

from cellfork.model.execution import Execution
from cellfork.model.results import ExecutionError, Result
from cellfork.render.captions import caption
from cellfork.render.charts import draw_chart
from cellfork.render.media import human_size, image_of, is_base64
from cellfork.render.text import StreamCleaner, as_text, clean

_IMAGES = {"png": "image/png", "jpeg": "image/jpeg", "svg": "image/svg+xml"}
_LONGEST_TEXT = 100_000
"""Characters of one result that a terminal gets."""


@dataclass(frozen=True, slots=True)
class Pictures:
    """How charts are drawn: in how many columns, and whether series differ by colour."""

    width: int = 80
    colour: bool = True


_IN_COLOUR = Pictures()


def safe_text(text: str) -> Text:
    """Return text from a sandbox with its colours, and without anything else that a terminal would obey."""
    cleaner = StreamCleaner(terminal=True)
    coloured = (cleaner.feed(text) + cleaner.close()).replace("\r\n", "\n").replace("\b", "")
    return Text.from_ansi(coloured.rstrip("\n"), no_wrap=None)


def render_execution(
    execution: Execution,
    console: Console,
    errors: Console | None = None,
    saved: Mapping[int, Sequence[str]] | None = None,
) -> None:
    """Print a whole execution: stdout, results, then stderr and the error on ``errors`` (default: the same console).

    ``saved`` maps a result's index to the paths it was saved to.
    """
    errors = errors or console
    if execution.logs.stdout:
        console.print(safe_text("".join(map(as_text, execution.logs.stdout))), soft_wrap=True)
    for index, result in enumerate(execution.results):
        for part in render_result(result, (saved or {}).get(index, ()), pictures=pictures_on(console)):
            console.print(part, soft_wrap=True)
    if execution.logs.stderr:
        errors.print(safe_text("".join(map(as_text, execution.logs.stderr))), soft_wrap=True)
    if execution.error is not None:
        errors.print(render_error(execution.error), soft_wrap=True)


def pictures_on(console: Console) -> Pictures | None:
    """Return how charts are drawn on a console; ``None`` where they are told in words: a file, a pipe, a dumb terminal."""
    if not console.is_terminal or console.is_dumb_terminal or not console.encoding.startswith("utf"):
        return None
    return Pictures(console.width, colour=not console.no_color and console.color_system is not None)


def render_result(
    result: Result, saved: Sequence[str] = (), *, pictures: Pictures | None = _IN_COLOUR
) -> Iterator[RenderableType]:
    """Yield what of a result can be shown: text, a small picture of a chart, what there is beside it.

    ``saved`` are the paths the result was saved to; they are named.  Without ``pictures`` a chart is one line.
    """
    picture = _picture(result, pictures)
    if picture is not None:
        yield picture
    described = _describe_image(result)
    text = as_text(result.text or "")
    if described is None and text and text != "None":
        yield _shortened(text)
    elif described is None and picture is None and not text:
        described = ", ".join(_describe_format(result, name) for name in result.formats())
    if described and not saved:
        yield Text(f"[{described}]", style="dim")
    if saved:
        yield Text(f"[{described + ': ' if described else ''}saved {', '.join(saved)}]", style="dim")


def render_error(error: ExecutionError) -> Text:
    """Return the traceback with its colours, and the error's name and message where it does not end with them."""
    name, value = clean(as_text(error.name)), clean(as_text(error.value)).rstrip()
    headline = f"{name}: {value}" if value else name
    trace = safe_text(as_text(error.traceback))
    if not trace.plain.strip():
        return Text(headline, style="bold red")
    if value in trace.plain and name in trace.plain:
        return trace
    return Text("\n").join([trace, Text(headline, style="bold red")])


def _shortened(text: str) -> Text:
    if len(text) <= _LONGEST_TEXT:
        return safe_text(text)
    half = _LONGEST_TEXT // 2
    note = Text(f"[… {len(text) - 2 * half:,} characters not shown …]", style="dim")
    return Text("\n").join([safe_text(text[:half]), note, safe_text(text[-half:])])


def _picture(result: Result, pictures: Pictures | None) -> Text | None:
    if result.chart is None:
        return None
    if pictures is not None:
        return draw_chart(result.chart, min(pictures.width, 78), colour=pictures.colour)
    return Text(f"[{caption(result.chart)}]", style="dim")


def _describe_image(result: Result) -> str | None:
    for name, mime in _IMAGES.items():
        content = getattr(result, name)
        if content and isinstance(content, str):
            image = image_of(mime, content)
            if is_base64(image.data_base64):
                return image.describe()
    return None


def _describe_format(result: Result, name: str) -> str:
    content = result[name]
    size = f" {human_size(len(content))}" if isinstance(content, str) else ""
    return clean(as_text(name)) + size
