"""The compiled filters, read back by a small BPF interpreter."""

import errno
import struct

import pytest

from cellfork.runtimes.namespaces import seccomp

MACHINES = ["x86_64", "aarch64"]


def run(program: bytes, number: int, *arguments: int, arch: int) -> int:
    """Return the action that ``program`` decides on for one system call."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", number, arch, 0, *(argument & 0xFFFFFFFFFFFFFFFF for argument in padded))
    code = [struct.unpack_from("=HBBI", program, position) for position in range(0, len(program), 8)]
    accumulator, position = 0, 0
    while True:
        operation, when_true, when_false, operand = code[position]
        position += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, operand)
        elif operation == 0x06:
            return operand
        else:
            taken = {
                0x15: accumulator == operand,
                0x35: accumulator >= operand,
                0x45: bool(accumulator & operand),
            }[operation]
            position += when_true if taken else when_false


def error(number: int) -> int:
    return seccomp.ERRNO | number


@pytest.fixture(params=MACHINES)
def machine(request) -> str:
    return request.param


@pytest.fixture
def decide(machine):
    program = seccomp.base_filter(machine)
    table = seccomp.TABLES[machine]

    def decide(call: str | int, *arguments: int, arch: int | None = None) -> int:
        number = table[call] if isinstance(call, str) else call
        return run(program, number, *arguments, arch=arch or seccomp.AUDIT_ARCH[machine])

    return decide


def test_every_known_call_gets_the_answer_that_the_lists_say(machine, decide):
    """Each name is allowed, refused or absent exactly as the policy's lists have it."""
    for name in seccomp.TABLES[machine]:
        action = decide(name, seccomp.AF_UNIX, 0, 0)
        if name in seccomp.REFUSED:
            assert action == error(errno.EPERM), name
        elif name in seccomp.ABSENT:
            assert action == error(errno.ENOSYS), name
        else:
            assert action == seccomp.ALLOW, name


def test_every_unknown_number_is_absent(machine, decide):
    """A number that no list names answers ENOSYS, also far beyond the last known one."""
    known = set(seccomp.TABLES[machine].values())
    for number in [*range(1024), 5000, 0x3FFFFFFF]:
        if number not in known:
            assert decide(number) == error(errno.ENOSYS), number


def test_a_foreign_system_call_table_kills(machine, decide):
    """ia32 calls on x86_64 (and any other architecture) end the process."""
    assert decide("read", arch=0x40000003) == seccomp.KILL


def test_x32_numbers_are_absent(decide):
    """The x32 table, which shares x86_64's architecture number, answers ENOSYS."""
    assert decide(seccomp.X32_BIT | 1) == error(errno.ENOSYS)


@pytest.mark.parametrize(
    ("family", "protocol", "allowed"),
    [(1, 0, True), (2, 6, True), (10, 17, True), (16, 0, True), (16, 9, False), (17, 0, False), (38, 0, False),
     (40, 0, False), (0, 0, False), (31, 0, False)],
)  # fmt: skip
def test_socket_families_are_an_allow_list(decide, family, protocol, allowed):
    """Only unix, inet, inet6 and netlink's routing protocol; AF_ALG, AF_VSOCK, AF_PACKET and the rest are refused."""
    expected = seccomp.ALLOW if allowed else error(errno.EAFNOSUPPORT)
    assert decide("socket", family, 1, protocol) == expected


@pytest.mark.parametrize(
    "flag", [0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000]
)
def test_clone_makes_no_namespace(decide, flag):
    """clone with any CLONE_NEW* flag is refused, a thread or a fork is not."""
    assert decide("clone", flag | 17) == error(errno.EPERM)
    assert decide("clone", 0x003D0F00) == seccomp.ALLOW
    assert decide("clone", 17) == seccomp.ALLOW


def test_terminal_injection_is_refused_whatever_the_high_bits(decide):
    """TIOCSTI and TIOCLINUX are compared on the low 32 bits, as the kernel does."""
    for request in (seccomp.TIOCSTI, seccomp.TIOCLINUX):
        assert decide("ioctl", 0, request) == error(errno.EPERM)
        assert decide("ioctl", 0, request | 0xDEAD_0000_0000) == error(errno.EPERM)
    assert decide("ioctl", 0, 0x5413) == seccomp.ALLOW


def test_the_delta_takes_the_set_up_calls_away_and_nothing_else(machine):
    """After the set-up mount, unshare, setns and their like are refused; everything else is left to the base."""
    program = seccomp.delta_filter(machine)
    table = seccomp.TABLES[machine]
    for name, number in table.items():
        action = run(program, number, arch=seccomp.AUDIT_ARCH[machine])
        assert action == (error(errno.EPERM) if name in seccomp.SETUP_ONLY else seccomp.ALLOW), name


def test_no_name_is_in_two_lists():
    """A call is refused, absent or for the set-up: never two of these."""
    assert not set(seccomp.REFUSED) & set(seccomp.ABSENT)
    assert not set(seccomp.SETUP_ONLY) & {*seccomp.REFUSED, *seccomp.ABSENT}


def test_an_allowed_call_is_one_that_no_list_takes_away(machine):
    """``allowed()`` names what remains for a locked sandbox; the number is the surface that doctor reports."""
    names = seccomp.allowed(machine)
    assert {"read", "openat", "execve"} <= names
    assert not names & {"mount", "ptrace", "io_uring_setup", "bpf", "keyctl"}
