"""What a zygote may say, and the check of it: it is trusted, and yet it runs what a template imports."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

from cellfork.model.errors import ProtocolViolation

Message = dict[str, Any]

MESSAGES: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "booted": {"pid": (int,)},
    "ready": {},
    "failed": {"step": (str,), "errno": (int, type(None)), "message": (str,)},
    "adopted": {"version": (int,), "fit": (bool,), "forks": (int,), "image": (str,)},
    "forked": {"sandbox": (str,), "pid": (int,)},
    "refused": {"sandbox": (str,), "message": (str,), "fit": (bool,)},
    "exited": {"sandbox": (str,), "status": (int,)},
}
"""Each message, with the types of the fields that the host reads."""


def read_message(data: bytes) -> Message:
    """Return the message in ``data``; :class:`ProtocolViolation` for anything but what :data:`MESSAGES` lists."""
    try:
        message = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ProtocolViolation("the zygote does not speak JSON") from error
    op = message.get("op") if isinstance(message, dict) else None
    fields = MESSAGES.get(op) if isinstance(op, str) else None
    if fields is None:
        raise ProtocolViolation("the zygote says what no zygote says")
    for name, types in fields.items():
        if name not in message or type(message[name]) not in types:
            raise ProtocolViolation(f"the zygote's {op!r} has no proper {name!r}")
    return cast("Message", message)


def is_child(pid: int) -> bool:
    """Tell whether ``pid`` is a child of this process that has not been reaped: only such a one may it kill."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except (OSError, OverflowError, ValueError):
        return False
    return pid > 0


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors that came with a message."""
    for fd in fds:
        os.close(fd)
