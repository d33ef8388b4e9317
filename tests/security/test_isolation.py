"""What code in a sandbox is, sees and reaches."""

import errno
import os
import socket
import time
from pathlib import Path

import pytest

from cellfork import Sandbox
from tests.security.conftest import LIMITS, ask


def host_processes(sandbox: Sandbox) -> list[int]:
    """Return the pids, as the host sees them, of every process in the sandbox's pid namespace."""
    namespace = os.readlink(f"/proc/{_init_of(sandbox)}/ns/pid")
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.readlink(entry / "ns/pid") == namespace:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def _init_of(sandbox: Sandbox) -> int:
    """Find init on the host: the parent of the kernel, which is told to take a name that nobody else has."""
    name = os.urandom(7).hex()
    ask(sandbox, f"open('/proc/self/comm', 'w').write({name!r})\nanswer = 1")
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "comm").read_text().strip() == name:
                    return int(status_of(int(entry.name))["PPid"])
            except OSError:
                continue
    raise AssertionError("the kernel was not found on the host")


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def test_no_process_has_any_right(sandbox):
    """Init, kernel and commands have five empty capability sets, no_new_privs, a filter, and no host id of meaning."""
    sandbox.run_code("import subprocess; subprocess.Popen(['sleep', '60'])")
    pids = host_processes(sandbox)
    assert len(pids) >= 3
    for pid in pids:
        status = status_of(pid)
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert int(status[name], 16) == 0, (pid, name)
        assert (status["NoNewPrivs"], status["Seccomp"], status["Seccomp_filters"]) == ("1", "2", "2")
        if os.geteuid() == 0:
            assert min(int(uid) for uid in status["Uid"].split()) >= 1 << 29


def test_every_namespace_is_its_own(sandbox, neighbour):
    """User, mount, pid, ipc, uts, network and cgroup namespaces differ from the host's and from a neighbour's."""
    mine, theirs = _init_of(sandbox), _init_of(neighbour)
    for kind in ("user", "mnt", "pid", "ipc", "uts", "net", "cgroup"):
        names = {os.readlink(f"/proc/{pid}/ns/{kind}") for pid in (mine, theirs, os.getpid())}
        assert len(names) == 3, kind


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has one id to give")
def test_two_sandboxes_share_no_host_id(sandbox, neighbour):
    """As root every sandbox has a host id range of its own."""
    mine, theirs = (status_of(_init_of(s))["Uid"].split()[0] for s in (sandbox, neighbour))
    assert mine != theirs


def test_descriptors_are_exactly_the_declared_ones(sandbox):
    """Init holds /dev/null three times, its connection, its loop and pipes: nothing of the host's files."""
    for pid in host_processes(sandbox):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            target = os.readlink(entry)
            assert target.startswith(("socket:", "pipe:", "anon_inode:", "/dev/null")), (pid, target)


def test_secrets_and_homes_of_the_host_are_absent(sandbox, monkeypatch):
    """Not forbidden: absent."""
    paths = ["/etc/shadow", "/etc/ssh", "/etc/machine-id", "/root/.ssh", "/root/.bashrc", "/root/.config", "/var/run/docker.sock",
             "/run/systemd", "/sys", "/boot", "/var/log/dpkg.log", "/etc/sudoers", str(Path.home() / ".netrc"),
             "/proc/1/root/etc/shadow", "/home/user/../../etc/shadow"]  # fmt: skip
    assert ask(sandbox, f"import os\nanswer = [p for p in {paths!r} if os.path.lexists(p)]") == []


def test_a_canary_file_of_the_host_is_absent(sandbox, tmp_path):
    """A file that exists on the host's /tmp does not exist inside."""
    canary = tmp_path / "canary"
    canary.write_text("secret")
    code = f"""
    import os
    files = [name for name in os.listdir('/tmp') if os.path.isfile('/tmp/' + name)]
    answer = [os.path.exists({str(canary)!r}), files]
    """
    assert ask(sandbox, code) == [False, []]


def test_no_environment_variable_of_the_host_gets_in(monkeypatch, sandbox):
    """The environment is an allow-list; a secret in the host's environment is not in any process inside."""
    monkeypatch.setenv("CANARY_SECRET", "do-not-leak")
    code = """
    import os, glob
    seen = dict(os.environ)
    for path in glob.glob('/proc/[0-9]*/environ'):
        try:
            seen[path] = open(path, 'rb').read().decode('latin-1')
        except OSError:
            pass
    answer = [name for name, value in seen.items() if 'do-not-leak' in value or 'CANARY' in name]
    """
    assert ask(sandbox, code) == []


def test_only_own_processes_are_visible(sandbox):
    """/proc shows the sandbox's pids from 1 on and none of the host's."""
    pids = ask(sandbox, "import os\nanswer = sorted(int(n) for n in os.listdir('/proc') if n.isdigit())")
    assert pids == [1, 2]


def test_places_of_the_system_cannot_be_written(sandbox):
    """Writing to the root, /usr, /etc, /proc/sys, the interpreter's and cellfork's own directories is refused."""
    code = """
    import os, sys, errno
    answer = {}
    for place in ('/', '/usr', '/usr/lib', '/etc', '/opt', '/dev', '/proc/sys/kernel', sys.base_prefix, '/run/cellfork/lib/cellfork'):
        try:
            open(place + '/planted', 'w')
            answer[place] = 'written'
        except OSError as error:
            answer[place] = errno.errorcode[error.errno]
    """
    answers = ask(sandbox, code)
    assert set(answers.values()) <= {"EROFS", "EACCES", "EPERM", "ENOENT"}, answers


def test_home_and_tmp_are_private(sandbox, neighbour):
    """What one sandbox writes to /home/user, /root, /tmp or /dev/shm another does not see."""
    places = ["/home/user/x", "/root/x", "/tmp/x", "/dev/shm/x", "/var/tmp/x"]
    ask(sandbox, f"for p in {places!r}: open(p, 'w').write('x')\nanswer = 1")
    assert ask(neighbour, f"import os\nanswer = [p for p in {places!r} if os.path.exists(p)]") == []


def test_there_is_no_network_and_it_says_so_at_once(sandbox):
    """A connection to anywhere fails with ENETUNREACH, without waiting; only the loopback device exists."""
    code = """
    import socket, time
    start = time.monotonic()
    try:
        socket.create_connection(('192.0.2.1', 80), timeout=5)
        outcome = 0
    except OSError as error:
        outcome = error.errno
    answer = [outcome, time.monotonic() - start < 1, [name for _, name in socket.if_nameindex()]]
    """
    assert ask(sandbox, code) == [errno.ENETUNREACH, True, ["lo"]]


def test_the_hosts_loopback_is_out_of_reach(sandbox, neighbour):
    """A port on the host's 127.0.0.1, or on a neighbour's, refuses; the sandbox's own loopback works."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"""
        import socket
        def reach(port):
            try:
                socket.create_connection(('127.0.0.1', port), timeout=2).close()
                return True
            except OSError:
                return False
        own = socket.create_server(('127.0.0.1', {port}))
        answer = reach({port})
        own.close()
        answer = [answer, reach({port})]
        """
        assert ask(sandbox, code) == [True, False]


def test_abstract_sockets_are_not_shared(sandbox, neighbour):
    """An abstract Unix socket of the host or of a neighbour cannot be connected to."""
    name = b"\0cellfork-test-" + os.urandom(4).hex().encode()
    connect = f"""
    import socket
    client = socket.socket(socket.AF_UNIX)
    try:
        client.connect({name!r})
        answer = 'connected'
    except OSError as error:
        answer = type(error).__name__
    """
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        assert ask(sandbox, connect) == "ConnectionRefusedError"


@pytest.fixture(scope="module")
def shared():
    with Sandbox.create(limits=LIMITS) as sandbox:
        sandbox.run_code("1")  # its processes are there before a test looks for leaks
        yield sandbox


def test_a_setuid_program_gains_nothing(shared):
    """no_new_privs and nosuid: su or passwd runs as the sandbox's user."""
    code = "import os, subprocess\nanswer = subprocess.run(['su', '-c', 'id'], capture_output=True, stdin=subprocess.DEVNULL).returncode"
    assert ask(shared, code) != 0


def test_memory_is_limited_for_all_together(sandbox, neighbour):
    """A bomb is killed with the reason; the neighbour and this process do not notice; the context works again."""
    neighbour.run_code("x = 1")
    execution = sandbox.run_code("hoard = [bytearray(1 << 20) for _ in range(4096)]", timeout=60)
    assert execution.status == "killed"
    assert execution.error.value.startswith("memory")
    assert execution.accounting.peak_memory > 200 * 1024 * 1024
    assert neighbour.run_code("x").text == "1"
    assert sandbox.run_code("1 + 1").text == "2"


def test_files_count_as_memory_and_the_disk_is_bounded(sandbox):
    """A full disk answers ENOSPC at the limit, and so does running out of inodes; removing makes room again."""
    code = """
    import os, errno
    def fill():
        try:
            with open('big', 'wb') as file:
                while True:
                    file.write(b'x' * 65536)
        except OSError as error:
            return error.errno, os.path.getsize('big')
    number, size = fill()
    os.remove('big')
    made = 0
    try:
        os.mkdir('many')
        while True:
            open(f'many/{made}', 'w').close()
            made += 1
    except OSError as error:
        last = error.errno
    answer = [number, size, last, made]
    """
    full, size, last, made = ask(sandbox, code)
    assert (full, last) in {(errno.ENOSPC, errno.ENOSPC), (errno.EFBIG, errno.ENOSPC)}
    assert size <= LIMITS.disk_bytes
    assert made <= LIMITS.inodes


def test_processes_are_limited(sandbox, neighbour):
    """A fork bomb gets EAGAIN at the limit; the neighbour still starts processes."""
    code = """
    import os, signal
    children = []
    try:
        while len(children) < 500:
            pid = os.fork()
            if pid == 0:
                signal.pause()
            children.append(pid)
        answer = [0, len(children)]
    except OSError as error:
        answer = [error.errno, len(children)]
    for pid in children:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    """
    number, count = ask(sandbox, code)
    assert number == errno.EAGAIN
    assert count < LIMITS.pids
    assert ask(neighbour, "import subprocess\nanswer = subprocess.run(['true']).returncode") == 0


def test_processor_time_is_limited():
    """With half a core, a busy second takes about half a second of CPU time: measured by the host."""
    with Sandbox.create(limits=LIMITS.__class__(cpu=0.5)) as sandbox:
        sandbox.run_code("1")
        execution = sandbox.run_code(
            "import time\nend = time.monotonic() + 1.5\nwhile time.monotonic() < end: pass"
        )
    used = execution.accounting.cpu_time
    assert used is not None
    assert used < 0.75 * execution.accounting.wall_time


def test_open_files_are_limited(sandbox):
    """A process gets EMFILE at its limit."""
    code = """
    files = []
    try:
        while len(files) < 5000:
            files.append(open('/dev/null'))
        answer = 0
    except OSError as error:
        answer = error.errno
    files.clear()
    """
    assert ask(sandbox, code) == errno.EMFILE


def test_nothing_survives_a_kill():
    """Daemons, stopped processes and processes that ignore every signal are gone when kill() returns."""
    sandbox = Sandbox.create(limits=LIMITS)
    code = """
    import os, signal, time
    for kind in range(9):
        if os.fork() == 0:
            if os.fork() == 0:
                os.setsid()
                for number in range(1, 32):
                    try:
                        signal.signal(number, signal.SIG_IGN)
                    except (OSError, ValueError):
                        pass
                if kind % 3 == 0:
                    os.kill(os.getpid(), signal.SIGSTOP)
                while True:
                    time.sleep(1)
            os._exit(0)
        os.wait()
    """
    sandbox.run_code(code)
    pids = host_processes(sandbox)
    assert len(pids) >= 10
    start = time.monotonic()
    sandbox.kill()
    assert time.monotonic() - start < 2
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


def test_random_numbers_differ_between_siblings():
    """Forks of one zygote do not share a first draw of random, numpy, uuid or tempfile."""
    code = """
    import random, uuid, tempfile, numpy, os
    answer = [random.random(), float(numpy.random.rand()), str(uuid.uuid4()), str(uuid.uuid1()), tempfile.mktemp(), os.urandom(4).hex()]
    """
    draws = []
    for _ in range(8):
        with Sandbox.create() as sandbox:
            draws.append(ask(sandbox, code))
    for column in zip(*draws, strict=True):
        assert len(set(column)) == len(draws)


def test_pip_belongs_to_the_sandbox(sandbox):
    """``pip`` on PATH is the sandbox's own: it would install where the sandbox may write, in front of the template."""
    done = sandbox.commands.run("command -v pip && pip --version && pip config list")
    first, version, *_ = done.stdout.splitlines()
    assert first == "/opt/venv/bin/pip"
    assert version.startswith("pip ")
    code = "import sysconfig, os\nanswer = [sysconfig.get_path('purelib'), os.access(sysconfig.get_path('purelib'), os.W_OK)]"
    place, writable = ask(sandbox, code)
    assert place.startswith("/opt/venv/")
    assert writable
