"""What a zygote says is read like everything from below: a message that does not belong ends it, with a typed error."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from typing import Any

import pytest

from cellfork.model.errors import ProtocolViolation, StartupFailed
from cellfork.runtimes.zygote import ZYGOTE_LOST, Zygote
from cellfork.runtimes.zygote_messages import MESSAGES, is_child, read_message

RIGHT: dict[str, dict[str, Any]] = {
    "booted": {"pid": 1},
    "ready": {},
    "failed": {"step": "root", "errno": None, "message": "no"},
    "adopted": {"version": 1, "fit": True, "forks": 0, "image": "0"},
    "forked": {"sandbox": "a", "pid": 1},
    "refused": {"sandbox": "a", "message": "no", "fit": True},
    "exited": {"sandbox": "a", "status": 0},
}


def test_messages_that_are_right():
    """Every message of the table is read; what it holds besides does not matter."""
    for op in MESSAGES:
        message = {"op": op, **RIGHT[op], "more": [1]}
        assert read_message(json.dumps(message).encode()) == message


@pytest.mark.parametrize("op", MESSAGES)
def test_fields_of_a_wrong_type(op):
    """A field that is absent or of another type is a violation; a truth value is no number."""
    for name in MESSAGES[op]:
        other: Any = "text" if name in {"pid", "status", "errno", "fit", "version", "forks"} else 5
        truth: Any = 1 if name == "fit" else True
        wrongs: tuple[Any, ...] = (1.5, [], {}, other, truth)
        for wrong in wrongs:
            with pytest.raises(ProtocolViolation):
                read_message(json.dumps({"op": op, **RIGHT[op], name: wrong}).encode())
        rest = {key: value for key, value in RIGHT[op].items() if key != name}
        with pytest.raises(ProtocolViolation):
            read_message(json.dumps({"op": op, **rest}).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        b"",
        b"[]",
        b"5",
        b"{}",
        b'{"op":[]}',
        b'{"op":"fork"}',
        b"[" * 100_000,
        '{"op":"ready"}'.encode("utf-16"),
    ],
)
def test_messages_that_are_none(data):
    """Anything else is a violation, and nothing but one."""
    with pytest.raises(ProtocolViolation):
        read_message(data)


def test_only_a_child_of_ours_is_one():
    """A pid counts where this process may wait for it: not init, not this process, not one that was reaped."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert is_child(child.pid)
    assert not any(map(is_child, (child.pid, 1, os.getpid(), 0, -1, 2**40, 2**80)))


async def test_a_zygote_that_breaks_the_protocol_is_killed():
    """Whoever waits for it gets the violation, its process is gone, no descriptor is left."""
    zygote, theirs, process = start()
    with theirs:
        child = zygote.fork("a", [])
        ended: list[int] = []
        child.on_exit = ended.append
        null = os.open("/dev/null", os.O_RDONLY)
        socket.send_fds(theirs, [json.dumps({"op": "forked", "sandbox": "a", "pid": 7}).encode()], [null])
        os.close(null)
        with pytest.raises(ProtocolViolation, match="no pidfd"):
            await asyncio.wait_for(child.forked, 10)
    assert (child.exited.result(), ended, zygote.alive) == (ZYGOTE_LOST, [ZYGOTE_LOST], False)
    await zygote.aclose()
    assert process.returncode == -9


@pytest.mark.parametrize("pid", [1, 0, -1, 2**80], ids=str)
async def test_a_zygote_cannot_name_another_process_as_itself(pid):
    """The pid that it names would be killed one day: it has to be a child of this process, or the zygote is ended."""
    zygote, theirs, process = start()
    with theirs:
        theirs.send(json.dumps({"op": "booted", "pid": pid}).encode())
        with pytest.raises(ProtocolViolation, match="not its own"):
            await asyncio.wait_for(asyncio.shield(zygote._ready), 10)
    await zygote.aclose()
    assert zygote.pid == process.pid


async def test_a_fork_that_ends_before_it_was_told_of():
    """Whoever waits for the fork is told: nobody waits for ever."""
    zygote, theirs, _process = start()
    with theirs:
        child = zygote.fork("a", [])
        theirs.send(json.dumps({"op": "exited", "sandbox": "a", "status": 0}).encode())
        with pytest.raises(StartupFailed):
            await asyncio.wait_for(child.forked, 10)
    await zygote.aclose()


def start() -> tuple[Zygote, socket.socket, "subprocess.Popen[bytes]"]:
    """Return a zygote whose words are the test's, over a process that does nothing."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    process = subprocess.Popen(["sleep", "60"])
    return Zygote(ours, process), theirs, process
