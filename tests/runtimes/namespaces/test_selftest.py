"""The self-test: what holds is found to hold, what does not is found out, and only what can be trusted is remembered."""

import asyncio
import json
import os
import resource
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cellfork.model.errors import IsolationUnavailable, SandboxGone, StartupFailed
from cellfork.model.limits import Limits, MiB
from cellfork.model.specs import SandboxSpec, Template
from cellfork.runtimes import plan
from cellfork.runtimes.base import LimitCheck, LimitTest
from cellfork.runtimes.namespaces import proofs, runtime, selftest
from cellfork.runtimes.namespaces.cgroups import Cgroups
from cellfork.runtimes.namespaces.prefork import make_fork
from cellfork.runtimes.namespaces.runtime import NamespacesRuntime, launch_zygote
from cellfork.runtimes.waiting import until
from tests.runtimes.conftest import SPEC, Client

GOOD = LimitCheck("memory", "memory", "took memory", "killed", holds=True)
BAD = replace(GOOD, name="swap", holds=False)
BAD_DISK = LimitCheck("disk", "disk: bytes in home", "wrote bytes", "no refusal", holds=False)


def test_of(*checks: LimitCheck) -> LimitTest:
    return LimitTest(checks, 1000.0, 0.5)


test_of.__test__ = False  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------------------ what is found out


@pytest.fixture
async def host() -> AsyncIterator[NamespacesRuntime]:
    """A runtime that starts nothing by itself."""
    host = NamespacesRuntime(pool=0, prefork=0)
    yield host
    await host.aclose()


@pytest.fixture
async def zygote() -> AsyncIterator[Any]:
    zygote = await launch_zygote(Template("self-test", preload=()))
    yield zygote
    await zygote.aclose()


async def found_by(
    part: Any, zygote: Any, limits: Limits, host: NamespacesRuntime, **not_enforced: Any
) -> dict[str, bool]:
    """What ``part`` finds where the limits ``not_enforced`` are accepted, and others are set in their place."""

    async def start(asked: Limits) -> selftest.Subject:
        return await subject_of(zygote, host, replace(asked, **not_enforced))

    return {check.name: check.holds for check in await part(start, limits)}


async def subject_of(zygote: Any, host: NamespacesRuntime, limits: Limits) -> selftest.Subject:
    cgroups = Cgroups.detect()
    fork = make_fork(zygote, cgroups)
    await host._become(fork, cgroups, SandboxSpec(template=Template("self-test"), limits=limits))
    return await selftest.Subject.of(fork)


PARTS = {
    "files": (selftest.hit_files, selftest.LIMITS),
    "pids": (selftest.hit_pids, selftest.LIMITS),
    "memory": (selftest.hit_memory, selftest.LIMITS),
    "cpu": (selftest.hit_cpu, replace(selftest.LIMITS, cpu=selftest.CPU)),
    "end": (selftest.hit_end, selftest.LIMITS),
}


@pytest.mark.parametrize("name", PARTS)
async def test_every_limit_holds_here(name, zygote, host):
    """On a host where everything is there, every check of every part holds."""
    part, limits = PARTS[name]
    found = await found_by(part, zygote, limits, host)
    assert found
    assert all(found.values()), found


LOOSE = [
    ("pids", {"pids": 200}, {"processes"}),
    ("cpu", {"cpu": None}, {"processor time"}),
    ("cpu", {"cpu": 1.0}, {"processor time"}),
    ("memory", {"memory": 1024 * MiB}, {"memory"}),
    ("files", {"disk": 60 * MiB, "memory": 512 * MiB}, {"disk: bytes in home", "shared memory: bytes", "size of a file"}),
    ("files", {"inodes": 5000}, {"disk: files in /tmp", "shared memory: files"}),
    ("files", {"open_files": 1024}, {"open files"}),
]  # fmt: skip


@pytest.mark.parametrize("name, not_enforced, expected", LOOSE)
async def test_a_limit_that_does_not_bite_is_found_out(
    name, not_enforced, expected, zygote, host, monkeypatch
):
    """Where a limit is accepted and another one set, the check of that limit does not hold; the others do."""
    monkeypatch.setattr(selftest, "SECONDS", 6.0)  # of which the processor gets a third to be stopped in
    part, limits = PARTS[name]
    found = await found_by(part, zygote, limits, host, **not_enforced)
    assert expected <= {name for name, holds in found.items() if not holds}


async def test_a_process_limit_that_is_not_set_is_found_out(zygote, host, monkeypatch):
    """The limits of single processes are hit as well, not looked up."""
    original, dropped = plan.rlimits, resource.RLIMIT_SIGPENDING
    monkeypatch.setattr(
        plan, "rlimits", lambda spec: [entry for entry in original(spec) if entry[0] != dropped]
    )
    monkeypatch.setattr(plan, "SIGNALS", 1000)  # twice of which the host's own limit lets pass
    found = await found_by(selftest.hit_files, zygote, selftest.LIMITS, host)
    assert {name for name, holds in found.items() if not holds} == {"waiting signals"}


async def test_an_end_that_leaves_somebody_is_found_out(zygote, host, monkeypatch):
    """A process of the sandbox that is there after the kill is a failure of the limit on time."""
    stayer = os.pidfd_open(os.getpid())
    original = selftest._open_processes
    monkeypatch.setattr(selftest, "_open_processes", lambda subject: [*original(subject), os.dup(stayer)])
    assert await found_by(selftest.hit_end, zygote, selftest.LIMITS, host) == {"wall time: the end": False}
    os.close(stayer)


async def test_who_is_gone_is_not_waited_for(zygote, host):
    """Where the kernel under test ended, every later question has no answer at once; so where its sandbox did."""
    subject = await subject_of(zygote, host, selftest.LIMITS)
    async with asyncio.timeout(30):
        assert await subject.ask("os._exit", 3) is None
        assert await subject.ask("locked_memory") is None
        subject.new_context()
        assert await subject.ask("locked_memory") is not None
        await subject.guest.kill()
        assert await subject.ask("locked_memory") is None
        with pytest.raises(SandboxGone):
            subject.new_context()


@pytest.mark.parametrize("answer", [None, [], ["ENOSPC"], [1, 2], ["ENOSPC", "many"], {"a": 1}])
async def test_an_answer_that_is_none_does_not_hold(answer):
    """Whatever comes from inside is only believed where it is an answer."""

    class Odd:
        async def ask(self, *_arguments: object) -> Any:
            return answer

    check = await selftest._amount(Odd(), "disk", "bytes", "ENOSPC", "disk", "/tmp", 100)  # type: ignore[arg-type]
    assert not check.holds


async def test_more_than_was_allowed_does_not_hold():
    """The right refusal too late is none."""

    class Late:
        async def ask(self, *_arguments: object) -> Any:
            return ["ENOSPC", 101]

    check = await selftest._amount(Late(), "disk", "bytes", "ENOSPC", "disk", "/tmp", 100)  # type: ignore[arg-type]
    assert not check.holds


# ------------------------------------------------------------------------------------------- what comes of it


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where findings are kept, for this test alone."""
    place = tmp_path / "cellfork"
    monkeypatch.setattr(proofs, "directory", lambda: place)
    return place


@pytest.fixture
def tests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[LimitCheck, ...]]:
    """Replaces hitting the limits: each run takes the next outcome of this list, the last one again and again."""
    outcomes: list[tuple[LimitCheck, ...]] = [(GOOD,)]

    async def hit_all(*_arguments: object) -> list[LimitCheck]:
        await asyncio.sleep(0.05)
        runs.append(time.monotonic())
        return [*outcomes[min(len(runs), len(outcomes)) - 1]]

    runs: list[float] = []
    monkeypatch.setattr(selftest, "hit_all", hit_all)
    outcomes_runs[id(outcomes)] = runs
    return outcomes


outcomes_runs: dict[int, list[float]] = {}


async def test_no_sandbox_before_the_limits_hold(store, tests):
    """Where a limit does not hold, whoever asks for it is refused before anything starts; the refusal names it."""
    tests[:] = [(GOOD, BAD, BAD_DISK)]
    host = NamespacesRuntime(pool=0, prefork=0)
    try:
        with pytest.raises(IsolationUnavailable) as refused:
            await host.start(SPEC)
        assert [missing.feature for missing in refused.value.missing] == [
            "limit: swap",
            "limit: disk: bytes in home",
        ]
        assert host._guests == set()
    finally:
        await host.aclose()


async def test_limits_that_nobody_asked_for_do_not_matter(store, tests):
    """A host whose memory limit does not hold still runs sandboxes without one; a disk cannot be done without."""
    tests[:] = [(GOOD, BAD)]
    host = NamespacesRuntime(pool=0, prefork=0)
    try:
        guest = await host.start(replace(SPEC, limits=replace(SPEC.limits, memory=None)))
        assert (await Client(guest).request(1, "ping"))["ok"]
        with pytest.raises(IsolationUnavailable):
            selftest.require(test_of(BAD_DISK), replace(SPEC.limits, memory=None))
    finally:
        await host.aclose()


async def test_once_for_all_that_ask_at_the_same_time_and_later(store, tests):
    """Concurrent first creates share one test; later ones, and later runtimes, recall it."""
    for _ in range(2):
        host = NamespacesRuntime(pool=0, prefork=0)
        try:
            await asyncio.gather(*(host.start(SPEC) for _ in range(3)))
            await host.start(SPEC)
        finally:
            await host.aclose()
    assert len(outcomes_runs[id(tests)]) == 1


async def test_a_failure_is_not_remembered(store, tests):
    """A limit that did not hold is tried again by the next runtime: the host may have been put right."""
    tests[:] = [(BAD,), (GOOD,)]
    host = NamespacesRuntime(pool=0, prefork=0)
    with pytest.raises(IsolationUnavailable):
        await host.start(SPEC)
    await host.aclose()
    assert not store.exists() or not os.listdir(store)
    host = NamespacesRuntime(pool=0, prefork=0)
    await host.start(SPEC)
    await host.aclose()


async def test_a_test_that_could_not_be_carried_out_is_tried_again(store, tests, monkeypatch):
    """No answer is no permission: the create fails, typed, and the next one tests again."""
    host = NamespacesRuntime(pool=0, prefork=0)
    good = selftest.hit_all

    async def broken(*_arguments: object) -> list[LimitCheck]:
        raise StartupFailed("the zygote ended")

    monkeypatch.setattr(selftest, "hit_all", broken)
    with pytest.raises(StartupFailed):
        await host.start(SPEC)
    monkeypatch.setattr(selftest, "hit_all", good)
    await host.start(SPEC)
    await host.aclose()


async def test_a_test_without_end_is_given_up(store, tests, monkeypatch):
    """The first create is not held up for ever."""

    async def endless(*_arguments: object) -> list[LimitCheck]:
        await asyncio.sleep(3600)
        return []

    monkeypatch.setattr(selftest, "hit_all", endless)
    monkeypatch.setattr(selftest, "SECONDS", 0.1)
    host = NamespacesRuntime(pool=0, prefork=0)
    with pytest.raises(StartupFailed, match="could not be tested"):
        await host.start(SPEC)
    await host.aclose()


async def test_closing_ends_a_test_that_runs(store, tests):
    """A runtime that is closed while it tests leaves nothing behind."""
    host = NamespacesRuntime(pool=0, prefork=0)
    creating = asyncio.create_task(host.start(SPEC))
    await asyncio.sleep(0.02)
    await host.aclose()
    await asyncio.gather(creating, return_exceptions=True)


async def test_closing_ends_the_sandboxes_of_a_test(store):
    """They are gone, with their control groups, when the runtime has been closed."""
    host = NamespacesRuntime(pool=0, prefork=0)
    cgroups = Cgroups.detect()
    before = cgroups.names()
    testing = asyncio.create_task(host.selftest.result(cgroups, None))
    assert await until(lambda: len(cgroups.names()) > len(before), 20)
    await host.aclose()
    assert cgroups.names() == before
    await asyncio.gather(testing, return_exceptions=True)


async def test_who_is_refused_leaves_no_test_behind(store, tests, monkeypatch):
    """Where there is no zygote, the refusal comes when the test is over as well."""
    host = NamespacesRuntime(pool=0, prefork=0)

    async def refuse(*_arguments: object) -> None:
        raise StartupFailed("no zygote")

    monkeypatch.setattr(host._zygotes, "of", refuse)
    with pytest.raises(StartupFailed, match="no zygote"):
        await host.start(SPEC)
    assert len(outcomes_runs[id(tests)]) == 1
    await host.aclose()


async def test_fresh_tests_again(store, tests):
    """``probe(fresh=True)`` relies on nothing that was found before."""
    host = NamespacesRuntime(pool=0, prefork=0)
    try:
        remembered = [(await host.probe(fresh=fresh)).limits.remembered for fresh in (False, True, False)]  # type: ignore[union-attr]
        assert remembered == [False, False, False]
        assert len(outcomes_runs[id(tests)]) == 2
    finally:
        await host.aclose()


# ------------------------------------------------------------------------------------------ what is remembered

KEY = {"boot": "b", "kernel": "k"}


def kept(store: Path) -> Path:
    (file,) = store.iterdir()
    return file


def test_what_is_remembered_is_recalled(store):
    """The same checks come back, marked as remembered; the directory and the file are this user's alone."""
    assert proofs.remember(KEY, test_of(GOOD), store)
    found = proofs.recall(KEY, store)
    assert found is not None
    assert found.remembered
    assert found.checks == (GOOD,)
    assert store.stat().st_mode & 0o777 == 0o700
    assert kept(store).stat().st_mode & 0o777 == 0o600


def test_another_boot_kernel_or_layout_is_another_host(store):
    """What was found counts for the key that it was found under, and for no other."""
    proofs.remember(KEY, test_of(GOOD), store)
    assert proofs.recall({**KEY, "boot": "c"}, store) is None


def test_the_key_names_the_host_the_user_and_the_code(tmp_path):
    """Boot, kernel, version, code, user, namespaces and control groups are all in the key."""
    key = proofs.key_of(Cgroups({}))
    assert set(key) == {"boot", "kernel", "version", "code", "user", "namespaces", "control groups"}
    assert key["boot"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    (tmp_path / "guest").mkdir()
    (tmp_path / "guest/a.py").write_text("x = 1")
    before = proofs.fingerprint(tmp_path)
    (tmp_path / "guest/a.py").write_text("x = 2")
    assert proofs.fingerprint(tmp_path) != before


def test_what_does_not_hold_is_not_written(store):
    """Only success is remembered."""
    assert not proofs.remember(KEY, test_of(GOOD, BAD), store)
    assert not store.exists()


def spoil_text(store: Path) -> None:
    kept(store).write_text("{")


def spoil_nothing_checked(store: Path) -> None:
    _rewrite(store, checks=[])


def spoil_verdict(store: Path) -> None:
    _rewrite(store, checks=[{"limit": "", "name": "n", "how": "h", "answer": "a", "holds": "yes"}])


def spoil_shape(store: Path) -> None:
    _rewrite(store, checks=[{"name": "n"}])


def spoil_key(store: Path) -> None:
    values = json.loads(kept(store).read_text())
    kept(store).write_text(json.dumps({**values, "key": {}}))


def spoil_nesting(store: Path) -> None:
    kept(store).write_text("[" * 100_000)


def spoil_size(store: Path) -> None:
    kept(store).write_text(kept(store).read_text() + " " * proofs.MAX_SIZE)


def spoil_mode_of_file(store: Path) -> None:
    kept(store).chmod(0o666)


def spoil_mode_of_directory(store: Path) -> None:
    store.chmod(0o755)


def spoil_link(store: Path) -> None:
    file = kept(store)
    file.rename(store.parent / "elsewhere")
    file.symlink_to(store.parent / "elsewhere")


def spoil_linked_directory(store: Path) -> None:
    store.rename(store.parent / "elsewhere")
    store.symlink_to(store.parent / "elsewhere")


def spoil_pipe(store: Path) -> None:
    file = kept(store)
    file.unlink()
    os.mkfifo(file, 0o600)


def _rewrite(store: Path, **test: Any) -> None:
    values = json.loads(kept(store).read_text())
    kept(store).write_text(json.dumps({**values, "test": {**values["test"], **test}}))


SPOILERS = [spoil_text, spoil_nothing_checked, spoil_verdict, spoil_shape, spoil_key, spoil_nesting, spoil_size,
            spoil_mode_of_file, spoil_mode_of_directory, spoil_link, spoil_linked_directory, spoil_pipe]  # fmt: skip


@pytest.mark.parametrize("spoil", SPOILERS)
def test_what_cannot_be_trusted_is_not_there(store, spoil):
    """Corrupt, foreign, reachable for others, a link, a pipe: as if nothing had been found."""
    proofs.remember(KEY, test_of(GOOD), store)
    assert proofs.recall(KEY, store) is not None
    spoil(store)
    assert proofs.recall(KEY, store) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user cannot give files away")
@pytest.mark.parametrize("what", ["directory", "file"])
def test_what_belongs_to_somebody_else_is_not_trusted(store, what):
    """Who owns the directory or the file could have written anything."""
    proofs.remember(KEY, test_of(GOOD), store)
    os.chown(store if what == "directory" else kept(store), 12345, 12345)
    assert proofs.recall(KEY, store) is None
    if what == "directory":
        assert not proofs.remember(KEY, test_of(GOOD), store)


def test_without_a_place_nothing_is_remembered(tmp_path):
    """A user without a directory of its own tests anew each time."""
    assert not proofs.remember(KEY, test_of(GOOD), None)
    assert proofs.recall(KEY, None) is None
    (tmp_path / "file").write_text("")
    assert not proofs.remember(KEY, test_of(GOOD), tmp_path / "file" / "cellfork")


def test_only_the_latest_are_kept(store):
    """Every boot and every version leaves a file; the oldest go."""
    for number in range(proofs.KEPT + 3):
        proofs.remember({"boot": str(number)}, test_of(GOOD), store)
        os.utime(
            next(iter(sorted(store.iterdir(), key=lambda path: path.stat().st_mtime_ns, reverse=True))),
            (number, number),
        )
    assert len(list(store.iterdir())) <= proofs.KEPT + 1
    assert proofs.recall({"boot": str(proofs.KEPT + 2)}, store) is not None


def test_the_place_is_private_to_root_or_to_the_user(monkeypatch):
    """Root has /run/cellfork, others their runtime directory, or a directory in their home."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert proofs.directory() == Path("/run/cellfork")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    assert proofs.directory() == Path("/run/user/1000/cellfork")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("HOME", "/home/someone")
    assert proofs.directory() == Path("/home/someone/.cache/cellfork")


async def test_nothing_in_the_environment_skips_the_test(store, tests, monkeypatch):
    """There is no switch: a runtime tests whatever the environment says."""
    for name in ("CELLFORK_SELFTEST", "CELLFORK_SELF_TEST", "CELLFORK_NO_SELFTEST", "CELLFORK_SKIP_SELFTEST"):
        monkeypatch.setenv(name, "0")
    host = runtime.NamespacesRuntime(pool=0, prefork=0)
    await host.start(SPEC)
    await host.aclose()
    assert len(outcomes_runs[id(tests)]) == 1
