"""Identifiers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfork.model.ids import ALPHABET, RANDOM_LENGTH, new_id, new_sandbox_id


def test_sandbox_id():
    """A sandbox's id is ``i``, the node's token, and at least 128 random bits, in ``[a-z0-9]``."""
    name = new_sandbox_id("n0d3")
    assert name.startswith("in0d3")
    assert set(name) <= set(ALPHABET)
    assert len(ALPHABET) ** RANDOM_LENGTH >= 2**128
    assert len(name) == 5 + RANDOM_LENGTH
    assert len(f"65535-{name}") <= 63, "a host name's label"


def test_ids_differ():
    """No id comes twice, and every character takes part."""
    names = {new_id() for _ in range(2000)}
    assert len(names) == 2000
    assert {len(name) for name in names} == {RANDOM_LENGTH}
    for place in range(RANDOM_LENGTH):
        assert len({name[place] for name in names}) == len(ALPHABET)


@given(st.text(max_size=6))
def test_token_is_four_characters(token):
    """A token is four characters of the alphabet; anything else is refused."""
    if len(token) == 4 and set(token) <= set(ALPHABET):
        assert new_sandbox_id(token)[1:5] == token
    else:
        with pytest.raises(ValueError):
            new_sandbox_id(token)


@pytest.mark.parametrize("token", ["", "abc", "abcde", "ABCD", "ab-d", "äbcd", "ab d", "١٢٣٤"])
def test_tokens_refused(token):
    """Tokens that would not be safe in a path or a host name are refused."""
    with pytest.raises(ValueError):
        new_sandbox_id(token)
