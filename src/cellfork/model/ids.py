"""Identifiers: lower-case letters and digits, unguessable, safe in paths and host names."""

import secrets

ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
NODE_TOKEN_LENGTH = 4
RANDOM_LENGTH = 26
"""26 characters of 36 carry 134 random bits."""


def new_sandbox_id(node_token: str = "0000") -> str:
    """Return ``i`` + 4 characters of node token + 26 random characters.

    Raises ``ValueError`` when the token is not four characters of ``[a-z0-9]``.
    """
    return _with_token("i", node_token)


def new_snapshot_id(node_token: str = "0000") -> str:
    """Return ``s`` + what a sandbox's id has behind its first letter."""
    return _with_token("s", node_token)


def _with_token(kind: str, node_token: str) -> str:
    if len(node_token) != NODE_TOKEN_LENGTH or not set(node_token) <= set(ALPHABET):
        raise ValueError("a node token is four characters of [a-z0-9]")
    return f"{kind}{node_token}{_random(RANDOM_LENGTH)}"


def new_id() -> str:
    """Return an unguessable id for a context, an execution or an exec."""
    return _random(RANDOM_LENGTH)


def _random(length: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(length))
