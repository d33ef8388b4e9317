"""Numbers that environment variables set."""

import os

from cellfork.model.errors import InvalidRequest

MOST_DIGITS = 9


def number_of(variable: str, otherwise: int, *, least: int = 0, most: int = 100) -> int:
    """Return the number in an environment variable, ``otherwise`` where it is not set.

    Raises :class:`InvalidRequest` for anything but a number from ``least`` to ``most``.
    """
    text = os.environ.get(variable, str(otherwise))
    plain = text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS
    if not (plain and least <= int(text) <= most):
        raise InvalidRequest(f"{variable} is a number from {least:,} to {most:,}, not {text!r}")
    return int(text)
