"""Whom the kernel ends first when memory runs out: commands, then kernels, then init; whatever is on the host, later.

Within a sandbox that has met its memory limit, and on a host that has none left, the process with the highest score
goes.  A score counts memory in thousandths of what there is, and on top what the process volunteers for.  Anybody may
volunteer for more.  Taking that back needs a right that nothing in a sandbox has, below what the boot stage took:
there it is one-way where the owner is root with ``CAP_SYS_RESOURCE``.

Source: proc_pid_oom_score_adj(5).
"""

import contextlib
import os

ZYGOTE = 100
"""More than the process that embeds cellfork; what a zygote, its maker and every init have."""
KERNEL = 400
"""More than init."""
COMMAND = 900
"""More than init, and than a kernel that uses less than half of the sandbox's memory."""
MOST = 1000


def volunteer(more: int, pid: int | None = None, *, least: int = -MOST) -> None:
    """Raise the score of ``pid`` (default: this process) by ``more``, from at least ``least``.

    Raises ``OSError`` where the process is gone or belongs to somebody else.
    """
    fd = os.open(f"/proc/{pid or 'self'}/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
    try:
        now = max(int(os.read(fd, 16)), least)
        os.pwrite(fd, str(min(MOST, now + more)).encode(), 0)
    finally:
        os.close(fd)


def volunteer_family(more: int, pid: int) -> None:
    """Raise the scores of ``pid`` and of the children that it has had already; later ones inherit its own.

    Raises ``OSError`` where ``pid`` itself is gone or cannot be touched yet.
    """
    volunteer(more, pid)
    for child in _children_of(pid):
        with contextlib.suppress(OSError):  # it has ended, or is about to become another program
            volunteer_family(more, child)


def _children_of(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(child) for child in file.read().split()]
