"""The compiled filters, read back by a small BPF interpreter."""

import errno
import os
import resource
from itertools import combinations

import pytest

from cellfork.runtimes.namespaces import seccomp
from tests.runtimes.namespaces import bpf

MACHINES = ["x86_64", "aarch64"]
ORDINARY = {
    "arch_prctl": (0x1002,),
    "clone": (17,),
    "prctl": (15,),
    "socket": (seccomp.AF_UNIX, 1),
    "socketpair": (1, 1),
}
"""Arguments that are allowed, of calls whose arguments decide and that refuse zeros."""


def error(number: int) -> int:
    return seccomp.ERRNO | number


@pytest.fixture(params=MACHINES)
def machine(request) -> str:
    return request.param


@pytest.fixture
def decide(machine):
    """Ask the base filter."""
    program = seccomp.base_filter(machine)
    table = seccomp.TABLES[machine]

    def decide(call: str | int, *arguments: int, arch: int | None = None) -> int:
        number = table[call] if isinstance(call, str) else call
        return bpf.run(program, number, *arguments, arch=arch or seccomp.AUDIT_ARCH[machine])

    return decide


def test_every_known_call_gets_the_answer_that_the_lists_say(machine, decide):
    """Each name is allowed, refused, absent, unfit or in vain exactly as the policy's lists have it."""
    answers = {
        **dict.fromkeys(seccomp.REFUSED, error(errno.EPERM)),
        **dict.fromkeys(seccomp.ABSENT, error(errno.ENOSYS)),
        **dict.fromkeys(seccomp.UNFIT, error(errno.EINVAL)),
        **dict.fromkeys(seccomp.VAIN, error(0)),
    }
    for name in seccomp.TABLES[machine]:
        assert decide(name, *ORDINARY.get(name, ())) == answers.get(name, seccomp.ALLOW), name


def test_every_unknown_number_is_absent(machine, decide):
    """A number that no list names answers ENOSYS, also far beyond the last known one."""
    known = set(seccomp.TABLES[machine].values())
    for number in [*range(1024), 5000, 0x3FFFFFFF]:
        if number not in known:
            assert decide(number) == error(errno.ENOSYS), number


def test_a_foreign_system_call_table_kills(machine, decide):
    """ia32 calls on x86_64, arm calls on aarch64, and any other architecture end the process."""
    for arch in (0x40000003, 0x40000028, 0xC0000015, 1):
        for call in ("read", "execve", "exit_group", 999):
            assert decide(call, arch=arch) == seccomp.KILL


def test_x32_numbers_are_absent(decide):
    """The x32 table, which shares x86_64's architecture number, answers ENOSYS; so do negative numbers."""
    for number in (seccomp.X32_BIT, seccomp.X32_BIT | 1, seccomp.X32_BIT | 520, -1, -(1 << 31)):
        assert decide(number) == error(errno.ENOSYS)


@pytest.mark.parametrize(
    ("family", "kind", "protocol", "expected"),
    [
        (1, 1, 0, 0), (1, 2, 0, 0), (1, 5, 0, 0),
        (2, 1, 0, 0), (2, 1, 6, 0), (2, 2, 17, 0), (10, 1, 6, 0), (10, 2, 0, 0), (2, 0o2004001, 0, 0),
        (2, 1, 132, errno.EPROTONOSUPPORT), (2, 1, 262, errno.EPROTONOSUPPORT), (10, 2, 136, errno.EPROTONOSUPPORT),
        (2, 2, 1, errno.EPROTONOSUPPORT), (10, 2, 58, errno.EPROTONOSUPPORT),
        (2, 3, 1, errno.EPERM), (10, 3, 58, errno.EPERM), (2, 5, 0, errno.EPERM), (2, 6, 0, errno.EPERM),
        (2, 10, 0, errno.EPERM),
        (16, 3, 0, 0), (16, 2, 0, 0), (16, 3, 9, errno.EAFNOSUPPORT), (16, 3, 12, errno.EAFNOSUPPORT),
    ],
)  # fmt: skip
def test_sockets_are_an_allow_list(decide, family, kind, protocol, expected):
    """Unix, TCP, UDP and netlink's routing protocol: whatever else the kernel would load a module for is refused."""
    assert decide("socket", family, kind, protocol) == (error(expected) if expected else seccomp.ALLOW)
    assert decide("socket", family | 0xBAD << 32, kind, protocol) == decide("socket", family, kind, protocol)


def test_all_other_families_are_refused(decide):
    """AF_ALG, AF_VSOCK, AF_PACKET, AF_BLUETOOTH and every other family, of every type, does not exist."""
    for family in {*range(128)} - {1, 2, 10, 16}:
        for kind in (1, 2, 3, 5):
            assert decide("socket", family, kind) == error(errno.EAFNOSUPPORT)


@pytest.mark.parametrize(
    "flag", [0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000]
)
def test_clone_makes_no_namespace(decide, flag):
    """clone with any CLONE_NEW* flag is refused, a thread or a fork is not."""
    assert decide("clone", flag | 17) == error(errno.EPERM)
    assert decide("clone", 0x003D0F00) == seccomp.ALLOW
    assert decide("clone", 17) == seccomp.ALLOW


def test_terminals_are_harmless_whatever_the_high_bits(decide):
    """TIOCSTI, TIOCLINUX, TIOCCONS and TIOCSETD are compared on the low 32 bits, as the kernel does."""
    for request in (seccomp.TIOCSTI, seccomp.TIOCLINUX, seccomp.TIOCCONS, seccomp.TIOCSETD):
        assert decide("ioctl", 0, request) == error(errno.EPERM)
        assert decide("ioctl", 0, request | 0xDEAD_0000_0000) == error(errno.EPERM)
    assert decide("ioctl", 0, 0x5413) == seccomp.ALLOW


@pytest.mark.parametrize(
    ("call", "ordinary", "refused", "expected"),
    [
        ("fcntl", (3, 6), (3, seccomp.F_SETLEASE), errno.EPERM),
        ("fcntl", (3, 1030), (3, seccomp.F_NOTIFY), errno.EPERM),
        ("madvise", (0, 0, 4), (0, 0, seccomp.MADV_MERGEABLE), errno.EINVAL),
        ("memfd_create", (0, 1), (0, seccomp.MFD_HUGETLB | 1), errno.EINVAL),
        ("mmap", (0, 1, 3, 0x22), (0, 1, 3, 0x22 | seccomp.MAP_HUGETLB), errno.ENOMEM),
        ("shmget", (0, 1, 0o1600), (0, 1, 0o1600 | seccomp.SHM_HUGETLB), errno.EPERM),
        ("preadv2", (3, 0, 1, 0, 0, 0), (3, 0, 1, 0, 0, 0x8), errno.EOPNOTSUPP),
        ("preadv2", (3, 0, 1, 0, 0, 1), (3, 0, 1, 0, 0, 0x80), errno.EOPNOTSUPP),
        ("seccomp", (1, 0), (1, seccomp.SECCOMP_NEW_LISTENER), errno.EPERM),
        ("prctl", (38,), (67,), errno.EINVAL),
        ("prctl", (0x53564D41,), (35,), errno.EINVAL),
        ("prctl", (1,), (62,), errno.EINVAL),
        ("prctl", (4,), (59,), errno.EINVAL),
    ],
)
def test_arguments_decide(decide, call, ordinary, refused, expected):
    """Leases and notices on shared files, shared and huge pages, cache probes, listeners and odd prctls are refused."""
    assert decide(call, *ordinary) == seccomp.ALLOW
    assert decide(call, *refused) == error(expected)


def test_arch_prctl_sets_registers_and_nothing_else():
    """FS, GS and AMX are allowed on x86_64; CPUID faulting, vDSO mapping and shadow stacks answer EPERM."""
    number = seccomp.TABLES["x86_64"]["arch_prctl"]
    for code, allowed in (
        (0x1002, True),
        (0x1004, True),
        (0x1023, True),
        (0x1012, False),
        (0x2003, False),
        (0x5001, False),
    ):
        expected = seccomp.ALLOW if allowed else error(errno.EPERM)
        assert bpf.decide("x86_64", number, code) == expected, hex(code)


def test_the_delta_takes_the_set_up_calls_away_and_nothing_else(machine):
    """After the set-up mount, unshare, setns and their like are refused; everything else is left to the base."""
    program = seccomp.delta_filter(machine)
    table = seccomp.TABLES[machine]
    for number in [*range(1024), seccomp.X32_BIT, 0xFFFFFFFF]:
        name = next((name for name, known in table.items() if known == number), None)
        action = bpf.run(program, number, arch=seccomp.AUDIT_ARCH[machine])
        assert action == (error(errno.EPERM) if name in seccomp.SETUP_ONLY else seccomp.ALLOW), name


def test_the_limit_of_core_dumps_cannot_be_moved(machine):
    """Setting it succeeds in vain, by both calls and whatever the upper half of the pointer is; reading and other limits work."""
    assert seccomp.RLIMIT_CORE == resource.RLIMIT_CORE
    table = seccomp.TABLES[machine]
    for limit in range(16):
        vain = error(0) if limit == seccomp.RLIMIT_CORE else seccomp.ALLOW
        assert bpf.decide(machine, table["setrlimit"], limit, 0x1000) == vain
        assert bpf.decide(machine, table["prlimit64"], 0, limit, 0x1000, 0) == vain
        assert bpf.decide(machine, table["prlimit64"], 0, limit, 0x7F00_0000_0000, 0) == vain
        assert bpf.decide(machine, table["prlimit64"], 0, limit, 0, 0x1000) == seccomp.ALLOW


def test_no_name_is_in_two_lists_and_every_name_is_a_call():
    """A call is refused, absent, unfit, in vain or for the set-up: never two of these, and never a misspelt name."""
    lists = (seccomp.REFUSED, seccomp.ABSENT, seccomp.UNFIT, seccomp.VAIN, seccomp.SETUP_ONLY)
    for one, other in combinations(lists, 2):
        assert not set(one) & set(other)
    for name in [*(name for names in lists for name in names), *seccomp._WITH_ARGUMENTS]:
        assert name in seccomp.TABLES["x86_64"], name


def test_an_allowed_call_is_one_that_no_list_takes_away(machine):
    """``allowed()`` names what remains for a locked sandbox; the number is the surface that doctor reports."""
    names = seccomp.allowed(machine)
    assert {"read", "openat", "execve"} <= names
    assert not names & {"mount", "ptrace", "io_uring_setup", "bpf", "keyctl", "splice", "mincore", "sync"}
    assert len(names) <= {"x86_64": 256, "aarch64": 220}[machine]


def test_no_jump_leaves_the_program(machine):
    """Every path of both filters ends in a decision: the kernel would refuse a program with a jump beyond its end."""
    for program in (seccomp.base_filter(machine), seccomp.delta_filter(machine)):
        assert len(program) // 8 < 4096
        for number in range(700):
            for first in (0, 1, 2, 16, 1 << 40, (1 << 64) - 1):
                bpf.run(program, number, *[first] * 6, arch=seccomp.AUDIT_ARCH[machine])


def test_the_numbers_of_this_machine_are_right():
    """The table agrees with the C library's own header, where that is installed."""
    headers = [f"/usr/include/{os.uname().machine}-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"]
    header = next((path for path in headers if os.path.exists(path)), None)
    if header is None:
        pytest.skip("there is no asm/unistd_64.h here: kernel headers are not installed, or it is not x86_64")
    with open(header, encoding="ascii") as file:
        words = [line.split() for line in file if line.startswith("#define __NR_")]
    known = {word[1].removeprefix("__NR_"): int(word[2]) for word in words if word[2].isdecimal()}
    table = seccomp.TABLES[os.uname().machine]
    assert {name: number for name, number in table.items() if known.get(name, number) != number} == {}
