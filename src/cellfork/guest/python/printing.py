"""``print`` that writes each call at once.

Python's own writes every value, separator and end by itself.  Through an unbuffered stream that is a system call
each, and lines of threads and forked children that print at the same time fall into one another.
"""

import builtins
import sys
from typing import Any

from cellfork.guest.python.streams import TextStream

_print = builtins.print


def install() -> None:
    """Put this ``print`` in the place of Python's."""
    print_at_once.__module__ = "builtins"
    print_at_once.__name__ = print_at_once.__qualname__ = "print"
    print_at_once.__doc__ = _print.__doc__
    print_at_once.__annotations__ = {}  # so that it shows itself as Python's does
    builtins.print = print_at_once


def print_at_once(
    *args: Any, sep: str | None = " ", end: str | None = "\n", file: Any = None, flush: bool = False
) -> None:
    """Print as Python does; to the kernel's own streams in one piece."""
    __tracebackhide__ = True
    stream = sys.stdout if file is None else file
    if type(stream) is not TextStream or type(sep) is not str or type(end) is not str:
        _print(*args, sep=sep, end=end, file=file, flush=flush)
    elif len(args) == 1:
        stream.write(f"{args[0]!s}{end}")
    else:
        stream.write(sep.join(map(str, args)) + end)
