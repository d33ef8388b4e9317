"""API keys: who may call, and as whom.  Only hashes are kept, in memory and on disk.

A key names a tenant.  Sandboxes belong to the tenant of the key that created them, and are seen by nobody else.
"""

import hmac
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from cellfork.engine.checks import check_tenant
from cellfork.model.errors import InvalidRequest
from cellfork.server.settings import Settings

PREFIX = "e2b_"
RANDOM_BYTES = 20
"""A key that the server makes is ``e2b_`` and 40 hexadecimal digits: every generation of E2B's clients takes it."""
SHORTEST = 16
"""Characters of a key that its owner chose; fewer could be guessed."""
LONGEST = 512
FILE = "keys.json"


@dataclass(frozen=True, slots=True)
class Key:
    """The hash of a key (hexadecimal SHA-256), and the tenant it stands for."""

    hash: str
    tenant: str = ""


class KeyRing:
    """Knows who may call (:class:`cellfork.dialects.base.Keys`)."""

    def __init__(self, keys: Iterable[Key], *, anonymous: bool = False) -> None:
        self._tenants: Mapping[bytes, str] = {bytes.fromhex(key.hash): key.tenant for key in keys}
        self._anonymous = anonymous

    def owner(self, presented: str | None) -> str | None:
        """Return the tenant whose key this is, or ``None``: not allowed.

        Hashes are compared, each in constant time and all of them, so that the time tells nothing about a key.
        """
        digest = _digest((presented or "")[: LONGEST + 1])
        owner = None
        for known, tenant in self._tenants.items():
            if hmac.compare_digest(known, digest):
                owner = tenant
        return "" if owner is None and self._anonymous else owner


@dataclass(frozen=True, slots=True)
class Opened:
    """The keys of a server, and the one that was made just now (told once, then forgotten)."""

    ring: KeyRing
    made: str | None = None


def open_keys(settings: Settings) -> Opened:
    """Return the keys of the settings; where there are none, those of the state directory, made at the first start.

    Raises :class:`InvalidRequest` for a key that is too short, and where two tenants share one.
    """
    given = _given(settings)
    if given:
        return Opened(KeyRing(_checked(map(parse_key, given)), anonymous=settings.anonymous))
    if settings.anonymous:
        return Opened(KeyRing((), anonymous=True))
    file = settings.state / FILE if settings.state else None
    if file is not None and file.exists():
        return Opened(KeyRing(_read(file)))
    made = new_key()
    key = parse_key(made)
    if file is not None:
        _write(file, [key])
    return Opened(KeyRing([key]), made)


def given_keys(settings: Settings) -> list[str]:
    """Return the keys of the settings in clear, without their owners' names."""
    return [text.partition(":")[2] or text for text in _given(settings)]


def _given(settings: Settings) -> list[str]:
    return [*settings.api_key, *(_lines(settings.api_key_file) if settings.api_key_file else ())]


def new_key() -> str:
    """Return a key that nobody can guess."""
    return PREFIX + secrets.token_hex(RANDOM_BYTES)


def parse_key(text: str) -> Key:
    """Read ``KEY`` or ``NAME:KEY``.  Raises :class:`InvalidRequest`, which does not quote the key."""
    tenant, colon, key = text.strip().partition(":")
    if not colon:
        tenant, key = "", tenant
    if not SHORTEST <= len(key) <= LONGEST:
        raise InvalidRequest(f"an API key has {SHORTEST} to {LONGEST} characters")
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise InvalidRequest("an API key is of printable ASCII characters, without spaces")
    check_tenant(tenant)
    return Key(_digest(key).hex(), tenant)


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogatepass")).digest()


def _checked(keys: Iterable[Key]) -> list[Key]:
    owners: dict[str, str] = {}
    found = list(keys)
    for key in found:
        if owners.setdefault(key.hash, key.tenant) != key.tenant:
            raise InvalidRequest("one API key is given to two tenants")
    return found


def _lines(file: Path) -> list[str]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the API keys cannot be read: {error}") from error
    found = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not found:
        raise InvalidRequest(f"{file} holds no API key")
    return found


def _read(file: Path) -> list[Key]:
    try:
        kept: list[dict[str, Any]] = msgspec.json.decode(file.read_bytes(), type=list[dict[str, Any]])
        keys = [Key(str(item["sha256"]), check_tenant(str(item["tenant"]))) for item in kept]
        if not keys or not all(len(bytes.fromhex(key.hash)) == sha256().digest_size for key in keys):
            raise ValueError("no hash of a key")
    except (OSError, KeyError, ValueError, msgspec.DecodeError) as error:
        raise InvalidRequest(
            f"{file} is not a list of keys ({error}); remove it to make a new key"
        ) from error
    return keys


def _write(file: Path, keys: list[Key]) -> None:
    """Keep hashes where only the server's user can read them; a file that is there is never replaced."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            out.write(msgspec.json.encode([{"tenant": key.tenant, "sha256": key.hash} for key in keys]))
            out.flush()
            os.fsync(out.fileno())
    except OSError as error:
        raise InvalidRequest(f"the state directory cannot be used: {error}") from error
