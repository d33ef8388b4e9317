"""Forks of a zygote: what siblings share, what strangers must not share, and what reaches the zygote itself."""

import asyncio
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cellfork import Sandbox, StartupFailed, Template
from cellfork.client.transport import EmbeddedTransport
from cellfork.guest import linux
from cellfork.model.specs import SandboxSpec
from cellfork.runtimes import plan
from cellfork.runtimes.keeping import Keeping
from cellfork.runtimes.namespaces import layout
from cellfork.runtimes.namespaces.runtime import NamespacesRuntime
from cellfork.runtimes.zygote import Child, Zygote
from tests.security.catalogue import row
from tests.security.conftest import LIMITS, ask, shell
from tests.security.memory import zygote_of

BARE = Template("bare", preload=())
TENANTS = [f"tenant {number}" for number in range(6)]


@dataclass
class Place:
    """A host of a test's own."""

    transport: EmbeddedTransport
    runtime: NamespacesRuntime

    def create(self, tenant: str = "", template: Template = BARE, **options: Any) -> Sandbox:
        return Sandbox.create(template, limits=LIMITS, tenant=tenant, transport=self.transport, **options)


@pytest.fixture
def make_place() -> Iterator[Callable[..., Place]]:
    """Make hosts with these settings of their zygotes, closed at the end."""
    made: list[Place] = []

    def make(*, prefork: int = 1, **keeping: Any) -> Place:
        runtime = NamespacesRuntime(pool=0, prefork=prefork, keeping=Keeping(**keeping))
        made.append(Place(EmbeddedTransport({"namespaces": runtime}), runtime))
        return made[-1]

    yield make
    for place in made:
        place.transport.close()


@pytest.fixture
def place(make_place) -> Place:
    return make_place()


def pid_of_zygote(sandbox: Sandbox) -> int:
    return zygote_of(int(sandbox.info.features["pid"]))


LAYOUT = """
import ctypes, sys
auxiliary = open('/proc/self/auxv', 'rb').read()
pairs = {int.from_bytes(auxiliary[at:at + 8], sys.byteorder): int.from_bytes(auxiliary[at + 8:at + 16], sys.byteorder)
         for at in range(0, len(auxiliary), 16)}
places = {}
for line in open('/proc/self/maps'):
    fields = line.split()
    if len(fields) >= 6:
        places.setdefault(fields[5].rpartition('/')[2], fields[0].partition('-')[0])
libc = next(name for name in places if name.startswith(('libc.so', 'libc-')))
answer = {
    'libc': places[libc],
    'heap': places['[heap]'],
    'stack': places['[stack]'],
    'vdso': places['[vdso]'],
    'canary and pointer guard': ctypes.string_at(pairs[25], 16).hex(),
    'hash secret': hash('x'),
    'object': id(sys.modules),
}
POSITION_INDEPENDENT = 3
with open(sys.executable, 'rb') as file:
    file.seek(16)
    if int.from_bytes(file.read(2), sys.byteorder) == POSITION_INDEPENDENT:
        answer['interpreter'] = next(address for name, address in places.items() if name.startswith('python'))
"""


@row("J01", "memory layout, stack canary and pointer guard differ between tenants, pairwise")
@row("J02", "so does the hash secret")
def test_j01_j02_tenants_share_no_layout(place):
    """Every address and secret of every tenant is another one; two sandboxes of one tenant share them all, as documented."""
    layouts = [ask(place.create(tenant), LAYOUT) for tenant in TENANTS]
    for name in layouts[0]:
        values = [layout[name] for layout in layouts]
        assert len(set(values)) == len(TENANTS), (name, values)
    assert ask(place.create(TENANTS[0]), LAYOUT) == layouts[0]


@row("J01", "a new zygote after so many forks has another layout")
@row("J02", "and another hash secret")
def test_j01_rotation_changes_the_layout(make_place):
    """What one tenant's code has learned of its zygote is worth nothing after a rotation; its sandboxes live on."""
    place = make_place(forks=2)
    first = place.create()
    before = ask(first, LAYOUT)
    for _ in range(200):
        with place.create() as another:
            after = ask(another, LAYOUT)
        if after != before:
            break
    for name, value in after.items():
        assert value != before[name], name
    assert ask(first, LAYOUT) == before


DRAWS = """
import random, secrets, ssl, tempfile, uuid
from multiprocessing import process
answer = [random.random(), secrets.token_hex(8), str(uuid.uuid4()), str(uuid.uuid1()), uuid.uuid1().clock_seq, next(tempfile._get_candidate_names()),
          ssl.RAND_bytes(8).hex(), process.current_process().authkey.hex(), random.SystemRandom().random()]
"""
SCIENCE_DRAWS = """
import numpy, pandas, random, uuid, tempfile
answer = [float(numpy.random.rand()), float(numpy.random.default_rng().random()), float(numpy.random.normal()),
          int(pandas.Series(range(10**9 // 1000)).sample(1).iloc[0]), random.random(), str(uuid.uuid1()), tempfile.mktemp()]
"""


def distinct(rows: list[list[Any]]) -> None:
    for number, column in enumerate(zip(*rows, strict=True)):
        assert len(set(column)) == len(rows), (number, column)


@row("J03", "no two sandboxes, contexts or commands share a first draw from any source")
def test_j03_first_draws_differ(place):
    """Forks made ahead and made on the spot, second contexts, and programs started by commands."""
    preloaded = Template("holds generators", preload=("uuid", "tempfile", "ssl", "multiprocessing.process"))
    rows = []
    for _ in range(4):
        sandbox = place.create(template=preloaded)
        rows.append(ask(sandbox, DRAWS))
        context = sandbox.create_code_context()
        drawn = sandbox.run_code(f"{DRAWS}\nprint(answer)", context=context)
        rows.append(eval("".join(drawn.logs.stdout)))
        sandbox.files.write("draw.py", f"{DRAWS}\nprint(answer)")
        rows.append(eval(shell(sandbox, "python draw.py").stdout))
    distinct(rows)


@row("J03", "the same for numpy, its legacy global generator and what draws from it")
def test_j03_science(place):
    """The science stack of the default template."""
    sandboxes = [place.create(template=Template(), envs={"N": str(number)}) for number in range(4)]
    distinct([ask(sandbox, SCIENCE_DRAWS) for sandbox in sandboxes])


SAME_PID = """
import os, random, ssl, sys, tempfile, uuid
from multiprocessing import process
import numpy
from cellfork.guest import linux
from cellfork.guest.python import entropy
if os.geteuid():
    linux.unshare(linux.CLONE_NEWUSER)
held = [random.Random(7), numpy.random.default_rng(7), numpy.random.RandomState(7), numpy.random.Generator(numpy.random.Philox(7)),
        numpy.random.SFC64(7)]
sources = entropy.find_sources()

def draw():
    return [random.random(), numpy.random.rand(), numpy.random.standard_normal(), held[0].random(), held[1].random(), held[1].spawn(1)[0].random(),
            held[2].standard_normal(), held[3].random(), held[4].random_raw(), uuid.uuid1(), next(tempfile._get_candidate_names()),
            ssl.RAND_bytes(8).hex(), process.current_process().authkey.hex()]

def siblings(count, reseed):
    children = []
    for _ in range(count):
        linux.unshare(linux.CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            if reseed:
                entropy.reseed(sources)
            os.write(1, (' '.join(map(str, [os.getpid(), *draw()])) + '\\n').encode())
            os._exit(0)
        linux.setns(own, linux.CLONE_NEWPID)
        children.append(pid)
        while len(children) > 30:
            os.waitpid(children.pop(0), 0)
    for pid in children:
        os.waitpid(pid, 0)

def first(body):
    linux.unshare(linux.CLONE_NEWPID)
    pid = os.fork()
    if pid:
        os._exit(os.waitpid(pid, 0)[1] and 1)
    body()
    os._exit(0)

def main():
    global own
    assert os.getpid() == 1
    own = os.open('/proc/self/ns/pid', os.O_RDONLY) if os.readlink('/proc/self') == '1' else pid_namespace()
    held[2].standard_normal(), draw()  # every generator has a state of its own by now
    siblings(int(sys.argv[1]), sys.argv[2] == 'reseed')

def pid_namespace():
    linux.unshare(linux.CLONE_NEWNS)
    linux.mount('', '/', flags=linux.MS_REC | linux.MS_PRIVATE)
    linux.mount('proc', '/proc', 'proc')
    return os.open('/proc/self/ns/pid', os.O_RDONLY)

first(main)
"""


def draws_of_siblings(count: int, mode: str) -> list[list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", SAME_PID, str(count), mode],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **plan.ONE_THREAD},
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert len(rows) == count
    assert {pid for pid, *_ in rows} == {"1"}
    return [drawn for _, *drawn in rows]


@row(
    "J03",
    "1,000 siblings that all have the same pid share no first draw, also of generators that a library holds",
)
def test_j03_a_thousand_siblings_with_one_pid():
    """In pid namespaces every sibling has the pid of its parent: what notices a fork by the pid does not notice it.

    Python's, numpy's and OpenSSL's generators, held ones of five kinds, spawned ones, uuid1, temporary names and
    multiprocessing's key.
    """
    distinct(draws_of_siblings(1000, "reseed"))


def test_without_reseeding_siblings_draw_the_same():
    """What the test above would see otherwise: it can fail for every held generator, and for OpenSSL."""
    columns = [*zip(*draws_of_siblings(3, "no"), strict=True)]
    names = ["random", "rand", "normal", "held random", "held rng", "spawned", "held legacy", "held philox", "held sfc", "uuid1",
             "tempfile", "openssl", "authkey"]  # fmt: skip
    same = {name for name, column in zip(names, columns, strict=True) if len(set(column)) == 1}
    assert {"rand", "normal", "held random", "held rng", "spawned", "held legacy", "held philox", "held sfc", "openssl",
            "authkey"} <= same  # fmt: skip


@row("J04", "the zygote has sockets, its owner's pidfd, its pid namespace and /dev/null open, and no file")
def test_j04_descriptors_of_the_zygote(place):
    """Nothing that a fork could inherit and read: no regular file, no directory, no epoll, no inotify, no timer."""
    sandbox = place.create(template=Template())
    pid = pid_of_zygote(sandbox)
    kinds = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    assert kinds
    for kind in kinds:
        assert kind.startswith(("socket:", "/dev/null", "anon_inode:[pidfd]", "pid:[")), kinds
    assert len(kinds) <= 12


@row("J05", "the zygote's environment, command line and working directory hold nothing of the host")
def test_j05_nothing_of_the_host_in_the_zygote(place, monkeypatch):
    """The environment is an allow-list, arguments are the start-up code and numbers, the root is not the host's."""
    monkeypatch.setenv("SECRET_OF_THE_HOST", "do-not-leak")
    zygote = Path(f"/proc/{pid_of_zygote(place.create())}")
    environment = (zygote / "environ").read_bytes()
    assert b"do-not-leak" not in environment
    assert b"PATH=" in environment
    assert os.readlink(zygote / "cwd") == "/"
    assert os.stat(zygote / "root").st_dev != os.stat("/").st_dev
    _executable, *arguments = (zygote / "cmdline").read_bytes().decode().split("\0")
    assert [argument for argument in arguments if argument.isdecimal()] == arguments[4:7]


@row("J06", "the zygote has one thread, and so has every fork of it, with the science stack imported")
def test_j06_one_thread(place):
    """OpenBLAS and others are kept single-threaded: no lock can be held by a thread that a fork does not have."""
    sandbox = place.create(template=Template())
    init = int(sandbox.info.features["pid"])
    children = Path(f"/proc/{init}/task/{init}/children").read_text().split()
    for pid in (pid_of_zygote(sandbox), init, *children):
        assert len(os.listdir(f"/proc/{pid}/task")) == 1
    assert children


@pytest.fixture
def planted(monkeypatch, tmp_path) -> Callable[..., Template]:
    """Put a module into the template's root, and let the zygote find it, as a package of the environment would be."""
    root, argv = layout.template_root, plan.zygote_argv

    def plant(name: str, text: str, flags: int = layout.READ_ONLY) -> Template:
        (tmp_path / f"{name}.py").write_text(text)
        tmp_path.chmod(0o755)  # the zygote is another user
        place = f"/opt/{name}"
        bind = ["bind", place, str(tmp_path), flags]

        def other_argv(executable: str, library: str) -> list[str]:
            *options, code = argv(executable, library)
            return [*options, f"import sys; sys.path.append({place!r}); {code}"]

        monkeypatch.setattr(layout, "template_root", lambda *arguments: [*root(*arguments), bind])
        monkeypatch.setattr(plan, "zygote_argv", other_argv)
        return Template(name, preload=(name,))

    return plant


@row(
    "J06", "a preload that starts a thread is refused by its name and the thread's, before anything is forked"
)
def test_j06_a_preload_with_a_thread_is_refused(place, planted):
    """A thread that starts later is seen before the next fork: ``tests/runtimes/test_zygote.py``."""
    text = "import threading\nthreading.Thread(target=threading.Event().wait, name='culprit', daemon=True).start()\n"
    template = planted("starts_threads", text)
    with pytest.raises(StartupFailed, match=r"starts_threads started 1 thread.*culprit"):
        place.create(template=template)
    assert place.create().run_code("1 + 1").text == "2"


@row("J11", "a module from a place that can be written to is not preloaded: the zygote does not start")
def test_j11_a_writable_preload_is_refused(place, planted):
    """Were a place of the image writable, one sandbox's user could change what the next zygote imports."""
    template = planted("from_a_writable_place", "x = 1\n", flags=linux.MS_NOSUID | linux.MS_NODEV)
    with pytest.raises(StartupFailed, match=r"read-only code alone.*from_a_writable_place"):
        place.create(template=template)


SHARING = """
import ctypes, mmap, os
libc = ctypes.CDLL(None, use_errno=True)
def errno_of(result):
    return ctypes.get_errno() if result < 0 else 0
page = mmap.mmap(-1, 4096)
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
MERGEABLE, MEMORY_MERGE, NOWAIT = 12, 67, 8
answer = {'madvise': errno_of(libc.madvise(ctypes.c_void_p(address), 4096, MERGEABLE)),
          'prctl': errno_of(libc.prctl(MEMORY_MERGE, 1, 0, 0, 0)),
          'mincore': errno_of(libc.mincore(ctypes.c_void_p(address), 4096, ctypes.create_string_buffer(1)))}
with open(os.__file__, 'rb') as file:
    try:
        os.preadv(file.fileno(), [bytearray(10)], 0, NOWAIT)
        answer['preadv2'] = 0
    except OSError as error:
        answer['preadv2'] = error.errno
"""


@row("J07", "pages are never merged: no process asks for it, and none inside may")
def test_j07_no_pages_are_merged(place):
    """Same-page merging, whose write faults tell what others hold, is refused inside and not used by the zygote.

    Pages that siblings share with their zygote tell nothing: the zygote keeps its own mapping, so a first write
    always copies, whatever the siblings did.
    """
    sandbox = place.create()
    answers = ask(sandbox, SHARING)
    assert answers["madvise"]
    assert answers["prctl"]
    init = int(sandbox.info.features["pid"])
    for pid in (pid_of_zygote(sandbox), init):
        state = Path(f"/proc/{pid}/ksm_stat")
        if state.exists():  # Linux 6.1 and later tell
            assert "ksm_mergeable: yes" not in state.read_text()
            assert "ksm_merge_any: yes" not in state.read_text()


@row(
    "J08", "what of the shared image is in the page cache cannot be asked: mincore and RWF_NOWAIT are refused"
)
def test_j08_the_page_cache_cannot_be_asked(place):
    """The time that a read takes still tells; that is among the side channels which the threat model leaves open."""
    answers = ask(place.create(), SHARING)
    assert answers["mincore"]
    assert answers["preadv2"]


ATTACK = """
import ctypes, os, signal, socket
answer = {'parent': os.getppid(), 'visible': sorted(int(name) for name in os.listdir('/proc') if name.isdigit())[:3]}
reached = []
for pid in range(1, 33000):
    try:
        os.kill(pid, 0)
        reached.append(pid)
    except ProcessLookupError:
        pass
answer['signalled'] = reached[:3]
libc = ctypes.CDLL(None, use_errno=True)
answer['ptrace'] = [libc.ptrace(16, pid, 0, 0) >= 0 for pid in (0, 1)]
answer['sockets'] = []
for name in os.listdir('/proc/self/fd'):
    try:
        answer['sockets'].append(socket.socket(fileno=os.dup(int(name))).type)
    except OSError:
        pass
answer['memory'] = []
for path in ('/proc/1/mem', '/proc/1/maps', '/proc/1/environ', '/proc/1/fd/3'):
    try:
        open(path, 'rb').read(1)
        answer['memory'].append(path)
    except OSError:
        pass
if os.fork() == 0:
    os.setsid()
    os.kill(-1, signal.SIGCONT)
    os._exit(0)
os.wait()
"""


@row("J09", "the zygote is in no sandbox's sight: not in /proc, not by a signal, a trace or a socket")
@pytest.mark.parametrize("language", ["python", "bash"])
def test_j09_the_zygote_is_out_of_reach(place, language):
    """It lives in a pid namespace above; it is not dumpable; its control socket is no descriptor of a fork."""
    sandbox = place.create()
    zygote = pid_of_zygote(sandbox)
    seqpacket = 5
    if language == "python":
        found = ask(sandbox, ATTACK)
        assert found["parent"] == 1
        assert found["visible"] == found["signalled"] == [1, 2]
        assert found["ptrace"] == [False, False]
        assert seqpacket not in found["sockets"]
        assert found["memory"] == []
    else:
        script = f"""
        kill -CONT {zygote} 2>/dev/null && echo reached
        ls -d /proc/{zygote} 2>/dev/null
        kill -CONT -1
        for name in environ maps mem fd/3 cwd/. root/.; do cat /proc/1/$name 2>/dev/null; ls /proc/1/$name/ 2>/dev/null; done
        echo end
        """
        assert shell(sandbox, script).stdout == "end\n"
    assert Path(f"/proc/{zygote}").exists()
    assert place.create().run_code("1 + 1").text == "2"


@row("J10", "shared pages are the zygote's: a sandbox with the science stack is charged for its own alone")
def test_j10_memory_of_the_image_is_not_charged(place):
    """An idle sandbox uses far less than its image takes, and one whose limit is smaller than the image works."""
    sandbox = place.create(template=Template())
    sandbox.run_code("1 + 1")
    image = _resident(pid_of_zygote(sandbox))
    (metrics,) = sandbox.get_metrics()
    assert image > 60 << 20
    assert metrics.mem_used is not None
    assert metrics.mem_used < image / 3


def _resident(pid: int) -> int:
    """Return the bytes of memory of its own that a process has, shared ones included."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


PROVENANCE = """
import os, sys
answer = [f'{name}: {module.__file__}' for name, module in [*sys.modules.items()]
          if isinstance(getattr(module, '__file__', None), str) and os.path.exists(module.__file__)
          and not os.statvfs(module.__file__).f_flag & os.ST_RDONLY]
"""


@row("J11", "the preload list is the template's; every module of the image is read-only and in its digest")
def test_j11_the_image_holds_read_only_code(place):
    """Nothing was imported from a place that code can write to; the digest is in the sandbox's information, and the same for all."""
    template = Template("science", preload=("numpy", "json"))
    sandboxes = [place.create(tenant, template=template) for tenant in "ab"]
    assert ask(sandboxes[0], PROVENANCE) == []
    first, second = (sandbox.info.features["image"] for sandbox in sandboxes)
    assert first == second
    assert place.create().info.features["image"] != first


@row("J11", "what a sandbox does to its modules is not done to the image")
def test_j11_the_image_stays_as_it_was(place):
    """A sandbox that replaces functions, modules and import hooks changes its own copy; the next one has the image's."""
    poison = """
    import builtins, importlib, json, sys
    json.dumps = builtins.open = None
    class Hook:
        def find_spec(self, *_): raise ImportError('poisoned')
    sys.meta_path.insert(0, Hook())
    sys.path[:] = ['/tmp']
    print('ANSWER1')
    """
    place.create().run_code(poison)
    assert ask(place.create(), "import json, sys, wave\nanswer = [sys.path[0], len(sys.meta_path) < 10]") == [
        "",
        True,
    ]


SOAK_FORKS = 2000


@row("J13", "2,000 forks let the zygote grow by less than 2 MiB, and none of them hangs")
@row("J06", "the same forks: not one waits for a lock that nobody holds")
async def test_j13_a_zygote_does_not_grow():
    """The objects of the image are frozen, and what a fork needs is given back when it ends."""
    runtime = NamespacesRuntime(pool=0, prefork=0)
    try:
        await (await runtime.start(SandboxSpec(template=BARE, limits=LIMITS))).kill()
        zygote = await runtime._zygotes.of(BARE)
        await _fork_and_end(zygote, 200)
        before = _resident(zygote.pid)
        descriptors = len(os.listdir(f"/proc/{zygote.pid}/fd"))
        await _fork_and_end(zygote, SOAK_FORKS)
        assert _resident(zygote.pid) - before < 2 << 20
        assert len(os.listdir(f"/proc/{zygote.pid}/fd")) <= descriptors + 1
        assert zygote.forks >= SOAK_FORKS
        assert not zygote._children
    finally:
        await runtime.aclose()


async def _fork_and_end(zygote: Zygote, count: int) -> None:
    """Fork processes that are told nothing, and so end by themselves."""
    at_once = 40
    for _ in range(count // at_once):
        children = [_fork(zygote) for _ in range(at_once)]
        async with asyncio.timeout(30):
            for child in children:
                _pid, pidfd = await child.forked
                os.close(pidfd)
                await child.exited


def _fork(zygote: Zygote) -> Child:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        return zygote.fork(secrets.token_hex(8), [theirs.fileno()])
