"""Keys: who may call, what is kept of a key, what a first start makes."""

import json
import stat
from pathlib import Path

import pytest

from cellfork.model.errors import InvalidRequest
from cellfork.server.keys import FILE, KeyRing, new_key, open_keys, parse_key
from cellfork.server.settings import Settings
from tests.server.conftest import KEY, OTHER_KEY


def test_a_key_names_its_tenant():
    """A key is let in as its tenant; every other key, a piece of one, and none are not let in."""
    ring = open_keys(Settings(api_key=(KEY, f"team:{OTHER_KEY}"))).ring
    assert ring.owner(KEY) == ""
    assert ring.owner(OTHER_KEY) == "team"
    for wrong in (
        None,
        "",
        KEY[:-1],
        KEY + "a",
        KEY.upper(),
        f"team:{OTHER_KEY}",
        "é",
        "\udcff",
        "x" * 10**6,
    ):
        assert ring.owner(wrong) is None


def test_anonymous_lets_everybody_in_as_nobody_in_particular():
    """Without keys everybody is the tenant without a name; keys that are known still name theirs."""
    ring = open_keys(Settings(anonymous=True, api_key=(f"team:{OTHER_KEY}",))).ring
    assert ring.owner(None) == ring.owner("anything") == ""
    assert ring.owner(OTHER_KEY) == "team"


def test_no_keys_let_nobody_in():
    """A ring without keys is closed."""
    assert KeyRing(()).owner("") is None
    assert KeyRing(()).owner(None) is None


def test_the_first_start_makes_a_key(tmp_path: Path):
    """The first start makes a key, tells it once and keeps its hash alone, for the server's user; later starts know it."""
    settings = Settings(state=tmp_path / "state")
    first, second = open_keys(settings), open_keys(settings)
    assert first.made is not None
    assert second.made is None
    assert first.ring.owner(first.made) == second.ring.owner(first.made) == ""
    file = tmp_path / "state" / FILE
    assert first.made not in file.read_text()
    assert first.made.removeprefix("e2b_") not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_key_without_a_state_directory_lives_as_long_as_the_server():
    """Where nothing is kept, each start has a key of its own."""
    first, second = open_keys(Settings(state=None)), open_keys(Settings(state=None))
    assert first.made
    assert second.made
    assert first.made != second.made


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '[{"tenant": "", "sha256": "00"}]', '[{"tenant": ""}]', '[{"tenant": "\\u0000", "sha256": "'
    + "0" * 64 + '"}]', "[1]"]
)  # fmt: skip
def test_a_damaged_file_lets_nobody_in(tmp_path: Path, content: str):
    """A key file that cannot be read stops the server; it never opens it, and is never replaced."""
    file = tmp_path / FILE
    file.write_text(content)
    with pytest.raises(InvalidRequest):
        open_keys(Settings(state=tmp_path))
    assert file.read_text() == content


@pytest.mark.parametrize(
    "text", ["", "short", "name:", "a" * 513, "name:short", "k" * 20 + " ", "k" * 20 + "\n x", "kéy" * 9]
)
def test_weak_keys_are_refused(text: str):
    """A key that could be guessed, or that no header carries, is refused, without being quoted."""
    if text.strip() != text:
        text = text.replace(" ", " x")
    with pytest.raises(InvalidRequest) as refused:
        parse_key(text)
    assert not text or text not in str(refused.value)


def test_two_tenants_cannot_share_a_key():
    """A key stands for one tenant."""
    with pytest.raises(InvalidRequest):
        open_keys(Settings(api_key=(f"a:{KEY}", f"b:{KEY}")))


def test_keys_from_a_file(tmp_path: Path):
    """A file holds one key a line; empty lines and comments are passed over; an empty file is an error."""
    file = tmp_path / "keys"
    file.write_text(f"# mine\n\n{KEY}\nteam:{OTHER_KEY}\n")
    assert open_keys(Settings(api_key_file=file)).ring.owner(OTHER_KEY) == "team"
    file.write_text("# none\n")
    with pytest.raises(InvalidRequest):
        open_keys(Settings(api_key_file=file))


def test_a_made_key_passes_every_clients_check():
    """E2B's older clients look at a key before they send it."""
    assert parse_key(new_key()).tenant == ""
    assert new_key().startswith("e2b_")
    assert len({new_key() for _ in range(100)}) == 100
    int(new_key().removeprefix("e2b_"), 16)


def test_the_kept_file_has_one_form(tmp_path: Path):
    """What is kept is a list of tenants and hashes, nothing else."""
    open_keys(Settings(state=tmp_path))
    [kept] = json.loads((tmp_path / FILE).read_text())
    assert set(kept) == {"tenant", "sha256"}
