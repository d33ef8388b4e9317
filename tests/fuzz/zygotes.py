"""Target: what a zygote says, as the host reads it."""

import asyncio
import os
import socket
import subprocess
from typing import Any, cast

from cellfork.model.errors import CellforkError
from cellfork.runtimes.zygote import Zygote
from tests.fuzz.choices import Choices
from tests.fuzz.sessions import play

NAMES = ("a", "b")


class Ended:
    """A process that has ended, so that nothing is killed and nothing is waited for."""

    pid = 2**22 + 1

    def poll(self) -> int:
        return 0

    def kill(self) -> None:
        return

    def wait(self, _timeout: float | None = None) -> int:
        return 0


def run(data: bytes) -> None:
    """Any message is taken, or ends the zygote with a typed error for everybody who waits; no descriptor is left."""
    play(_run(Choices(data)))


async def _run(choices: Choices) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    before = len(os.listdir("/proc/self/fd"))
    zygote = Zygote(ours, cast("subprocess.Popen[bytes]", Ended()))
    with theirs:
        children = [zygote.fork(name, []) for name in NAMES]
        while choices:
            say(theirs, choices)
            await asyncio.sleep(0)
            if not zygote.alive:
                break
    for _ in range(3):
        await asyncio.sleep(0)
    await zygote.aclose()
    assert not zygote.alive
    for child in children:
        assert child.exited.done()
        check_outcome(child.forked)
    check_outcome(zygote._ready)
    assert len(os.listdir("/proc/self/fd")) == before - 2


def say(to: socket.socket, choices: Choices) -> None:
    """Send a message that is right, or nearly so, or nothing of the kind, with or without descriptors."""
    size = choices.byte()
    message = choices.piece(size) or b"{}"
    sent = [os.open("/dev/null", os.O_RDONLY) for _ in range(choices.pick((0, 0, 1, 2)))]
    try:
        socket.send_fds(to, [message], sent)
    except OSError:
        return
    finally:
        for fd in sent:
            os.close(fd)


def check_outcome(future: "asyncio.Future[Any]") -> None:
    """Close what came; an error is one of ours."""
    assert future.done()
    error = future.exception()
    if error is not None:
        assert isinstance(error, CellforkError), error
    elif isinstance(future.result(), tuple):
        os.close(future.result()[1])
