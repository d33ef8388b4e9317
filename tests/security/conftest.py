"""Sandboxes to attack, and one way to ask questions inside."""

import json
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cellfork import Limits, Sandbox

Ask = Callable[[str], Any]

LIMITS = Limits(memory="256M", cpu=1.0, pids=40, disk="32M", inodes=2000)


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox.create(limits=LIMITS) as sandbox:
        yield sandbox


@pytest.fixture
def neighbour() -> Iterator[Sandbox]:
    with Sandbox.create(limits=LIMITS) as sandbox:
        yield sandbox


def ask(sandbox: Sandbox, code: str, timeout: float = 30) -> Any:
    """Run ``code``, which assigns ``answer``, and return the answer as JSON carries it."""
    program = f"{textwrap.dedent(code)}\nimport json\nprint('ANSWER' + json.dumps(answer))"
    execution = sandbox.run_code(program, timeout=timeout)
    assert execution.error is None, execution.error
    (line,) = [line for line in "".join(execution.logs.stdout).splitlines() if line.startswith("ANSWER")]
    return json.loads(line.removeprefix("ANSWER"))
