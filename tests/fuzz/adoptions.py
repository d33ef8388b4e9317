"""Target: what init tells a new host of a sandbox that was there before it."""

import json
from typing import Any

from cellfork.engine.adoption import VERSION, Past
from cellfork.engine.engine import Engine
from cellfork.engine.records import NoRecords
from cellfork.engine.settings import Settings
from cellfork.model.errors import ProtocolViolation
from cellfork.model.specs import SandboxSpec
from cellfork.runtimes.kept import MAX_CHANNEL, MAX_LABEL, Kept
from cellfork.testing.fakes import FakeClock, FakeRuntime, settle
from tests.fuzz.choices import Choices
from tests.fuzz.sessions import play

CONTEXT = "c" * 26
KERNEL: dict[str, Any] = {
    "channel": 1, "label": CONTEXT, "execution": f"{CONTEXT}x1", "next_count": 2, "over": False,
}  # fmt: skip
PROCESS: dict[str, Any] = {
    "process": 1, "pid": 7, "argv": ["/bin/sh", "-c", "hang"], "cwd": "/tmp", "envs": {"A": "b"}, "user": "user",
    "stdin": True, "pty": [24, 80], "label": json.dumps({"id": "e" * 26, "tag": None, "deadline": 2000.5}),
    "code": None, "signal": None,
}  # fmt: skip
RECORD: dict[str, Any] = {
    "version": VERSION, "notes": {}, "started_at": 1.0, "deadline": None, "state": "running", "archive": None, "life": 0,
    "contexts": [{"id": CONTEXT, "default": True, "spec": {"language": "python", "cwd": "/", "envs": {}}}],
}  # fmt: skip
ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, 2**31, 2**63, "", "x" * 5000, "\ud800", [], {}, ["a", 1], {"id": "e" * 26, "deadline": "NaN"},
    '{"id": "e", "deadline": NaN}', '{"id": "e", "deadline": 1e308}', '{"id": 5}', "[" * 3000, CONTEXT, [0, 0], "ab",
)  # fmt: skip


def seeds() -> list[bytes]:
    """Return inputs to begin with: reports that are right, and decisions for those that are not."""
    right = [
        json.dumps(KERNEL).encode(),
        json.dumps(PROCESS).encode(),
        json.dumps({**PROCESS, "code": 3}).encode(),
    ]
    return [*(b"\xff" + text for text in right), *(bytes([0, n, n, n, n, n]) for n in range(64)), b"\0" * 40]


def run(data: bytes) -> None:
    """A report is read or refused; whatever was read makes a sandbox that works, with its own contexts and commands only."""
    choices = Choices(data)
    kept = Kept()
    if choices.byte() == 0xFF:
        read(kept, choices.pick(("kernel", "process")), choices.rest())
    else:
        while choices and len(kept.kernels) + len(kept.processes) < 8:
            kind, values = choices.pick((("kernel", KERNEL), ("process", PROCESS)))
            changed = {**values, choices.pick([*values]): choices.pick(ODD)} if choices.chance(2) else values
            read(kept, kind, json.dumps(changed).encode())
    try:
        kept.end(choices.pick((0, 5, 2**31, -1)), choices.pick((-1, 0, 5, 2**63)))
    except ProtocolViolation:
        return
    play(_restore(kept))


def read(kept: Kept, kind: str, body: bytes) -> None:
    """Read one report; what was taken keeps its bounds."""
    try:
        kept.add(kind, body)
    except ProtocolViolation:
        return
    for kernel in kept.kernels:
        assert 1 <= kernel.channel <= MAX_CHANNEL
        assert len(kernel.label) <= MAX_LABEL
        assert type(kernel.over) is bool
    for process in kept.processes:
        assert process.number >= 0
        assert type(process.code) in {int, type(None)}


async def _restore(kept: Kept) -> None:
    clock, runtime = FakeClock(), FakeRuntime(keep=True)
    engine = Engine({"fake": runtime}, Settings(clock=clock), NoRecords())
    guest = await runtime.start(SandboxSpec(isolation="fake"))
    for op in ("interrupt", "terminate", "process.signal"):
        guest.script[op] = lambda _guest, _header, _body: {}  # it has nothing of what it says
    sandbox = engine.take("i", SandboxSpec(isolation="fake", timeout=None), guest, Past(RECORD, kept, 1))
    assert [context.id for context in sandbox.contexts.list()] == [CONTEXT]
    ids = [exec_.id for exec_ in sandbox.execs.list()]
    assert len({*ids}) == len(ids) <= len(kept.processes)
    await settle()
    await clock.advance(10)
    assert sandbox.state in {"running", "ended"}
    await engine.aclose()
    assert guest.killed
