"""A program that asks for a sandbox on a host that lacks something, and tells as JSON what it got.

``python -m tests.security.absences '{"refuse": [...], …}'``: the program takes something away from itself for good, so
that everything that it starts lacks it too, then asks as any user would.

- ``refuse``: system calls that fail, each ``[name, errno, argument index or null, test, value]`` with the test
  ``equal``, ``unequal`` or ``any bit`` on the low 32 bits of the argument;
- ``rlimits``: ``[resource, soft limit]`` by the name of the resource;
- ``descriptors``: leaves so many file descriptors free;
- ``group``: directories of control groups to enter first.
"""

import json
import os
import platform
import resource
import socket
import struct
import sys
from typing import Any

from cellfork.guest import linux
from cellfork.runtimes.namespaces.seccomp import ALLOW, ERRNO, TABLES

LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
FIRST_ARGUMENT = 16
NO_LIMITS = {"memory": None, "cpu": None, "pids": None}


def main(wanted: dict[str, Any]) -> None:
    """Take away, ask, tell."""
    for path in wanted.get("group", []):
        with open(f"{path}/cgroup.procs", "w", encoding="ascii") as file:
            file.write("0")
    from cellfork import CellforkError, IsolationUnavailable, Limits, Sandbox, Template
    from cellfork.testing.leaks import Snapshot, find_leaks

    before = Snapshot.take()
    take_away(wanted)
    told: dict[str, Any] = {"error": None, "missing": [], "message": ""}
    limits = Limits(**wanted.get("limits", NO_LIMITS))
    try:
        sandbox = Sandbox.create(Template("bare", preload=()), limits=limits)
    except CellforkError as error:
        told |= {"error": type(error).__name__, "message": str(error)}
        if isinstance(error, IsolationUnavailable):
            told["missing"] = [missing.feature for missing in error.missing]
    else:
        told["isolation"] = sandbox.isolation
        told["answer"] = sandbox.run_code("40 + 2").text
        sandbox.kill()
    give_back()
    told["left"] = str(find_leaks(before))
    print(json.dumps(told), flush=True)


def take_away(wanted: dict[str, Any]) -> None:
    """Carry out what is asked for."""
    if wanted.get("refuse"):
        linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
        linux.load_seccomp(refusing(wanted["refuse"]))
    for name, soft in wanted.get("rlimits", []):
        number = getattr(resource, name)
        resource.setrlimit(number, (soft, resource.getrlimit(number)[1]))
    if "descriptors" in wanted:
        used = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(
            resource.RLIMIT_NOFILE,
            (used + wanted["descriptors"], resource.getrlimit(resource.RLIMIT_NOFILE)[1]),
        )


def give_back() -> None:
    """Let the program look around: descriptors and files are needed for that."""
    for number in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_AS):
        soft, hard = resource.getrlimit(number)
        if soft != hard:
            resource.setrlimit(number, (hard, hard))


def refusing(rules: list[list[Any]]) -> bytes:
    """Return a filter that answers some system calls with an errno and lets all others through."""
    code: list[tuple[int, int, int, int]] = []
    for name, number, argument, test, value in rules:
        answer = (RETURN, 0, 0, ERRNO | number)
        call = (EQUAL, 0, 1 if argument is None else 3, TABLES[platform.machine()][name])
        code += [(LOAD, 0, 0, 0), call]
        if argument is not None:
            code.append((LOAD, 0, 0, FIRST_ARGUMENT + 8 * argument))
            jump = ANY_BIT if test == "any bit" else EQUAL
            code.append((jump, 0, 1, value) if test != "unequal" else (jump, 1, 0, value))
        code.append(answer)
    return b"".join(struct.pack("=HBBI", *line) for line in [*code, (RETURN, 0, 0, ALLOW)])


if __name__ == "__main__":
    socket.setdefaulttimeout(None)
    main(json.loads(sys.argv[1]))
