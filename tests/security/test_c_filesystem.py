"""Rows C, all but the file API: what a sandbox sees of files, and what it can do to those that it shares."""

import os
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path

import pytest

from cellfork import Sandbox
from tests.security.catalogue import row
from tests.security.conftest import LIMITS, ask, shell

PLACES_OF_THE_SYSTEM = (
    "/", "/usr", "/usr/bin", "/usr/lib", "/etc", "/etc/ssl/certs", "/opt", "/run", "/run/cellfork", "/run/cellfork/lib/cellfork", "/var",
    "/var/lib", "/home", "/mnt", "/srv", "/dev", "/proc", "/proc/sys/kernel", "/proc/self", "/run/cellfork/empty",
)  # fmt: skip
TRY_TO_WRITE = """
import os, sys, errno
def tries(place):
    '''Try every way to change something below place; return what worked.'''
    worked = []
    def attempt(name, call, *arguments):
        try:
            call(*arguments)
            worked.append(f'{name} {place}')
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST, errno.EXDEV, errno.ENOTSUP):
                worked.append(f'{name} {place}: {errno.errorcode[error.errno]}')
    attempt('create', lambda: open(place + '/planted', 'x').close())
    attempt('mkdir', os.mkdir, place + '/planted')
    attempt('symlink', os.symlink, '/tmp', place + '/planted')
    attempt('mkfifo', os.mkfifo, place + '/planted')
    attempt('chmod', os.chmod, place, 0o777)
    attempt('utime', os.utime, place)
    attempt('xattr', os.setxattr, place, 'user.x', b'x')
    for name in sorted(os.listdir(place))[:40] if os.access(place, os.R_OK) else []:
        path = os.path.join(place, name)
        if os.path.isfile(path) and not os.path.islink(path) and not path.startswith(('/proc/self/', '/dev/')):
            attempt('open ' + name, lambda: open(path, 'r+b').close())
            attempt('unlink ' + name, os.unlink, path)
            attempt('rename ' + name, os.rename, path, path + '2')
            attempt('link ' + name, os.link, path, '/home/user/linked')
            break
    return worked
"""


@pytest.fixture(scope="module")
def shared():
    """One sandbox for questions that leave nothing behind."""
    with Sandbox.create(limits=LIMITS) as sandbox:
        sandbox.run_code("1")
        yield sandbox


@row(
    "C01",
    "EROFS, EACCES or EPERM for every way to write, on every place of the system and of the interpreter",
)
@row("C11", "a link out of the workspace into a place of the system leads to a read-only one")
def test_c01_the_system_is_read_only(shared):
    """Creating, removing, renaming, linking and changing attributes fail in the system's, the interpreter's and cellfork's places."""
    code = f"""
    {textwrap.indent(TRY_TO_WRITE, "    ").strip()}
    import json as package
    places = [*{PLACES_OF_THE_SYSTEM!r}, sys.base_prefix, os.path.dirname(package.__file__), *[p for p in sys.path if p.startswith(sys.prefix)]]
    places = [place for place in places if os.path.isdir(place) and not place.startswith(('/run/sandbox', '/opt/venv'))]
    os.symlink('/usr', '/home/user/system')
    places.append('/home/user/system')
    answer = [len(places), [found for place in places for found in tries(place)]]
    os.unlink('/home/user/system')
    """
    tried, worked = ask(shared, code)
    assert tried >= len(PLACES_OF_THE_SYSTEM)
    assert worked == []


@row("C01", "no byte code and no .pth persists in the template")
def test_c01_nothing_persists_in_the_environment(sandbox, neighbour):
    """What one sandbox plants where Python looks for code at its start is its own: a neighbour's Python does not run it."""
    planted = ask(
        sandbox,
        """
        import os, sysconfig, site
        answer = []
        for place in {sysconfig.get_path('purelib'), *site.getsitepackages(), os.path.expanduser('~/.local/lib/python3/site-packages')}:
            try:
                os.makedirs(place, exist_ok=True)
                with open(place + '/planted.pth', 'w') as file:
                    file.write('import os; os.environ["PLANTED"] = "1"\\n')
                with open(place + '/sitecustomize.py', 'w') as file:
                    file.write('import os; os.environ["PLANTED"] = "1"\\n')
                answer.append(place)
            except OSError:
                pass
        """,
    )
    assert planted
    question = "python -c 'import os; print(os.environ.get(\"PLANTED\"))'"
    assert shell(sandbox, question).stdout.strip() == "1"
    assert shell(neighbour, question).stdout.strip() == "None"


@row("C01", "bash: read-only file system")
def test_c01_from_a_shell(shared):
    """Redirections into the system fail, the setuid bit changes nothing, and rm -rf / removes what is the sandbox's own at most."""
    script = """
    for place in / /usr/bin /etc /lib /opt /run /dev; do
        echo x > $place/planted && echo "wrote $place"
    done
    cp /bin/sh /tmp/sh && chmod 6755 /tmp/sh && /tmp/sh -p -c 'id -u'; rm -f /tmp/sh
    rm -rf --no-preserve-root /usr/bin/env /etc/passwd; ls /usr/bin/env /etc/passwd
    """
    done = shell(shared, script)
    assert done.stdout.split() == ["1000", "/etc/passwd", "/usr/bin/env"]


@row("C02", "EPERM for remount, bind and umount, by call and by tool")
def test_c02_mounts_stay(shared):
    """mount(8) and umount(8) are refused, and the list of mounts is the same afterwards."""
    before = shell(shared, "cat /proc/self/mountinfo").stdout
    script = """
    mount -o remount,rw / ; echo $?
    mount -o remount,rw,bind /usr ; echo $?
    mount --bind /tmp /etc ; echo $?
    mount -t tmpfs x /tmp ; echo $?
    umount /proc/sys ; echo $?
    umount -l /proc/kallsyms ; echo $?
    """
    done = shell(shared, script)
    assert "0" not in done.stdout.split()
    assert shell(shared, "cat /proc/self/mountinfo").stdout == before


@row(
    "C02",
    "nosuid on every mount, nodev on all but the device nodes, and only the sandbox's own places are writable",
)
def test_c02_every_mount_is_restricted(shared):
    """Read from inside: what is not read-only is the sandbox's disk, shared memory, terminals, devices and /proc."""
    lines = [line.split() for line in ask(shared, "answer = open('/proc/self/mounts').read()").splitlines()]
    visible = {line[1]: line for line in lines}  # the last one on a place is the one that is seen
    for place, (_source, _place, kind, options, *_) in visible.items():
        flags = options.split(",")
        assert "nosuid" in flags, place
        own = place in {"/run/sandbox", "/home/user", "/root", "/tmp", "/dev/shm", "/dev/pts", "/proc"}
        assert own or "ro" in flags or kind == "devtmpfs" or place.startswith(("/dev/", "/proc/")), place
    for place in ("/proc", "/dev/shm", "/dev/pts"):
        assert "noexec" in visible[place][3].split(","), place


NESTED = """
import os, sys
from cellfork import Limits, Sandbox
from cellfork.guest import linux
linux.unshare(linux.CLONE_NEWNS)
linux.mount("", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
linux.mount("nested", "/usr/share/doc", "tmpfs", 0, "mode=1777")
with open("/usr/share/doc/seen", "w") as file:
    file.write("nested")
os.chmod("/usr/share/doc/seen", 0o4755)
with Sandbox.create(limits=Limits(memory="256M", pids=40)) as sandbox:
    print(sandbox.commands.run("cat /usr/share/doc/seen; grep /usr/share/doc /proc/self/mounts; touch /usr/share/doc/x || true").stdout)
"""


@row("C02", "what the host has mounted below a place that is seen is read-only, nosuid and nodev as well")
@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user mounts nothing on the host")
def test_c02_mounts_below_a_bound_place():
    """A writable file system that the host has mounted below /usr comes along read-only: flags hold for the whole tree."""
    done = subprocess.run(
        [sys.executable, "-c", NESTED], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("nested"), done.stdout
    assert "/usr/share/doc tmpfs ro,nosuid,nodev" in done.stdout


SECRETS = (
    "/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/ssh", "/etc/machine-id", "/etc/kubernetes", "/etc/krb5.keytab", "/etc/cron.d",
    "/etc/passwd-", "/etc/environment", "/root/.ssh", "/root/.aws", "/root/.config", "/root/.bash_history", "/root/.netrc", "/root/.kube",
    "/root/.docker", "/var/run/secrets", "/var/run/docker.sock", "/run/docker.sock", "/run/containerd", "/run/systemd", "/run/dbus",
    "/var/lib/docker", "/var/log/syslog", "/var/log/auth.log", "/var/mail", "/boot", "/sys", "/.old", "/lost+found", "/initrd.img", "/media",
    "/proc/1/root/etc/shadow", "/proc/self/root/etc/shadow", "/proc/self/cwd/../../../etc/shadow", "/dev/fd/../../../etc/shadow",
    "/home/user/../../root/.ssh", "/tmp/../etc/shadow",
)  # fmt: skip


@row("C03", "ENOENT, not EACCES: not there at all, in /etc, in homes and in /run")
def test_c03_secrets_are_absent(shared):
    """Paths where hosts keep credentials do not exist, under whatever spelling; homes hold the user's and the interpreter."""
    code = f"""
    import os, errno, sys
    interpreter = (sys.base_prefix, sys.prefix, os.path.realpath(sys.executable), *sys.path)
    def others(place):
        return [name for name in os.listdir(place) if not any(path.startswith(os.path.join(place, name)) for path in interpreter)]
    answer = []
    for path in {SECRETS!r}:
        try:
            os.lstat(path)
            answer.append(path)
        except OSError as error:
            if error.errno != errno.ENOENT and not path.startswith('/proc/1/'):  # init's own: EACCES
                answer.append([path, error.errno])
    answer += [others('/root'), others('/home'), others('/mnt'), others('/srv'), sorted(os.listdir('/run'))]
    """
    assert ask(shared, code) == [[], ["user"], ["data"], [], ["cellfork", "sandbox"]]


@row("C03", "a canary anywhere on the host is not found by a search of everything that can be read")
def test_c03_no_canary_is_found(shared, tmp_path, monkeypatch):
    """Files of the host with a random name, in its /tmp, /var/tmp and home, are not found from inside."""
    name = f"canary-{uuid.uuid4().hex}"
    places = [tmp_path, Path("/var/tmp"), Path.home()]
    made = [place / name for place in places if os.access(place, os.W_OK)]
    for path in made:
        path.write_text("secret")
    try:
        found = shell(
            shared,
            f"find / -xdev -name '{name}' 2>/dev/null; find /tmp /home /dev/shm /var -name '{name}' 2>/dev/null",
        )
        assert found.stdout == ""
    finally:
        for path in made:
            path.unlink()


@row("C04", "own pids alone; init's memory, environment, files and descriptors EACCES; nothing of the host")
def test_c04_processes_of_others(shared):
    """There are the sandbox's processes and no others; of init, which is not dumpable, nothing private opens."""
    code = """
    import os, errno
    pids = sorted(int(name) for name in os.listdir('/proc') if name.isdigit())
    opened = []
    for name in ('environ', 'mem', 'maps', 'smaps', 'auxv', 'syscall', 'stack', 'io', 'pagemap', 'personality', 'timerslack_ns', 'clear_refs', 'seccomp_cache'):
        try:
            with open(f'/proc/1/{name}', 'rb') as file:
                if name not in ('mem',) and file.read(16):
                    opened.append(name)
                elif name == 'mem':
                    opened.append(name)
        except OSError:
            pass
    for name in ('root', 'cwd', 'exe', 'fd/3', 'fd/0', 'ns/user', 'ns/mnt'):
        try:
            opened.append([name, os.readlink(f'/proc/1/{name}')])
        except OSError:
            pass
    for path in ('/proc/1/root', '/proc/1/cwd'):
        try:
            opened.append(os.listdir(path))
        except OSError:
            pass
    numbers = os.listdir('/proc/1/fd') if os.access('/proc/1/fd', os.R_OK) else []
    answer = [pids, opened, numbers]
    """
    pids, opened, numbers = ask(shared, code)
    assert (
        os.geteuid() != 0 or numbers == []
    )  # where there is one id, the numbers are seen and nothing behind them
    assert pids[:2] == [1, 2]
    assert max(pids) < 1000
    assert opened == []


@row("C04", "nothing of the server: /proc/*/environ of every visible process has no word of the host")
def test_c04_from_a_shell(shared):
    """No process that a shell sees shows a command line or an environment of the host."""
    done = shell(shared, "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'")
    assert sys.executable not in done.stdout.split("\n")
    for name in ("PYTEST_CURRENT_TEST", "VIRTUAL_ENV_PROMPT", "SSH_", "AWS_", "INVOCATION_ID"):
        assert name not in done.stdout


@row("C05", "hidden files of /proc are /dev/null, hidden directories empty; /sys is absent")
def test_c05_kernel_files_are_masked(shared):
    """Of /proc only the named files have content; whatever else this kernel offers is empty and takes no orders."""
    code = """
    import os
    answer = {}
    for name in os.listdir('/proc'):
        path = '/proc/' + name
        if name.isdigit() or os.path.islink(path):
            continue
        if os.path.isdir(path):
            answer[name] = len(os.listdir(path))
        else:
            with open(path, 'rb') as file:
                answer[name] = len(file.read(64))
    answer['/sys'] = os.path.lexists('/sys')
    """
    seen = ask(shared, code)
    assert seen.pop("/sys") is False
    with_content = {name for name, size in seen.items() if size}
    assert with_content == {
        "cpuinfo",
        "filesystems",
        "loadavg",
        "meminfo",
        "stat",
        "sys",
        "sysvipc",
        "uptime",
        "version",
    }
    for name in (
        "kallsyms",
        "keys",
        "kmsg",
        "timer_list",
        "iomem",
        "interrupts",
        "cmdline",
        "config.gz",
        "bus",
        "fs",
        "irq",
        "pressure",
    ):
        if os.path.exists(f"/proc/{name}"):
            assert seen[name] == 0, name


@row("C05", "the triggers in /proc take no orders")
def test_c05_triggers_from_a_shell(shared):
    """sysrq-trigger, pressure triggers, and core_pattern cannot be written."""
    script = """
    echo h > /proc/sysrq-trigger; echo '|/tmp/x' > /proc/sys/kernel/core_pattern
    echo 'some 150000 1000000' > /proc/pressure/memory; echo 1 > /proc/sys/vm/drop_caches
    cat /proc/sys/kernel/core_pattern
    """
    done = shell(shared, script)
    assert done.stdout.strip() == Path("/proc/sys/kernel/core_pattern").read_text().strip()
    assert (
        done.stderr.count("rror")
        + done.stderr.count("ermission")
        + done.stderr.count("ead-only")
        + done.stderr.count("o such")
        >= 3
    )


@row("C06", "control groups are not visible, their root is the sandbox's own, and none can be mounted")
def test_c06_no_control_group_is_within_reach(shared):
    """/sys/fs/cgroup is absent, /proc/self/cgroup shows / in every hierarchy, and a cgroup file system cannot be mounted."""
    code = """
    import os
    with open('/proc/self/cgroup') as file:
        paths = {line.rstrip('\\n').split(':', 2)[2] for line in file}
    with open('/proc/self/mounts') as file:
        mounted = [line for line in file if 'cgroup' in line.split()[2]]
    answer = [sorted(paths), mounted, os.path.exists('/sys/fs/cgroup')]
    """
    assert ask(shared, code) == [["/"], [], False]
    done = shell(shared, "mount -t cgroup2 none /tmp; echo $?; mount -t cgroup -o memory none /tmp; echo $?")
    assert "0" not in done.stdout.split()


@row(
    "C19",
    "a sandbox with open files, a working directory and mappings in every place is killed and leaves no mount and no process",
)
def test_c19_busy_places_do_not_keep_a_sandbox(neighbour):
    """Everything that keeps a mount busy ends with the processes: the mounts of the host are the same as before."""
    before = Path("/proc/self/mountinfo").read_text()
    sandbox = Sandbox.create(limits=LIMITS)
    code = """
    import mmap, os
    os.makedirs('/dev/shm/a/b', exist_ok=True)
    os.chdir('/dev/shm/a/b')
    kept = []
    for place in ('/home/user', '/root', '/tmp', '/dev/shm', '/run/sandbox'):
        file = open(place + '/busy', 'w+b')
        file.write(b'x' * 65536)
        file.flush()
        kept.append((file, mmap.mmap(file.fileno(), 0), os.open(place, os.O_PATH)))
    kept.append(os.openpty())
    answer = len(kept)
    """
    assert ask(sandbox, code) == 6
    sandbox.run_code(
        "import subprocess; subprocess.Popen(['sleep', '100'], cwd='/tmp', start_new_session=True)"
    )
    sandbox.kill()
    assert Path("/proc/self/mountinfo").read_text() == before
    assert neighbour.run_code("1 + 1").text == "2"


@row(
    "C20",
    "what is planted is read by nothing but the sandbox's own programs; the host runs nothing from the workspace",
)
def test_c20_planted_configuration_stays_inside(sandbox, neighbour, tmp_path):
    """Hooks, start-up files and settings in home change neither a neighbour, nor the host's calls about this sandbox."""
    mark = f"planted-{uuid.uuid4().hex}"
    script = f"""
    cd ~
    for file in .bashrc .profile .bash_profile .pythonrc .npmrc .netrc .gitconfig .inputrc sitecustomize.py usercustomize.py conftest.py json.py; do
        echo 'import os; open("/tmp/{mark}", "w")' > $file
    done
    mkdir -p .ipython/profile_default/startup .config/pip .git/hooks .local/bin
    echo 'open("/tmp/{mark}", "w")' | tee .ipython/profile_default/startup/00.py > .git/hooks/pre-commit
    chmod +x .git/hooks/pre-commit; echo '[global]' > .config/pip/pip.conf
    """
    assert shell(sandbox, script).exit_code == 0
    sandbox.files.write("note.txt", "hello")
    assert sandbox.files.read("note.txt") == "hello"
    assert [entry.name for entry in sandbox.files.list("/home/user") if entry.name == "json.py"] == [
        "json.py"
    ]
    assert sandbox.commands.run("echo fine").stdout == "fine\n"
    for place in (sandbox, neighbour):
        assert ask(place, f"import os\nanswer = os.path.exists('/tmp/{mark}')") is False
    assert not Path(f"/tmp/{mark}").exists()


@row(
    "C21", "fresh tmpfs in /tmp, /var/tmp, /dev/shm, home and package caches; System V memory is gone as well"
)
def test_c21_no_residue_of_others():
    """What a sandbox leaves, in files and in memory that outlives processes, the next one does not find."""
    leave = """
    import os, ctypes
    for place in ('/tmp', '/var/tmp', '/dev/shm', '/root', '/home/user', '/home/user/.cache', '/home/user/.cache/pip', '/opt/venv'):
        os.makedirs(place, exist_ok=True)
        with open(place + '/residue', 'w') as file:
            file.write('left')
    libc = ctypes.CDLL(None, use_errno=True)
    answer = [libc.shmget(0x5EED, 4096, 0o1666) >= 0, libc.semget(0x5EED, 1, 0o1666) >= 0]
    """
    look = """
    import os, ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    found = [os.path.join(place, name) for top in ('/tmp', '/var/tmp', '/dev/shm', '/root', '/home/user', '/opt/venv/') for place, _, names in os.walk(top) for name in names if name == 'residue']
    answer = [found, libc.shmget(0x5EED, 4096, 0), libc.semget(0x5EED, 1, 0)]
    """
    with Sandbox.create(limits=LIMITS) as first:
        assert ask(first, leave) == [True, True]
        with Sandbox.create(limits=LIMITS) as second:
            assert ask(second, look) == [[], -1, -1]
    with Sandbox.create(limits=LIMITS) as third:
        assert ask(third, look) == [[], -1, -1]


@row("C22", "leases and notices EPERM; locks on a file that is shared with others say nothing to them")
def test_c22_leases_are_refused(shared):
    """F_SETLEASE, F_NOTIFY: refused on the sandbox's own files and on shared ones."""
    code = """
    import fcntl, os
    answer = []
    own = '/home/user/own'
    open(own, 'w').close()
    for path in (own, '/usr/bin/env', os.__file__, '/etc/passwd'):
        fd = os.open(path, os.O_RDONLY)
        for command, argument in ((fcntl.F_SETLEASE, fcntl.F_RDLCK), (fcntl.F_SETLEASE, fcntl.F_WRLCK), (fcntl.F_NOTIFY, fcntl.DN_ACCESS)):
            try:
                fcntl.fcntl(fd, command, argument)
                answer.append([path, command])
            except OSError as error:
                answer.append(error.errno)
        os.close(fd)
    """
    assert set(ask(shared, code)) == {1}


@row("C22", "locks on own files work, between processes")
def test_c22_locks_on_own_files_work(shared):
    """flock, lockf and open-file-description locks exclude one another on files of the sandbox, as git, pip and sqlite need."""
    code = """
    import fcntl, os, sqlite3, struct, subprocess, sys
    answer = []
    path = '/home/user/lock'
    with open(path, 'w') as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        answer.append(subprocess.run(['flock', '-n', path, 'true']).returncode)
        fcntl.flock(file, fcntl.LOCK_UN)
        answer.append(subprocess.run(['flock', '-n', path, 'true']).returncode)
        fcntl.lockf(file, fcntl.LOCK_EX)
    database = sqlite3.connect('/home/user/data.db')
    database.execute('create table t (x)')
    database.execute('insert into t values (1)')
    database.commit()
    answer.append(database.execute('select x from t').fetchall())
    """
    assert ask(shared, code) == [1, 0, [[1]]]


@row(
    "C23",
    "mincore ENOSYS, cachestat ENOSYS, preadv2 with RWF_NOWAIT or RWF_DONTCACHE EOPNOTSUPP; the time of a read remains",
)
def test_c23_the_page_cache_does_not_say_what_it_holds(shared):
    """No call tells whether a page of a shared file is in memory, or pushes it out through a read."""
    code = """
    import ctypes, errno, os, platform
    libc = ctypes.CDLL(None, use_errno=True)
    numbers = {'x86_64': (27, 451), 'aarch64': (232, 451)}[platform.machine()]
    answer = []
    for number in numbers:
        ctypes.set_errno(0)
        libc.syscall(number, 0, 0, 0, 0)
        answer.append(errno.errorcode[ctypes.get_errno()])
    fd = os.open('/usr/bin/env', os.O_RDONLY)
    for flags in (os.RWF_NOWAIT, 0x80, os.RWF_NOWAIT | os.RWF_HIPRI):
        try:
            os.preadv(fd, [bytearray(64)], 0, flags)
            answer.append('read')
        except OSError as error:
            answer.append(errno.errorcode[error.errno])
    answer.append(os.preadv(fd, [bytearray(64)], 0))
    os.close(fd)
    """
    assert ask(shared, code) == ["ENOSYS", "ENOSYS", "ENOTSUP", "ENOTSUP", "ENOTSUP", 64]
