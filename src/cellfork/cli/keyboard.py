"""Reading a line from the terminal without blocking the event loop."""

import asyncio
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager


async def read_answer(*, password: bool = False) -> str:
    """Return the next line of standard input without its end; nothing is echoed for a ``password``.

    Raises ``EOFError`` at the end of the input (Ctrl-D).  Cancelling leaves the line to the next reader.
    """
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sys.stdin, ready.set)
    try:
        with _no_echo() if password else _as_it_is():
            await ready.wait()
            line = sys.stdin.readline()  # a terminal hands over whole lines: this does not block
    finally:
        loop.remove_reader(sys.stdin)
    if not line:
        raise EOFError("end of input")
    return line.removesuffix("\n")


@contextmanager
def _as_it_is() -> Iterator[None]:
    yield


@contextmanager
def _no_echo() -> Iterator[None]:
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    quiet = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(descriptor, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        sys.stdout.write("\n")
