"""The short form of ``make crashes``: a server is killed some times while clients are at work."""

import asyncio
import re
from pathlib import Path

import pytest

from scripts.crash_servers import HttpServer
from scripts.crashes import campaign
from tests.ordinary import ordinary_user, possible


@pytest.mark.slow
@pytest.mark.timeout(110)
def test_kills_at_random_moments(tmp_path: Path):
    """Whatever was answered is known to the next server, what was killed stays away, and nothing is left that belongs to nobody."""
    history = asyncio.run(campaign(tmp_path / "state", kills=12, seed=1, clients=3))
    assert history.wrong == []
    assert history.kills == 12
    assert history.answers > 20
    assert history.adopted > 5


@pytest.mark.slow
@pytest.mark.timeout(110)
def test_kills_of_a_server_with_clients(tmp_path: Path):
    """The same of ``cellfork serve`` and clients that come over HTTP: with their ids they go on at the next one."""
    history = asyncio.run(campaign(tmp_path / "state", kills=4, seed=3, clients=3, kind=HttpServer))
    assert history.wrong == []
    assert history.kills == 4
    assert history.answers > 5
    assert history.adopted > 1


@pytest.mark.slow
@pytest.mark.timeout(110)
@pytest.mark.skipif(possible() is not None, reason=str(possible()))
def test_as_an_ordinary_user():
    """The same where the server has one host id, and no control group that could be killed as a whole."""
    with ordinary_user() as user:
        argv = [user.python, "scripts/crashes.py", "--kills", "6", "--seed", "2"]
        done = user.run(argv, capture_output=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    (answers,) = re.findall(r"(\d+) answers, [1-9]\d* adoptions", done.stdout)
    assert int(answers) > 5
    assert "0 wrong" in done.stdout
