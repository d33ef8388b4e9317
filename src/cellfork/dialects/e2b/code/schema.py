"""What the code plane takes and answers, as JSON.  Fields that are not here are ignored, as upstream does."""

from typing import TypeVar

import msgspec

from cellfork.dialects.e2b.extension.schema import RunOptions
from cellfork.model.specs import HOME

T = TypeVar("T")


class Execute(msgspec.Struct):
    """The body of ``POST /execute``.  ``None`` and an empty text mean the same: not given.

    With ``cellfork``, which E2B's clients do not send, the answer is a stream of events.
    """

    code: str
    context_id: str | None = None
    language: str | None = None
    env_vars: dict[str, str] | None = None
    cellfork: RunOptions | None = None


class CreateContext(msgspec.Struct):
    """The body of ``POST /contexts``."""

    language: str | None = None
    cwd: str | None = HOME


class Context(msgspec.Struct):
    """A context as clients see it."""

    id: str
    language: str
    cwd: str


class Invalid(Exception):
    """A body that is no JSON, or not of the shape that the route takes."""


_execute = msgspec.json.Decoder(Execute)
_create_context = msgspec.json.Decoder(CreateContext)


def read_execute(body: bytes) -> Execute:
    """Return what to run.  Raises :class:`Invalid`."""
    return _read(_execute, body)


def read_create_context(body: bytes) -> CreateContext:
    """Return the context to create.  Raises :class:`Invalid`."""
    return _read(_create_context, body)


def _read(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(str(error)) from None
