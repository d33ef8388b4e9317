"""Every fuzz target for a moment: its seeds, then changed ones, the same in every run.

The long form is ``make fuzz``.
"""

import time
from itertools import islice
from random import Random

import pytest

from tests.fuzz import sessions
from tests.fuzz.mutations import mutations
from tests.fuzz.targets import TARGETS, Target

SECONDS = 2.0
MOST = 3000


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_target(target: Target) -> None:
    """No input breaks what the target promises."""
    deadline = time.monotonic() + SECONDS
    try:
        for data in islice(mutations(target.seeds(), Random(target.name)), MOST):
            try:
                target.run(data)
            except Exception as error:
                raise AssertionError(f"{target.name} fails for bytes.fromhex({data.hex()!r})") from error
            if time.monotonic() > deadline:
                break
    finally:
        sessions.close_loop()
