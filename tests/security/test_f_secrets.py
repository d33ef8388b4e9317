"""Secrets and other tenants: what code finds of the host, of its neighbours and of those who were here before."""

import json
import logging
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cellfork import InvalidRequest, NotFound, Sandbox, Template
from cellfork.client.transport import EmbeddedTransport
from cellfork.runtimes.namespaces.runtime import NamespacesRuntime
from tests.security.catalogue import row
from tests.security.conftest import LIMITS, ask, shell
from tests.security.memory import Canaries, zygote_of

BARE = Template("bare", preload=())

Create = Callable[..., Sandbox]


@pytest.fixture
def create() -> Iterator[Create]:
    """Create sandboxes in a host of the test's own, with forks made ahead; all of it ends with the test."""
    runtime = NamespacesRuntime(pool=0, prefork=2)
    transport = EmbeddedTransport({"namespaces": runtime})
    yield lambda **options: Sandbox.create(
        **{"template": BARE, "limits": LIMITS, "transport": transport, **options}
    )
    transport.close()


def init_of(sandbox: Sandbox) -> int:
    return int(sandbox.info.features["pid"])


@row("F01", "the environment is an allow-list; a secret in the host's environment is in no process inside")
@pytest.mark.parametrize("language", ["python", "bash"])
def test_f01_environment(create, monkeypatch, language):
    """Names are those of a fixed list and of the request; the host's own variables are absent, whatever their names."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "do-not-leak")
    monkeypatch.setenv("PYTHONSTARTUP", "/do-not-leak")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/do-not-leak")
    sandbox = create(envs={"MINE": "yes"})
    if language == "python":
        found = ask(sandbox, "import os\nanswer = dict(os.environ)")
    else:
        output = shell(sandbox, "env -0").stdout
        found = dict(line.split("=", 1) for line in output.split("\0") if line)
    assert "do-not-leak" not in str(found)
    assert found.pop("MINE") == "yes"
    allowed = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "PWD", "OLDPWD", "SHLVL", "_", "VIRTUAL_ENV",
               "MPLBACKEND", "IPYTHONDIR", "CELLFORK_SANDBOX", "PYTHONUNBUFFERED", "OPENBLAS_NUM_THREADS",
               "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "LINES",
               "COLUMNS", "PAGER", "GIT_PAGER", "CELLFORK_PIP_HINT", "CELLFORK_NETWORK"}  # fmt: skip
    settings = ("PIP_", "npm_config_")  # of programs that would ask the network, made by cellfork
    assert {name for name in found if name not in allowed and not name.startswith(settings)} == set()


@row("F03", "a scan of the whole address space finds no secret of the host and nothing of another sandbox")
@row("J05", "the same: the zygote holds no secret, and freed memory is nobody else's")
def test_f03_no_canary_in_memory(create, monkeypatch):
    """Canaries in the host's environment and memory, in other sandboxes' code, variables, files, and in the tenant's name.

    The sandboxes that look are forks made before and after the others ran code.  Each finds a word of its
    own, which shows that the search works.
    """
    canary = Canaries()
    monkeypatch.setenv("SECRET", canary("environment"))
    held = [canary("memory"), canary("memory").encode() * 1000, {"api_key": canary("key")}]
    tenant = canary("tenant")

    def create_one(number: int) -> Sandbox:
        return create(
            tenant=tenant, metadata={"m": canary("metadata")}, envs={"V": canary("variable" + str(number))}
        )

    gone, lives = create_one(1), create_one(2)
    for sandbox in (gone, lives):
        sandbox.run_code(f"x = [{canary('code')!r} * 2] * 1000")
        sandbox.files.write("note", canary("file") * 1000)
        shell(sandbox, f"echo {canary('command')}")
    gone.kill()
    for number in (3, 4, 5):  # the first were forked before, the last after all that
        looker = create_one(number)
        assert ask(looker, canary.question()) == ["control", f"variable{number}"]
        time.sleep(0.05)  # so that the next one is made ahead
    assert canary.in_process(zygote_of(init_of(lives))) == []
    assert canary.in_process(os.getpid()) != []
    assert held


@row("F04", "hostname, cgroup, mounts and command lines name neither host, tenant nor sandbox")
@pytest.mark.parametrize("language", ["python", "bash"])
def test_f04_what_names_the_host(create, language):
    """The names that /proc shows are made up, or relative to the sandbox."""
    sandbox = create(tenant="acme-corporation", metadata={"purpose": "quarterly-report"})
    places = [
        f"/proc/self/{name}" for name in ("cgroup", "mountinfo", "cmdline", "comm", "environ", "status")
    ]
    places += ["/proc/1/cmdline", "/proc/1/comm", "/etc/hostname", "/etc/hosts", "/proc/sys/kernel/hostname"]
    if language == "python":
        code = f"""
        import os, platform, socket
        answer = [socket.gethostname(), platform.node(), os.uname().nodename, os.uname().version]
        answer += [open(place).read() for place in {places!r}]
        """
        seen = "\n".join(ask(sandbox, code))
    else:
        seen = shell(sandbox, "hostname; uname -n; cat " + " ".join(places)).stdout
    assert seen.startswith("sandbox\nsandbox\n")
    host = os.uname().nodename
    for word in ("acme", "quarterly", sandbox.sandbox_id, f"cellfork-{os.getpid()}", os.environ["TMPDIR"]):
        assert word not in seen, word
    assert host in {"localhost", "sandbox"} or not re.search(rf"(?<![\w/]){re.escape(host)}(?!\w)", seen)
    groups = [line for line in seen.splitlines() if line.count(":") == 2 and line.endswith("/")]
    assert groups, "no line of /proc/self/cgroup was seen"
    assert all(line.endswith(":/") for line in groups)


# ------------------------------------------------------------------------------- F05, all pairs

MATRIX_SETUP = """
import ctypes, os, socket, subprocess
me, stem = {me}, {stem!r}
kept = globals().setdefault('kept', [])
for place in ('/tmp', '/dev/shm', '/var/tmp', '/home/user'):
    with open(f'{{place}}/{{stem}}-{{me}}', 'w') as file:
        file.write('mine')
def listen(family, address):
    server = socket.socket(family)
    server.bind(address)
    server.listen()
    kept.append(server)
listen(socket.AF_UNIX, f'/tmp/{{stem}}-socket-{{me}}')
listen(socket.AF_UNIX, f'\\0{{stem}}-{{me}}')
listen(socket.AF_INET, ('0.0.0.0', 20000 + me))
listen(socket.AF_INET6, ('::1', 20000 + me))
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(('127.0.0.1', 21000 + me))
kept.append(datagrams)
libc = ctypes.CDLL(None, use_errno=True)
IPC_CREAT = 0o1000
libc.shmget(7000 + me, 4096, IPC_CREAT | 0o666)
libc.semget(7000 + me, 1, IPC_CREAT | 0o666)
libc.msgget(7000 + me, IPC_CREAT | 0o666)
libc.mq_open(f'/{{stem}}-{{me}}'.encode(), os.O_CREAT | os.O_RDWR, 0o666, None)
kept.append(subprocess.Popen(['sleep', str(90000 + me)]))
fifo = f'/tmp/{{stem}}-fifo-{{me}}'
os.mkfifo(fifo)
answer = 1
"""

MATRIX_PROBE = """
import ctypes, glob, os, signal, socket
stem, numbers, pids, names = {stem!r}, {numbers}, {pids}, {names}
libc = ctypes.CDLL(None, use_errno=True)
def connects(family, address):
    with socket.socket(family) as client:
        client.settimeout(2)
        return client.connect_ex(address) == 0
def datagram(who):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect(('127.0.0.1', 21000 + who))
        try:
            client.send(b'x')
            client.settimeout(0.05)
            client.recv(1)
        except TimeoutError:
            return True
        except OSError:
            return False
def commands():
    for path in glob.glob('/proc/[0-9]*/cmdline'):
        try:
            yield open(path, 'rb').read().split(b'\\0')
        except OSError:
            pass
running = [*commands()]
def vector(address):
    return (ctypes.c_void_p * 2)(address, 8)
def reads(pid):
    buffer = ctypes.create_string_buffer(8)
    return libc.process_vm_readv(pid, vector(ctypes.addressof(buffer)), 1, vector(4096), 1, 0) >= 0
def signals(pid):
    try:
        os.kill(pid, 0)
        return True
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
def opens(call, *arguments):
    try:
        return call(*arguments) >= 0
    except OSError:
        return False
channels = {{
    'tmp': lambda who: os.path.exists(f'/tmp/{{stem}}-{{who}}'),
    'shm': lambda who: os.path.exists(f'/dev/shm/{{stem}}-{{who}}'),
    'var tmp': lambda who: os.path.exists(f'/var/tmp/{{stem}}-{{who}}'),
    'home': lambda who: os.path.exists(f'/home/user/{{stem}}-{{who}}'),
    'fifo': lambda who: os.path.exists(f'/tmp/{{stem}}-fifo-{{who}}'),
    'pathname socket': lambda who: connects(socket.AF_UNIX, f'/tmp/{{stem}}-socket-{{who}}'),
    'abstract socket': lambda who: connects(socket.AF_UNIX, f'\\0{{stem}}-{{who}}'),
    'tcp': lambda who: connects(socket.AF_INET, ('127.0.0.1', 20000 + who)),
    'tcp6': lambda who: connects(socket.AF_INET6, ('::1', 20000 + who)),
    'udp': datagram,
    'command line': lambda who: [b'sleep', str(90000 + who).encode(), b''] in running,
    'sysv shm': lambda who: libc.shmget(7000 + who, 0, 0) >= 0,
    'sysv sem': lambda who: libc.semget(7000 + who, 0, 0) >= 0,
    'sysv msg': lambda who: libc.msgget(7000 + who, 0) >= 0,
    'posix mq': lambda who: libc.mq_open(f'/{{stem}}-{{who}}'.encode(), os.O_RDWR) >= 0,
}}
by_pid = {{
    'signal': signals,
    'proc': lambda pid: os.path.exists(f'/proc/{{pid}}'),
    'ptrace': lambda pid: libc.ptrace(16, pid, 0, 0) >= 0,
    'read memory': reads,
    'pidfd': lambda pid: libc.syscall(434, pid, 0) >= 0,
    'priority': lambda pid: opens(os.getpriority, os.PRIO_PROCESS, pid),
    'affinity': lambda pid: opens(lambda p: len(os.sched_getaffinity(p)), pid),
    'keyring': lambda pid: libc.syscall(250, 0, pid, 0) >= 0,
}}
answer = {{name: [who for who in numbers if reach(who)] for name, reach in channels.items()}}
answer |= {{name: [pid for pid in pids if reach(pid)] for name, reach in by_pid.items()}}
answer['cgroup'] = [path for path in ('/sys/fs/cgroup', '/proc/1/root/sys') if os.path.exists(path)]
answer['environment of others'] = [name for name in names if os.path.exists(f'/proc/self/root/{{name}}')]
"""
OWN_ALWAYS = {
    "tmp", "shm", "var tmp", "home", "fifo", "pathname socket", "abstract socket", "tcp", "tcp6", "udp", "command line",
}  # fmt: skip
"""Channels that work within a sandbox, which shows that the probe finds what there is."""


@row("F05", "of 4 sandboxes, two of one tenant, none reaches another by any of 25 channels")
def test_f05_all_pairs(create):
    """Files, sockets, System V and POSIX IPC, processes by the host's pids, memory, keyrings, control groups: all pairs."""
    stem = f"cf{os.getpid()}"
    sandboxes = [create(tenant=tenant) for tenant in ("a", "a", "b", "")]
    for number, sandbox in enumerate(sandboxes):
        ask(sandbox, MATRIX_SETUP.format(me=number, stem=stem))
    pids = [pid for sandbox in sandboxes for pid in _processes_of(sandbox)]
    assert len(pids) >= 12
    names = [f"cellfork-{os.getpid()}", *(sandbox.sandbox_id for sandbox in sandboxes)]
    numbers = list(range(len(sandboxes)))
    for number, sandbox in enumerate(sandboxes):
        probe = MATRIX_PROBE.format(stem=stem, numbers=numbers, pids=pids, names=names)
        reached = ask(sandbox, probe)
        assert len(reached) >= 25
        for channel, who in reached.items():
            assert set(who) <= {number}, (number, channel, who)
            assert who == [number] or channel not in OWN_ALWAYS, (number, channel, who)


def _processes_of(sandbox: Sandbox) -> list[int]:
    """Return the pids of a sandbox as the host counts."""
    pending, found = [init_of(sandbox)], []
    while pending:
        pid = pending.pop()
        found.append(pid)
        pending += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return found


@row("F05", "the same from a shell: ports, files, processes")
def test_f05_from_a_shell(create):
    """What bash can try of it."""
    mine, theirs = create(tenant="a"), create(tenant="b")
    ask(theirs, MATRIX_SETUP.format(me=1, stem="cfbash"))
    pid = init_of(theirs)
    script = f"""
    for place in /tmp /dev/shm /var/tmp /home/user; do test -e $place/cfbash-1 && echo file $place; done
    (exec 3<>/dev/tcp/127.0.0.1/20001) 2>/dev/null && echo tcp
    kill -0 {pid} 2>/dev/null && echo signal
    test -e /proc/{pid} && echo proc
    ps ax 2>/dev/null | grep -v grep | grep 90001 && echo ps
    echo end
    """
    assert shell(mine, script).stdout == "end\n"
    assert "file /tmp" in shell(theirs, script).stdout


@row("F06", "ids carry at least 128 random bits; one that was never given is not found")
def test_f06_ids_cannot_be_guessed(create):
    """Sandboxes, contexts and commands are named by 26 random characters of 36; a neighbour's id in another place is unknown."""
    sandbox = create()
    context = sandbox.create_code_context()
    running = sandbox.execs.create("sleep", ["60"])
    for id in (sandbox.sandbox_id[5:], context.id, running.id):
        assert len(id) * math.log2(36) >= 128
        assert set(id) <= set("abcdefghijklmnopqrstuvwxyz0123456789")
    seen = {sandbox.create_code_context().id for _ in range(3)} | {context.id}
    assert len(seen) == 4
    assert len({id[:8] for id in seen}) == 4  # no counter, no common beginning
    for guess in (context.id[:-1], "0" * 26, sandbox.sandbox_id, "", "../" + context.id):
        with pytest.raises((NotFound, InvalidRequest)):
            sandbox.run_code("1", context=guess or "0")


@row("F07", "an id of one sandbox means nothing to another: not found, as one that never was")
def test_f07_ids_of_another(create):
    """Contexts and commands belong to their sandbox, also among sandboxes of one tenant."""
    mine, theirs = create(), create()
    context = theirs.create_code_context()
    running = theirs.execs.create("sleep", ["60"])
    messages = []
    for foreign in (context.id, "0" * 26):
        with pytest.raises(NotFound) as error:
            mine.run_code("1", context=foreign)
        messages.append(str(error.value).replace(foreign, "ID"))
    for foreign in (running.id, "0" * 26):
        with pytest.raises(NotFound) as error:
            mine.execs.get(foreign)
        messages.append(str(error.value).replace(foreign, "ID"))
    assert messages[0] == messages[1]
    assert messages[2] == messages[3]
    assert theirs.run_code("1 + 1", context=context).text == "2"


RESIDUE = """
import builtins, json, os, subprocess, sys, threading, numbers
open('/tmp/left', 'w').write('left'); open('/dev/shm/left', 'w').write('left'); open('left.py', 'w').write('x = 1')
os.environ['LEFT'] = 'left'; builtins.left = 'left'; sys.path.insert(0, '/tmp/left'); json.dumps = None
sys.modules['left'] = sys; numbers.left = 1; os.umask(0)
subprocess.Popen(['sleep', '98765'], start_new_session=True)
threading.Thread(target=threading.Event().wait, daemon=True).start()
get_ipython().input_transformers_cleanup.append(lambda lines: ['1/0'])
answer = 1
print('ANSWER1')
"""
LOOK = """
import builtins, glob, json, os, sys, numbers
answer = [path for path in ('/tmp/left', '/dev/shm/left', 'left.py') if os.path.exists(path)]
answer += [name for name in ('LEFT',) if name in os.environ]
answer += [place for place in sys.path if 'left' in place]
answer += [name for name in sys.modules if name == 'left']
answer += ['builtins'] * hasattr(builtins, 'left') + ['numbers'] * hasattr(numbers, 'left') + ['json'] * (json.dumps is None)
answer += [path for path in glob.glob('/proc/[0-9]*/cmdline') if b'98765' in open(path, 'rb').read()]
mask = os.umask(0o22)
answer += [mask] * (mask != 0o22)
answer += [len(os.listdir('/proc/self/task'))] * (len(os.listdir('/proc/self/task')) != 1)
"""


@row("F08", "nothing is left: each sandbox is forked anew, whatever an earlier one did to its interpreter")
@row("C21", "the same for /tmp, /dev/shm, /var/tmp and the home")
@pytest.mark.parametrize("pool", [0, 1])
def test_f08_residue(pool):
    """Files, variables, processes, threads, changed modules and IPython's own parts: the next sandbox sees none of it.

    Whether the first one has ended or lives on; also where sandboxes are kept ready, which are given out once.
    """
    transport = EmbeddedTransport({"namespaces": NamespacesRuntime(pool=pool, prefork=1)})
    options: dict[str, Any] = {"template": BARE, "limits": LIMITS, "transport": transport}
    try:
        assert ask(Sandbox.create(**options), LOOK) == []
        for ended in (False, True):
            first = Sandbox.create(**options)
            first.run_code(RESIDUE)
            if ended:
                first.kill()
            for _ in range(3):
                assert ask(Sandbox.create(**options), LOOK) == []
    finally:
        transport.close()


@row("F08", "a context that is restarted, and a second one, begin with what the image has")
def test_f08_residue_in_contexts(create):
    """Within one sandbox, which is one owner's, files stay; interpreters share nothing."""
    sandbox = create()
    sandbox.run_code("import builtins, os; builtins.left = os.environ['LEFT'] = 'left'")
    context = sandbox.create_code_context()
    question = "import builtins, os; [hasattr(builtins, 'left'), 'LEFT' in os.environ]"
    assert sandbox.run_code(question, context=context).text == "[False, False]"
    default = sandbox.list_code_contexts()[0]
    sandbox.restart_code_context(default)
    assert sandbox.run_code(question).text == "[False, False]"


@row("F09", "package places are the sandbox's own or read-only: what one plants no other imports")
def test_f09_poisoned_packages(create):
    """A module, a .pth file and a poisoned cache of one sandbox are not there for the next of the same tenant."""
    plant = """
    import os, site, sysconfig
    places = [sysconfig.get_path('purelib'), os.path.expanduser('~/.local/lib/python/site-packages'), os.path.expanduser('~/.cache/pip')]
    answer = []
    for place in places:
        os.makedirs(place, exist_ok=True)
        open(place + '/poison.pth', 'w').write("import builtins; builtins.poisoned = True")
        open(place + '/poison.py', 'w').write("x = 1")
        answer.append(place)
    import numbers, sys
    for directory in {os.path.dirname(numbers.__file__), *[p for p in sys.path if p.startswith('/') and os.path.isdir(p)]} - {places[0]}:
        try:
            open(directory + '/poison.py', 'w').close()
            answer.append('written: ' + directory)
        except OSError:
            pass
    """
    first = create()
    planted = ask(first, plant)
    assert not [place for place in planted if place.startswith("written")]
    assert shell(first, "python -c 'import builtins, poison; print(builtins.poisoned)'").stdout == "True\n"
    second = create()
    assert shell(second, "python -c 'import poison'").exit_code == 1
    look = f"import builtins, os\nanswer = [p for p in {planted!r} if os.path.exists(p + '/poison.py')] + [1] * hasattr(builtins, 'poisoned')"
    assert ask(second, look) == []


COUNTERS = """
import os, socket
inodes = [os.stat(path).st_ino for path in ('/home/user', '/tmp')]
open('/tmp/new', 'w').close()
new = os.stat('/tmp/new').st_ino
disk = os.statvfs('/home/user')
answer = {
    'pids': sorted(int(name) for name in os.listdir('/proc') if name.isdigit())[:2],
    'inodes': [*inodes, new],
    'disk used': disk.f_blocks - disk.f_bfree,
    'files': disk.f_files - disk.f_ffree,
    'ipc': [open(f'/proc/sysvipc/{name}').read().count('\\n') for name in ('shm', 'sem', 'msg') if os.path.exists(f'/proc/sysvipc/{name}')],
    'unix': open('/proc/net/unix').read().count('\\n') if os.path.exists('/proc/net/unix') else 0,
    'tcp': open('/proc/net/tcp').read().count('\\n') if os.path.exists('/proc/net/tcp') else 0,
    'devices': [line.split()[:2] for line in open('/proc/net/dev').read().splitlines()[2:]] if os.path.exists('/proc/net/dev') else 0,
}
"""
COMMOTION = """
import os, socket, subprocess
for number in range(300):
    open(f'/tmp/{number}', 'w').write('x' * 20000)
kept = [socket.socketpair() for _ in range(100)]
server = socket.create_server(('127.0.0.1', 0))
clients = [socket.create_connection(server.getsockname()) for _ in range(20)]
[subprocess.Popen(['sleep', '60']) for _ in range(10)]
answer = 1
"""


@row(
    "F10",
    "pids, inode numbers, disk use, sockets and traffic of a neighbour leave no trace in one's own counters",
)
def test_f10_counters_are_ones_own(create):
    """A sandbox's numbers are the same whether its neighbour keeps still or does as much as it can.

    The counters that all share (load, memory and processor use of the machine, the time that things take)
    are named in the threat model.
    """
    quiet = ask(create(tenant="a"), COUNTERS)
    ask(create(tenant="b"), COMMOTION)
    assert ask(create(tenant="a"), COUNTERS) == quiet


@row("F11", "there is nothing to reach: the program that embeds cellfork listens nowhere")
def test_f11_nothing_listens(create):
    """Neither the host process nor a zygote opens a port; a sandbox finds none on its loopback."""
    sandbox = create()
    pids = [os.getpid(), zygote_of(init_of(sandbox)), init_of(sandbox)]
    for pid in pids:
        held = {os.readlink(entry) for entry in _descriptors(pid)}
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                listening = fields[3] == "0A" and f"socket:[{fields[9]}]" in held
                assert not listening, (pid, line)
    code = """
    import socket
    answer = []
    for port in range(1, 20000):
        with socket.socket() as client:
            if client.connect_ex(('127.0.0.1', port)) == 0:
                answer.append(port)
    """
    assert ask(sandbox, code) == []


def _descriptors(pid: int) -> list[Path]:
    return [entry for entry in Path(f"/proc/{pid}/fd").iterdir() if os.path.lexists(entry)]


@row("F12", "cellfork writes no log of code, output or variables, and its own errors do not repeat values")
def test_f12_secrets_are_not_repeated(create, caplog, capfd):
    """What code prints reaches the caller alone; errors about variables name them and keep their values to themselves."""
    caplog.set_level(logging.DEBUG)
    secret = "tok-" + os.urandom(8).hex()
    sandbox = create(envs={"TOKEN": secret}, metadata={"note": secret})
    execution = sandbox.run_code(
        "import os\nprint(os.environ['TOKEN'])\nraise ValueError(os.environ['TOKEN'])"
    )
    assert execution.error.value == secret
    assert secret not in repr(sandbox)
    for envs in ({"A": secret.encode()}, {"A": secret + "\0"}, {"A": secret + "\ud800"}, {"A=": secret}):
        with pytest.raises(InvalidRequest) as error:
            sandbox.run_code("1", envs=envs)
        assert secret not in str(error.value)
    assert secret not in caplog.text
    assert secret not in "".join(capfd.readouterr())
    assert secret not in json.dumps(sandbox.info.features, default=str)
