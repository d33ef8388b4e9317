"""Tests for what dialects keep with sandboxes."""

import pytest

from cellfork.dialects.keeping import is_token, new_token


def test_a_token_is_long_and_never_the_same() -> None:
    """A token has 256 bits, and no second one is like it."""
    assert len(bytes.fromhex(new_token())) == 32
    assert new_token() != new_token()


@pytest.mark.parametrize(
    "presented", [None, "", "secre", "secrets", "SECRET", "sécret", "\udcff", "secret\0"]
)
def test_only_the_token_is_the_token(presented: str | None) -> None:
    """Nothing but the token passes for it; what is no text that could be sent is an answer as any other."""
    assert is_token("secret", "secret")
    assert not is_token("secret", presented)
