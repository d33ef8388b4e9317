"""Rows C about the file API: paths, names and files that were made to mislead it."""

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from cellfork import Sandbox
from cellfork.model.errors import (
    CellforkError,
    Conflict,
    FileError,
    InvalidRequest,
    IsADirectory,
    LimitExceeded,
    NotADirectory,
    NotAFile,
    PathNotFound,
    PathNotPermitted,
)
from cellfork.runtimes.namespaces import layout
from tests.security.catalogue import row
from tests.security.conftest import LIMITS, ask, shell

CALL_SECONDS = 5.0
"""What one call may take at most; nearly all take a millisecond."""


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A file of the host that no sandbox may read."""
    path = tmp_path / "canary"
    path.write_text("a secret of the host")
    return path


def every_call(sandbox: Sandbox, path: str) -> list[str]:
    """Make every call of the file API on ``path``; return the names of the errors.  Each must come in time."""
    files = sandbox.files
    calls = {
        "read": lambda: files.read(path, "bytes"),
        "stream": lambda: b"".join(files.read(path, "stream")),
        "write": lambda: files.write(path, b"outside"),
        "append": lambda: files.write(path, b"outside", append=True),
        "list": lambda: files.list(path),
        "info": lambda: files.get_info(path),
        "exists": lambda: files.exists(path),
        "rename from": lambda: files.rename(path, "/tmp/elsewhere"),
        "rename to": lambda: files.rename("/home/user/source", path),
        "make_dir": lambda: files.make_dir(path),
        "watch": lambda: files.watch_dir(path).stop(),
        "remove": lambda: files.remove(path, missing_ok=False),
    }
    files.write("/home/user/source", "x")
    answers = []
    for name, call in calls.items():
        started = time.monotonic()
        try:
            result = call()
            answers.append(f"{name}: {result!r:.100}")
        except CellforkError as error:
            answers.append(f"{name}: {type(error).__name__}")
        assert time.monotonic() - started < CALL_SECONDS, name
    return answers


# ------------------------------------------------------------------------------------------- C07: paths

NO_PATHS = ["", "a\0b", "/home/user/\0", "x" * 5000, "/" + "d/" * 3000, "lone\ud800surrogate"]


@pytest.mark.parametrize(
    "path", NO_PATHS, ids=["empty", "nul", "nul at the end", "long", "deep", "surrogate"]
)
@row("C07", "InvalidRequest; no file system access")
def test_c07_what_is_no_path(sandbox, path):
    """Every call refuses what is no path, in the same way."""
    for answer in every_call(sandbox, path):
        assert answer.endswith(": InvalidRequest"), answer


@row("C07", "resolved inside: .. ends at the sandbox's own root")
@pytest.mark.parametrize(
    "form",
    [
        "../../../../../..{}",
        "/..{}",
        "//{}",
        "/home/user/../../../..{}",
        "/proc/self/root{}",
        "/proc/1/root{}",
        "/./{}",
    ],
)
def test_c07_paths_that_lead_upwards(sandbox, canary, form):
    """However a host's path is written, the host's file is not there."""
    for answer in every_call(sandbox, form.format(canary))[:2]:
        assert answer.split(": ")[1] in {"PathNotFound", "PathNotPermitted"}, answer
    assert canary.read_text() == "a secret of the host"
    assert sorted(canary.parent.iterdir()) == [canary]


@row("C07", "plain names: nothing is decoded, nothing means anything else")
@row("C15", "stored and told as they are")
@pytest.mark.parametrize(
    "name",
    ["%2e%2e", "..%2fetc%2fpasswd", "..\\..\\windows", "C:\\boot.ini", "con", "NUL.txt", "file:stream", "~root", "$HOME", "`id`",
     "a\nb", "a\rb", "\x1b[31mred\x1b]52;c;eA==\x07", "\u202egnp.exe", "-rf", "--help", "*", "a;b", "\x7f\x01", "😀" * 60, "n" * 255,
     ".cellfork-0123456789abcdef", " ", "...", "'\""],
)  # fmt: skip
def test_c07_names_are_data(sandbox, name):
    """A name with an escape, an option, a newline or another system's meaning is a file of that name in the home."""
    entry = sandbox.files.write(f"/home/user/{name}", b"content")
    assert (entry.name, entry.path, entry.size) == (name, f"/home/user/{name}", 7)
    assert sandbox.files.read(name if not name.startswith("~") else f"./{name}") == "content"
    assert [e.name for e in sandbox.files.list("/home/user") if e.size == 7] == [name]
    assert ask(sandbox, f"import os\nanswer = {name!r} in os.listdir('/home/user')")
    moved = sandbox.files.rename(f"./{name}", f"/tmp/{name}")
    assert moved.name == name
    sandbox.files.remove(f"/tmp/{name}", missing_ok=False)


@row("C15", "a typed error for a name that no file system takes")
def test_c15_names_that_are_too_long(sandbox):
    """256 bytes are refused; nothing is left half-written."""
    with pytest.raises(InvalidRequest):
        sandbox.files.write("n" * 256, "x")
    before = [entry.name for entry in sandbox.files.list("/home/user")]
    with pytest.raises(InvalidRequest):
        sandbox.files.make_dir("made/" + "é" * 128)
    assert not any(name.startswith(".cellfork-") for name in before)


@row("C07", "told as escaped text, marked as lossy, not addressable")
def test_c07_names_that_are_no_utf8(sandbox):
    """Names of arbitrary bytes appear escaped in listings and events; nothing breaks."""
    code = "import os\nfor n in (b'\\xff', b'a\\xfe\\n', b'\\xed\\xa0\\x80', b'\\xc0\\xae'): open(b'/home/user/' + n, 'w').close()\nanswer = 1"
    with_watch = sandbox.files.watch_dir("/home/user")
    ask(sandbox, code)
    lossy = [entry for entry in sandbox.files.list("/home/user") if entry.lossy]
    assert sorted(entry.name for entry in lossy) == ["\\xc0\\xae", "\\xed\\xa0\\x80", "\\xff", "a\\xfe\n"]
    assert any(event.name == "\\xff" for event in with_watch.get_new_events())
    with_watch.stop()


@row("C08", "whole components are compared; there is no prefix to be mistaken for a place")
def test_c08_sibling_of_a_place(sandbox):
    """``/home/user-evil`` is not ``/home/user``, ``/tmpx`` not ``/tmp``: they cannot be made."""
    for path in ("/home/user-evil/x", "/home/userx", "/tmpx/x", "/dev/shmx", "/home/user/../user-evil/x"):
        with pytest.raises(PathNotPermitted):
            sandbox.files.write(path, "x")


@row("C08", "a home outside of its usual place is compared by components as well")
def test_c08_home_without_isolation():
    """Without a mount namespace ``/home/user`` names the temporary home, and ``/home/user-evil`` does not."""
    with Sandbox.create(isolation="none") as sandbox:
        sandbox.files.write("/home/user/x", "inside")
        assert sandbox.files.exists("x")
        assert not sandbox.files.exists("/home/user-evil/x")


# ----------------------------------------------------------------------------------- C09, C11, C12: links


@row("C09", "resolved inside: the host's file is not there")
def test_c09_link_to_the_host(sandbox, canary):
    """A symbolic link to a host's path is dangling; a write through it stays inside or is refused."""
    ask(
        sandbox,
        f"import os\nos.symlink({str(canary)!r}, '/home/user/link')\nos.symlink({str(canary.parent)!r}, '/home/user/dir')\nanswer = 1",
    )
    for path in ("link", "dir/canary"):
        with pytest.raises((PathNotFound, PathNotPermitted)):
            sandbox.files.read(path)
    for path in ("link", "dir/other"):  # at most made inside, in the sandbox's own place of that name
        try:
            sandbox.files.write(path, "inside")
            assert sandbox.files.read(path) == "inside"
        except PathNotPermitted:
            continue
    assert canary.read_text() == "a secret of the host"
    assert sorted(canary.parent.iterdir()) == [canary]


@row("C11", "followed inside, as the sandbox's user; what that may not do is refused")
def test_c11_writing_through_links(sandbox):
    """Writing, making directories and moving through a link into the system's places is refused; nothing changes there."""
    code = """
    import os
    for name, target in (('etc', '/etc'), ('passwd', '/etc/passwd'), ('usr', '/usr'), ('proc', '/proc/sys/kernel')):
        os.symlink(target, '/home/user/' + name)
    answer = [os.stat('/etc/passwd').st_mtime_ns, sorted(os.listdir('/etc'))]
    """
    before = ask(sandbox, code)
    files = sandbox.files
    files.write("mine", "x")
    for call in (
        lambda: files.write("etc/passwd", "x"),
        lambda: files.write("passwd", "x"),
        lambda: files.write("passwd", "x", append=True),
        lambda: files.write("etc/new", "x"),
        lambda: files.write("proc/hostname", "x"),
        lambda: files.make_dir("usr/new/below"),
        lambda: files.rename("mine", "etc/mine"),
        lambda: files.rename("etc/passwd", "stolen"),
        lambda: files.remove("etc/passwd"),
        lambda: files.remove("usr/bin"),
    ):
        with pytest.raises((PathNotPermitted, FileError)):
            call()
    assert (
        ask(sandbox, "import os\nanswer = [os.stat('/etc/passwd').st_mtime_ns, sorted(os.listdir('/etc'))]")
        == before
    )
    files.remove("etc")
    assert not files.exists("etc") and files.exists("/etc/passwd")


@row("C11", "a file at the end of a link is created inside")
def test_c11_creating_over_a_dangling_link(sandbox):
    """A write follows a dangling link to where it points, in the sandbox; links in a circle are refused."""
    ask(
        sandbox,
        "import os\nos.symlink('/tmp/there', '/home/user/link')\nos.symlink('loop', '/home/user/loop')\nanswer = 1",
    )
    sandbox.files.write("link", "content")
    assert sandbox.files.read("/tmp/there") == "content"
    assert sandbox.files.get_info("link").type == "symlink"
    for answer in every_call(sandbox, "loop")[:4]:
        assert answer.split(": ")[1] in {"FileError", "PathNotFound"}, answer


@row("C12", "no hard link crosses a mount; removing one name leaves the other")
def test_c12_hard_links(sandbox):
    """Links to files of the system cannot be made; replacing or removing one of two names does not touch the other."""
    code = """
    import os
    answer = []
    for target in ('/etc/passwd', '/usr/bin/env', '/proc/self/environ'):
        try:
            os.link(target, '/home/user/stolen')
            answer.append('linked')
        except OSError as error:
            answer.append('refused')
    open('/home/user/one', 'w').write('content')
    os.link('/home/user/one', '/home/user/two')
    """
    assert ask(sandbox, code) == ["refused"] * 3
    sandbox.files.write("two", "replaced", mode=0o600)
    assert sandbox.files.read("one") == "content"
    assert sandbox.files.get_info("one").mode == 0o644
    sandbox.files.remove("two")
    assert sandbox.files.read("one") == "content"


# -------------------------------------------------------------------------------- C13: what is no file


@row("C13", "NotAFile at once: nothing is waited for, only regular files are read or written")
def test_c13_special_files(sandbox):
    """Pipes, sockets, devices and links to them in /proc and /dev: every call answers at once."""
    code = """
    import os, socket
    os.mkfifo('/home/user/fifo')
    socket.socket(socket.AF_UNIX).bind('/home/user/socket')
    for n, target in enumerate(('/dev/zero', '/dev/tty', '/dev/full', '/dev/ptmx', '/proc/self/fd/3', '/proc/self/fd/0',
                                '/dev/stdin', f'/proc/{os.getpid()}/fd/1', f'/proc/{os.getpid()}/fd/200', '/proc/self/exe',
                                '/proc/self/mem', '/proc/1/mem', f'/proc/{os.getpid()}/mem', '/proc/kmsg')):
        os.symlink(target, f'/home/user/link{n}')
    answer = [f'link{n}' for n in range(14)]
    """
    links = ask(sandbox, code)
    for path in ("fifo", "socket", "/dev/zero", "/dev/full", "/dev/tty", "/dev/ptmx"):
        for call in (sandbox.files.read, lambda path: sandbox.files.write(path, "x")):
            with pytest.raises((NotAFile, PathNotPermitted, FileError)):
                call(path)
    for link in links:
        if link == "link9":  # the interpreter itself: a file, and a large one
            continue
        for answer in every_call(sandbox, link)[:4]:
            assert answer.split(": ")[1] in {
                "NotAFile",
                "PathNotPermitted",
                "PathNotFound",
                "FileError",
                "InvalidRequest",
            }, answer
    assert sandbox.run_code("1 + 1").text == "2"


@row("C13", "a file of /proc without a size is read up to a bound; a listing of /proc ends")
def test_c13_files_without_a_size(sandbox):
    """What says that it is empty and is not has its content; listings of /proc end."""
    assert "processor" in sandbox.files.read("/proc/cpuinfo")
    started = time.monotonic()
    assert len(sandbox.files.list("/proc", depth=3)) <= 10_000
    assert time.monotonic() - started < 20


@row("C13", "a lease is not waited for")
def test_c13_leased_file(sandbox):
    """Where a process holds a lease that an open would have to wait for, the call answers at once."""
    code = """
    import fcntl, os, signal
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    fd = os.open('/home/user/leased', os.O_RDWR | os.O_CREAT)
    os.write(fd, b'content')
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        answer = 'leased'
    except OSError:
        answer = 'refused'
    """
    leased = ask(sandbox, code)
    started = time.monotonic()
    try:
        content = sandbox.files.read("leased")
    except FileError:
        content = None
    assert content in ({None, "content"} if leased == "leased" else {"content"})
    assert time.monotonic() - started < CALL_SECONDS


@row("C13", "a pipe that takes the place of a file while it is moved is not read from")
def test_c13_endless_source_of_a_move(sandbox):
    """Moving to another mount copies files only: whatever a racer puts there, the call ends."""
    sandbox.commands.run(
        "mkdir -p ~/d; while :; do rm -f ~/d/f; mkfifo ~/d/f; (timeout 1 cat /dev/zero >~/d/f &) ; rm -f ~/d/f; echo x >~/d/f; done",
        background=True,
    )
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        started = time.monotonic()
        try:
            sandbox.files.rename("d/f", "/dev/shm/f")
        except (FileError, Conflict, LimitExceeded):
            pass
        assert time.monotonic() - started < CALL_SECONDS


# ------------------------------------------------------------------- moving, removing, what is in the way


@row("C11", "a directory is not moved below itself, by whatever name")
def test_c11_moving_into_itself(sandbox):
    """Links, and the same place mounted twice, do not hide that a directory would be moved into itself."""
    ask(
        sandbox,
        "import os\nos.makedirs('/home/user/a/b/c')\nos.symlink('/home/user/a/b', '/tmp/link')\nanswer = 1",
    )
    mounted_twice = f"{layout.DISK}/home/a/b/x"
    for destination in ("a/b/x", "/tmp/link/x", "/tmp/link/new/x", "a/b/../b/c/x", mounted_twice):
        with pytest.raises(InvalidRequest):
            sandbox.files.rename("a", destination)
    assert sandbox.files.exists("a/b/c")


@row("C11", "the number of links on the way does not count")
def test_c11_a_maze_of_links(sandbox):
    """Thousands of links that lead through one another cost a move no more than the kernel's bound."""
    code = """
    import os, random
    os.chdir('/home/user')
    os.mkdir('m')
    for n in range(1300):
        ahead = range(n + 10, n + 400)
        os.symlink('/'.join(f'l{min(random.choice(ahead), 1299)}' for _ in range(680)) if n < 1200 else '.', f'm/l{n}')
    answer = 1
    """
    ask(sandbox, code)
    sandbox.files.write("source", "x")
    for n in range(5):
        started = time.monotonic()
        with pytest.raises(FileError):
            sandbox.files.rename("source", f"m/l{n}/l{n + 1}/x")
        assert time.monotonic() - started < CALL_SECONDS


@row(
    "C10", "bounded: a directory that is filled faster than it can be emptied does not hold the call for ever"
)
def test_c10_removing_what_grows(sandbox):
    """Removing a tree in which others go on making files ends, with the tree gone or a typed error."""
    sandbox.commands.run(
        "mkdir -p ~/t; cd ~/t; while :; do mkdir -p a/b/c; : >a/f; : >a/b/f; mkdir z 2>/dev/null; done",
        background=True,
    )
    for _ in range(5):
        started = time.monotonic()
        try:
            sandbox.files.remove("t/a")
        except (FileError, Conflict):
            pass
        assert time.monotonic() - started < 30
    assert sandbox.files.exists("/home/user")


# --------------------------------------------------------------------------- C16, C17, C18: contents, ends


@row("C16", "as many bytes as there are, in the end: nothing stale, nothing endless")
def test_c16_file_that_changes_during_download(sandbox):
    """A file that is cut off while it is read ends there; one that grows ends where it ended at first."""
    size = 12 * 1024 * 1024
    sandbox.files.write("big", b"a" * size)
    pieces = sandbox.files.read("big", "stream")
    first = next(pieces)
    shell(sandbox, "truncate -s 100 big")
    rest = b"".join(pieces)
    assert first == b"a" * len(first)
    assert set(rest) <= {ord("a")}
    assert len(first) + len(rest) < size
    sandbox.commands.run("while :; do printf bbbbbbbbbbbbbbbb >>big; done", background=True)
    content = sandbox.files.read("big", "bytes")
    assert content.startswith(b"a" * 100)
    assert set(content[100:]) <= {ord("b")}


@row("C16", "a file that is replaced while it is streamed is read in pieces of either, and ends")
def test_c16_truncation_storm(sandbox):
    """A writer that truncates and fills without a pause never makes a read hang or return what nobody wrote."""
    sandbox.commands.run("while :; do : >f; head -c 300000 /dev/zero >f; done", background=True)
    for _ in range(30):
        try:
            assert set(sandbox.files.read("f", "bytes")) <= {0}
        except PathNotFound:
            continue


@row("C17", "each name is one entry; the bytes are there once")
def test_c17_many_links_to_one_file(sandbox):
    """Twenty links to one big file take its space once, and a listing tells them without reading any."""
    sandbox.files.write("big", b"x" * (8 << 20))
    ask(
        sandbox,
        "import os\nfor n in range(10):\n    os.link('big', f'h{n}')\n    os.symlink('big', f's{n}')\nanswer = 1",
    )
    entries = sandbox.files.list("/home/user")
    assert sum(entry.size == 8 << 20 for entry in entries) == 11
    assert sum(entry.type == "symlink" for entry in entries) == 10
    used = int(shell(sandbox, "df --output=used -B1 /home/user | tail -1").stdout)
    assert used < 12 << 20


@row("C18", "cleaned up by letting the mount go: at once, whatever is in it")
def test_c18_cleanup_of_hostile_trees():
    """Attributes, sparse and very deep files, unreadable directories and thousands of names do not delay a kill."""
    sandbox = Sandbox.create(limits=LIMITS)
    code = """
    import os, subprocess
    answer = {}
    for name in ('user.x', 'security.x', 'trusted.x'):
        open('f', 'w').close()
        try:
            os.setxattr('f', name, b'v' * 1000)
            answer[name] = 'set'
        except OSError as error:
            answer[name] = error.errno
    answer['immutable'] = subprocess.run(['chattr', '+i', 'f'], capture_output=True).returncode
    try:
        os.truncate('f', 1 << 50)
    except OSError as error:
        answer['a pebibyte'] = error.errno
    os.truncate('f', 16 << 20)
    for _ in range(500):
        os.mkdir('d', 0o700)
        os.chdir('d')
    os.chmod('/home/user/d', 0)
    for n in range(1000):
        try:
            open(f'/tmp/{n}', 'w').close()
        except OSError:
            break
    """
    answer = ask(sandbox, code)
    assert "set" not in {answer["security.x"], answer["trusted.x"]}
    assert answer["immutable"] != 0
    assert answer["a pebibyte"] == errno.EFBIG
    mounts = Path("/proc/self/mountinfo").read_text()
    started = time.monotonic()
    sandbox.kill()
    assert time.monotonic() - started < 2
    assert Path("/proc/self/mountinfo").read_text() == mounts


@row("C18", "a tree that was made hard to remove is removed, or refused with a typed error")
def test_c18_removing_hostile_trees(sandbox):
    """Deep trees, sparse files and directories without permissions: removal ends; what its owner closed stays closed."""
    code = """
    import os
    os.makedirs('/home/user/t')
    os.chdir('/home/user/t')
    for _ in range(600):
        os.mkdir('d')
        os.chdir('d')
    os.chdir('/home/user')
    fd = os.open('/home/user/t/sparse', os.O_CREAT | os.O_WRONLY)
    os.truncate(fd, 16 << 20)
    os.mkdir('/home/user/closed')
    open('/home/user/closed/f', 'w').close()
    os.chmod('/home/user/closed', 0)
    answer = 1
    """
    ask(sandbox, code)
    sandbox.files.remove("t", missing_ok=False)
    assert not sandbox.files.exists("t")
    with pytest.raises(PathNotPermitted):
        sandbox.files.remove("closed")


@row("C15", "bounded: a listing of the longest names and paths is cut off and says so; the sandbox lives")
def test_c15_listing_of_long_names():
    """Thousands of long names that take five letters a byte stay below what the host accepts."""
    limits = LIMITS.__class__(memory="512M", disk="128M", inodes=20_000)
    with Sandbox.create(limits=limits) as sandbox:
        code = """
        import os
        part = b'\\xff' * 250
        for _ in range(14):
            os.mkdir(part)
            os.chdir(part)
        for n in range(3000):
            os.symlink(b'\\xfe' * 3000, b'%04d' % n + part[:200])
        answer = 1
        """
        ask(sandbox, code)
        entries = sandbox.files.list("/home/user", depth=20)
        assert 0 < len(entries) < 3000
        assert sandbox.run_code("1 + 1").text == "2"


@row("C16", "whoever reads sees the old content or the new one")
def test_c16_writes_are_whole(sandbox):
    """While the host replaces a file, a reader inside never sees a part of it."""
    sandbox.files.write("f", "a" * 100_000)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for letter in "ab":
                sandbox.files.write("f", letter * 100_000)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        code = "answer = sorted({(len(t), len(set(t))) for t in (open('f').read() for _ in range(300))})"
        assert ask(sandbox, code) == [[100_000, 1]]
    finally:
        stop.set()
        writer.join()


@row("C11", "refused with the error that fits")
def test_c11_kinds_of_places(sandbox):
    """What is a directory is not written, what is a file is not listed or gone below."""
    sandbox.files.write("file", "x")
    sandbox.files.make_dir("dir")
    with pytest.raises(IsADirectory):
        sandbox.files.write("dir", "x")
    with pytest.raises(IsADirectory):
        sandbox.files.read("dir")
    with pytest.raises(NotADirectory):
        sandbox.files.list("file")
    with pytest.raises(NotADirectory):
        sandbox.files.write("file/below", "x")
    assert os.path.lexists("/home/user") is False or os.geteuid() != 0
