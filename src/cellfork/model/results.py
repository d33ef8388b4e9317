"""What an execution produced: results, logs, an error.

The shapes are E2B's (``Result``, ``Logs``, ``ExecutionError``, ``OutputMessage``), after Jupyter's MIME bundle.
"""

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

DATA_MIME = "application/vnd.cellfork.data+json"
"""Private MIME type in which the kernel sends a data frame's columns."""
CHART_MIME = "application/vnd.cellfork.chart+json"
"""Private MIME type in which the kernel sends a figure's chart description."""

FIELD_OF_MIME: Mapping[str, str] = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    DATA_MIME: "data",
    CHART_MIME: "chart",
}
"""MIME type → attribute of :class:`Result`; every other type is in ``Result.extra``."""

_TEXTS = frozenset({"text", "html", "markdown", "svg", "latex", "javascript"})
_IMAGES = frozenset({"png", "jpeg", "pdf"})
_OBJECTS = frozenset({"data", "chart"})


@dataclass(frozen=True, slots=True)
class ExecutionError:
    """An error of the code that ran: its class, its message (never truncated), its traceback as text."""

    name: str
    value: str
    traceback: str = ""

    def to_dict(self) -> dict[str, str]:
        """Return ``{"name", "value", "traceback"}``."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class OutputMessage:
    """One piece of output as a callback gets it: text, Unix time in nanoseconds, from stderr or not."""

    line: str
    timestamp: int
    error: bool = False

    def __str__(self) -> str:
        return self.line


@dataclass(slots=True)
class Logs:
    """What was written to stdout and stderr, as lists of strings in the order of arrival."""

    stdout: list[str] = field(default_factory=list)
    stderr: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, list[str]]:
        """Return ``{"stdout": […], "stderr": […]}``."""
        return {"stdout": list(self.stdout), "stderr": list(self.stderr)}

    def to_json(self) -> str:
        """Return the JSON text of :meth:`to_dict`."""
        return json.dumps(self.to_dict())


@dataclass(slots=True)
class Result:
    """A MIME bundle from a display call or from the last expression (``is_main_result``).

    ``png``, ``jpeg`` and ``pdf`` are base64 text, ``json`` is a JSON value, ``data`` a data frame's
    columns by name, ``chart`` a chart description (schema: e2b-charts), ``extra`` every other MIME type.
    """

    text: str | None = None
    html: str | None = None
    markdown: str | None = None
    svg: str | None = None
    png: str | None = None
    jpeg: str | None = None
    pdf: str | None = None
    latex: str | None = None
    json: Any = None
    javascript: str | None = None
    data: dict[str, Any] | None = None
    chart: dict[str, Any] | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    is_main_result: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    display_id: str | None = None

    @classmethod
    def from_bundle(
        cls,
        data: Mapping[str, Any],
        *,
        is_main_result: bool = False,
        metadata: Mapping[str, Any] | None = None,
        display_id: str | None = None,
    ) -> "Result":
        """Build from MIME type → ``str``, ``bytes`` or JSON value.

        Every attribute gets a value of its own type, whatever the bundle holds: what does not fit is text.
        """
        result = cls(is_main_result=is_main_result, metadata=dict(metadata or {}), display_id=display_id)
        for mime, value in data.items():
            name = FIELD_OF_MIME.get(mime)
            if name is None or (name in _OBJECTS and not isinstance(value, dict)):
                result.extra[mime] = _base64(value)
            elif name in _TEXTS:
                setattr(result, name, _text(value))
            elif name in _IMAGES:
                setattr(result, name, _text(_base64(value)))
            else:
                setattr(result, name, _base64(value))
        return result

    @property
    def raw(self) -> dict[str, Any]:
        """MIME type → content for everything that is there (``data`` and ``chart`` under these names)."""
        names = {mime: name for mime, name in FIELD_OF_MIME.items() if getattr(self, name) is not None}
        known = {
            name if mime in {DATA_MIME, CHART_MIME} else mime: getattr(self, name)
            for mime, name in names.items()
        }
        return known | self.extra

    def formats(self) -> list[str]:
        """Return the names of the formats that are there, those in ``extra`` by their MIME type."""
        return [name for name in FIELD_OF_MIME.values() if getattr(self, name) is not None] + list(self.extra)

    def __getitem__(self, name: str) -> Any:
        """Return a format by its attribute's name or by its MIME type; ``KeyError`` where it is absent."""
        if name in FIELD_OF_MIME.values() and getattr(self, name) is not None:
            return getattr(self, name)
        return self.raw[name]

    def to_dict(self) -> dict[str, Any]:
        """Return the formats that are there by name, ``extra`` where not empty, and ``is_main_result``."""
        content = {name: getattr(self, name) for name in FIELD_OF_MIME.values()}
        present = {name: value for name, value in content.items() if value is not None}
        extra = {"extra": self.extra} if self.extra else {}
        return {**present, **extra, "is_main_result": self.is_main_result}

    def to_json(self) -> str:
        """Return :meth:`to_dict` as JSON text; NaN and infinities become ``null``."""
        return json.dumps(json_safe(self.to_dict()))

    def __str__(self) -> str:
        return f"Result({self.text})" if self.text is not None else f"Result(formats={self.formats()})"

    def _repr_html_(self) -> str | None:
        return self.html

    def _repr_markdown_(self) -> str | None:
        return self.markdown

    def _repr_svg_(self) -> str | None:
        return self.svg

    def _repr_png_(self) -> str | None:
        return self.png

    def _repr_jpeg_(self) -> str | None:
        return self.jpeg

    def _repr_pdf_(self) -> str | None:
        return self.pdf

    def _repr_latex_(self) -> str | None:
        return self.latex

    def _repr_json_(self) -> Any:
        return self.json

    def _repr_javascript_(self) -> str | None:
        return self.javascript


def _base64(value: Any) -> Any:
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else value


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else json.dumps(json_safe(value))


def json_safe(value: Any) -> Any:
    """Return ``value`` with NaN and infinities replaced by ``None``, so that it is valid JSON."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    return value
