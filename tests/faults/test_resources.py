"""Code that takes all it can get: the limit is met inside, neither the neighbour nor the host notices."""

import time

import pytest

from cellfork import Limits, Sandbox
from cellfork.model.errors import LimitExceeded, NoSpace

from .driver import MiB, assert_usable, failure, files, host_memory_within, host_pids, stdout, within


def test_fork_bomb(sandbox: Sandbox, neighbour: Sandbox) -> None:
    """A fork bomb meets ``Limits.pids``; the neighbour stays quick, and a kill leaves none of its processes."""
    before = len(host_pids())
    code = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    with within(30):
        execution = sandbox.run_code(code, timeout=1)
    assert execution.status in {"timed_out", "lost", "killed", "ok"}, execution
    assert len(host_pids()) - before <= 128 + 60
    with within(10):
        assert neighbour.run_code("1 + 1").text == "2"
        assert Sandbox.create().kill()
    with within(10):
        sandbox.kill()
    _wait_until(lambda: len(host_pids()) - before < 40)


def test_shell_fork_bomb(sandbox: Sandbox, neighbour: Sandbox) -> None:
    """The classic in bash as well: its processes detach, and are gone with the sandbox."""
    with within(30):
        execution = sandbox.run_code("%%bash\nbomb() { bomb | bomb & }; bomb; sleep 2", timeout=2)
    assert execution.status in {"timed_out", "ok", "error", "lost"}, execution
    with within(10):
        assert neighbour.run_code("1 + 1").text == "2"
    with within(10):
        sandbox.kill()


def test_thread_bomb(sandbox: Sandbox, neighbour: Sandbox) -> None:
    """Threads count as processes: one too many cannot be started, and that is an ordinary error."""
    code = (
        "import threading, time\nstop = threading.Event()\n"
        "while True: threading.Thread(target=stop.wait, daemon=True).start()"
    )
    execution = sandbox.run_code(code, timeout=30)
    assert failure(execution) == "RuntimeError"
    assert execution.error is not None
    assert "start new thread" in execution.error.value
    assert sandbox.run_code("stop.set(); time.sleep(0.2); 6 * 7").text == "42"


def test_processes_are_counted_again(sandbox: Sandbox) -> None:
    """When its processes end, a sandbox may start others."""
    code = """
import os, signal
children = []
try:
    while True:
        pid = os.fork()
        if not pid:
            signal.pause()
            os._exit(0)
        children.append(pid)
except OSError as error:
    print(len(children) > 50, error.errno)
for pid in children:
    os.kill(pid, 9); os.waitpid(pid, 0)
"""
    for _ in range(2):
        execution = sandbox.run_code(code, timeout=30)
        assert stdout(execution) == "True 11\n", execution


BOMBS = {
    "one object": "x = bytearray(4 * 2**30)\nx[::4096] = b'x' * len(x[::4096])",
    "many objects": "x = []\nwhile True: x.append('x' * 10_000_000)",
    "array": "import numpy; x = [numpy.ones(10**7) for _ in range(1000)]",
    "shared memory": "with open('/dev/shm/x', 'wb') as f:\n    while True: f.write(bytes(2**20))",
    "tmp": "with open('/tmp/x', 'wb') as f:\n    while True: f.write(bytes(2**20))",
    "pipes": "import os\nwhile True:\n    r, w = os.pipe(); os.set_blocking(w, False); os.write(w, bytes(65536))",
    "maps": "import mmap\nmaps = []\nwhile True:\n    maps.append(mmap.mmap(-1, 2**26)); maps[-1].write(b'x' * 2**26)",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_memory_bomb(sandbox: Sandbox, neighbour: Sandbox, bomb: str) -> None:
    """Memory beyond the limit: the kernel is killed for it (or the code gets an error), the context starts anew."""
    with within(60), host_memory_within(64 * MiB):
        execution = sandbox.run_code(BOMBS[bomb], timeout=15)
    assert execution.error is not None, execution
    if execution.status == "killed":
        assert execution.error.value.startswith("memory:"), execution
    else:
        assert execution.error.name in {"MemoryError", "OSError"}, execution
    assert execution.accounting.peak_memory is None or execution.accounting.peak_memory <= 520 * MiB
    with within(10):
        assert neighbour.run_code("1 + 1").text == "2"
    assert_usable(sandbox)


def test_memory_bomb_of_children(sandbox: Sandbox, neighbour: Sandbox) -> None:
    """The limit holds for all processes together; a child that is killed for it is the code's own affair."""
    code = "import subprocess\nargs = ['python3', '-c', 'x = b\"x\" * 200_000_000; import time; time.sleep(2)']\n"
    code += "children = [subprocess.Popen(args) for _ in range(8)]\n[child.wait() for child in children]"
    with within(60):
        execution = sandbox.run_code(code, timeout=30)
    assert execution.status in {"ok", "killed"}, execution
    if execution.status == "ok":
        assert "-9" in (execution.text or "")
    assert_usable(sandbox)


@pytest.mark.parametrize("bomb", ["one object", "many objects", "array", "maps"])
def test_memory_bomb_of_the_kernel(sandbox: Sandbox, bomb: str) -> None:
    """What the kernel itself allocates beyond the limit ends as ``Killed`` with the reason, every time."""
    for _ in range(3):
        execution = sandbox.run_code("print('before')\n" + BOMBS[bomb], timeout=30)
        assert (execution.status, stdout(execution)) == ("killed", "before\n"), execution
        assert execution.error is not None
        assert execution.error.value.startswith("memory:")
        assert_usable(sandbox)


def test_memory_error_is_an_error(sandbox: Sandbox) -> None:
    """An allocation that the kernel refuses at once is Python's ``MemoryError``."""
    assert failure(sandbox.run_code("x = bytearray(2**62)")) == "MemoryError"
    assert_usable(sandbox)


def test_full_disk() -> None:
    """A full disk is ``OSError: ENOSPC`` inside and ``NoSpace`` for the file API; removing files helps."""
    with Sandbox.create(limits=Limits(disk="16M", memory="256M")) as sandbox:
        code = """
import errno, os
for place in ('/home/user/full', '/tmp/full'):
    try:
        with open(place, 'wb') as file:
            while True: file.write(bytes(2**20))
    except OSError as error:
        print(errno.errorcode[error.errno], os.path.getsize(place) <= 2**24)
"""
        execution = sandbox.run_code(code, timeout=30)
        assert stdout(execution) == "ENOSPC True\n" * 2, execution
        with pytest.raises(NoSpace):
            files(sandbox, "write", "more", b"x" * MiB)
        execution = sandbox.run_code("1 / 0")
        assert failure(execution) == "ZeroDivisionError"
        execution = sandbox.run_code("!echo on > /tmp/more; echo $?")
        assert execution.status == "ok", execution
        sandbox.run_code("os.remove('/home/user/full'); os.remove('/tmp/full')")
        files(sandbox, "write", "more", b"x" * MiB)
        assert_usable(sandbox)


def test_disk_larger_than_the_memory() -> None:
    """Files live in memory.  They leave some of it to the kernel, so that a full disk is an error of the code."""
    for memory in ("128M", "512M"):
        with Sandbox.create(limits=Limits(memory=memory, disk="1G")) as sandbox:
            code = "for place in ('/tmp', '/dev/shm', '/home/user'):\n"
            code += "    try: open(place + '/x', 'wb').write(bytes(2**20) * 1024)\n    except OSError as error: print(error.errno)"
            code = code.replace("open(place + '/x', 'wb').write(bytes(2**20) * 1024)", "fill(place)")
            fill = "def fill(place):\n    with open(place + '/x', 'wb') as f:\n        while True: f.write(bytes(2**20))\n"
            execution = sandbox.run_code(fill + code, timeout=30)
            assert stdout(execution) == "28\n" * 3, execution
            assert_usable(sandbox)
            assert_usable(sandbox, sandbox.create_code_context().id)


def test_no_inodes_left() -> None:
    """Files without number meet ``Limits.inodes``; a new context still starts, and listing stays bounded."""
    with Sandbox.create(limits=Limits(inodes=2000)) as sandbox:
        code = """
import errno, os
os.mkdir('many')
try:
    for n in range(10**7): open(f'many/{n}', 'w').close()
except OSError as error:
    print(errno.errorcode[error.errno], n < 2000)
"""
        execution = sandbox.run_code(code, timeout=30)
        assert stdout(execution) == "ENOSPC True\n", execution
        with pytest.raises(NoSpace):
            files(sandbox, "write", "one-more", b"")
        assert_usable(sandbox, sandbox.create_code_context().id)
        files(sandbox, "remove", "many")
        files(sandbox, "write", "one-more", b"")
        assert_usable(sandbox)


def test_sparse_file(sandbox: Sandbox) -> None:
    """A file that claims a petabyte costs nothing, is refused by its size, and can be removed."""
    execution = sandbox.run_code("import os; f = open('huge', 'w'); f.truncate(2**40); f.close()")
    if execution.status == "ok":
        with (
            within(10),
            host_memory_within(64 * MiB),
            pytest.raises(LimitExceeded, match="larger than"),
        ):
            files(sandbox, "read", "huge")
        files(sandbox, "remove", "huge")
    assert_usable(sandbox)


def test_deep_directories(sandbox: Sandbox) -> None:
    """A directory a thousand levels deep and names of every byte can be listed and removed."""
    code = """
import os
here = os.getcwd()
for n in range(1000):
    os.mkdir('d'); os.chdir('d')
os.chdir(here)
os.mkdir(b'odd'); os.mkdir(b'odd/\\xff\\n\\x1b[31m')
"""
    assert sandbox.run_code(code, timeout=20).status == "ok"
    with within(20):
        files(sandbox, "list", ".", 5000)
        (entry,) = files(sandbox, "list", "odd").entries
        assert entry.lossy
        files(sandbox, "remove", "d")
        files(sandbox, "remove", "odd")
    assert_usable(sandbox)


def test_all_cpus(sandbox: Sandbox, neighbour: Sandbox) -> None:
    """``Limits.cpu`` bounds all processes together: four busy ones get one core's worth."""
    code = """
import os, time
for _ in range(3):
    if not os.fork():
        while True: pass
start = time.monotonic()
while time.monotonic() - start < 2: pass
"""
    execution = sandbox.run_code(code, timeout=30)
    assert execution.status == "ok", execution
    accounting = execution.accounting
    assert accounting.cpu_time is not None
    assert accounting.cpu_time <= 1.35 * accounting.wall_time
    with within(5):
        neighbour.run_code("1 + 1")


def test_priorities(sandbox: Sandbox) -> None:
    """Code cannot make itself more important."""
    for code in ("os.nice(-5)", "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))"):
        assert failure(sandbox.run_code(f"import os; {code}")) in {"PermissionError", "OSError"}


def _wait_until(condition, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)
