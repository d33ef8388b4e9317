"""Child processes of magics: they inherit the kernel's descriptors, so their output needs no thread to carry it."""

import os
import subprocess
from collections.abc import Sequence

from cellfork.guest.python.streams import Outlet

GRACE = 1.0
"""Seconds that an interrupted child has before it is killed."""


def run_shell(command: str, outlet: Outlet) -> int:
    """Run ``command`` in bash, or sh where there is none; return its exit code, −n for signal n."""
    return run([_shell(), "-c", command], outlet)


def read_shell(command: str) -> str:
    """Run ``command`` in a shell and return what it writes to either stream."""
    argv = [_shell(), "-c", command]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=subprocess.STDOUT) as child:
        try:
            return child.communicate()[0].decode("utf-8", "replace")
        except BaseException:
            _stop(child)
            raise


def run(argv: Sequence[str], outlet: Outlet, text: bytes | None = None) -> int:
    """Run a program with ``text`` as its standard input; return its exit code, −n for signal n.

    Raises ``OSError`` where it cannot be started.  When the cell is interrupted, the child has been
    signalled with it; it is waited for, killed if need be, and the interrupt goes on.
    """
    outlet.fence()
    stdin = subprocess.DEVNULL if text is None else subprocess.PIPE
    with subprocess.Popen(argv, stdin=stdin) as child:
        try:
            child.communicate(text)
        except BaseException:
            _stop(child)
            raise
        finally:
            outlet.fence()
    code = child.returncode
    return -(code - 128) if code > 128 else code


def _shell() -> str:
    return "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"


def _stop(child: "subprocess.Popen[bytes]") -> None:
    try:
        child.wait(GRACE)
    except subprocess.TimeoutExpired:
        child.kill()
