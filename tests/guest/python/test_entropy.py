"""Kernels forked from one image draw different random numbers."""

import subprocess
import sys
from pathlib import Path

from tests.guest.python.harness import Server, session_on

DRAWS = """
import random, numpy as np, uuid, tempfile, secrets, os
[random.random(), float(np.random.rand()), str(uuid.uuid4()), uuid.uuid1().clock_seq, uuid.uuid1().hex,
 next(tempfile._get_candidate_names()), secrets.token_hex(4), float(np.random.default_rng().random()), random.SystemRandom().random()]
"""


def test_siblings_draw_different_numbers(server: Server, tmp_path: Path):
    """``random``, numpy's global generator, ``uuid1``, ``uuid4`` and ``tempfile`` differ in every fork."""
    draws = []
    for _ in range(8):
        with session_on(server, str(tmp_path)) as session:
            draws.append(eval(session.run(DRAWS).ok().text or ""))
    for number, kind in enumerate(zip(*draws, strict=True)):
        assert len(set(kind)) == len(draws), (number, kind)


SIBLINGS = """
import os, random, sys, tempfile, uuid
import numpy
from cellfork.guest.python import entropy
numpy.random.rand(), random.random(), uuid.uuid1(), next(tempfile._get_candidate_names())
for _ in range(1000):
    pid = os.fork()
    if pid == 0:
        entropy.reseed()
        draws = [random.random(), numpy.random.rand(), uuid.uuid4(), uuid.uuid1(), next(tempfile._get_candidate_names())]
        os.write(1, (' '.join(map(str, draws)) + '\\n').encode())
        os._exit(0)
    os.waitpid(pid, 0)
"""


def test_a_thousand_siblings_share_no_first_draw():
    """Of a thousand forks of one process no two draw the same first number from any source."""
    done = subprocess.run([sys.executable, "-c", SIBLINGS], capture_output=True, text=True, check=True)
    rows = [line.split() for line in done.stdout.splitlines()]
    assert len(rows) == 1000
    for column in zip(*rows, strict=True):
        assert len(set(column)) == 1000


def test_seeds_still_work(server: Server, tmp_path: Path):
    """A seed that the user sets gives the numbers it always gives."""
    with session_on(server, str(tmp_path)) as session:
        assert session.run("import random; random.seed(1); random.randint(0, 10**6)").text == "140891"
        assert (
            session.run("import numpy as np; np.random.seed(0); int(np.random.randint(10**6))").text
            == "985772"
        )


HELD = """
import random, sys
before = [name for name in ("numpy", "_ssl", "uuid", "multiprocessing.process") if name in sys.modules]
from cellfork.guest.python import entropy
entropy.reseed(entropy.find_sources())
after = [name for name in ("numpy", "_ssl", "multiprocessing.process") if name in sys.modules]
import numpy
class Own(random.Random):
    def seed(self, *_): raise RuntimeError("an own way of seeding")
own = Own.__new__(Own)
random.Random.seed(own, 1)
system, plain = random.SystemRandom(), random.Random(1)
legacy, generator, bits = numpy.random.RandomState(1), numpy.random.default_rng(1), numpy.random.MT19937(1)
sources = entropy.find_sources()
print(before, after)
print(sorted(type(found).__name__ for found in sources.python), len(sources.bits), len(sources.legacy))
print(any(found is numpy.random.mtrand._rand for found in sources.legacy), any(found is random._inst for found in sources.python))
state = own.getstate()
entropy.reseed(sources)
print(state != own.getstate())
"""


def test_what_a_library_holds_is_found():
    """Every generator but the global ones is found; what draws from the kernel is left alone; nothing is imported for it."""
    done = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[] []", "['Own', 'Random'] 2 1", "False False", "True"]


STAND_INS = """
import sys, types
from cellfork.guest.python import entropy
torch = types.ModuleType("torch")
calls = []
torch.seed = lambda: calls.append("seed")
uuid = types.SimpleNamespace(_last_timestamp=1, _last_timestamp_v7=2, _node=3, _generate_time_safe=len)
sys.modules.update({"torch": torch, "uuid": uuid})
entropy.reseed()
print(calls, uuid._last_timestamp, uuid._last_timestamp_v7, uuid._node, uuid._generate_time_safe, hasattr(uuid, "_last_timestamp_v6"))
"""


def test_libraries_that_are_not_here():
    """PyTorch's own ``seed()`` is called where it is loaded, and what later versions of ``uuid`` remember is forgotten."""
    done = subprocess.run([sys.executable, "-c", STAND_INS], capture_output=True, text=True, check=True)
    assert done.stdout == "['seed'] None None None None False\n"
