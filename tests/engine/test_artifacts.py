"""What a sandbox says of the files that an execution made, and what becomes of it when it lies."""

import json
from typing import Any

import pytest

from cellfork.engine.artifacts import read_artifacts
from cellfork.model.artifacts import Artifact, mime_of
from cellfork.model.errors import ProtocolViolation
from cellfork.model.events import Finished
from tests.engine.conftest import Stage, recorded

DIGEST = "0" * 64
ENTRY = ["/home/user/plot.png", 10, DIGEST, False]
MADE = Artifact("/home/user/plot.png", 10, "image/png", DIGEST)

pytestmark = pytest.mark.anyio


async def test_artifacts_come_with_the_end(stage: Stage):
    """They are part of the terminal event, hence of the execution."""
    running = await stage.start("hang")
    kernel = stage.guest.kernels[1]
    kernel.artifacts([ENTRY], truncated=True)
    assert running.execution.artifacts == []
    kernel.done()
    execution = await running.wait()
    assert (execution.artifacts, execution.artifacts_truncated) == ([MADE], True)
    last = (await recorded(running))[-1]
    assert isinstance(last, Finished) and last.artifacts == (MADE,)
    assert running.kept_bytes > 512


async def test_artifacts_of_a_kernel_that_died(stage: Stage):
    """What was told before the kernel's end is kept, however the execution ends."""
    running = await stage.start("hang")
    kernel = stage.guest.kernels[1]
    kernel.artifacts([ENTRY])
    kernel.exit(9)
    execution = await running.wait()
    assert (execution.status, execution.artifacts) == ("lost", [MADE])


async def test_only_the_running_execution_is_affected(stage: Stage):
    """Artifacts of another execution, or told a second time, are dropped and counted."""
    running = await stage.start("hang")
    kernel = stage.guest.kernels[1]
    kernel.say("artifacts", b"[]", execution="another", truncated=True)
    kernel.artifacts([ENTRY])
    kernel.artifacts([])
    kernel.done()
    execution = await running.wait()
    assert (execution.artifacts, execution.artifacts_truncated) == ([MADE], False)
    assert stage.sandbox.dropped_frames == 2
    kernel.artifacts([ENTRY])
    assert stage.sandbox.dropped_frames == 3


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"{}", b"\xff", b"NaN", b"[" * 100_000, b"[1]", b"[[]]", b"null", b"[" + b"[],"* 2000 + b"[]]",
        b"[[[[" * 1_000_000,
    ],
)  # fmt: skip
def test_what_is_no_list_of_files(body: bytes):
    """Whatever a sandbox sends in place of a short list of files is a violation of the protocol, found at once."""
    with pytest.raises(ProtocolViolation):
        read_artifacts(body)


@pytest.mark.parametrize(
    "change",
    [
        {0: 1}, {0: ""}, {0: "relative"}, {0: "/" + "x" * 5000}, {0: "/nul\0"}, {1: -1}, {1: True}, {1: 1.5}, {1: 2**63},
        {1: None}, {2: "0" * 63}, {2: "A" * 64}, {2: 1}, {2: DIGEST + "\n"}, {3: 0}, {3: None}, {4: "more"},
    ],
)  # fmt: skip
def test_what_is_no_file(change: dict[int, Any]):
    """Every field of an artifact has its type and its bounds."""
    entry = dict(enumerate(ENTRY)) | change
    assert read_artifacts(json.dumps([ENTRY]).encode()) == (MADE,)
    with pytest.raises(ProtocolViolation):
        read_artifacts(json.dumps([list(entry.values())]).encode())


@pytest.mark.parametrize(
    ("name", "mime"),
    [
        ("a.csv", "text/csv"), ("a.PNG", "image/png"), ("a.parquet", "application/vnd.apache.parquet"),
        ("a.tar.gz", "application/gzip"), ("a.ipynb", "application/x-ipynb+json"), ("a.md", "text/markdown"),
        ("no-extension", "application/octet-stream"), ("a.unheard-of", "application/octet-stream"),
        ("data:text/html,x", "application/octet-stream"), ("a.webp", "image/webp"), ("http://x/a.json", "application/json"),
    ],
)  # fmt: skip
def test_types_go_by_names(name: str, mime: str):
    """A file's type is that of its name, the same on every machine; an odd name is a name and no URL."""
    assert mime_of(f"/home/user/{name}") == mime
