"""Checks of what callers pass in: text that can be encoded, names and values of environment variables."""

import json
from collections.abc import Mapping

from cellfork.model.errors import InvalidRequest, LimitExceeded

MAX_TENANT = 256
"""Characters of the name of a tenant."""


def encoded(text: str, what: str, limit: int) -> bytes:
    """Return ``text`` as UTF-8.

    Raises :class:`InvalidRequest` for anything but text and for lone surrogates, :class:`LimitExceeded`
    for more than ``limit`` bytes.
    """
    if not isinstance(text, str):
        raise InvalidRequest(f"{what} has to be text, not {type(text).__name__}")
    try:
        content = text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{what} holds a lone surrogate at {error.start}: it is not valid text"
        ) from None
    if len(content) > limit:
        raise LimitExceeded(f"{what} is {len(content):,} bytes long; at most {limit:,} are taken")
    return content


def check_envs(envs: Mapping[str, str], limit: int) -> dict[str, str]:
    """Return a copy of environment variables.

    Raises :class:`InvalidRequest` where a name or a value cannot be one, :class:`LimitExceeded` where all
    of them together pass ``limit`` bytes of JSON.
    """
    if not envs:
        return {}
    if not isinstance(envs, Mapping):
        raise InvalidRequest("environment variables are a mapping of names to values")
    for name, value in envs.items():
        _check_env(name, value)
    size = len(json.dumps(dict(envs)))
    if size > limit:
        raise LimitExceeded(f"environment variables take {size:,} bytes; at most {limit:,} are taken")
    return dict(envs)


def check_text(text: str, what: str, limit: int = 4096) -> str:
    """Return a path, an argument or a similar short text that can be passed to a system call.

    Raises :class:`InvalidRequest` for anything else, for NUL, and for more than ``limit`` bytes.
    """
    if isinstance(text, str) and len(text) > limit:
        raise InvalidRequest(f"{what} is {len(text):,} characters long; at most {limit:,} are taken")
    encoded(text, what, 4 * limit)
    if "\0" in text:
        raise InvalidRequest(f"{what} holds a NUL character")
    return text


def check_tenant(tenant: str) -> str:
    """Return the name of a trust domain: at most 256 printable characters; ``""`` is the embedder's own.

    Raises :class:`InvalidRequest` for anything else.
    """
    if not isinstance(tenant, str) or len(tenant) > MAX_TENANT or not tenant.isprintable():
        raise InvalidRequest(
            f"a tenant is named by at most {MAX_TENANT} printable characters, not by {str(tenant)[:80]!r}"
        )
    return tenant


def check_seconds(seconds: float | None, what: str = "timeout") -> float | None:
    """Return a duration greater than zero, or ``None`` for no bound (0 means that too, as in E2B)."""
    if seconds is None or (seconds == 0 and not isinstance(seconds, bool)):
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
        raise InvalidRequest(f"{what} is a number of seconds greater than zero, or None, not {seconds!r}")
    return float(seconds)


def _check_env(name: object, value: object) -> None:
    if not isinstance(name, str) or not isinstance(value, str):
        kinds = f"{type(name).__name__}: {type(value).__name__}"  # no value: it may be a secret
        raise InvalidRequest(f"an environment variable is a text by name, not {kinds}")
    if not name or "=" in name or "\0" in name:
        raise InvalidRequest(f"{name[:80]!r} cannot be the name of an environment variable")
    if "\0" in value:
        raise InvalidRequest(f"the environment variable {name[:80]!r} holds a NUL character")
    encoded(name, "the name of an environment variable", 2**31)
    encoded(value, f"the environment variable {name[:80]!r}", 2**31)
