"""Who may do what: the access token, signatures of single files, and the names of users.

Sources: the wire of envd as the SDKs use it; a signature is ``v1_`` and the unpadded base64 of SHA-256 over
``path:operation:user:token[:expiration]``.
"""

import hashlib
import posixpath
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Final, Literal

from cellfork.dialects.e2b.envd.errors import Refusal
from cellfork.dialects.e2b.notes import Notes
from cellfork.dialects.keeping import is_token
from cellfork.model.errors import InvalidRequest
from cellfork.model.specs import HOME, ROOT_HOME

Operation = Literal["read", "write"]

USERS: Final[Mapping[str, str]] = {"user": HOME, "root": ROOT_HOME}
"""The users that may be named, and their homes.  Both are the sandbox's one user."""
DEFAULT_USER: Final = "user"


def signature(path: str, operation: Operation, user: str, token: str, expiration: int | None) -> str:
    """Return the signature with which whoever knows the token lets somebody else read or write one file."""
    signed = f"{path}:{operation}:{user}:{token}" + ("" if expiration is None else f":{expiration}")
    digest = hashlib.sha256(signed.encode("utf-8", "surrogatepass")).digest()
    return "v1_" + b64encode(digest).decode("ascii").rstrip("=")


def check_file_access(
    notes: Notes,
    presented: str | None,
    query: Mapping[str, str],
    operation: Operation,
    now: float,
) -> None:
    """Let a request for a file pass that carries the token, or a signature that holds.  Raises :class:`Refusal` (401)."""
    token = notes.envd_token
    if token is None:
        return
    if presented:
        if not notes.may_enter(presented):
            raise Refusal(401, "access token present in header but does not match")
        return
    given = query.get("signature")
    if given is None:
        raise Refusal(401, "missing signature query parameter")
    expiration = _expiration(query)
    expected = signature(query.get("path", ""), operation, query.get("username", ""), token, expiration)
    if not is_token(expected, given):
        raise Refusal(401, "invalid signature")
    if expiration is not None and expiration < int(now):
        raise Refusal(401, "signature is already expired")


def _expiration(query: Mapping[str, str]) -> int | None:
    text = query.get("signature_expiration")
    if text is None:
        return None
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > 18:
        raise Refusal(400, "Invalid format for parameter signature_expiration: it is a whole number")
    return int(text)


def basic_user(authorization: str | None) -> str | None:
    """Return the user that a ``Basic`` header names; ``None`` where there is no such header."""
    scheme, _space, credentials = (authorization or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        text = b64decode(credentials, validate=True).decode("utf-8")
    except ValueError:
        return None
    user, colon, _password = text.partition(":")
    return user if colon else None


def resolve(path: str, user: str) -> str:
    """Return the path that a request of a user means: relative ones start at the user's home, and ``~`` is that.

    An absolute path is left as it is: what ``..`` means behind a symbolic link is known inside only.
    Raises :class:`InvalidRequest` for the home of somebody else.
    """
    home = USERS[user]
    if path.startswith("~"):
        if path[1:2] not in {"", "/"}:
            raise InvalidRequest(
                f"failed to expand path '{path}' for user '{user}': cannot expand user-specific home dir"
            )
        return posixpath.normpath(home + "/" + path[1:])
    return path if path.startswith("/") else posixpath.normpath(posixpath.join(home, path))
