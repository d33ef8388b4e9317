"""What an execution produced: results, logs, an error.

The shapes are E2B's (``Result``, ``Logs``, ``ExecutionError``, ``OutputMessage``), after Jupyter's MIME bundle.
"""

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cellfork.model.charts import Chart

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

_NAMES = frozenset({*FIELD_OF_MIME.values(), "extra", "is_main_result", "metadata", "display_id"})
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

    def to_json(self) -> str:
        """Return the JSON text of :meth:`to_dict` (E2B: ``to_json``)."""
        return json.dumps(self.to_dict())


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
    columns by name, ``chart`` what a figure shows (also made from a dict: a description in the schema of
    e2b-charts), ``extra`` every other MIME type.
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
    chart: "Chart | None" = None
    extra: dict[str, Any] = field(default_factory=dict)
    is_main_result: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    display_id: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.chart, dict):
            self.chart = _chart(self.chart)

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
            elif name == "chart":
                result.chart = _chart(value)
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
            name if mime in {DATA_MIME, CHART_MIME} else mime: self._plain(name)
            for mime, name in names.items()
        }
        return known | self.extra

    def formats(self) -> list[str]:
        """Return the names of the formats that are there, those in ``extra`` by their MIME type."""
        return [name for name in FIELD_OF_MIME.values() if getattr(self, name) is not None] + list(self.extra)

    def __getitem__(self, name: str) -> Any:
        """Return a format by its attribute's name (``None`` where it is absent, as E2B does) or by its MIME type.

        Raises ``KeyError`` for a type that is not there.
        """
        return getattr(self, name) if name in _NAMES else self.raw[name]

    def to_dict(self, *, finite: bool = False) -> dict[str, Any]:
        """Return the formats that are there by name, ``extra`` and ``metadata`` where not empty, and ``is_main_result``.

        ``finite``: for JSON.  NaN and infinities are ``None`` then, and ``non_finite`` says where each of them was: JSON
        pointer → ``"NaN"``, ``"Infinity"`` or ``"-Infinity"`` (the first :data:`MAX_NON_FINITE`).
        """
        content = {name: self._plain(name) for name in FIELD_OF_MIME.values()}
        present = {name: value for name, value in content.items() if value is not None}
        for name in ("extra", "metadata"):
            if getattr(self, name):
                present[name] = getattr(self, name)
        present["is_main_result"] = self.is_main_result
        if finite and (lost := non_finite(present)):
            return {**json_safe(present), "non_finite": lost}
        return present

    def to_json(self) -> str:
        """Return :meth:`to_dict` as JSON text; NaN and infinities become ``null``, and ``non_finite`` tells of them."""
        return json.dumps(json_safe(self.to_dict(finite=True)))

    def _plain(self, name: str) -> Any:
        """Return a format as JSON has it."""
        value = getattr(self, name)
        return value.to_dict() if name == "chart" and value is not None else value

    def __str__(self) -> str:
        return (
            f"Result({self.text})"
            if self.text is not None
            else f"Result(Formats: {', '.join(self.formats())})"
        )

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


def _chart(description: dict[str, Any]) -> "Chart | None":
    from cellfork.model.charts import Chart  # seventeen classes, for results that few cells have

    return Chart.from_dict(description) if description else None


def _base64(value: Any) -> Any:
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else value


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else json.dumps(json_safe(value))


MAX_NON_FINITE = 10_000
"""Values that JSON cannot hold and of which the place is told."""


def non_finite(value: Any) -> dict[str, str]:
    """Return where in ``value`` there are NaN and infinities: JSON pointer (RFC 6901) → which of them."""
    found: dict[str, str] = {}
    level: list[tuple[str, Any]] = [("", value)]
    while level and len(found) < MAX_NON_FINITE:
        path, item = level.pop()
        if isinstance(item, Mapping):
            level += [
                (f"{path}/{_escaped(key)}", item[key]) for key in reversed(item) if _may_hold(item[key])
            ]
        elif isinstance(item, list | tuple):
            level += [(f"{path}/{i}", item[i]) for i in range(len(item) - 1, -1, -1) if _may_hold(item[i])]
        elif isinstance(item, float):
            found[path] = "NaN" if math.isnan(item) else "Infinity" if item > 0 else "-Infinity"
    return found


def _may_hold(value: Any) -> bool:
    return not math.isfinite(value) if isinstance(value, float) else isinstance(value, Mapping | list | tuple)


def _escaped(key: object) -> str:
    return str(key).replace("~", "~0").replace("/", "~1")


def json_safe(value: Any) -> Any:
    """Return ``value`` with NaN and infinities replaced by ``None``, so that it is valid JSON."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    return value
