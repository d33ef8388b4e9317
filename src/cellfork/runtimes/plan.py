"""What every zygote and sandbox is told, whatever the isolation (pure data)."""

import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cellfork
from cellfork.model.limits import Limits, MiB
from cellfork.model.specs import HOME, SandboxSpec

if TYPE_CHECKING:
    from cellfork.runtimes.egress.gate import Gate

SHARED_MEMORY = 64 * MiB
SHARED_MEMORY_INODES = 4096
SIGNALS = 4096
"""Signals that wait and timers, of all processes together: the kernel keeps memory for each."""
CORE = 1
"""Bytes of a core dump: too few for any.  With 0 the kernel would still feed a crash to the host's ``core_pattern``
program, where there is one; 1 is the value that stops that (core(5), fs/coredump.c)."""
HEADROOM = 64 * MiB
"""Memory that files leave to processes: code that fills the disk finds it full, and its kernel alive."""

ONE_THREAD = dict.fromkeys(
    (
        "OPENBLAS_NUM_THREADS",
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "NUMEXPR_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
    ),
    "1",
)
"""A zygote must have one thread, so that forks of it are whole; its sandboxes inherit the setting."""


NO_NETWORK_HINT = (
    'cellfork: this sandbox has no network, so nothing can be downloaded; create it with network=["packages"] '
    "to allow the package indexes, or copy a wheel in and install it with 'pip install --no-index FILE'"
)
"""What pip's users are told where it failed and could not have done otherwise."""


def package_directory() -> str:
    """Return where cellfork's own code is."""
    return str(Path(cellfork.__file__).resolve().parent)


def zygote_argv(executable: str, library: str) -> list[str]:
    """Return the command that runs a zygote; ``library`` holds the ``cellfork`` package.

    It imports nothing from its working directory (``-P``) or from its home (``-s``).
    """
    code = (
        f"import sys; sys.path.insert(0, {library!r}); "
        "from cellfork.guest.zygote import main; main(*map(int, sys.argv[1:]))"
    )
    return [executable, "-P", "-s", "-c", code]


def environment(path: str, home: str = HOME) -> dict[str, str]:
    """Return the whole environment of a zygote and so of every sandbox: an allow-list, nothing inherited."""
    return {
        **ONE_THREAD,
        "PATH": path,
        "HOME": home,
        "USER": "user",
        "LOGNAME": "user",
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "IPYTHONDIR": f"{home}/.ipython",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "PIP_RETRIES": "1",
        "CELLFORK_NETWORK": "none",
        "CELLFORK_PIP_HINT": NO_NETWORK_HINT,
        "npm_config_fetch_retries": "0",
        "npm_config_update_notifier": "false",
        "PYTHONUNBUFFERED": "1",
        "CELLFORK_SANDBOX": "1",
    }


def fork_request(spec: SandboxSpec, *, warm: bool = False, gate: "Gate | None" = None) -> dict[str, Any]:
    """Return what a zygote must know of one sandbox; ``warm`` lets its first kernel run a line before it is used.

    ``gate`` is the way out of one that has any.
    """
    limits = spec.limits
    return {
        "envs": {**(gate.variables if gate else {}), **spec.envs},
        **(gate.plan if gate else {}),
        "warm": warm,
        "memory": limits.memory_bytes,
        "disk": disk_size(limits),
        "inodes": limits.inodes - shared_memory_inodes(limits),
        "shm": shared_memory_size(limits),
        "shm_inodes": shared_memory_inodes(limits),
        "rlimits": rlimits(spec),
    }


def disk_size(limits: Limits) -> int:
    """Return the bytes of the disk: files are kept in memory, and must not take all of it."""
    memory = limits.memory_bytes
    if not memory:
        return limits.disk_bytes
    return min(limits.disk_bytes, max(memory - shared_memory_size(limits) - HEADROOM, memory // 2))


def shared_memory_size(limits: Limits) -> int:
    """Return the bytes of ``/dev/shm``."""
    return min(SHARED_MEMORY, limits.memory_bytes // 4 or SHARED_MEMORY)


def shared_memory_inodes(limits: Limits) -> int:
    """Return how many files ``/dev/shm`` may hold; the disk has the others."""
    return min(SHARED_MEMORY_INODES, limits.inodes // 4)


def rlimits(spec: SandboxSpec) -> list[list[int]]:
    """Return ``[resource, soft, hard]`` for every limit of a process that is set."""
    limits = spec.limits
    most = {
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_FSIZE: limits.disk_bytes,
        resource.RLIMIT_CORE: CORE,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: SIGNALS,
        resource.RLIMIT_RTPRIO: 0,
        resource.RLIMIT_NICE: 0,
    }
    return [[number, value, value] for number, value in most.items()]
