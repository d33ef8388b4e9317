"""Rows A: code that takes all it can get.  A limit answers inside; neighbours, host and files outside do not notice."""

import gc
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from cellfork import Execution, IsolationUnavailable, OperationTimeout, Sandbox, SandboxGone
from cellfork.model.errors import NoSpace
from cellfork.model.events import Killed, TimedOut
from cellfork.runtimes.namespaces.cgroups import Group
from tests.security.catalogue import row
from tests.security.conftest import LIMITS, ask, shell

KiB, MiB = 1 << 10, 1 << 20
MEMORY = LIMITS.memory_bytes
PATIENCE = 10.0
"""Seconds within which a neighbour has to answer; far above what is usual, because the machine may be busy."""


# --------------------------------------------------------------------------------------------------- helpers


@contextmanager
def answering(neighbour: Sandbox) -> Iterator[list[float]]:
    """While the block runs, the neighbour computes again and again, and answers in time; the times are collected."""
    over, times = threading.Event(), list[float]()

    def compute() -> None:
        while not over.is_set():
            begun = time.monotonic()
            assert neighbour.run_code("40 + 2", timeout=30).text == "42"
            times.append(time.monotonic() - begun)
            over.wait(0.05)

    with ThreadPoolExecutor(1) as pool:
        computing = pool.submit(compute)
        try:
            yield times
        finally:
            over.set()
            computing.result(60)
    assert times
    assert max(times) <= PATIENCE, f"the neighbour waited {max(times):.1f} s"


@contextmanager
def host_grows_at_most(size: int) -> Iterator[None]:
    """The memory of this process, which embeds the engine, grows by at most ``size`` bytes meanwhile."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
    before = _memory_of_host("VmRSS")
    yield
    growth = _memory_of_host("VmHWM") - before
    assert growth <= size, f"the host grew by {growth / MiB:.0f} MiB"


def _memory_of_host(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * KiB for line in lines if line.startswith(f"{name}:"))


def group_of(sandbox: Sandbox) -> Group:
    """The sandbox's control group, which only the host sees."""
    group: Group = sandbox._remote.guest._meter._group  # type: ignore[attr-defined]
    return group


def taken(sandbox: Sandbox) -> int:
    """Bytes that the kernel has charged to the sandbox, socket buffers included."""
    group = group_of(sandbox)
    return (group.usage().memory or 0) + (group.sockets() or 0 if group.counts_sockets_apart else 0)


def answers(sandbox: Sandbox) -> None:
    """The sandbox runs code."""
    assert sandbox.run_code("40 + 2", timeout=30).text == "42"


def stdout(execution: Execution) -> str:
    return "".join(execution.logs.stdout)


def killed_for_memory(execution: Execution) -> None:
    """The terminal event is ``Killed`` with the reason, and the accounting has a peak at the limit."""
    assert isinstance(execution.terminal, Killed), execution
    assert execution.terminal.reason == "memory"
    peak = execution.accounting.peak_memory
    assert peak is not None
    assert MEMORY // 2 <= peak <= MEMORY


def gone_after_kill(sandbox: Sandbox, seconds: float = 10) -> None:
    """A kill leaves none of the processes that were there."""
    pids = group_of(sandbox).processes()
    assert pids
    begun = time.monotonic()
    assert sandbox.kill()
    assert time.monotonic() - begun <= seconds
    assert not [pid for pid in pids if "cellfork" in _cgroup_of(pid)]


def _cgroup_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return ""


# ------------------------------------------------------------------------------------ processes and threads

FORK_BOMB = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"


@row("A01", "fork answers EAGAIN at the limit; the neighbour computes meanwhile; a kill leaves nothing")
def test_a01_fork_bomb_in_python(sandbox, neighbour):
    """Forking without end meets ``Limits.pids``, inside only."""
    code = """
    import errno, os, signal
    children, answer = [], None
    while answer is None:
        try:
            pid = os.fork()
        except OSError as error:
            answer = [errno.errorcode[error.errno], len(children)]
        else:
            if pid == 0:
                signal.pause()
            children.append(pid)
    for pid in children:
        os.kill(pid, 9), os.waitpid(pid, 0)
    """
    error, children = ask(sandbox, code)
    assert error == "EAGAIN"
    assert 10 < children <= LIMITS.pids
    with answering(neighbour):
        execution = sandbox.run_code(FORK_BOMB, timeout=1)
        assert execution.status in {"timed_out", "killed", "lost"}, execution
        assert (group_of(sandbox).usage().pids or 0) <= (LIMITS.pids or 0)
        gone_after_kill(sandbox)


@row("A01", "fork answers EAGAIN at the limit; the neighbour computes meanwhile; a kill leaves nothing")
def test_a01_fork_bomb_in_bash(sandbox, neighbour):
    """The classic: its processes leave their parents behind, and stay within the limit and the sandbox."""
    with answering(neighbour):
        script = "exec 2>/tmp/told; bomb() { bomb | bomb & }; bomb; sleep 60"
        sandbox.commands.run(script, background=True)
        told = ""
        deadline = time.monotonic() + 20
        while "Resource temporarily unavailable" not in told and time.monotonic() < deadline:
            time.sleep(0.2)
            assert (group_of(sandbox).usage().pids or 0) <= (LIMITS.pids or 0)
            told = sandbox.files.read("/tmp/told")
        assert "Resource temporarily unavailable" in told
        gone_after_kill(sandbox)


@row("A02", "threads count as processes: RuntimeError at the limit, an ordinary error")
def test_a02_thread_bomb(sandbox, neighbour):
    """One thread too many is Python's ``RuntimeError``; the context goes on."""
    code = """
    import threading, time
    stop, answer = threading.Event(), 0
    try:
        while answer < 1000:
            threading.Thread(target=stop.wait, daemon=True).start()
            answer += 1
    except RuntimeError:
        pass
    stop.set()
    time.sleep(0.2)
    """
    with answering(neighbour):
        assert 10 < ask(sandbox, code) <= LIMITS.pids
    answers(sandbox)


# ----------------------------------------------------------------------------------------------------- memory

MEMORY_BOMBS = {
    "one object": "x = bytearray(2**30)\nfor i in range(0, 2**30, 4096): x[i] = 1",
    "many objects": "x = []\nwhile True: x.append(b'x' * 2**20)",
    "memfd": "import os\nwhile True:\n    f = os.memfd_create('x')\n    for _ in range(30): os.write(f, bytes(2**20))",
    "shared map": "import mmap\nx = mmap.mmap(-1, 2**30)\nwhile True: x.write(b'x' * 2**20)",
    "page tables": "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.mmap.restype = ctypes.c_void_p\n"
    "libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]\n"
    "size = 2**38\na = libc.mmap(None, size, 1, 0x4022, -1, 0)\nlibc.madvise(ctypes.c_void_p(a), ctypes.c_size_t(size), 15)\n"
    "for i in range(0, size, 2**21): ctypes.string_at(a + i, 1)",
}


@pytest.mark.parametrize("bomb", MEMORY_BOMBS)
@row(
    "A03",
    "Killed(reason=memory) with the peak; the context starts anew; other contexts and the neighbour go on",
)
@row("A05", "memfd, shared maps and page tables are charged to the sandbox")
def test_a03_memory_bomb(sandbox, neighbour, bomb):
    """Whatever kind of memory it is: the kernel that takes too much ends, typed, and it alone.

    Memory that is in no process's address space (a memfd that was only written to) is nobody's: which kernel ends
    for it is the system's choice, and all may, with the sandbox.  Page tables are given back late: the system may want a second process meanwhile.
    """
    other = sandbox.create_code_context()
    sandbox.run_code("kept = 6 * 7", context=other)
    with answering(neighbour), host_grows_at_most(64 * MiB):
        killed_for_memory(sandbox.run_code(MEMORY_BOMBS[bomb], timeout=60))
    if bomb == "memfd" and not sandbox.is_running():
        assert sandbox._remote.end_reason == "memory"
        return
    answers(sandbox)
    if bomb not in {"memfd", "page tables"}:
        assert sandbox.run_code("kept", context=other, timeout=30).text == "42"


@row("A03", "a command that takes too much ends with 137; the kernels of the sandbox keep their state")
def test_a03_memory_bomb_in_bash(sandbox, neighbour):
    """The system ends the command, not an idle kernel, and never init."""
    sandbox.run_code("kept = 6 * 7")
    with answering(neighbour):
        ended = shell(sandbox, "x=$(head -c 8M /dev/zero | tr '\\0' x); while :; do x=$x$x; done", timeout=60)
    assert ended.exit_code == 137
    assert sandbox.run_code("kept").text == "42"


@row(
    "A03",
    "where init itself is hit, the sandbox ends with the reason memory; the neighbour and the host do not notice",
)
def test_a03_memory_bomb_that_takes_init(sandbox, neighbour):
    """Memory that no process seems to use, held by a small one: kernel and init go first, and that is told too."""
    hold = (  # init sees to its score when it starts, so it waits with its own
        "import os, time\ntime.sleep(1)\nopen('/proc/self/oom_score_adj', 'w').write(open('/proc/1/oom_score_adj').read())\n"
        "while True:\n    f = os.memfd_create('x')\n    for _ in range(400): os.write(f, bytes(2**16))"
    )
    sandbox.run_code("1")
    sandbox.files.write("hold.py", hold)
    with answering(neighbour), host_grows_at_most(64 * MiB):
        sandbox.commands.run("exec /usr/bin/env python3 -S hold.py", background=True)
        execution = sandbox.run_code("import time; time.sleep(60)", timeout=60)
        killed_for_memory(execution)
        with pytest.raises(SandboxGone) as gone:
            for _ in range(50):
                sandbox.run_code("1", timeout=5)
                time.sleep(0.1)
    assert gone.value.reason == "memory"


@row("A03", "sandboxes volunteer to die before the host's processes: commands first, then kernels, then init")
def test_a03_sandboxes_die_first_when_the_host_has_no_memory(sandbox):
    """Scores rise from the host to init to kernels to commands; inside, nobody gets below what root set."""
    own = int(Path("/proc/self/oom_score_adj").read_text())
    code = """
    def write(score):
        try:
            open('/proc/self/oom_score_adj', 'w').write(str(score))
        except OSError:
            pass
        return int(open('/proc/self/oom_score_adj').read())
    kernel = int(open('/proc/self/oom_score_adj').read())
    answer = [int(open('/proc/1/oom_score_adj').read()), kernel, write(-1000), write(0)]
    """
    init, kernel, lowest, _ = ask(sandbox, code)
    wait = "for i in {1..50}; do read s < /proc/$$/oom_score_adj; [ $s -ge 900 ] && break; sleep 0.1; done; echo $s"
    command = int(shell(sandbox, wait).stdout)  # init raises it right after the start
    assert max(own, 0) < init < kernel < command <= 1000
    if _may_set_the_least():
        assert lowest >= init
    assert lowest >= own


def _may_set_the_least() -> bool:
    """Whether this process has CAP_SYS_RESOURCE in the first user namespace."""
    lines = Path("/proc/self/status").read_text().splitlines()
    effective = int(next(line.split()[1] for line in lines if line.startswith("CapEff")), 16)
    return bool(effective >> 24 & 1) and Path("/proc/self/uid_map").read_text().split() == [
        "0",
        "0",
        "4294967295",
    ]


@row("A04", "the limit holds for all processes together; what is killed is a child or the kernel, typed")
@pytest.mark.parametrize("language", ["python", "bash"])
def test_a04_memory_split_over_processes(sandbox, neighbour, language):
    """Six processes of 80 MiB do not fit into 256 MiB, however little each of them is."""
    python = "x = b'x' * 80_000_000; import time; time.sleep(1)"
    with answering(neighbour):
        if language == "python":
            code = f"import subprocess\nchildren = [subprocess.Popen(['python3', '-S', '-c', {python!r}]) for _ in range(6)]\n"
            execution = sandbox.run_code(code + "print([child.wait() for child in children])", timeout=60)
            assert execution.status == "killed" or "-9" in stdout(execution), execution
        else:
            script = f'for i in 1 2 3 4 5 6; do python3 -S -c "{python}" & done; for p in $(jobs -p); do wait $p || echo $?; done'
            assert "137" in shell(sandbox, script, timeout=60).stdout
    assert (group_of(sandbox).usage().peak_memory or 0) <= MEMORY
    answers(sandbox)


HOLDERS = {
    "files": "f = open('/tmp/x', 'wb', 0)\nfor _ in range(16): f.write(bytes(2**20))",
    "shared memory": "f = open('/dev/shm/x', 'wb', 0)\nfor _ in range(16): f.write(bytes(2**20))",
    "memfd": "f = os.memfd_create('x')\nfor _ in range(16): os.write(f, bytes(2**20))",
    "pipes": "for _ in range(256):\n    r, w = os.pipe(); held += [r, w]; os.set_blocking(w, False)\n    os.write(w, bytes(2**16))",
    "unix sockets": "for _ in range(128):\n    a, b = socket.socketpair(); held += [a, b]; a.setblocking(False)\n"
    "    try:\n        while True: a.send(bytes(2**14))\n    except BlockingIOError: pass",
    "udp sockets": "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.setblocking(False)\nfor _ in range(128):\n"
    "    r = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); r.bind(('127.0.0.1', 0)); held.append(r)\n"
    "    for _ in range(4): s.sendto(bytes(2**15), r.getsockname())",
}


@row(
    "A05", "files, shared memory, memfd, pipes and socket buffers are charged to the sandbox that holds them"
)
@pytest.mark.parametrize("kind", HOLDERS)
def test_a05_memory_in_odd_places_is_counted(sandbox, kind):
    """16 MiB of each kind, held by a sandbox, appear in what the kernel charges to it."""
    answers(sandbox)
    before = taken(sandbox)
    ask(sandbox, f"import os, socket\nheld = []\n{HOLDERS[kind]}\nanswer = 1")
    assert taken(sandbox) - before >= 8 * MiB


@row("A05", "the buffers of TCP sockets are bounded, apart from or within the sandbox's memory")
def test_a05_tcp_buffers_are_bounded(sandbox, neighbour):
    """Connections that nobody reads fill up to a bound of the sandbox; the neighbour's and the host's connections work."""
    code = """
    import socket, time
    server = socket.create_server(('127.0.0.1', 0), backlog=200)
    held, end = [], time.monotonic() + 3
    for _ in range(60):
        client = socket.create_connection(server.getsockname()[:2])
        held += [client, server.accept()[0]]
        client.setblocking(False)
        try:
            while time.monotonic() < end:
                client.send(bytes(2**16))
        except BlockingIOError:
            pass
    answer = len(held)
    """
    with answering(neighbour):
        ask(sandbox, code)
        bound = MEMORY // 8 if group_of(sandbox).counts_sockets_apart else MEMORY
        assert (group_of(sandbox).sockets() or 0) <= bound * 1.5  # the kernel lets single packets pass
        assert (
            ask(
                neighbour,
                "import socket\na, b = socket.socketpair()\na.send(b'x' * 1000)\nanswer = len(b.recv(1000))",
            )
            == 1000
        )
    answers(sandbox)


@row("A05", "shared memory is capped: ENOSPC at a quarter of the memory")
def test_a05_shared_memory_is_capped(sandbox):
    """/dev/shm ends before the memory does, so that the code gets an error and lives on."""
    script = "dd if=/dev/zero of=/dev/shm/a bs=1M count=30; dd if=/dev/zero of=/dev/shm/b bs=1M count=30; dd if=/dev/zero of=/dev/shm/c bs=1M count=30"
    ended = shell(sandbox, script)
    assert ended.exit_code != 0
    assert "No space left on device" in ended.stderr
    answers(sandbox)


@row("A06", "nothing of a sandbox goes to swap: taking too much ends in a kill, not in swapping")
def test_a06_no_swap(sandbox):
    """Taking twice the memory is a kill, and the kernel counts no byte of the sandbox in swap."""
    killed_for_memory(sandbox.run_code("x = []\nwhile True: x.append(b'x' * 2**20)", timeout=60))
    assert group_of(sandbox).swap() in {0, None}
    if group_of(sandbox).swap() is None:
        assert len(Path("/proc/swaps").read_text().splitlines()) == 1


@row("A07", "mlock, mlockall and MAP_LOCKED answer EPERM, ENOMEM or EAGAIN")
def test_a07_no_locked_memory(sandbox):
    """No page can be locked, and the limit cannot be raised."""
    code = """
    import ctypes, errno, mmap, resource
    libc = ctypes.CDLL(None, use_errno=True)
    page = mmap.mmap(-1, 4096)
    address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    def result(value):
        return errno.errorcode[ctypes.get_errno()] if value else 'done'
    answer = [result(libc.mlock(address, 4096)), result(libc.mlockall(3))]
    try:
        mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x2000)
        answer.append('done')
    except OSError as error:
        answer.append(errno.errorcode[error.errno])
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (2**20, 2**20))
        answer.append('done')
    except (ValueError, OSError):
        answer.append('EPERM')
    """
    assert set(ask(sandbox, code)) <= {"EPERM", "ENOMEM", "EAGAIN"}
    assert shell(sandbox, "ulimit -l").stdout == "0\n"


# ------------------------------------------------------------------------------------------------------- disk


@row("A08", "ENOSPC at the quota, typed in the file API; the neighbour can write; removing files helps")
@pytest.mark.parametrize("language", ["python", "bash"])
def test_a08_full_disk(sandbox, neighbour, language):
    """Home, /tmp and the environment of pip are one disk, which is full for all of them, and for nobody else."""
    places = ("/home/user", "/root", "/tmp", "/opt/venv")
    if language == "python":
        code = f"""
        import errno
        answer = []
        for place in {places!r}:
            try:
                with open(place + '/full', 'wb', 0) as file:
                    while True: file.write(bytes(2**16))
            except OSError as error:
                answer.append(errno.errorcode[error.errno])
        """
        assert ask(sandbox, code) == ["ENOSPC"] * 4
    else:
        for place in places:
            ended = shell(sandbox, f"dd if=/dev/zero of={place}/full bs=64k")
            assert ended.exit_code != 0
            assert "No space left" in ended.stderr
    with pytest.raises(NoSpace):
        sandbox.files.write("more", b"x" * MiB)
    neighbour.files.write("mine", b"x" * MiB)
    shell(sandbox, "rm -f /home/user/full /root/full /tmp/full /opt/venv/full")
    sandbox.files.write("more", b"x" * MiB)


@row("A09", "a file of a petabyte is refused with EFBIG; what is allocated meets the quota")
@pytest.mark.parametrize("language", ["python", "bash"])
def test_a09_sparse_and_preallocated_files(sandbox, language):
    """Size without content is bounded by the disk as well, so that nobody outside meets such a file."""
    if language == "python":
        code = """
        import errno, os
        def refusal(call, *arguments):
            try:
                call(*arguments)
                return 'done'
            except OSError as error:
                return errno.errorcode[error.errno]
        fd = os.open('huge', os.O_CREAT | os.O_RDWR)
        answer = [refusal(os.ftruncate, fd, 2**50), refusal(os.posix_fallocate, fd, 0, 2**50),
                  refusal(os.pwrite, fd, b'x', 2**50), refusal(os.posix_fallocate, fd, 0, 31 * 2**20 + 1023 * 2**10)]
        os.close(fd)
        os.unlink('huge')
        """
        *refused, full = ask(sandbox, code)
        assert set(refused) <= {"EFBIG", "ENOSPC"}
        assert full in {"ENOSPC", "done"}
    else:
        assert shell(sandbox, "truncate -s 1P huge").exit_code != 0
        assert shell(sandbox, "fallocate -l 1P huge").exit_code != 0
        assert shell(sandbox, "dd if=/dev/zero of=huge bs=1 count=1 seek=1P").exit_code != 0
    answers(sandbox)


@row("A09", "reading a sparse file through the file API costs no more than its bound")
def test_a09_sparse_file_through_the_file_api(sandbox):
    """A hole as large as the disk reads as zeros, in a bounded time and memory."""
    shell(sandbox, "truncate -s 32M hole")
    with host_grows_at_most(160 * MiB):
        assert sum(len(piece) for piece in sandbox.files.read("hole", format="stream")) == 32 * MiB


@row(
    "A10",
    "ENOSPC at the quota of files, in every writable place; typed in the file API; a context still starts",
)
@pytest.mark.parametrize("language", ["python", "bash"])
@pytest.mark.parametrize("place", ["/home/user", "/root", "/tmp", "/dev/shm"])
def test_a10_no_inodes_left(sandbox, place, language):
    """Files without content have a quota too, /dev/shm included."""
    if language == "python":
        code = f"""
        import errno, os
        made, answer = 0, None
        while answer is None:
            try:
                os.close(os.open(f'{place}/{{made}}', os.O_CREAT))
                made += 1
            except OSError as error:
                answer = [errno.errorcode[error.errno], made]
        """
        error, made = ask(sandbox, code)
        assert error == "ENOSPC"
        assert made <= LIMITS.inodes
    else:
        ended = shell(sandbox, f"cd {place} && for i in {{1..2100}}; do : > $i || exit 3; done")
        assert ended.exit_code == 3
        assert "No space left" in ended.stderr
    if place != "/dev/shm":
        with pytest.raises(NoSpace):
            sandbox.files.write("one-more", b"")
    assert sandbox.run_code("40 + 2", context=sandbox.create_code_context()).text == "42"


@row(
    "A10",
    "a hundred thousand files are gone within seconds of the kill, off the loop: neighbours answer meanwhile",
)
def test_a10_cleanup_of_many_files(neighbour):
    """The kernel takes the files away with the mount; nobody walks over them."""
    limits = replace(LIMITS, memory="512M", disk="400M", inodes=140_000)
    with Sandbox.create(limits=limits) as sandbox:
        code = """
        import os
        os.makedirs('a'); os.chdir('a')
        for n in range(100_000):
            os.close(os.open(str(n), os.O_CREAT))
        answer = n
        """
        assert ask(sandbox, code, timeout=60) == 99_999
        with answering(neighbour):
            begun = time.monotonic()
            sandbox.kill()
            assert time.monotonic() - begun <= 10


@row(
    "A11",
    "listings end after 10,000 entries; a tree thousands of levels deep is listed and removed without recursion",
)
def test_a11_deep_tree(neighbour):
    """Depth is no danger to whoever walks: listing is bounded and typed, removal works."""
    with Sandbox.create(limits=replace(LIMITS, inodes=12_000)) as sandbox:
        code = """
        import os
        for _ in range(1_500):
            os.mkdir('d'); os.chdir('d')
        os.chdir('/home/user')
        answer = 1
        """
        ask(sandbox, code, timeout=60)
        with answering(neighbour), host_grows_at_most(128 * MiB):
            assert 0 < len(sandbox.files.list("/home/user", depth=100_000)) <= 10_000
            sandbox.files.remove("/home/user/d")
        assert not sandbox.files.exists("/home/user/d")


@row("A11", "a directory of 20,000 long names is listed up to a bound")
def test_a11_huge_directory(neighbour):
    """Names of the greatest length, more than a listing has room for: bounded in entries and in memory."""
    with Sandbox.create(limits=replace(LIMITS, inodes=30_000)) as sandbox:
        code = """
        import os
        os.mkdir('many')
        for n in range(20_000):
            os.close(os.open(f'many/{n:0>255}', os.O_CREAT))
        answer = 1
        """
        ask(sandbox, code, timeout=60)
        with answering(neighbour), host_grows_at_most(128 * MiB):
            assert len(sandbox.files.list("/home/user/many")) == 10_000
        sandbox.files.remove("/home/user/many")


# ------------------------------------------------------------------------------- descriptors, output, processor


@row("A12", "EMFILE inside at the limit; the host's own number of descriptors does not move")
@pytest.mark.parametrize("language", ["python", "bash"])
def test_a12_no_descriptors_left(language):
    """Descriptors are bounded for each process, and none of them is the host's."""
    with Sandbox.create(limits=replace(LIMITS, open_files=256)) as sandbox:
        answers(sandbox)
        before = len(os.listdir("/proc/self/fd"))
        if language == "python":
            code = """
            import errno, os
            fds, answer = [], None
            while answer is None:
                try:
                    fds.append(os.dup(0))
                except OSError as error:
                    answer = [errno.errorcode[error.errno], len(fds)]
            for fd in fds: os.close(fd)
            """
            error, count = ask(sandbox, code)
            assert error == "EMFILE"
            assert count <= 256
        else:
            ended = shell(sandbox, "for i in {1..300}; do exec {fd}</dev/null || exit 3; done")
            assert ended.exit_code != 0
            assert "Too many open files" in ended.stderr
            assert shell(sandbox, "ulimit -n 5000").exit_code != 0
        assert abs(len(os.listdir("/proc/self/fd")) - before) <= 4
        answers(sandbox)


OUTPUT = replace(LIMITS, output="1M", result="4M", results=50)


@row("A13", "kept up to the cap, counted beyond; the run ends by its timeout; the host does not grow")
@pytest.mark.parametrize(
    "flood", ["while True: print('x' * 1000)", "import os\nwhile True: os.write(2, b'x' * 65536)"]
)
def test_a13_output_without_end(neighbour, flood):
    """A flood for two seconds, whatever its volume, keeps a megabyte."""
    with Sandbox.create(limits=OUTPUT) as sandbox, answering(neighbour), host_grows_at_most(48 * MiB):
        execution = sandbox.run_code(flood, timeout=2)
        assert isinstance(execution.terminal, TimedOut)
        assert execution.accounting.truncated
        assert execution.accounting.output_bytes > MiB
        kept = sum(len(text) for text in execution.logs.stdout + execution.logs.stderr)
        assert kept <= MiB + 256 * KiB
        answers(sandbox)


@row("A13", "a command's flood keeps head and tail, ends by its timeout, and the host does not grow")
def test_a13_output_without_end_of_a_command(neighbour):
    """The same for commands in bash."""
    with Sandbox.create(limits=OUTPUT) as sandbox, answering(neighbour), host_grows_at_most(48 * MiB):
        with pytest.raises(OperationTimeout) as ended:
            sandbox.commands.run("yes", timeout=2)
        assert len(ended.value.stdout) <= MiB + 256 * KiB  # type: ignore[attr-defined]
        answers(sandbox)


@row("A14", "each stream and the results have their own caps; order is kept; what was dropped is said")
def test_a14_interleaved_flood():
    """stdout, stderr and displays in turns: each is cut by itself, the beginning is whole and in order."""
    code = (
        "import sys\nfrom IPython.display import display\nfor n in range(2000):\n"
        "    print(n, 'o' * 1000); print(n, 'e' * 1000, file=sys.stderr); display(n)"
    )
    with Sandbox.create(limits=OUTPUT) as sandbox, host_grows_at_most(64 * MiB):
        execution = sandbox.run_code(code, timeout=60)
        assert execution.status == "ok", execution
        for stream in (execution.logs.stdout, execution.logs.stderr):
            text = "".join(stream)
            assert len(text) <= MiB + 256 * KiB
            assert "dropped" in text[-300:]
            numbers = [int(line.split()[0]) for line in text.splitlines()[:500]]
            assert numbers == list(range(500))
        assert [result.text for result in execution.results] == [str(n) for n in range(50)]
        assert execution.accounting.truncated


@row("A15", "a line of 200 MB is cut like any output: no buffer grows with a line")
@pytest.mark.parametrize("language", ["python", "bash"])
def test_a15_one_long_line(neighbour, language):
    """There is no line that has to be complete before it is bounded."""
    with Sandbox.create(limits=OUTPUT) as sandbox, answering(neighbour), host_grows_at_most(48 * MiB):
        if language == "python":
            execution = sandbox.run_code(
                "import os\nfor _ in range(200): os.write(1, b'x' * 10**6)", timeout=60
            )
            assert execution.status == "ok"
            assert execution.accounting.output_bytes == 200_000_000
            assert len(stdout(execution)) <= MiB + 256 * KiB
        else:
            ended = shell(sandbox, "head -c 200M /dev/zero | tr '\\0' x", timeout=60)
            assert ended.exit_code == 0
            assert len(ended.stdout) <= MiB + 256 * KiB


@row("A16", "an image of 100 MB is not shown, and that is said; the host does not grow")
def test_a16_huge_result(neighbour):
    """A result beyond ``Limits.result`` leaves a note in its place."""
    limits = replace(OUTPUT, memory="768M")
    code = (
        "import os\nfrom IPython.display import Image, display\n"
        "display(Image(data=b'\\x89PNG\\r\\n\\x1a\\n' + os.urandom(100_000_000), format='png'))"
    )
    with Sandbox.create(limits=limits) as sandbox, answering(neighbour), host_grows_at_most(64 * MiB):
        execution = sandbox.run_code(code, timeout=60)
        assert execution.status in {"ok", "error", "killed"}, execution
        assert not [result for result in execution.results if result.png]
        said = stdout(execution) + "".join(execution.logs.stderr) + "".join(map(str, execution.results))
        assert execution.error is not None or said.strip()
        answers(sandbox)


@row("A17", "processor time stays within the quota; the neighbour answers")
@pytest.mark.parametrize("language", ["python", "bash"])
def test_a17_spinning_on_all_processors(neighbour, language):
    """Eight spinning processes together get a tenth of a processor, where that is the limit."""
    with Sandbox.create(limits=replace(LIMITS, cpu=0.1)) as sandbox, answering(neighbour):
        answers(sandbox)
        before, begun = sandbox._remote.usage().cpu_time, time.monotonic()
        if language == "python":
            spin = "import os\nfor _ in range(3): os.fork()\nwhile True: pass"
            assert sandbox.run_code(spin, timeout=2).status in {"timed_out", "killed"}
        else:
            with pytest.raises(OperationTimeout):
                sandbox.commands.run(
                    "for i in 1 2 3 4 5 6 7; do while :; do :; done & done; while :; do :; done", timeout=2
                )
        wall, after = time.monotonic() - begun, sandbox._remote.usage().cpu_time
        assert before is not None
        assert after is not None
        assert after - before <= (wall + 0.2) * 0.1 * 1.3 + 0.2
        throttled = group_of(sandbox).throttled()
        assert throttled is not None
        assert throttled >= 1


@row("A18", "a higher priority and real-time scheduling answer EPERM; affinity moves nobody else")
def test_a18_priorities(sandbox):
    """Whatever code asks of the scheduler, it gets no more than it has."""
    code = """
    import ctypes, errno, os, resource
    def refusal(call, *arguments):
        try:
            call(*arguments)
            return 'done'
        except PermissionError:
            return 'EPERM'
        except (OSError, ValueError) as error:
            return type(error).__name__
    libc = ctypes.CDLL(None, use_errno=True)
    answer = {
        'nice': refusal(os.nice, -5),
        'fifo': refusal(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(50)),
        'rr': refusal(os.sched_setscheduler, 0, os.SCHED_RR, os.sched_param(1)),
        'priority': refusal(os.setpriority, os.PRIO_PROCESS, 0, -10),
        'rtprio': refusal(resource.setrlimit, resource.RLIMIT_RTPRIO, (99, 99)),
        'nice limit': refusal(resource.setrlimit, resource.RLIMIT_NICE, (40, 40)),
        'io real time': 'EPERM' if libc.syscall(251, 1, 0, 1 << 13 | 0) < 0 else 'done',
    }
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.nice(5)
    """
    if os.uname().machine != "x86_64":
        code = code.replace("syscall(251", "syscall(30")
    own = os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)
    refused = ask(sandbox, code)
    assert set(refused.values()) <= {"EPERM", "ValueError"}, refused
    assert (os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)) == own
    ended = shell(sandbox, "nice -n -5 true; chrt -f 50 true || echo refused")
    assert "refused" in ended.stdout or "not found" in ended.stderr


@row("A19", "writing and syncing without pause stays in the sandbox's memory; the neighbour answers")
@pytest.mark.parametrize("language", ["python", "bash"])
def test_a19_fsync_storm(sandbox, neighbour, language):
    """The disk is memory, so that no storm reaches a device."""
    storm = (
        "import os, time\nend = time.monotonic() + 1.5\nfd = os.open('x', os.O_CREAT | os.O_RDWR)\n"
        "while time.monotonic() < end:\n    os.pwrite(fd, bytes(2**16), 0); os.fsync(fd); os.sync()"
    )
    with answering(neighbour):
        if language == "python":
            assert sandbox.run_code(storm, timeout=30).status == "ok"
        else:
            shell(
                sandbox,
                "for i in {1..200}; do dd if=/dev/zero of=x bs=64k count=1 conv=fsync 2>/dev/null; done",
            )
    answers(sandbox)


STUCK = {
    "one bytecode": "10 ** 10 ** 8",
    "regular expression": "import re; re.match('(a+)+$', 'a' * 60 + 'b')",
    "hash flood": "class K:\n    def __hash__(self): return 1\nd = {K(): 1 for _ in range(60_000)}",
    "c loop": "sum(range(10**12))",
}


@row("A21", "the kernel that does not react is ended at its deadline; the context goes on")
@pytest.mark.parametrize("code", STUCK)
def test_a21_code_that_looks_at_no_signal(sandbox, code):
    """An interrupt is only asked; what follows it does not ask."""
    begun = time.monotonic()
    execution = sandbox.run_code(STUCK[code], timeout=0.5)
    assert isinstance(execution.terminal, TimedOut), execution
    assert execution.terminal.step in {"interrupt", "terminate"}
    assert time.monotonic() - begun <= 20
    answers(sandbox)


@row("A21", "a command that ignores signals is ended at its deadline")
def test_a21_command_that_ignores_signals(sandbox):
    """SIGTERM is only asked, too."""
    begun = time.monotonic()
    with pytest.raises(OperationTimeout):
        sandbox.commands.run("trap '' INT TERM HUP; while :; do :; done", timeout=0.5)
    assert time.monotonic() - begun <= 20
    answers(sandbox)


# ----------------------------------------------------------------------------------------- the kernel's memory

OBJECTS = {
    "sockets": ("s = socket.socket()", 1024, {"EMFILE"}),
    "epoll": ("s = select.epoll()", 1024, {"EMFILE"}),
    "eventfd": ("s = os.eventfd(0)", 1024, {"EMFILE"}),
    "timerfd": ("s = check(libc.timerfd_create(1, 0))", 1024, {"EMFILE"}),
    "inotify": ("s = check(libc.inotify_init1(0))", 16, {"EMFILE"}),
    "inotify watches": ("os.mkdir(f'/tmp/{n}'); check(libc.inotify_add_watch(ino, f'/tmp/{n}'.encode(), 0xfff))", 16_384,
                        {"ENOSPC"}),
    "terminals": ("s = os.open('/dev/pts/ptmx', os.O_RDWR | os.O_NOCTTY)", 64, {"ENOSPC"}),
    "timers": ("t = ctypes.c_void_p(); check(libc.timer_create(1, None, ctypes.byref(t)))", 4096, {"EAGAIN"}),
    "keys": ("check(libc.syscall(ADD_KEY, b'user', str(n).encode(), b'x' * 1000, 1000, -3))", 0, {"ENOSYS", "EPERM"}),
    "user namespaces": ("check(libc.unshare(0x10000000))", 0, {"EPERM", "ENOSPC", "ENOSYS", "EUSERS"}),
    "message queues": ("check(libc.mq_open(f'/q{n}'.encode(), 0o102, 0o600, None))", 0,
                       {"EMFILE", "ENOSYS", "EPERM", "EACCES", "ENOSPC"}),
}  # fmt: skip


@row("A23", "objects of the kernel end at a bound of the sandbox's own, or are not to be had")
@pytest.mark.parametrize("kind", OBJECTS)
def test_a23_objects_of_the_kernel(neighbour, kind):
    """Each kind has its number; reaching it is an ordinary error, and leaves the neighbour its own."""
    make, most, errors = OBJECTS[kind]
    code = f"""
    import ctypes, errno, os, platform, select, socket
    ADD_KEY = 248 if platform.machine() == 'x86_64' else 217
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, 'timer_create') or not hasattr(libc, 'mq_open'):
        libc = ctypes.CDLL('librt.so.1', use_errno=True)
    def check(result):
        if result < 0:
            raise OSError(ctypes.get_errno(), '')
        return result
    ino = libc.inotify_init1(0) if {kind!r} == 'inotify watches' else 0
    s, held, made, answer = 0, [], 0, None
    for n in range(20_000):
        try:
            {make}
        except OSError as error:
            answer = [errno.errorcode[error.errno], made]
            break
        held.append(s)
        made += 1
    """
    limits = replace(LIMITS, inodes=30_000)
    with Sandbox.create(limits=limits) as sandbox:
        answer = ask(sandbox, code)
        assert answer is not None, "nothing was refused"
        error, made = answer
        assert error in errors, answer
        assert made <= most
        if most:
            assert ask(neighbour, code.replace("range(20_000)", "range(3)") + "    answer = made") == 3


@row(
    "A23", "SysV shared memory, semaphores and messages are charged to the sandbox or refused, and go with it"
)
@pytest.mark.parametrize("kind", ["shared memory", "messages"])
def test_a23_sysv_objects(sandbox, neighbour, kind):
    """Whoever fills memory with them meets the memory limit, typed; outside there is no trace."""
    fill = {
        "shared memory": "i = check(libc.shmget(0, 2**24, 0o1600)); a = libc.shmat(i, None, 0); ctypes.memset(a, 1, 2**24)",
        "messages": "i = check(libc.msgget(0, 0o1600))\n    while not libc.msgsnd(i, b'x' * 4096, 4000, 0o4000): pass",
    }[kind]
    code = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), '')
    return result
for n in range(100_000):
    {fill}
"""
    before = Path("/proc/sysvipc/shm").read_text() + Path("/proc/sysvipc/msg").read_text()
    with answering(neighbour):
        execution = sandbox.run_code(code, timeout=60)
        if execution.status == "killed":
            killed_for_memory(execution)
        else:
            assert execution.status == "error", execution
            assert execution.error is not None
            assert execution.error.name == "OSError"
    assert Path("/proc/sysvipc/shm").read_text() + Path("/proc/sysvipc/msg").read_text() == before
    assert (group_of(sandbox).usage().peak_memory or 0) <= MEMORY


@row("A24", "names that are not there are remembered within the sandbox's memory, and given up again")
@pytest.mark.parametrize("place", ["/tmp", "/usr/lib"])
def test_a24_dentry_thrash(sandbox, neighbour, place):
    """Asking for 200,000 names takes no more than the limit, kills nobody, and the neighbour answers."""
    code = f"""
    import os
    answer = sum(os.path.exists(f'{place}/{{n:0>200}}') for n in range(200_000))
    """
    with answering(neighbour):
        assert ask(sandbox, code, timeout=60) == 0
    usage = group_of(sandbox).usage()
    assert (usage.peak_memory or 0) <= MEMORY
    assert usage.oom_kills == 0


@row(
    "A25",
    "a crash leaves no core file, inside or outside; the limit cannot be raised; the host's handler is not called",
)
@pytest.mark.parametrize("language", ["python", "bash"])
def test_a25_core_dump(sandbox, language):
    """The limit is too small for any dump, and 1 where 0 would still call the program of a ``core_pattern`` pipe."""
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    before = set(os.listdir("."))
    if language == "python":
        code = """
        import os, resource
        pid = os.fork()
        if pid == 0:
            x = b'x' * 50_000_000
            os.abort()
        status = os.waitpid(pid, 0)[1]
        for limit in ((2**30, 2**30), (0, 1), (0, 0)):
            try:
                resource.setrlimit(resource.RLIMIT_CORE, limit)
            except (ValueError, OSError):
                pass
        answer = [os.WTERMSIG(status), os.WCOREDUMP(status), resource.getrlimit(resource.RLIMIT_CORE), os.listdir('.')]
        """
        number, dumped, limit, files = ask(sandbox, code)
        assert (number, dumped, limit) == (6, False, [1, 1])
    else:
        ended = shell(sandbox, "ulimit -c unlimited; bash -c 'kill -SEGV $$'; echo $?; ulimit -c; ls")
        assert ended.stdout.split()[:2] == ["139", "0"]
        files = ended.stdout.split()[2:]
    assert not [name for name in files if "core" in name]
    if not pattern.startswith(("|", "/", "@")):
        assert set(os.listdir(".")) == before


@row("A06", "a limit that does not bite on this host is not promised: the sandbox is refused, naming it")
def test_a06_what_does_not_hold_is_not_promised():
    """The self-test's verdict reaches whoever asks for a sandbox as a typed refusal."""
    from cellfork.runtimes.base import LimitCheck, LimitTest
    from cellfork.runtimes.namespaces import selftest

    bad = LimitTest((LimitCheck("memory", "swap", "took memory", "9 bytes used", holds=False),), 0.0, 0.0)
    with pytest.raises(IsolationUnavailable) as refused:
        selftest.require(bad, LIMITS)
    assert [missing.feature for missing in refused.value.missing] == ["limit: swap"]
    selftest.require(bad, replace(LIMITS, memory=None))
