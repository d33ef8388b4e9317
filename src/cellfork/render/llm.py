"""An execution as text and images for a model.

Nothing is lost on the way: main text, every result in its richest form, stdout, stderr and the error are
all there, in this order, as far as the token budget allows; what it does not allow is named.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from cellfork.model.errors import InvalidRequest
from cellfork.model.execution import Execution
from cellfork.model.results import ExecutionError, Result, json_safe
from cellfork.render.budget import CountTokens, Section, estimate_tokens, fit
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
_OTHERS = ("json", "javascript")


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

    Each result is shown in its richest form: PNG > JPEG > SVG > HTML > Markdown > LaTeX > text > JSON.

    ``images``: ``"inline"`` puts them into the text as Markdown data URIs; one that is larger than its share
    of the budget is named in the text and attached.  ``"attachments"`` attaches all, ``"none"`` only
    names them.  Attachments do not count against the budget.

    ``user_frames_only`` leaves the frames of libraries out of tracebacks.  ``count_tokens`` counts the
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
        parts.append(_Part(Section("traceback", trace, head=0.3)))
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
    for name in _TEXTS:
        text = clean(as_text(getattr(result, name) or "")).rstrip("\n")
        if text:
            yield _Part(Section("result", text))
            break
    else:
        yield from _plain(result, is_main=is_main)
    if result.pdf and is_base64(as_text(result.pdf)):
        yield _image_part(
            Image("application/pdf", as_text(result.pdf)),
            number,
            "attachments" if images == "inline" else images,
            "",
        )


def _plain(result: Result, *, is_main: bool) -> Iterator[_Part]:
    """Yield a result without a rich form: its text, unless it was the main text, or else what there is."""
    others = [value for name in _OTHERS if (value := getattr(result, name)) is not None]
    if others and _is_placeholder(result):
        yield _Part(Section("result", clean(_json_text(others[0]))))
        return
    text = _text_of(result)
    if text:
        if not is_main:
            yield _Part(Section("result", text))
        return
    if others:
        yield _Part(Section("result", clean(_json_text(others[0]))))
    elif (formats := result.formats()) and set(formats) - {"text", "pdf"}:
        yield _Part(Section("result", clean(f"[a result of type {', '.join(formats)}]")))


def _text_of(result: Result) -> str:
    return clean(as_text(result.text or "")).rstrip("\n")


def _is_placeholder(result: Result) -> bool:
    """Tell whether the text only names the object whose content is in another format."""
    text = as_text(result.text or "")
    return (
        text.startswith("<IPython.core.display.") and text.endswith(" object>") and len(result.formats()) > 1
    )


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
    """Return a few words on a figure's chart: its type and title."""
    chart = result.chart
    if not isinstance(chart, dict) or not isinstance(chart.get("type"), str):
        return ""
    title = chart.get("title")
    words = clean(chart["type"][:40] + " chart" + (f" '{title[:80]}'" if isinstance(title, str) else ""))
    return f", {words}".replace("\n", " ")


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
    return headline, trace.removesuffix(headline).strip("\n")
