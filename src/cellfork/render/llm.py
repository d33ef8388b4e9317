"""An execution as text and images for a model.

Nothing is lost on the way: main text, every result in its richest form, stdout, stderr and the error are
all there, in this order, as far as the token budget allows; what it does not allow is named.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from cellfork.model.errors import InvalidRequest
from cellfork.model.execution import Execution
from cellfork.model.results import ExecutionError, Result, json_safe
from cellfork.render.budget import CountTokens, Section, estimate_tokens, fit
from cellfork.render.captions import caption, numbers
from cellfork.render.media import Image, image_of, is_base64
from cellfork.render.text import as_text, clean
from cellfork.render.tracebacks import user_frames

Images = Literal["inline", "attachments", "none"]

NO_OUTPUT = "Code executed successfully (no output)."

_SILENT = {
    "ok": NO_OUTPUT,
    "running": "The code is still running (no output yet).",
    "error": "The code failed (no output).",
    "interrupted": "The execution was interrupted (no output).",
    "timed_out": "The execution timed out and was stopped (no output).",
    "killed": "The execution was killed (no output).",
    "lost": "The kernel ended before the code did (no output).",
}
"""What is said where there is nothing else to say, by ``Execution.status``."""

_IMAGES = {"png": "image/png", "jpeg": "image/jpeg", "svg": "image/svg+xml"}
_TEXTS = ("html", "markdown", "latex")
_WIDGETS = "application/vnd.jupyter."
_OTHERS = ("json", "javascript", "data")


_FIGURE = re.compile(r"<Figure size .{1,40}>\Z|alt\.\w+\(\.\.\.\)\Z|Figure(?:Widget)?\(\{")
"""What the texts of figures look like: matplotlib's, altair's, plotly's."""

_ADDRESS = re.compile(
    r"<[\w.]{1,200} (?:object )?at 0x[0-9a-f]{1,16}>\Z|<IPython\.core\.display\.\w{1,40} object>\Z"
)
"""What the texts of objects look like that have no better one."""

_STYLE = re.compile(r"<(/?)style\b[^>]{0,500}>\n?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Attachment:
    """An image (or a PDF) that goes beside the text: MIME type, base64 content, a name the text refers to."""

    mime: str
    data_base64: str
    name: str


@dataclass(frozen=True, slots=True)
class LLMView:
    """What a model gets to see: ``text``, and the images that are not in it."""

    text: str
    attachments: tuple[Attachment, ...] = ()

    def __str__(self) -> str:
        return self.text


def to_llm(
    execution: Execution,
    *,
    max_tokens: int = 4000,
    images: Images = "inline",
    user_frames_only: bool = False,
    count_tokens: CountTokens | None = None,
) -> LLMView:
    """Return ``execution`` as text of at most ``max_tokens`` and, beside it, attachments.

    Each result is shown in its richest form: PNG > JPEG > SVG > a chart's numbers > HTML > Markdown > LaTeX >
    text > JSON > any other type whose content is text.  An image that is not in the text is described by its chart.

    ``images``: ``"inline"`` puts them into the text as Markdown data URIs; one that is larger than its share
    of the budget is named in the text and attached.  ``"attachments"`` attaches all, ``"none"`` only
    names them.  Attachments do not count against the budget.

    ``user_frames_only`` leaves the frames of libraries out of tracebacks; otherwise only a traceback that is
    too long for its share of the budget loses them.  ``count_tokens`` counts the
    tokens of a text; the default takes four bytes of UTF-8 for one.  A longer text should never have
    fewer tokens.

    The error's name and message are cut only where they alone exceed the budget.  Raises
    :class:`~cellfork.model.errors.InvalidRequest` for a budget below 1 or an unknown ``images``.
    """
    if max_tokens < 1:
        raise InvalidRequest("max_tokens is a whole number of at least 1")
    if images not in {"inline", "attachments", "none"}:
        raise InvalidRequest(f"unknown value for images: {images!r}; known: inline, attachments, none")
    parts = [*_results(execution, images), *_streams(execution)]
    headline, trace = _error(execution.error, trim=user_frames_only)
    if trace:
        own = user_frames(trace)
        parts.append(_Part(Section("traceback", trace, head=0.3, shorter=own if own != trace else None)))
    if not parts and not headline:
        return LLMView(_SILENT.get(execution.status, NO_OUTPUT))
    fitted = fit([part.section for part in parts], headline, max_tokens, count_tokens or estimate_tokens)
    attached = (p.attachment for i, p in enumerate(parts) if not (p.inline and i in fitted.complete))
    return LLMView(fitted.text, tuple(attachment for attachment in attached if attachment is not None))


@dataclass(frozen=True, slots=True)
class _Part:
    """A section, and the attachment that belongs to it unless the section carries it itself (``inline``)."""

    section: Section
    attachment: Attachment | None = None
    inline: bool = False


def _results(execution: Execution, images: Images) -> Iterator[_Part]:
    """Yield the main text, then each result in its richest form."""
    main = next((result for result in execution.results if result.is_main_result), None)
    main_text = _text_of(main) if main is not None and not _is_placeholder(main) else ""
    if main_text and main_text.strip() != "None":
        yield _Part(Section("main text", main_text, head=0.6))
    for number, result in enumerate(execution.results, 1):
        yield from _result(result, number, images, is_main=result is main)


def _result(result: Result, number: int, images: Images, *, is_main: bool) -> Iterator[_Part]:
    image = _image_of(result)
    if image is not None:
        yield _image_part(image, number, images, _chart_note(result))
        return
    texts = (clean(_without_styles(as_text(getattr(result, name) or ""))).strip("\n") for name in _TEXTS)
    if result.chart is not None and result.chart.type != "unknown":
        yield _Part(Section("result", numbers(result.chart), head=0.8))
    elif text := next(filter(None, texts), ""):
        yield _Part(Section("result", text))
    else:
        yield from _plain(result, is_main=is_main)
        yield from _unseen(result)
    if result.pdf and is_base64(as_text(result.pdf)):
        yield _image_part(
            Image("application/pdf", as_text(result.pdf)),
            number,
            "attachments" if images == "inline" else images,
            "",
        )


def _plain(result: Result, *, is_main: bool) -> Iterator[_Part]:
    """Yield a result without a rich form: its text, unless it was the main text, or else what there is."""
    text = "" if _is_placeholder(result) else _text_of(result)
    if text:
        if not is_main:
            yield _Part(Section("result", text))
        return
    others = [clean(_json_text(value)) for name in _OTHERS if (value := getattr(result, name)) is not None]
    others += [_named_json(mime, value) for mime, value in result.extra.items() if _is_readable(mime, value)]
    if others:
        yield _Part(Section("result", others[0]))
    elif (formats := result.formats()) and set(formats) - {"text", "pdf"}:
        title = _chart_note(result)
        yield _Part(Section("result", clean(f"[a result of type {', '.join(formats)}{title}]")))


def _unseen(result: Result) -> Iterator[_Part]:
    """Name what else there is beside a text: types that are neither shown nor the text in another form."""
    if _text_of(result) and not _is_placeholder(result):
        others = [as_text(mime) for mime in result.extra if not mime.startswith(_WIDGETS)]
        if others:
            yield _Part(Section("result", clean(f"[also: {', '.join(others)}]"), whole=True))


def _is_readable(mime: str, value: Any) -> bool:
    """Tell whether a model can read content of a type that is not among the usual ones."""
    return not isinstance(value, str) or mime.startswith("text/") or mime.endswith(("json", "xml"))


def _named_json(mime: str, value: Any) -> str:
    return clean(f"[{as_text(mime)}]\n{_json_text(value)}")


def _text_of(result: Result) -> str:
    return clean(as_text(result.text or "")).rstrip("\n")


def _is_placeholder(result: Result) -> bool:
    """Tell whether the text only names the object whose content is in another format."""
    text = as_text(result.text or "")
    if _ADDRESS.match(text):
        return len(result.formats()) > 1
    return result.chart is not None and _FIGURE.match(text) is not None


def _without_styles(html: str) -> str:
    """Return HTML without its style sheets, which say nothing to a model; as it is where nothing else is there."""
    kept: list[str] = []
    end, inside = 0, False
    for tag in _STYLE.finditer(html):
        if inside == bool(tag[1]):  # opens outside, or closes inside
            if not inside:
                kept.append(html[end : tag.start()])
            end, inside = tag.end(), not inside
    if not inside:
        kept.append(html[end:])
    shown = "".join(kept)
    return shown if shown.strip() and not inside else html


def _json_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(json_safe(value), ensure_ascii=False, default=str)


def _image_of(result: Result) -> Image | None:
    """Return the richest image of a result; content that is not base64 is none."""
    for name, mime in _IMAGES.items():
        content = getattr(result, name)
        if content and isinstance(content, str):
            image = image_of(mime, content)
            if is_base64(image.data_base64):
                return image
    return None


def _image_part(image: Image, number: int, images: Images, chart: str) -> _Part:
    name = f"result-{number}.{image.extension}"
    attachment = Attachment(image.mime, image.data_base64, name)
    what = image.describe() + chart
    if images == "none":
        return _Part(Section("result", f"[{what}]", whole=True))
    if images == "attachments":
        return _Part(Section("result", f"[{what}: attached as {name}]", whole=True), attachment)
    uri = f"![{name}](data:{image.mime};base64,{image.data_base64})"
    note = f"[{what}: left out, too large for the budget; attached as {name}]"
    return _Part(Section("result", uri, substitute=note), attachment, inline=True)


def _chart_note(result: Result) -> str:
    """Return a few words on a figure's chart: its kind, its title, what is on its axes."""
    return f": {caption(result.chart)}" if result.chart is not None else ""


def _streams(execution: Execution) -> Iterator[_Part]:
    stdout = clean("".join(map(as_text, execution.logs.stdout))).rstrip("\n")
    if stdout:
        yield _Part(Section("stdout", stdout))
    stderr = clean("".join(map(as_text, execution.logs.stderr))).rstrip("\n")
    if stderr:
        yield _Part(Section("stderr", f"[stderr] {stderr}"))


def _error(error: ExecutionError | None, *, trim: bool) -> tuple[str, str]:
    """Return ``name: value``, and the traceback without that line where it ends with it."""
    if error is None:
        return "", ""
    name, value = clean(as_text(error.name)).strip() or "Error", clean(as_text(error.value)).strip()
    headline = f"{name}: {value}" if value else name
    trace = clean(as_text(error.traceback)).rstrip()
    trace = (user_frames(trace) if trim else trace).rstrip()
    if trace.startswith(headline + "\n"):  # JavaScript's come first
        trace = trace.removeprefix(headline)
    return headline, trace.removesuffix(headline).strip("\n")
