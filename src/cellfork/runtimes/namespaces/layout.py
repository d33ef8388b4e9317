"""What a sandbox sees: the template's root as a list of entries (pure data, carried out by ``guest/boot.py``)."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from cellfork.guest import linux
from cellfork.model.specs import HOME, ROOT_HOME
from cellfork.runtimes.interpreter import Interpreter

Entry = list[Any]

READ_ONLY = linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
DEVICE = linux.MS_NOSUID | linux.MS_NOEXEC

LIBRARY = "/run/cellfork/lib"
"""Where the guest's own code is seen inside."""
VENV = "/opt/venv"
"""The environment that ``pip install`` inside a sandbox writes to; a link into the sandbox's own disk."""
DISK = "/run/sandbox"
"""Where a sandbox's one writable file system is mounted; the homes and /tmp are parts of it."""
VENV_PLACE = f"{DISK}/venv"
PRIVATE_PLACES = (HOME, ROOT_HOME, "/tmp", "/dev/shm")
"""What every sandbox covers with places of its own."""
WORKPLACES = ("/app", "/code", "/data", "/mnt/data", "/workspace")
"""Where programs written for containers put their files: links into the sandbox's own disk, for the root is read-only."""
EMPTY = "/run/cellfork/empty"
"""A directory with nothing in it, which hides others."""
KEPT = "/run/cellfork/prefix"
"""Where interpreters that live below a private place are seen by the zygote, to be put back in every sandbox."""

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
SYSTEM_DIRS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
ETC_ALLOWED = (
    "alternatives",
    "ca-certificates",
    "crypto-policies",
    "debian_version",
    "fonts",
    "ImageMagick-6",
    "java-17-openjdk",
    "java-21-openjdk",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "magic",
    "mailcap",
    "mime.types",
    "os-release",
    "pki/tls/certs",
    "pki/ca-trust/extracted",
    "protocols",
    "R",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
)
"""What of the host's /etc is visible: nothing that names users, hosts, keys or services of the host."""

PASSWD = (
    "root:x:0:0:root:/root:/bin/bash\n"
    f"user:x:1000:1000:user:{HOME}:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
)
GROUP = "root:x:0:\ntty:x:5:\nuser:x:1000:\nnogroup:x:65534:\n"
PIP = f"""#!{VENV}/bin/python
import os
import sys
from pip._internal.cli.main import main
status = main()
if status and os.environ.get("CELLFORK_PIP_HINT") and {{"install", "download", "wheel"}} & {{*sys.argv}}:
    print(os.environ["CELLFORK_PIP_HINT"], file=sys.stderr)
sys.exit(status)
"""
"""The ``pip`` that comes first on PATH: the template's would write to the template, which is read-only.  Where it fails and
could not have reached an index, it says so."""
TOOLS = "/run/cellfork/bin"
"""Programs of cellfork's own, before the system's on PATH."""
SUDO = """#!/bin/sh
# There is one user and no right to gain: what follows runs as it would without sudo, with root's home and name.
user=root
while [ $# -gt 0 ]; do
  case "$1" in
    -u | --user) user="$2"; shift 2 ;;
    -u?*) user="${1#-u}"; shift ;;
    --user=*) user="${1#--user=}"; shift ;;
    -g | --group | -p | --prompt | -C | -h | --host | -D | --chdir) shift 2 ;;
    -l | -v | -k | -K | --list | --validate | --reset-timestamp | --remove-timestamp) exit 0 ;;
    -V | --version) echo "sudo of cellfork: runs commands without more rights"; exit 0 ;;
    -i | -s | --login | --shell) shell=1; shift ;;
    --) shift; break ;;
    -*) shift ;;
    [A-Za-z_]*=*) export "$1"; shift ;;
    *) break ;;
  esac
done
case "$user" in
  root | '#0') export HOME=@ROOT@ USER=root LOGNAME=root ;;
  user | '#1000') export HOME=@HOME@ USER=user LOGNAME=user ;;
  *) echo "sudo: unknown user $user" >&2; exit 1 ;;
esac
while [ $# -gt 0 ]; do
  case "$1" in
    [A-Za-z_]*=*) export "$1"; shift ;;
    *) break ;;
  esac
done
if [ -n "$shell" ]; then
  [ $# -eq 0 ] && exec /bin/sh
  exec /bin/sh -c "$*"
fi
[ $# -eq 0 ] && { echo "usage: sudo command" >&2; exit 1; }
exec "$@"
""".replace("@ROOT@", ROOT_HOME).replace("@HOME@", HOME)
"""Scripts written for machines where ``sudo`` is needed begin every other line with it."""
HOSTNAME = "sandbox"
HOSTS = f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost ip6-localhost ip6-loopback\n"
NSSWITCH = "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n"

PROC_VISIBLE = ("cpuinfo", "filesystems", "loadavg", "meminfo", "mounts", "net", "self", "stat", "sysvipc", "thread-self",
                "uptime", "version")  # fmt: skip
"""What of /proc is seen besides processes: an allow-list, so that what a kernel adds is hidden until somebody needs it."""
PROC_READ_ONLY = ("sys",)
"""Seen as well, and never written."""


def template_root(python: Interpreter, package_dir: str) -> list[Entry]:
    """Return the entries of a template's root around ``python``; ``package_dir`` is where cellfork's code is."""
    return [
        *_skeleton(),
        *_system(),
        *_etc(),
        *_devices(),
        *_interpreter(python),
        *(["bind", kept, os.path.realpath(path), READ_ONLY] for path, kept in covered_prefixes(python)),
        ["bind", f"{LIBRARY}/cellfork", os.path.realpath(package_dir), READ_ONLY],
        ["dir", TOOLS, 0o755],
        ["file", f"{TOOLS}/sudo", SUDO, 0o755],
        ["link", VENV, VENV_PLACE],
        *(["link", path, _workplace(path)] for path in WORKPLACES),
        *(_in_template(*entry) for entry in sandbox_environment(python)),
    ]  # fmt: skip


def sandbox_environment(python: Interpreter) -> list[tuple[str, str, str]]:
    """Return ``(kind, path, content)`` of the writable environment that lies over the template's.

    It is a virtual environment of its own whose packages come first; the template's are added behind it,
    outside of it, so that pip sees them as installed and never tries to change them.
    """
    library = f"{VENV_PLACE}/lib/python{python.version}/site-packages"
    behind = "".join(f"import site; site.addsitedir({path!r})\n" for path in python.site_packages)
    return [
        *(("dir", _workplace(path), "") for path in WORKPLACES),
        ("dir", VENV_PLACE, ""),
        ("dir", f"{VENV_PLACE}/bin", ""),
        ("dir", f"{VENV_PLACE}/lib", ""),
        ("dir", f"{VENV_PLACE}/lib/python{python.version}", ""),
        ("dir", library, ""),
        ("file", f"{VENV_PLACE}/pyvenv.cfg", _pyvenv(python)),
        ("file", f"{library}/_template.pth", behind),
        ("link", f"{VENV_PLACE}/bin/python", python.executable),
        ("link", f"{VENV_PLACE}/bin/python3", "python"),
        ("script", f"{VENV_PLACE}/bin/pip", PIP),
        ("link", f"{VENV_PLACE}/bin/pip3", "pip"),
    ]


def _workplace(path: str) -> str:
    return f"{DISK}/{path.strip('/').replace('/', '-')}"


def proc_restrictions(proc: str = "/proc") -> dict[str, list[str]]:
    """Return what to lay an empty file or directory over, of what this kernel has in /proc, and what to make read-only."""
    with os.scandir(proc) as entries:
        others = sorted(
            (entry.name, entry.is_dir(follow_symlinks=False))
            for entry in entries
            if not entry.name.isdigit() and entry.name not in PROC_VISIBLE
        )
    return {
        "proc_hidden_files": [f"/proc/{name}" for name, is_dir in others if not is_dir],
        "proc_hidden_dirs": [
            f"/proc/{name}" for name, is_dir in others if is_dir and name not in PROC_READ_ONLY
        ],
        "proc_read_only": [f"/proc/{name}" for name, _ in others if name in PROC_READ_ONLY],
    }


def search_path(python: Interpreter) -> str:
    """Return PATH inside: the sandbox's own environment, the template's, the system's."""
    return ":".join([
        f"{VENV}/bin", f"{HOME}/.local/bin", f"{python.prefix}/bin", TOOLS,
        "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin",
    ])  # fmt: skip


def _skeleton() -> Iterator[Entry]:
    for path, mode in (("/home", 0o755), ("/root", 0o755), ("/run", 0o755), (DISK, 0o755), ("/var", 0o755), ("/var/lib", 0o755),
                       ("/var/log", 0o755), ("/opt", 0o755), ("/mnt", 0o755), ("/srv", 0o755)):  # fmt: skip
        yield ["dir", path, mode]
    yield ["dir", EMPTY, 0o555]
    yield ["tmpfs", "/tmp", "mode=1777,size=64m"]
    yield ["tmpfs", "/home", "mode=777,size=16m"]
    yield ["dir", HOME, 0o777]
    yield ["link", "/var/tmp", "/tmp"]
    yield ["link", "/var/run", "/run"]


def _system() -> Iterator[Entry]:
    for path in SYSTEM_DIRS:
        if os.path.islink(path):
            yield ["link", path, os.readlink(path)]
        elif os.path.isdir(path):
            yield ["bind", path, path, READ_ONLY]


def _etc() -> Iterator[Entry]:
    yield ["dir", "/etc", 0o755]
    for path, text in (
        ("passwd", PASSWD),
        ("group", GROUP),
        ("hosts", HOSTS),
        ("hostname", HOSTNAME + "\n"),
        ("nsswitch.conf", NSSWITCH),
        ("resolv.conf", ""),
    ):
        yield ["file", f"/etc/{path}", text, 0o644]
    for name in ETC_ALLOWED:
        path = f"/etc/{name}"
        if os.path.islink(path) and not os.path.exists(path):
            continue
        if os.path.exists(path):
            yield ["bind", path, os.path.realpath(path), READ_ONLY]


def _devices() -> Iterator[Entry]:
    yield ["dir", "/dev", 0o755]
    yield ["dir", "/dev/shm", 0o755]
    yield ["dir", "/dev/pts", 0o755]
    for name in DEVICES:
        yield ["bind", f"/dev/{name}", f"/dev/{name}", DEVICE]
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"), ("stdout", "/proc/self/fd/1"),
                         ("stderr", "/proc/self/fd/2"), ("ptmx", "pts/ptmx")):  # fmt: skip
        yield ["link", f"/dev/{name}", target]


def covered_prefixes(python: Interpreter) -> list[tuple[str, str]]:
    """Return ``(path, kept)`` for each prefix that a sandbox's own places would cover."""
    covered = [path for path in _prefixes(python) if _is_below(path, (*PRIVATE_PLACES, "/var/tmp"))]
    return [(path, f"{KEPT}/{number}") for number, path in enumerate(covered)]


def _interpreter(python: Interpreter) -> Iterator[Entry]:
    for path in _prefixes(python):
        yield ["bind", path, os.path.realpath(path), READ_ONLY]


def _prefixes(python: Interpreter) -> list[str]:
    """Return the directories that make up the interpreter and its environment, outside of the system's."""
    found: list[str] = []
    for path in (python.base_prefix, python.prefix, *_link_chain(python.executable)):
        if path != "/" and not _is_below(path, [*SYSTEM_DIRS, *found]):
            found.append(path)
    return found


def _link_chain(executable: str) -> Iterator[str]:
    """Yield the prefix of every interpreter that the executable's symbolic links pass through."""
    path = executable
    while os.path.islink(path):
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
        yield os.path.dirname(os.path.dirname(path))


def _is_below(path: str, places: Iterable[str]) -> bool:
    return any(Path(path).is_relative_to(place) for place in places)


def _in_template(kind: str, path: str, content: str) -> Entry:
    match kind:
        case "dir":
            return ["dir", path, 0o755]
        case "link":
            return ["link", path, content]
        case _:
            return ["file", path, content, 0o755 if kind == "script" else 0o644]


def _pyvenv(python: Interpreter) -> str:
    return (
        f"home = {python.base_prefix}/bin\ninclude-system-site-packages = false\nversion = {python.version}\n"
    )
