"""Random numbers after a fork: no two children of one zygote may draw the same.

What draws from the kernel with every call needs nothing: ``secrets``, ``os.urandom``, ``uuid4``, new generators of
``numpy.random.default_rng()``, programs that are started anew.  Everything else keeps a state in memory, and a
fork copies it: the global generators, and each generator that a preloaded library holds.  The hash
secret of the interpreter cannot be exchanged; it is the same in all sandboxes of one zygote.
"""

import gc
import os
import random
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

_WORDS = 624
"""Words of the state of a Mersenne Twister."""
_OPENSSL_BYTES = 32


@dataclass(frozen=True, slots=True)
class Sources:
    """The generators that were there when the image was ready, those of Python's and of numpy's kind.

    Those with a seed of their own are among them: nobody can tell.
    """

    python: tuple[random.Random, ...] = ()
    bits: tuple[Any, ...] = ()
    """numpy's bit generators; a ``Generator`` holds one and nothing else."""
    legacy: tuple[Any, ...] = ()
    """numpy's ``RandomState``, which keeps half of a pair of normal numbers besides; the global one is not among them."""


def find_sources() -> Sources:
    """Look for generators among all objects.  Call before they are frozen (``gc.freeze``), in the zygote."""
    numpy_random = sys.modules.get("numpy.random")
    bit_generators: tuple[type[Any], ...] = ()
    states: tuple[type[Any], ...] = ()
    if numpy_random is not None:
        bit_generators, states = (numpy_random.BitGenerator,), (numpy_random.RandomState,)
    python: list[random.Random] = []
    bits: list[Any] = []
    legacy: list[Any] = []
    for found in gc.get_objects():
        kind = type(found)  # not isinstance: it would ask proxies, which may do anything
        if issubclass(kind, random.Random) and not issubclass(kind, random.SystemRandom):
            python.append(found)
        elif issubclass(kind, bit_generators):
            bits.append(found)
        elif issubclass(kind, states):
            legacy.append(found)
    shared = _global_state(numpy_random)
    own = {id(state._bit_generator) for state in [*legacy, shared] if state is not None}
    return Sources(
        tuple(found for found in python if found is not random._inst),
        tuple(found for found in bits if id(found) not in own),
        tuple(found for found in legacy if found is not shared),
    )


def reseed(sources: Sources | None = None) -> None:
    """Seed anew what the processes forked from one image would share."""
    sources = sources or Sources()
    random.seed()
    for generator in sources.python:
        random.Random.seed(generator)
    tempfile._name_sequence = None  # type: ignore[attr-defined]
    tempfile.tempdir = None
    _reseed_numpy(sys.modules.get("numpy.random"), sources)
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "seed"):
        torch.seed()
    _forget_uuid_clock(sys.modules.get("uuid"))
    _stir_openssl(sys.modules.get("_ssl"))
    _renew_authentication(sys.modules.get("multiprocessing.process"))


def _reseed_numpy(numpy_random: Any, sources: Sources) -> None:
    """Fill the state of the global generator with random bytes: a third of the page faults of ``seed()``."""
    if numpy_random is None:
        return
    numpy: Any = sys.modules["numpy"]
    numpy_random.set_state(("MT19937", numpy.frombuffer(os.urandom(4 * _WORDS), "u4"), _WORDS))
    for state in sources.legacy:
        fresh = type(state._bit_generator)().state
        state.set_state({**fresh, "has_gauss": 0, "gauss": 0.0})
    for bits in sources.bits:
        _reseed_bits(bits)


def _reseed_bits(bits: Any) -> None:
    """Give a bit generator a new state and, where numpy lets it (2.0), the seed sequence that it spawns others from."""
    fresh = type(bits)()
    try:
        bits.__setstate__((fresh.state, fresh.seed_seq))
    except (AttributeError, TypeError, ValueError):
        bits.state = fresh.state


def _global_state(numpy_random: Any) -> Any:
    return None if numpy_random is None else numpy_random.mtrand._rand


def _forget_uuid_clock(uuid: Any) -> None:
    """Let ``uuid1`` draw a clock sequence of its own: libuuid keeps its clock in memory, Python its last time.

    Without libuuid's generator, Python draws 14 random bits in every call.  The node may be random as well, and
    is drawn again; so are the counters of later versions of UUIDs (Python 3.14).
    """
    if uuid is None:
        return
    for name in (
        "_generate_time_safe",
        "_last_timestamp",
        "_last_timestamp_v6",
        "_last_timestamp_v7",
        "_node",
    ):
        if getattr(uuid, name, None) is not None:
            setattr(uuid, name, None)


def _stir_openssl(ssl: Any) -> None:
    """Mix new bytes into OpenSSL's generator: it notices a fork by the pid, and siblings have the same pid inside."""
    if ssl is not None:
        ssl.RAND_add(os.urandom(_OPENSSL_BYTES), float(_OPENSSL_BYTES))


def _renew_authentication(process: Any) -> None:
    """Make the key anew by which ``multiprocessing`` knows its own processes: it is drawn at import."""
    if process is not None:
        process.current_process().authkey = os.urandom(32)
