"""The self-test: sandboxes of its own run into every limit, and what does not bite is not promised.

A limit that was accepted is no proof that it holds: controllers that are there but not counting, mount options that a
kernel drops.  So before the first sandbox is given out, small ones hit each limit, side by side, while the template's
modules are being imported.  What can be measured from outside is.  Output is not among it: the engine counts and cuts
what arrives, whatever the host is like.
"""

import asyncio
import contextlib
import json
import os
import select
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cellfork.guest.maker import WATCHERS
from cellfork.guest.sandbox import TERMINALS
from cellfork.model.errors import CellforkError, IsolationUnavailable, Missing, StartupFailed
from cellfork.model.limits import KiB, Limits, MiB
from cellfork.model.specs import HOME, ROOT_HOME, SandboxSpec, Template
from cellfork.runtimes import plan
from cellfork.runtimes.base import LimitCheck, LimitTest
from cellfork.runtimes.namespaces import layout, proofs
from cellfork.runtimes.namespaces.cgroups import Cgroups
from cellfork.runtimes.namespaces.prefork import Fork, make_fork
from cellfork.runtimes.zygote import Zygote
from cellfork.wire.frames import Frame

Launch = Callable[[Template], Awaitable[Zygote]]
Become = Callable[[Fork, Cgroups, SandboxSpec], Awaitable[None]]
Start = Callable[[Limits], Awaitable["Subject"]]
Checks = list[LimitCheck]

SECONDS = 60.0
"""After which the test is given up.  It takes about one."""
LIMITS = Limits(memory=64 * MiB, cpu=2, pids=24, disk=10 * MiB, inodes=256, open_files=128)
CPU = 0.05
"""So little that even on a busy machine a few processes have it used up."""
HELD = 4 * MiB
PIPES, SOCKETS = 32, 24
THROTTLED = 3
"""Periods in which the quota must have been used up."""
CPU_TOLERANCE, CPU_OVERRUN = 2.0, 0.1
"""A part and seconds that may be used beyond the quota: processors are stopped at their next tick only."""
KILL_SECONDS = 5.0
PLACES = {"home": HOME, "the home of root": ROOT_HOME, "/tmp": "/tmp", "the environment of pip": layout.VENV}
"""Parts of the one disk."""


class SelfTest:
    """Tests once, whoever asks; remembers what it found where that can be trusted."""

    def __init__(self, launch: Launch, become: Become, place: Path | None) -> None:
        """``become`` turns a fork into a sandbox, as for everybody else; ``place`` is where findings are kept."""
        self._launch = launch
        self._become = become
        self._place = place
        self._running: asyncio.Task[LimitTest] | None = None

    @property
    def passed(self) -> bool:
        """Whether every limit is known to hold."""
        task = self._running
        return task is not None and _succeeded(task) and all(check.holds for check in task.result().checks)

    async def result(self, cgroups: Cgroups, interpreter: str | None, *, fresh: bool = False) -> LimitTest:
        """Return what was found; ``fresh``: now.

        Raises :class:`IsolationUnavailable` or :class:`StartupFailed` where the test could not be carried out; who
        asks next has it tried again.
        """
        task = self._running
        if task is None or (task.done() and (fresh or not _succeeded(task))):
            task = self._running = asyncio.create_task(
                self._recall_or_test(cgroups, interpreter, fresh=fresh)
            )
        return await asyncio.shield(task)

    async def aclose(self) -> None:
        """End a test that runs."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _recall_or_test(self, cgroups: Cgroups, interpreter: str | None, *, fresh: bool) -> LimitTest:
        key = await asyncio.to_thread(proofs.key_of, cgroups)
        if not fresh and (known := proofs.recall(key, self._place)):
            return known
        begun = time.monotonic()
        zygote = await self._launch(Template("self-test", interpreter=interpreter, preload=()))
        try:
            async with asyncio.timeout(SECONDS):
                checks = await hit_all(zygote, cgroups, self._become)
        except TimeoutError as error:
            raise StartupFailed(f"the limits could not be tested within {SECONDS:g} s") from error
        finally:
            await zygote.aclose()
        test = LimitTest(tuple(checks), time.time(), time.monotonic() - begun)
        proofs.remember(key, test, self._place)
        return test


def require(test: LimitTest, limits: Limits) -> None:
    """Raise :class:`IsolationUnavailable` where a limit that ``limits`` ask for did not hold."""
    missing = missing_of(test, limits)
    if missing:
        raise IsolationUnavailable("limits do not hold on this host; they were hit to see", missing)


def missing_of(test: LimitTest, limits: Limits) -> tuple[Missing, ...]:
    """Return what did not hold and matters: memory, cpu and pids need not be asked for, everything else always is."""
    return tuple(
        Missing(
            f"limit: {check.name}",
            f"{check.how}, and the answer was: {check.answer}",
            "see 'cellfork doctor --fresh'; where the host cannot do better, "
            + (
                f"ask for none (Limits({check.limit}=None))"
                if check.limit in OPTIONAL
                else "sandboxes cannot run here"
            ),
        )
        for check in test.checks
        if not check.holds and (check.limit not in OPTIONAL or getattr(limits, check.limit) is not None)
    )


OPTIONAL = frozenset({"memory", "cpu", "pids"})


async def hit_all(zygote: Zygote, cgroups: Cgroups, become: Become) -> Checks:
    """Hit every limit that can be asked for here, each group of them in a sandbox of its own, side by side."""

    async def start(limits: Limits) -> Subject:
        fork = make_fork(zygote, cgroups)
        await become(fork, cgroups, SandboxSpec(template=Template("self-test"), limits=limits))
        return await Subject.of(fork)

    limits = LIMITS
    for name in OPTIONAL - cgroups.hierarchies.keys():
        limits = Limits.from_dict({**limits.to_dict(), name: None})
    parts: list[Coroutine[Any, Any, Checks]] = [hit_files(start, limits), hit_end(start, limits)]
    if limits.pids is not None:
        parts.append(hit_pids(start, limits))
    if limits.memory is not None:
        parts.append(hit_memory(start, limits))
    if limits.cpu is not None:
        parts.append(hit_cpu(start, replace(limits, cpu=CPU)))
    found = await _all_of(parts)
    return [check for checks in found for check in checks]


class Subject:
    """A sandbox under test: runs functions of ``guest/hits.py`` in it and returns what they answer."""

    def __init__(self, fork: Fork) -> None:
        self.guest = fork.guest
        self.group = fork.group
        self._channel = 0
        self._executions = 0
        self._output = bytearray()
        self._ended: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._gone: dict[str, Any] | None = None
        fork.guest.attach(self._on_frame, lambda _reason, _message: self._end_for_good({"op": "closed"}))

    @classmethod
    async def of(cls, fork: Fork) -> "Subject":
        """Return a subject with a kernel."""
        subject = cls(fork)
        subject.new_context()
        return subject

    def new_context(self) -> None:
        """Have code run by a new kernel from now on."""
        self._gone = None
        self._channel += 1
        self.guest.send(
            {"op": "context.start", "id": self._channel, "context": self._channel, "language": "python",
             "cwd": HOME, "envs": {}}
        )  # fmt: skip

    async def ask(self, function: str, *arguments: object) -> Any:
        """Call ``hits.function(*arguments)`` inside; return its answer, ``None`` where its kernel ended instead.

        Raises :class:`StartupFailed` where it raised, or answered what is no answer.
        """
        self.begin(function, *arguments)
        end = await self._ended
        if end["op"] != "done":
            return None
        try:
            if end["status"] == "ok":
                return json.loads(self._output)
        except ValueError:
            pass
        raise StartupFailed(
            f"the self-test cannot tell: {function} answered {end.get('name') or self._output!r:.200}"
        )

    def begin(self, function: str, *arguments: object) -> None:
        """Call a function that does not return."""
        self._executions += 1
        self._output.clear()
        self._ended = asyncio.get_running_loop().create_future()
        if self._gone:  # nobody is left who could answer
            self._end(self._gone)
            return
        call = f"hits.{function}({', '.join(map(repr, arguments))})"
        code = f"import json\nfrom cellfork.guest import hits\nprint(json.dumps({call}))"
        header = {
            "op": "execute",
            "execution": f"t{self._executions}",
            "envs": {},
            "stdin": False,
            "silent": False,
        }
        self.guest.send({**header, "output": 64 * KiB, "result": 64 * KiB}, code.encode(), self._channel)

    def _on_frame(self, frame: Frame) -> None:
        header = frame.header
        if frame.channel != self._channel:
            return
        if header["op"] == "stdout" and len(self._output) <= 64 * KiB:
            self._output += frame.body
        elif header["op"] == "done":
            self._end(header)
        elif header["op"] == "kernel_exit":
            self._end_for_good(header)

    def _end_for_good(self, how: dict[str, Any]) -> None:
        self._gone = how
        self._end(how)

    def _end(self, how: dict[str, Any]) -> None:
        if not self._ended.done():
            self._ended.set_result(how)


async def hit_files(start: Start, limits: Limits) -> Checks:
    """Fill every writable place with bytes and with files, then run into the limits of single processes."""
    async with _started(start, limits) as subject:
        checks: Checks = []
        size, count = plan.disk_size(limits), limits.inodes - plan.shared_memory_inodes(limits)
        for name, place in PLACES.items():
            checks += [
                await _amount(subject, "disk", f"disk: bytes in {name}", "ENOSPC", "disk", place, size),
                await _amount(subject, "inodes", f"disk: files in {name}", "ENOSPC", "inodes", place, count),
            ]
        shared = plan.shared_memory_size(limits), plan.shared_memory_inodes(limits)
        checks += [
            await _amount(subject, "disk", "shared memory: bytes", "ENOSPC", "disk", "/dev/shm", shared[0]),
            await _amount(
                subject, "inodes", "shared memory: files", "ENOSPC", "inodes", "/dev/shm", shared[1]
            ),
            await _places(subject),
            await _amount(subject, "disk", "size of a file", "EFBIG", "file_size", "/tmp", limits.disk_bytes),
            await _amount(subject, "open_files", "open files", "EMFILE", "open_files", limits.open_files),
            await _amount(subject, "", "terminals", "ENOSPC", "terminals", TERMINALS),
            await _amount(subject, "", "inotify instances", "EMFILE", "watches", WATCHERS),
            await _amount(subject, "", "waiting signals", "EAGAIN", "signals", plan.SIGNALS),
            await _amount(subject, "", "locked memory", "EPERM ENOMEM", "locked_memory"),
            await _amount(subject, "", "message queues", "ENOSYS EPERM EMFILE", "message_queue"),
            await _amount(subject, "", "core dumps", "RLIMIT_CORE", "core_dump", "/tmp"),
        ]
        return checks


async def _amount(
    subject: Subject, limit: str, name: str, expected: str, function: str, *arguments: str | int
) -> LimitCheck:
    """Check that ``function`` was refused as expected (one of several words), with no more than its last argument had."""
    most = arguments[-1] if arguments and isinstance(arguments[-1], int) else 0
    answer = await subject.ask(function, *arguments)
    how = (subject_of(function) + (f", of which {most:,} are allowed" if most else "")).strip()
    if not (
        isinstance(answer, list) and len(answer) == 2 and type(answer[0]) is str and type(answer[1]) is int
    ):
        return LimitCheck(limit, name, how, "its process ended", holds=False)
    refusal, amount = answer
    told = f"{refusal or 'no refusal'} after {amount:,}" if most else refusal or "no refusal"
    return LimitCheck(limit, name, how, told, holds=refusal in expected.split() and 0 <= amount <= most)


def subject_of(function: str) -> str:
    """Say what a function of ``guest/hits.py`` does."""
    return {
        "disk": "wrote bytes",
        "inodes": "made files",
        "file_size": "grew a file, in bytes",
        "open_files": "opened descriptors",
        "terminals": "opened terminals",
        "watches": "opened inotify instances",
        "signals": "queued signals",
        "locked_memory": "locked a page",
        "message_queue": "made a POSIX message queue",
        "core_dump": "crashed",
        "processes": "forked processes",
    }[function]


async def _places(subject: Subject) -> LimitCheck:
    """Check that no file can be made where no limit was hit."""
    known = {layout.DISK, HOME, ROOT_HOME, "/tmp", "/dev/shm"}
    found = await subject.ask("writable_places")
    places = set(map(str, found)) if isinstance(found, list) else {"?"}
    others = ", ".join(sorted(places - known)) or "none"
    return LimitCheck(
        "", "writable places", "tried to make a file on every mount", f"others: {others}", places <= known
    )


async def hit_pids(start: Start, limits: Limits) -> Checks:
    """Fork until that is refused."""
    async with _started(start, limits) as subject:
        check = await _amount(subject, "pids", "processes", "EAGAIN", "processes", limits.pids or 0)
        return [check]


async def hit_memory(start: Start, limits: Limits) -> Checks:
    """See that everything that takes memory is counted, then take more than there is."""
    async with _started(start, limits) as subject:
        await subject.ask("locked_memory")  # so that what a first execution takes is not counted
        counted = [
            await _counted(subject, "files", "hold_file", "/tmp", HELD),
            await _counted(subject, "shared memory", "hold_file", "/dev/shm", HELD),
            await _counted(subject, "files without a name", "hold_memfd", HELD),
            await _counted(subject, "pipes", "hold_pipes", PIPES),
            await _counted(subject, "socket buffers", "hold_datagrams", SOCKETS),
        ]
        before = subject.guest.usage().oom_kills
        answer = await subject.ask("memory", 2 * limits.memory_bytes)
        return [*counted, *_told_of_memory(subject, limits, kills=subject.guest.usage().oom_kills - before),
                await _goes_on(subject, answer)]  # fmt: skip


async def _counted(subject: Subject, what: str, function: str, *arguments: str | int) -> LimitCheck:
    """Check that at least half of what was taken appears in what the host counts: it counts in steps, and late."""
    before = _taken(subject)
    held = await subject.ask(function, *arguments)
    grown = _taken(subject) - before
    name = f"memory: {what}"
    if type(held) is not int or held <= 0:
        return LimitCheck("memory", name, "held memory of this kind", "none could be held", holds=False)
    return LimitCheck(
        "memory", name, f"held {held:,} bytes", f"{grown:,} more were counted", grown >= held // 2
    )


def _taken(subject: Subject) -> int:
    """Return what the host counts, the buffers of sockets included where they are counted apart."""
    used = subject.guest.usage().memory or 0
    return used + ((subject.group.sockets() or 0) if subject.group.counts_sockets_apart else 0)


def _told_of_memory(subject: Subject, limits: Limits, *, kills: int) -> Checks:
    peak, swap = subject.guest.usage().peak_memory, subject.group.swap()
    most = limits.memory_bytes
    held_by = (
        f"{kills} processes killed by the kernel, peak {peak:,} bytes"
        if peak is not None
        else f"{kills} killed"
    )
    return [
        LimitCheck("memory", "memory", f"took up to {2 * most:,} bytes, of which {most:,} are allowed", held_by,
                   kills > 0 and (peak is None or peak <= most)),
        LimitCheck("memory", "swap", "the same",
                   "none used, and the kernel counts it" if swap == 0 else
                   "the host has none, or the kernel does not count it" if swap is None else f"{swap:,} bytes used",
                   kills > 0 and not swap),
    ]  # fmt: skip


async def _goes_on(subject: Subject, answer: object) -> LimitCheck:
    """Check that only the kernel ended, and that the sandbox starts another."""
    subject.new_context()
    again = await subject.ask("locked_memory")
    ok = answer is None and again is not None
    return LimitCheck(
        "memory", "memory: the sandbox goes on", "ran code after that", "a new kernel" if ok else "none", ok
    )


async def hit_cpu(start: Start, limits: Limits) -> Checks:
    """Use a processor for ever, until the host has seen the quota used up in a few periods."""
    async with _started(start, limits) as subject:
        subject.begin("spin")
        begun, before = time.monotonic(), subject.guest.usage().cpu_time
        first = subject.group.throttled() or 0
        times = 0
        while times < THROTTLED and time.monotonic() - begun < SECONDS / 3:
            await asyncio.sleep(0.03)
            times = (subject.group.throttled() or 0) - first
        wall, after = time.monotonic() - begun, subject.guest.usage().cpu_time
        used = None if before is None or after is None else after - before
        most = (wall + 0.2) * (limits.cpu or 0) * CPU_TOLERANCE + CPU_OVERRUN
        told = f"stopped in {times} periods" + (
            "" if used is None else f", {used:.2f} s used in {wall:.2f} s"
        )
        holds = times >= THROTTLED and (used is None or used <= most)
        return [
            LimitCheck(
                "cpu", "processor time", f"spun, where {limits.cpu:g} processors are allowed", told, holds
            )
        ]


async def hit_end(start: Start, limits: Limits) -> Checks:
    """End a sandbox whose processes do not want to: whatever has a deadline relies on that."""
    async with _started(start, limits) as subject:
        subject.begin("spin")
        await asyncio.sleep(0.05)
        pidfds = _open_processes(subject)
        try:
            begun = time.monotonic()
            await subject.guest.kill()
            took = time.monotonic() - begun
            left = sum(not select.select([fd], [], [], 0)[0] for fd in pidfds)
        finally:
            for fd in pidfds:
                os.close(fd)
        told = f"{len(pidfds)} processes, {left} left after {took * 1000:.0f} ms"
        holds = left == 0 and took <= KILL_SECONDS
        return [
            LimitCheck("", "wall time: the end", "killed processes that ignore every signal", told, holds)
        ]


def _open_processes(subject: Subject) -> list[int]:
    fds: list[int] = []
    for pid in {*subject.group.processes(), subject.guest.info["pid"]}:
        with contextlib.suppress(ProcessLookupError):
            fds.append(os.pidfd_open(pid))
    return fds


@contextlib.asynccontextmanager
async def _started(start: Start, limits: Limits) -> AsyncIterator[Subject]:
    subject = await start(limits)
    try:
        yield subject
    finally:
        await subject.guest.kill()


async def _all_of(parts: Sequence[Coroutine[Any, Any, Checks]]) -> list[Checks]:
    """Run all side by side to their ends; then raise the first failure, of a typed one before others."""
    results = await asyncio.gather(*parts, return_exceptions=True)
    failures = [result for result in results if isinstance(result, BaseException)]
    for failure in sorted(failures, key=lambda failure: not isinstance(failure, CellforkError)):
        raise failure
    return [result for result in results if not isinstance(result, BaseException)]


def _succeeded(task: "asyncio.Task[LimitTest]") -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
