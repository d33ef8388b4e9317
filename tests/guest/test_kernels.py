"""Init's handle on a kernel: its life, its queue, its end.  What it passes on is tested in ``python/``."""

import resource
import subprocess
import time
from pathlib import Path

from cellfork.guest import oom
from cellfork.wire.frames import encode
from tests.guest.python.harness import KiB, MiB, Server, Session, server, session, session_on

__all__ = ["server", "session"]


def test_the_kernels_process(session: Session):
    """A kernel has a session of its own, three descriptors besides the standard ones, and volunteers when memory runs out."""
    code = """
import os
links = {int(n): os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if os.path.lexists(f'/proc/self/fd/{n}')}
print(os.getsid(0) == os.getpid() == os.getpgrp())
print(links[0], *sorted({links[n].partition(':')[0] for n in links if n > 2}), len([n for n in links if 2 < n]))
print(open('/proc/self/oom_score_adj').read().strip())
import signal
print(signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGCHLD), signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""
    lines = session.run(code).ok().stdout.splitlines()
    assert lines[0] == "True"
    assert lines[1] == "/dev/null pipe socket 3"
    assert int(lines[2]) >= oom.KERNEL
    assert lines[3] == "0 0 set()"


def test_descriptors_are_out_of_the_way(session: Session):
    """The user's first file gets descriptor 3, as in any program."""
    assert session.run("import os\nfd = os.open('/dev/null', 0)\nos.close(fd)\nfd").text == "3"


def test_a_kernel_is_stopped_without_a_word(session: Session):
    """Kernels that are started and stopped leave no descriptor in init, and the host hears nothing of them."""
    session.connection.sendall(encode({"op": "churn", "count": 10}))
    told = session.next().header
    assert told["op"] == "churned"
    assert told["before"] == told["after"]
    assert session.run("1").text == "1"


def test_large_code_does_not_stop_init(session: Session):
    """Code of 50 MB waits in init while the kernel does not read, and init answers meanwhile; then it runs."""
    session.run("import time, threading")
    session.run("import asyncio\nasyncio.get_running_loop().call_later(0, time.sleep, 0.6)\nNone").ok()
    time.sleep(0.1)
    code = "x = '" + "a" * (50 * MiB) + "'\nlen(x)"
    session.send(code)
    session.connection.sendall(encode({"op": "ping"}))
    started = time.monotonic()
    assert session.next().header["op"] == "pong"
    assert time.monotonic() - started < 2
    assert session.collect().ok().text == str(50 * MiB)


def test_one_execution_at_a_time(session: Session):
    """A second ``execute`` while one runs is dropped, as is an ``input`` that nobody asked for."""
    session.send("import time; time.sleep(0.3); 'first'")
    header = {
        "op": "execute",
        "execution": "intruder",
        "envs": {},
        "stdin": False,
        "output": 10,
        "result": 10,
        "silent": False,
    }
    session.connection.sendall(encode(header, b"'second'", 1))
    session.connection.sendall(encode({"op": "input", "execution": "intruder"}, b"x", 1))
    session.connection.sendall(encode({"op": "nonsense"}, b"x", 1))
    assert session.collect().text == "'first'"
    assert session.run("'third'").text == "'third'"


def test_terminate(session: Session):
    """``terminate`` ends the kernel and its children; partial output is kept, the end is told once."""
    session.send(
        "import subprocess, time\nc = subprocess.Popen(['sleep', '100'])\nprint(c.pid)\ntime.sleep(100)"
    )
    pid = int(session.next().body)
    session.terminate(15)
    ran = session.collect()
    assert (ran.end["op"], ran.end["signal"], ran.end["execution"]) == ("kernel_exit", 15, "e1")
    deadline = time.monotonic() + 5
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(pid)
    session.terminate()
    session.interrupt()
    session.send("1")
    session.connection.sendall(encode({"op": "churn", "count": 1}))
    assert session.next().header["op"] == "churned"


def test_what_it_started_ends_with_it(session: Session):
    """A daemon in a session of its own, whose parent has ended, is gone when the kernel's end is told; others are not."""
    other = subprocess.Popen(["sleep", "100"], preexec_fn=lambda: lower_limits(1 << 20))
    code = """
import os, time
r, w = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(w, str(os.getpid()).encode())
        os.closerange(0, 1024)
        time.sleep(1000)
    os._exit(0)
os.wait()
print(os.read(r, 100).decode())
"""
    try:
        pid = int(session.run(code).ok().stdout)
        assert is_alive(pid)
        session.send("import os; os._exit(1)")
        assert session.collect().end["op"] == "kernel_exit"
        assert not is_alive(pid)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def lower_limits(most: int) -> None:
    for number in (10, resource.RLIMIT_RSS):
        resource.setrlimit(number, (most, most))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_kernel_that_is_killed_with_much_to_say(session: Session):
    """What a kernel left in its pipes when it was killed arrives before its end."""
    ran = session.run(f"import os, signal\nprint('x' * {200 * KiB})\nos.kill(os.getpid(), signal.SIGKILL)")
    assert len(ran.stdout) == 200 * KiB + 1
    assert ran.end["signal"] == 9


def test_a_directory_that_is_gone(server: Server, tmp_path: Path):
    """A kernel that cannot enter its directory ends, and its end is told."""
    with session_on(server, str(tmp_path / "missing")) as session:
        session.send("1")
        frame = session.next()
        assert frame.header["op"] == "kernel_exit" and frame.header["code"] == 70


def test_grandchildren_that_keep_the_pipes_open(session: Session):
    """A daemon that outlives its kernel and holds its pipes keeps nobody waiting."""
    session.run(
        "import subprocess\nd = subprocess.Popen(['sh', '-c', 'for i in 1 2 3 4 5 6; do sleep 0.2; echo tick; done'], start_new_session=True)"
    )
    started = time.monotonic()
    ran = session.run("import os; os._exit(1)")
    assert ran.end["op"] == "kernel_exit" and time.monotonic() - started < 2
    time.sleep(1.2)


def test_two_kernels_are_apart(server: Server, tmp_path: Path):
    """Kernels from one image share no names."""
    with session_on(server, str(tmp_path)) as one, session_on(server, str(tmp_path)) as two:
        one.run("x = 1").ok()
        assert two.run("'x' in globals()").text == "False"
