"""The look at every sandbox before it is given out: read, put into words, compare with what was computed.

It happens between init's ``ready`` and the first byte of user code, in the host, and takes less than a
millisecond.  What it finds is a hash, or :class:`~cellfork.model.errors.PostureMismatch`.
"""

import os
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path

from cellfork.model.errors import InternalError, PostureMismatch, StartupFailed
from cellfork.model.specs import SandboxSpec
from cellfork.runtimes.namespaces import readings
from cellfork.runtimes.namespaces.cgroups import Group
from cellfork.runtimes.namespaces.expectations import expect, view_of
from cellfork.runtimes.namespaces.posture import Expectation, Host, Posture, describe, differences
from cellfork.runtimes.zygote import Zygote

KEPT = 64
"""Expectations that are kept, for as many kinds of requests: one takes about a millisecond to compute."""


@dataclass(slots=True)
class Tally:
    """How many sandboxes were looked at, and how many were not as they should be."""

    looked_at: int = 0
    refused: int = 0

    def __str__(self) -> str:
        return f"seen by the host before anything runs; {self.looked_at} so far, {self.refused} refused"


class Inspector:
    """Looks at the sandboxes of one zygote.

    ``package`` is the directory of cellfork's code.  Raises :class:`StartupFailed` where the zygote is gone.
    """

    def __init__(self, zygote: Zygote, package: str, tally: Tally) -> None:
        if zygote.interpreter is None:
            raise InternalError("nobody asked the zygote's interpreter about itself")
        try:
            self._host = look_around(zygote.pid)
        except OSError as error:
            raise StartupFailed(f"the zygote is gone: {error}") from error
        self.fingerprint = ""
        """What nothing can change about the init that was looked at last, where that has a door."""
        self._view = view_of(zygote.interpreter, package, self._host)
        self._tally = tally
        self._expectations: OrderedDict[Hashable, Expectation] = OrderedDict()

    def inspect(self, pid: int, spec: SandboxSpec, group: Group, *, door: bool = False) -> str:
        """Compare the sandbox whose init is ``pid`` with what ``spec`` asks for; return the hash of its posture.

        ``door`` says that it is to have one.

        Raises :class:`PostureMismatch`, which says what differs.
        """
        self._tally.looked_at += 1
        expectation = self._expect(spec, group, door=door)
        try:
            found = self._look(pid, expectation, group.name)
            wrong = [] if found == expectation.posture else differences(expectation.posture, found)
        except (OSError, ValueError) as error:
            if readings.has_ended(pid):
                raise StartupFailed("the sandbox ended before it was given out") from error
            # A file that is missing, or not as it is documented: nothing can be said, so nothing may run.
            wrong = [f"unreadable: {error}"]
        if wrong:
            self._tally.refused += 1
            raise PostureMismatch(tuple(wrong))
        return expectation.digest

    def _look(self, pid: int, expectation: Expectation, group: str) -> Posture:
        init = readings.read_process(pid, mounts=True)
        self.fingerprint = readings.fingerprint(init) if expectation.door else ""
        if not init.children:
            raise StartupFailed("the first kernel ended before it was given out")
        # Both are in one mount namespace, which is one of the facts that are compared.
        kernel = readings.read_process(init.children[0], mounts=False)
        return describe(init, kernel, self._host, expectation, group)

    def _expect(self, spec: SandboxSpec, group: Group, *, door: bool) -> Expectation:
        key = (spec.limits, spec.network, spec.volumes, door)
        expectation = self._expectations.get(key)
        if expectation is None:
            expectation = expect(spec, self._view, self._host, group.trees, door=door)
            self._expectations[key] = expectation
            if len(self._expectations) > KEPT:
                self._expectations.popitem(last=False)
        return expectation


def look_around(zygote_pid: int) -> Host:
    """Return what a sandbox of this zygote is compared with."""
    zygote = readings.read_process(zygote_pid, mounts=True, descriptors=False)
    own = readings.parse_status(Path("/proc/thread-self/status").read_bytes())
    ((_inside, first_id, _count),) = readings.parse_id_map(zygote.uid_map)
    return Host(
        uid=os.geteuid(),
        gid=os.getegid(),
        groups=frozenset(os.getgroups()),
        first_id=first_id if os.geteuid() == 0 else None,
        oom_score_adj=int(Path("/proc/self/oom_score_adj").read_text()),
        filters=int(own.get("Seccomp_filters", "0")),
        ram_pages=_total_memory() // os.sysconf("SC_PAGE_SIZE"),
        page_size=os.sysconf("SC_PAGE_SIZE"),
        namespaces={name: os.readlink(f"/proc/self/ns/{name}") for name in os.listdir("/proc/self/ns")},
        zygote_namespaces=zygote.namespaces,
        zygote_limits=readings.parse_limits(zygote.limits),
        mounts=tuple(readings.parse_mounts(Path("/proc/self/mountinfo").read_bytes())),
        zygote_devices=frozenset(mount.device for mount in readings.parse_mounts(zygote.mountinfo)),
    )


def _total_memory() -> int:
    """Return the bytes of memory of this machine."""
    words = Path("/proc/meminfo").read_text(encoding="ascii").split()
    return int(words[words.index("MemTotal:") + 1]) * 1024
