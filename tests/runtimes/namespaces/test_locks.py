"""A lock that does not hold keeps a sandbox from starting, with its name, and leaves nothing behind."""

import struct

import pytest

from cellfork.model.errors import CellforkError, StartupFailed
from cellfork.model.limits import Limits
from cellfork.model.specs import SandboxSpec, Template
from cellfork.runtimes.namespaces import runtime as namespaces
from cellfork.runtimes.namespaces import seccomp
from cellfork.runtimes.namespaces.runtime import NamespacesRuntime
from tests.runtimes.conftest import SPEC

ALLOW_ALL = struct.pack("=HBBI", 0x06, 0, 0, seccomp.ALLOW)


async def refusal(spec: SandboxSpec = SPEC) -> CellforkError:
    runtime = NamespacesRuntime(pool=0, prefork=0)
    try:
        with pytest.raises(CellforkError) as caught:
            await runtime.start(spec)
        return caught.value
    finally:
        await runtime.aclose()


async def test_a_base_filter_that_allows_everything_is_noticed(monkeypatch):
    """The calls of both filters are tried inside: a filter that is loaded and does nothing does not pass for one."""
    monkeypatch.setattr(seccomp, "base_filter", lambda: ALLOW_ALL)
    error = await refusal()
    assert isinstance(error, StartupFailed)
    assert "'seccomp'" in str(error)


async def test_a_delta_that_allows_everything_is_noticed(monkeypatch):
    """So is a delta that leaves the calls of the set-up open."""
    monkeypatch.setattr(seccomp, "delta_filter", lambda: ALLOW_ALL)
    error = await refusal()
    assert isinstance(error, StartupFailed)
    assert "'seccomp'" in str(error)


async def test_a_filter_that_the_kernel_refuses_is_an_error(monkeypatch):
    """A program that cannot be loaded is named, never left out."""
    monkeypatch.setattr(seccomp, "delta_filter", lambda: struct.pack("=HBBI", 0xFF, 0, 0, 0))
    assert "the lock 'seccomp' could not be taken" in str(await refusal())


async def test_a_zygote_without_its_filter_does_not_start(monkeypatch):
    """Where the base filter cannot be loaded there is no zygote."""
    monkeypatch.setattr(seccomp, "base_filter", lambda: struct.pack("=HBBI", 0xFF, 0, 0, 0))
    error = await refusal()
    assert "Invalid argument" in str(error)


async def test_landlock_that_is_announced_must_work(monkeypatch):
    """An ABI level that the kernel reports and does not keep is an error: only level 0 may do without."""
    original = namespaces.sandbox_plan

    def announced(*arguments, **named):
        return {**original(*arguments, **named), "landlock": 1, "writable": ["/no/such/place"]}

    monkeypatch.setattr(namespaces, "sandbox_plan", announced)
    assert "the lock 'landlock' could not be taken" in str(await refusal())


async def test_a_mount_that_fails_is_an_error(monkeypatch):
    """What comes before the locks ends the start in the same way."""
    original = namespaces.sandbox_plan
    monkeypatch.setattr(
        namespaces, "sandbox_plan", lambda *a, **n: {**original(*a, **n), "disk_path": "/no/such/place"}
    )
    error = await refusal()
    assert isinstance(error, StartupFailed)
    assert "/no/such/place" in str(error)


async def test_a_limit_above_what_the_host_allows_is_an_error(monkeypatch):
    """A limit that cannot be set is named: a sandbox never runs without one of its limits."""
    import resource

    from cellfork.runtimes import plan

    most = [[resource.RLIMIT_NOFILE, (1 << 31), (1 << 31)]]
    monkeypatch.setattr(plan, "rlimits", lambda spec: most)
    spec = SandboxSpec(template=Template("bare", preload=()), limits=Limits(memory="256M", pids=64))
    assert "the lock 'resource limits'" in str(await refusal(spec))
