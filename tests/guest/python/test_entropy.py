"""Kernels forked from one image draw different random numbers."""

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


def test_seeds_still_work(server: Server, tmp_path: Path):
    """A seed that the user sets gives the numbers it always gives."""
    with session_on(server, str(tmp_path)) as session:
        assert session.run("import random; random.seed(1); random.randint(0, 10**6)").text == "140891"
        assert (
            session.run("import numpy as np; np.random.seed(0); int(np.random.randint(10**6))").text
            == "985772"
        )
