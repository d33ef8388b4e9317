"""Executions and strategies that the rendering tests share."""

import base64
import json
import struct
import zlib
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from cellfork.model.execution import Execution, Status
from cellfork.model.results import ExecutionError, Logs, Result

GOLDEN = Path(__file__).parent / "golden"


def png(width: int, height: int, padding: int = 0) -> str:
    """A valid one-colour PNG as base64, ``padding`` bytes larger than it needs to be."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress((b"\0" + b"\x80" * width) * height))
    text = chunk(b"tEXt", b"Comment\0" + b"x" * padding) if padding else b""
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + header + text + pixels + chunk(b"IEND", b"")).decode()


def execution(
    *results: Result,
    stdout: str | list[str] = "",
    stderr: str | list[str] = "",
    error: ExecutionError | None = None,
    status: Status | None = None,
) -> Execution:
    def pieces(text: str | list[str]) -> list[str]:
        return text if isinstance(text, list) else [text] if text else []

    return Execution(
        results=list(results),
        logs=Logs(pieces(stdout), pieces(stderr)),
        error=error,
        execution_count=1,
        status=status or ("error" if error else "ok"),
    )


def load_golden(path: Path) -> tuple[Execution, dict[str, Any]]:
    """An execution of the corpus and the options it is rendered with."""
    case = json.loads(path.read_text())
    error = ExecutionError(**case["error"]) if case.get("error") else None
    built = execution(
        *(Result(**result) for result in case.get("results", [])),
        stdout=case.get("stdout", ""),
        stderr=case.get("stderr", ""),
        error=error,
        status=case.get("status"),
    )
    return built, case.get("options", {})


ESCAPES = [
    "\x1b[31m",
    "\x1b[0m",
    "\x1b[2K",
    "\x1b]0;title\x07",
    "\x1b]8;;http://a\x1b\\",
    "\x1bPq#0\x1b\\",
    "\x9b1m",
    "\x9d",
    "\x1b",
    "\r",
    "\r\n",
    "\b",
]

nasty_text = st.lists(
    st.one_of(
        st.text(max_size=80),
        st.sampled_from(ESCAPES),
        st.sampled_from(["\n", "line of text\n", "x" * 500, "é" * 200, "\ud800", "\x00\x07\x7f"]),
    ),
    max_size=12,
).map("".join)

long_text = st.tuples(nasty_text, st.integers(1, 40)).map(lambda pair: pair[0] * pair[1])

LINE = {"type": "line", "title": "T", "elements": [{"label": "a", "points": [[n, n] for n in range(200)]}]}
BARS = {"type": "bar", "elements": [{"label": "\x1b[31mb", "group": "g", "value": 1.5}] * 50}
charts = st.sampled_from([LINE, BARS, {"type": "superchart", "elements": [LINE, BARS]}, {"type": "unknown"}])

results = st.builds(
    Result,
    text=st.none() | nasty_text | st.just("None"),
    html=st.none() | long_text,
    markdown=st.none() | nasty_text,
    svg=st.none() | st.just("<svg width='10' height='20'></svg>"),
    png=st.none() | st.integers(0, 4000).map(lambda size: png(4, 3, size)) | nasty_text,
    jpeg=st.none() | nasty_text,
    latex=st.none() | nasty_text,
    pdf=st.none() | st.just("JVBERi0="),
    javascript=st.none() | nasty_text,
    json=st.none() | st.lists(st.integers(), max_size=5),
    data=st.none() | st.just({"a": [1, None, float("nan")]}),
    chart=st.none() | charts,
    extra=st.just({})
    | st.dictionaries(st.sampled_from(["application/x+json", "text/x", "image/x", "\x1b[2J"]), nasty_text),
    is_main_result=st.booleans(),
)

names = st.from_regex(r"[A-Z][a-z]{2,20}Error", fullmatch=True)
errors = st.builds(ExecutionError, name=names, value=long_text, traceback=long_text)

executions = st.builds(
    lambda found, out, err, error: execution(*found, stdout=out, stderr=err, error=error),
    st.lists(results, max_size=6) | st.lists(results, min_size=30, max_size=40),
    st.lists(long_text, max_size=3),
    st.lists(long_text, max_size=3),
    st.none() | errors,
)
