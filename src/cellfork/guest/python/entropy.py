"""Random numbers after a fork: no two children of one zygote may draw the same."""

import os
import random
import sys
import tempfile
from typing import Any


def reseed() -> None:
    """Seed anew what the processes forked from one image would share."""
    random.seed()
    tempfile._name_sequence = None  # type: ignore[attr-defined]
    tempfile.tempdir = None
    _reseed_numpy(sys.modules.get("numpy.random"))
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "seed"):
        torch.seed()
    _forget_uuid_clock(sys.modules.get("uuid"))


def _reseed_numpy(numpy_random: Any) -> None:
    """Fill the state of the global generator with random bytes: a third of the page faults of ``seed()``."""
    if numpy_random is not None:
        numpy: Any = sys.modules["numpy"]
        words = 624
        numpy_random.set_state(("MT19937", numpy.frombuffer(os.urandom(4 * words), "u4"), words))


def _forget_uuid_clock(uuid: Any) -> None:
    """Let ``uuid1`` draw a clock sequence of its own: libuuid keeps its clock in memory, Python its last time.

    Without libuuid's generator, Python draws 14 random bits in every call.
    """
    if uuid is not None:
        uuid._last_timestamp = None
        uuid._generate_time_safe = None
