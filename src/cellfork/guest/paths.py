"""Paths inside the sandbox: from a request to bytes, from bytes to text, from ``errno`` to an error.

Paths are ``bytes`` here, so that names which are no UTF-8 work like any other.
"""

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from cellfork.model.errors import (
    CellforkError,
    Conflict,
    DirectoryNotEmpty,
    FileError,
    InvalidRequest,
    IsADirectory,
    LimitExceeded,
    NoSpace,
    NotADirectory,
    NotAFile,
    PathExists,
    PathNotFound,
    PathNotPermitted,
)

MAX_PATH = 4096
"""Bytes of a path in a request."""

ERROR_OF_ERRNO: Mapping[int, type[CellforkError]] = {
    errno.ENOENT: PathNotFound,
    errno.EEXIST: PathExists,
    errno.EACCES: PathNotPermitted,
    errno.EPERM: PathNotPermitted,
    errno.EROFS: PathNotPermitted,
    errno.ENOTDIR: NotADirectory,
    errno.EISDIR: IsADirectory,
    errno.ENOTEMPTY: DirectoryNotEmpty,
    errno.ENXIO: NotAFile,
    errno.ENODEV: NotAFile,
    errno.ENOSPC: NoSpace,
    errno.EDQUOT: NoSpace,
    errno.EFBIG: LimitExceeded,
    errno.EMFILE: LimitExceeded,
    errno.ENFILE: LimitExceeded,
    errno.ENOMEM: LimitExceeded,
    errno.EBUSY: Conflict,
    errno.ETXTBSY: Conflict,
    errno.EINVAL: InvalidRequest,
    errno.ENAMETOOLONG: InvalidRequest,
}
"""What a failed system call on a path means; any other ``errno`` is a plain :class:`FileError`."""


def error_of(error: OSError, path: bytes) -> CellforkError:
    """Return our error for a failed system call on ``path``."""
    kind = ERROR_OF_ERRNO.get(error.errno or 0, FileError)
    return kind(f"'{display(path)}': {os.strerror(error.errno or 0)}")


@contextmanager
def os_errors(path: bytes) -> Iterator[None]:
    """Turn an ``OSError`` of the block into our error about ``path``."""
    try:
        yield
    except OSError as error:
        raise error_of(error, path) from error


def resolve(path: object, home: bytes) -> bytes:
    """Return the absolute path that a request means.

    Relative paths start at ``home``, ``~`` and ``~/…`` are ``home``.  ``..`` is left to the kernel, which
    alone knows what it means behind a symbolic link.  Raises :class:`InvalidRequest` for what is no path.
    """
    encoded = encode(path)
    if not encoded:
        raise InvalidRequest("a path is not empty")
    if len(encoded) > MAX_PATH:
        raise InvalidRequest(f"a path is at most {MAX_PATH} bytes long, not {len(encoded)}")
    if encoded == b"~" or encoded.startswith(b"~/"):
        encoded = home + encoded[1:]
    parts = os.path.join(home, encoded).split(b"/")
    return b"/" + b"/".join(part for part in parts if part not in {b"", b"."})


def encode(text: object) -> bytes:
    """Return text of a request as the bytes that a system call takes.

    Raises :class:`InvalidRequest` for anything but text, for NUL and for lone surrogates.
    """
    if not isinstance(text, str):
        raise InvalidRequest(f"expected text, not {type(text).__name__}")
    if "\0" in text:
        raise InvalidRequest("text for a system call cannot contain NUL")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest("text for a system call cannot contain a lone surrogate") from error


def display(name: bytes) -> str:
    r"""Return a name as text; bytes that are no UTF-8 become ``\xNN``."""
    return name.decode("utf-8", "backslashreplace")


def is_utf8(name: bytes) -> bool:
    """Tell whether :func:`display` gives the name as it is."""
    try:
        name.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
