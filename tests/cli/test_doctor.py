"""``cellfork doctor``."""

import json
from pathlib import Path

import pytest

from cellfork.cli import findings
from cellfork.model.errors import Missing
from cellfork.runtimes.base import LimitCheck, LimitTest, RuntimeReport
from tests.cli.conftest import Invoke

GOOD = RuntimeReport("namespaces", available=True, features={"landlock": "ABI 6"})
BAD = RuntimeReport(
    "namespaces",
    available=False,
    missing=(
        Missing("user namespaces", "sandboxes are built from them", "sysctl user.max_user_namespaces=10000"),
    ),
)


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> RuntimeReport:
    async def probe(*, fresh: bool) -> list[RuntimeReport]:
        return [request.param]

    monkeypatch.setattr(findings, "probe_runtimes", probe)
    found: RuntimeReport = request.param
    return found


@pytest.mark.parametrize("report", [GOOD], indirect=True)
def test_where_the_isolation_works(invoke: Invoke, report: RuntimeReport) -> None:
    """Exit code 0, and every feature with what was found."""
    outcome = invoke("doctor")
    assert outcome.code == 0
    assert "ABI 6" in outcome.out
    assert "works here" in outcome.out


@pytest.mark.parametrize("report", [BAD], indirect=True)
def test_where_it_does_not(invoke: Invoke, report: RuntimeReport) -> None:
    """Exit code 5; what is missing, what that costs and how to get it are all there."""
    outcome = invoke("doctor")
    assert outcome.code == 5
    assert all(part in outcome.out for part in ("user namespaces", "built from them", "sysctl user.max"))


CHECKS = (
    LimitCheck(
        "pids", "processes", "forked processes, of which 24 are allowed", "EAGAIN after 22", holds=True
    ),
    LimitCheck("disk", "size of a file", "grew a file", "no refusal", holds=False),
)
TESTED = RuntimeReport(
    "namespaces",
    available=False,
    missing=(Missing("limit: size of a file", "w", "f"),),
    limits=LimitTest(CHECKS, 0.0, 0.7),
)


@pytest.mark.parametrize("report", [TESTED], indirect=True)
def test_the_table_of_limits(invoke: Invoke, report: RuntimeReport) -> None:
    """Each limit with how it was hit, what answered and when; one that does not hold is called that, and ends with 5."""
    outcome = invoke("doctor")
    text = " ".join(outcome.out.split())
    assert "hit just now, in 0.7 s" in text
    assert "forked processes, of which 24 are allowed: EAGAIN after 22" in text
    assert "NOT ENFORCED: grew a file: no refusal" in text
    assert outcome.code == 5


@pytest.mark.parametrize("report", [TESTED], indirect=True)
def test_the_limits_in_json(invoke: Invoke, report: RuntimeReport) -> None:
    """``--json`` has the checks as values, and whether they are remembered."""
    limits = json.loads(invoke("doctor", "--json").out)["limits"]
    assert [check["holds"] for check in limits["checks"]] == [True, False]
    assert limits["remembered"] is False


def test_fresh_is_passed_on(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--fresh`` lets the runtimes test anew; without it they may recall."""
    asked = []

    async def probe(*, fresh: bool) -> list[RuntimeReport]:
        asked.append(fresh)
        return [GOOD]

    monkeypatch.setattr(findings, "probe_runtimes", probe)
    invoke("doctor", "--fresh")
    invoke("doctor")
    assert asked == [True, False]


@pytest.mark.parametrize("report", [BAD], indirect=True)
def test_json(invoke: Invoke, report: RuntimeReport) -> None:
    """``--json`` prints one object with the same findings."""
    diagnosis = json.loads(invoke("doctor", "--json").out)
    assert diagnosis["isolation"] == "namespaces"
    assert diagnosis["available"] is False
    missing = [finding for finding in diagnosis["findings"] if finding["name"] == "user namespaces"]
    assert missing[0]["state"] == "missing"
    assert missing[0]["fix"].startswith("sysctl")


@pytest.mark.parametrize(
    "mounts, expected",
    [
        ("none /sys/fs/cgroup cgroup2 rw 0 0\n", "version 2 at /sys/fs/cgroup"),
        ("c /sys/fs/cgroup/memory cgroup rw,memory 0 0\n", "version 1 at /sys/fs/cgroup/memory"),
        ("c /c1 cgroup rw 0 0\nc /c2 cgroup2 rw 0 0\n", "version 1 at /c1, version 2 at /c2"),
        ("", "not mounted"),
    ],
)
def test_layouts_of_control_groups(mounts: str, expected: str) -> None:
    """Version 2, version 1, both, and none are told apart."""
    assert findings._cgroups(mounts).detail == expected


@pytest.mark.parametrize(
    ("name", "value", "root", "state"),
    [
        ("user/max_user_namespaces", "0", True, "absent"),
        ("user/max_user_namespaces", "100", False, "present"),
        ("kernel/unprivileged_userns_clone", "0", True, "present"),
        ("kernel/unprivileged_userns_clone", "0", False, "absent"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1", False, "absent"),
        ("kernel/apparmor_restrict_unprivileged_userns", "0", False, "present"),
    ],
)
def test_settings_that_forbid_user_namespaces(
    tmp_path: Path, name: str, value: str, root: bool, state: str
) -> None:
    """A setting that forbids user namespaces, to this user, is named with the command that changes it."""
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text(value + "\n")
    finding = findings._user_namespaces(tmp_path, privileged=root)
    assert finding.state == state
    assert (name.rpartition("/")[2] in finding.fix) is (state == "absent")


def test_what_is_absent_has_a_price_and_a_remedy() -> None:
    """Whatever is not there says what that costs and how to get it."""
    for finding in [
        *findings.of_host(),
        *findings.of_python(),
        findings._package("surely_not_there", "absent", "c", "f"),
    ]:
        if finding.state != "present":
            assert finding.cost
            assert finding.fix
