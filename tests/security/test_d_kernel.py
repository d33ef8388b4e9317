"""Rows D: what of the kernel can be reached from a sandbox, and what it answers."""

import errno
import json
import os
import platform
import textwrap

import pytest

from cellfork import Limits, Sandbox
from cellfork.runtimes.namespaces import seccomp
from tests.runtimes.namespaces import bpf
from tests.security.catalogue import row
from tests.security.conftest import LIMITS, ask, shell

MACHINE = platform.machine()
NUMBERS = seccomp.TABLES[MACHINE]
on_x86 = pytest.mark.skipif(MACHINE != "x86_64", reason="an instruction or a table of x86_64")

CALL = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(number, *arguments):
    given = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *given)
    return -ctypes.get_errno() if result < 0 else result
"""

IN_A_CHILD = """
import os, signal
def in_a_child(function):
    '''Return how a forked child ends that calls function: its exit code, or minus the number of its signal.'''
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(function() or 0)
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


@pytest.fixture(scope="module")
def shared():
    """One sandbox for questions that leave nothing behind."""
    with Sandbox.create(limits=LIMITS) as sandbox:
        sandbox.run_code("1")  # its processes are there before a test looks for leaks
        yield sandbox


def answer_of(sandbox, name: str, arguments: str) -> str:
    """Return the name of the error that a call answers, or "success"."""
    number = ask(sandbox, f"{CALL}\nanswer = call({NUMBERS[name]}, {arguments})")
    return errno.errorcode[-number] if number < 0 else "success"


def refused(*cases: tuple[str, str, str]):
    return pytest.mark.parametrize(
        ("name", "arguments", "expected"), cases, ids=[f"{c[0]}({c[1]})" for c in cases]
    )


@row("D01", "unshare and clone with any CLONE_NEW* flag answer EPERM, clone3 ENOSYS")
@refused(
    *(("unshare", hex(flag), "EPERM") for flag in (0, 0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)),
    *(("clone", f"{hex(flag | 17)}, 0, 0, 0, 0", "EPERM") for flag in (0x20000, 0x10000000, 0x30000000, 0x7E020000)),
    ("clone", "0x10000011 | 0xBAD << 32, 0, 0, 0, 0", "EPERM"),
    ("clone3", "0, 0", "ENOSYS"),
    ("clone3", "bytes(88), 88", "ENOSYS"),
)  # fmt: skip
def test_d01_no_namespace_is_made(shared, name, arguments, expected):
    """No call makes a namespace."""
    assert answer_of(shared, name, arguments) == expected


@row("D01", "max_*_namespaces are 0 in the sandbox's user namespace and cannot be raised")
def test_d01_the_kernel_has_no_room_for_namespaces(shared):
    """Where the filter should fail, the kernel's own count still allows no namespace of any kind, and is not ours to change."""
    code = """
    import glob
    answer = {}
    for path in glob.glob('/proc/sys/user/max_*_namespaces'):
        with open(path) as file:
            answer[path.split('_')[1]] = int(file.read())
        try:
            open(path, 'w').write('1')
            answer[path] = 'written'
        except OSError:
            pass
    """
    kinds = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time")
    there = [kind for kind in kinds if os.path.exists(f"/proc/sys/user/max_{kind}_namespaces")]
    assert ask(shared, code) == dict.fromkeys(there, 0)


@row("D01", "unshare(1) and bwrap-like tools fail")
def test_d01_unshare_from_a_shell(shared):
    """The ordinary tool says that it may not."""
    done = shell(shared, "unshare -Ur true; echo $?; unshare -m true; echo $?")
    assert done.stdout.split() == ["1", "1"]
    assert "Operation not permitted" in done.stderr


@row("D02", "every call of the mount family answers EPERM")
@refused(
    ("mount", "b'none', b'/tmp', b'tmpfs', 0, None", "EPERM"),
    ("mount", "b'/usr', b'/tmp', None, 4096, None", "EPERM"),
    ("umount2", "b'/tmp', 2", "EPERM"),
    ("pivot_root", "b'/tmp', b'/tmp'", "EPERM"),
    ("chroot", "b'/tmp'", "EPERM"),
    ("fsopen", "b'tmpfs', 0", "EPERM"),
    ("fsconfig", "3, 6, 0, 0, 0", "EPERM"),
    ("fsmount", "3, 0, 0", "EPERM"),
    ("fspick", "-100, b'/', 0", "EPERM"),
    ("open_tree", "-100, b'/', 1", "EPERM"),
    ("move_mount", "-100, b'/tmp', -100, b'/home', 0", "EPERM"),
    ("mount_setattr", "-100, b'/', 0, bytes(32), 32", "EPERM"),
)
def test_d02_nothing_is_mounted(shared, name, arguments, expected):
    """Mounting, unmounting and changing the root are refused, with the old calls and the new."""
    assert answer_of(shared, name, arguments) == expected


@row("D03", "setns answers EPERM for every descriptor")
def test_d03_no_namespace_is_entered(shared):
    """Neither a namespace file of one's own, nor a pidfd, nor a junk number leads into a namespace."""
    code = f"""
    {textwrap.indent(CALL, "    ").strip()}
    answer = []
    for kind in os.listdir('/proc/self/ns'):
        fd = os.open('/proc/self/ns/' + kind, os.O_RDONLY)
        answer.append(call({NUMBERS["setns"]}, fd, 0))
        os.close(fd)
    pidfd = os.pidfd_open(1)
    answer += [call({NUMBERS["setns"]}, pidfd, 0x20000), call({NUMBERS["setns"]}, -1, 0), call({NUMBERS["setns"]}, 0, 0)]
    os.close(pidfd)
    """
    assert set(ask(shared, code)) == {-errno.EPERM}


@row("D04", "ptrace, process_vm_*, pidfd_getfd and kcmp answer EPERM for parent, sibling and self")
@pytest.mark.parametrize("target", ["1", "os.getpid()"])
def test_d04_no_process_looks_into_another(shared, target):
    """Not the parent, not a child, not oneself."""
    code = f"""
    {textwrap.indent(CALL, "    ").strip()}
    pidfd = os.pidfd_open({target})
    answer = [
        call({NUMBERS["ptrace"]}, 0, 0, 0, 0), call({NUMBERS["ptrace"]}, 16, {target}, 0, 0), call({NUMBERS["ptrace"]}, 0x4206, {target}, 0, 0),
        call({NUMBERS["process_vm_readv"]}, {target}, 0, 0, 0, 0, 0), call({NUMBERS["process_vm_writev"]}, {target}, 0, 0, 0, 0, 0),
        call({NUMBERS["pidfd_getfd"]}, pidfd, 0, 0), call({NUMBERS["kcmp"]}, {target}, {target}, 0, 0, 0),
        call({NUMBERS["process_madvise"]}, pidfd, 0, 0, 0, 0),
    ]
    os.close(pidfd)
    """
    assert set(ask(shared, code)) == {-errno.EPERM}


@row("D04", "strace and gdb of a child fail")
def test_d04_a_child_that_asks_to_be_traced_is_not(shared):
    """PTRACE_TRACEME in a child before its exec is refused as well."""
    code = f"""
    {textwrap.indent(CALL, "    ").strip()}
    {textwrap.indent(IN_A_CHILD, "    ").strip()}
    answer = in_a_child(lambda: -call({NUMBERS["ptrace"]}, 0, 0, 0, 0))
    """
    assert ask(shared, code) == errno.EPERM


@row("D05", "EPERM")
@refused(
    ("bpf", "0, 0, 0", "EPERM"),
    ("bpf", "5, bytes(128), 128", "EPERM"),
    ("perf_event_open", "bytes(128), 0, -1, -1, 0", "EPERM"),
)
def test_d05_no_program_and_no_counter_in_the_kernel(shared, name, arguments, expected):
    """bpf and perf_event_open are refused."""
    assert answer_of(shared, name, arguments) == expected


@row("D06", "ENOSYS, though the host allows it")
@refused(
    ("io_uring_setup", "8, bytes(120)", "ENOSYS"),
    ("io_uring_enter", "3, 1, 1, 1, 0, 0", "ENOSYS"),
    ("io_uring_register", "3, 0, 0, 0", "ENOSYS"),
    ("io_setup", "8, bytes(8)", "ENOSYS"),
)
def test_d06_no_asynchronous_rings(shared, name, arguments, expected):
    """io_uring and the older AIO do not exist."""
    assert answer_of(shared, name, arguments) == expected


@row("D07", "EPERM")
@refused(("userfaultfd", "0", "EPERM"), ("userfaultfd", "1", "EPERM"))
def test_d07_no_page_fault_is_handed_out(shared, name, arguments, expected):
    """userfaultfd is refused, the mode for user faults alone as well; there is no /dev/userfaultfd."""
    assert answer_of(shared, name, arguments) == expected
    assert ask(shared, "import os\nanswer = os.path.lexists('/dev/userfaultfd')") is False


@row("D08", "ENOSYS, and nothing to read in /proc")
@refused(
    ("keyctl", "0, -3, 1, 0, 0", "ENOSYS"),
    ("add_key", "b'user', b'name', b'x', 1, -3", "ENOSYS"),
    ("request_key", "b'user', b'name', 0, -3", "ENOSYS"),
)
def test_d08_no_keyring(shared, name, arguments, expected):
    """The kernel's keyrings, which no namespace divides completely, do not exist; /proc/keys is empty."""
    assert answer_of(shared, name, arguments) == expected
    assert ask(shared, "answer = open('/proc/keys').read() + open('/proc/key-users').read()") == ""


@row("D09", "EPERM")
@refused(
    ("init_module", "0, 0, b''", "EPERM"),
    ("finit_module", "0, b'', 0", "EPERM"),
    ("delete_module", "b'ext4', 0", "EPERM"),
    ("kexec_load", "0, 0, 0, 0", "EPERM"),
    ("reboot", "0xfee1dead, 672274793, 0x1234567, 0", "EPERM"),
    ("swapon", "b'/tmp/x', 0", "EPERM"),
    ("swapoff", "b'/tmp/x'", "EPERM"),
    ("acct", "b'/tmp/x'", "EPERM"),
    ("quotactl", "0x80000800, 0, 0, 0", "EPERM"),
    ("syslog", "3, bytes(64), 64", "EPERM"),
    ("vhangup", "", "EPERM"),
    ("settimeofday", "bytes(16), 0", "EPERM"),
    ("clock_settime", "0, bytes(16)", "EPERM"),
    ("clock_adjtime", "0, bytes(208)", "EPERM"),
    ("adjtimex", "bytes(208)", "EPERM"),
)
def test_d09_the_machine_is_not_ours(shared, name, arguments, expected):
    """Modules, kexec, reboot, swap, accounting, quotas, the kernel's log and its clock are refused."""
    assert answer_of(shared, name, arguments) == expected


@row("D09", "iopl and ioperm answer EPERM")
@on_x86
@refused(("iopl", "3", "EPERM"), ("ioperm", "0, 1, 1", "EPERM"))
def test_d09_no_port_of_the_machine(shared, name, arguments, expected):
    """I/O ports are refused."""
    assert answer_of(shared, name, arguments) == expected


@row("D10", "EAFNOSUPPORT or EPERM; raw sockets EPERM; netlink's routing half only lists devices")
@row("D11", "EAFNOSUPPORT")
@row("D12", "EAFNOSUPPORT")
def test_d10_d11_d12_socket_families(shared):
    """Every family but unix, internet and netlink, each with every type, and every raw socket is refused."""
    code = """
    import socket
    allowed = []
    for family in range(64):
        for kind in (1, 2, 3, 4, 5, 6, 10):
            for protocol in (0, 1, 6, 9, 12, 15, 16, 17, 33, 58, 115, 132, 136, 255, 262):
                try:
                    socket.socket(family, kind, protocol).close()
                    allowed.append([family, kind, protocol])
                except OSError:
                    pass
    answer = allowed
    """
    for family, kind, protocol in ask(shared, code):
        assert family in {1, 2, 10, 16}
        if family in {2, 10}:
            assert (kind, protocol) in {(1, 0), (1, 6), (2, 0), (2, 17)}
        if family == 16:
            assert protocol == 0


@row("D11", "splice answers EINVAL: there is no way from a page of a file into a socket without a copy")
@refused(
    ("splice", "0, 0, 1, 0, 4096, 0", "EINVAL"),
    ("tee", "0, 1, 4096, 0", "EINVAL"),
    ("vmsplice", "1, 0, 0, 0", "EINVAL"),
)
def test_d11_pages_are_not_passed_around(shared, name, arguments, expected):
    """The calls that share pages between files, pipes and processes answer as if the files could not."""
    assert answer_of(shared, name, arguments) == expected


@row("D10", "getifaddrs works and sees the loopback device alone")
def test_d10_what_programs_need_of_netlink_works(shared):
    """The C library's list of interfaces, which reads netlink, works."""
    code = """
    import ctypes
    class Address(ctypes.Structure):
        pass
    Address._fields_ = [('next', ctypes.POINTER(Address)), ('name', ctypes.c_char_p)]
    libc, first, names = ctypes.CDLL(None), ctypes.POINTER(Address)(), set()
    failed = libc.getifaddrs(ctypes.byref(first))
    while first:
        names.add(first.contents.name.decode())
        first = first.contents.next
    answer = [failed, sorted(names)]
    """
    assert ask(shared, code) == [0, ["lo"]]


@row("D13", "int 0x80 kills with SIGSYS; x32 numbers answer ENOSYS")
@on_x86
def test_d13_the_other_system_call_tables(shared):
    """A 32-bit call ends the process before it happens; the x32 table does not exist."""
    code = f"""
    {textwrap.indent(CALL, "    ").strip()}
    {textwrap.indent(IN_A_CHILD, "    ").strip()}
    import mmap
    def int80(number):
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(b'\\xb8' + number.to_bytes(4, 'little') + b'\\xcd\\x80\\xc3')  # mov eax, number; int 0x80; ret
        function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
        return function() and 0
    answer = [
        [in_a_child(lambda: int80(number)) for number in (20, 1, 11, 21, 999)],
        [call(0x40000000 | number, 0, 0, 0) for number in (39, 0, 59, 165, 520, 545)],
    ]
    """
    killed, absent = ask(shared, code)
    assert set(killed) == {-31}  # SIGSYS
    assert set(absent) == {-errno.ENOSYS}


PAST_EVERY_FILTER = {"uretprobe": 335, "uprobe": 336}
"""Recent kernels let these through whatever a filter says, for their own trampolines, and end or refuse any other caller."""

ENUMERATE = """
import ctypes, json, os, select, signal, time
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
junk = [ctypes.c_long(-1)] * 6
def answers(numbers, report):
    me = os.getpid()
    for number in numbers:
        ctypes.set_errno(0)
        result = libc.syscall(ctypes.c_long(number), *junk)
        if os.getpid() != me:
            os._exit(0)
        os.write(report, b'%d %d\\n' % (number, ctypes.get_errno() if result == -1 else 0))
def ask_in_a_child(numbers):
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        with open('/dev/null', 'r+b') as null:
            for fd in (0, 1, 2):
                os.dup2(null.fileno(), fd)
        signal.alarm(5)
        try:
            answers(numbers, theirs)
        finally:
            os._exit(0)
    os.close(theirs)
    said, end = b'', time.monotonic() + (5 if len(numbers) > 1 else 0.2)
    while select.select([ours], [], [], max(0, end - time.monotonic()))[0]:
        piece = os.read(ours, 65536)
        if not piece:
            break
        said += piece
        if len(numbers) == 1 and said.endswith(b'\\n'):
            break
    os.close(ours)
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        pass
    os.waitpid(pid, 0)
    return {int(line.split()[0]): int(line.split()[1]) for line in said.splitlines()}
"""


@row(
    "D14",
    "every number from 0 to 1023 answers as the table computed from the filters says; unknown ones ENOSYS",
)
def test_d14_every_number_gets_the_answer_of_the_table(shared):
    """What the filters decide, run by an interpreter of our own, is what the kernel does: for each of 1,024 numbers.

    Calls that reach the kernel run one by one in children, because with junk some of them block or end the caller.
    They may answer anything but what the filters answer elsewhere: ENOSYS would be a call that the host itself lacks.
    """
    actions = {number: bpf.decide(MACHINE, number, *[-1] * 6) for number in range(1024)}
    expected = {number: action & 0xFFFF for number, action in actions.items() if action != seccomp.ALLOW}
    passing = set(PAST_EVERY_FILTER.values()) if MACHINE == "x86_64" else set()
    reaching = sorted(set(actions) - set(expected) | passing)
    code = f"""
{ENUMERATE}
refused = ask_in_a_child({sorted(set(expected) - passing)!r})
reached = {{}}
for number in {reaching!r}:
    reached.update(ask_in_a_child([number]) or {{number: None}})
answer = [refused, reached]
"""
    refused, reached = ask(shared, code)
    assert {int(number): answer for number, answer in refused.items()} == {
        number: answer for number, answer in expected.items() if number not in passing
    }
    assert {reached.pop(str(number)) for number in passing} <= {None, errno.ENXIO, errno.ENOSYS}
    absent = {int(number) for number, answer in reached.items() if answer == errno.ENOSYS}
    assert absent <= {NUMBERS[name] for name in ("futex", "futex_wait", "futex_wake", "futex_requeue", "mseal", "fchmodat2", "landlock_create_ruleset",
                                                 "landlock_add_rule", "landlock_restrict_self", "quotactl")}  # fmt: skip
    assert len(set(reaching) - passing) <= len(seccomp.allowed(MACHINE))


@row(
    "D15",
    "more filters can be stacked, and loosen nothing; listeners are refused; no_new_privs cannot be taken back",
)
def test_d15_locks_only_close(shared):
    """An allow-all filter on top changes nothing; a user-space listener is EPERM; PR_SET_NO_NEW_PRIVS 0 is EINVAL."""
    allow_all = (0x06).to_bytes(2, "little") + bytes(2) + (0x7FFF0000).to_bytes(4, "little")
    code = f"""
    {textwrap.indent(CALL, "    ").strip()}
    {textwrap.indent(IN_A_CHILD, "    ").strip()}
    import struct
    code = ctypes.create_string_buffer({allow_all!r})
    program = struct.pack('HxxxxxxQ', 1, ctypes.addressof(code))
    def stacked():
        if call({NUMBERS["seccomp"]}, 1, 0, program) != 0:
            return 1
        if call({NUMBERS["unshare"]}, 0x10000000) != -errno.EPERM or call({NUMBERS["io_uring_setup"]}, 1, 0) != -errno.ENOSYS:
            return 2
        if call({NUMBERS["prctl"]}, 22, 0) == 0 or call({NUMBERS["prctl"]}, 22, 2, 0) == 0:
            return 3
        return 0
    answer = [in_a_child(stacked), call({NUMBERS["seccomp"]}, 1, 8, program), call({NUMBERS["prctl"]}, 38, 0, 0, 0, 0),
              call({NUMBERS["prctl"]}, 39, 0, 0, 0, 0), call({NUMBERS["prctl"]}, 21, 0, 0, 0, 0)]
    """
    assert ask(shared, code) == [0, -errno.EPERM, -errno.EINVAL, 1, 2]


@row("D16", "EPERM; modify_ldt ENOSYS")
@refused(
    ("personality", "0x0040000", "EPERM"),
    ("personality", "0x400000", "EPERM"),
    ("personality", "8", "EPERM"),
    ("set_mempolicy", "0, 0, 0", "EPERM"),
    ("move_pages", "0, 0, 0, 0, 0, 0", "EPERM"),
)
def test_d16_the_layout_of_memory_stays_random(shared, name, arguments, expected):
    """No personality turns off randomisation or makes memory executable."""
    assert answer_of(shared, name, arguments) == expected


@row("D16", "arch_prctl sets FS and GS alone; modify_ldt ENOSYS")
@on_x86
@refused(("modify_ldt", "0, bytes(64), 64", "ENOSYS"), ("arch_prctl", "0x1012, 0", "EPERM"), ("arch_prctl", "0x2003, 0", "EPERM"))  # fmt: skip
def test_d16_what_x86_has_on_top(shared, name, arguments, expected):
    """Segments of one's own, CPUID faulting and another vDSO are refused."""
    assert answer_of(shared, name, arguments) == expected


@row(
    "D16", "prctl is an allow-list: core scheduling, page merging, the memory map and dispatch answer EINVAL"
)
@pytest.mark.parametrize("option", [9, 31, 35, 57, 59, 62, 67, 68, 70, 80, 1000])
def test_d16_prctl_is_an_allow_list(shared, option):
    """Options that no program needs, and those of a future kernel, do not exist."""
    assert answer_of(shared, "prctl", f"{option}, 0, 0, 0, 0") == "EINVAL"


@row("D17", "EPERM, with high garbage bits as well, on a terminal of one's own; no controlling terminal")
@pytest.mark.parametrize(
    "request_number", ["0x5412", "0x541C", "0x541D", "0x5423", "0x5412 | 0xDEAD << 32", "0x541C | 1 << 32"]
)
def test_d17_nothing_is_typed_into_a_terminal(shared, request_number):
    """TIOCSTI, TIOCLINUX, TIOCCONS and TIOCSETD are refused on a real pseudoterminal; the kernel looks at the low half alone."""
    code = f"""
    {textwrap.indent(CALL, "    ").strip()}
    master, slave = os.openpty()
    answer = [call({NUMBERS["ioctl"]}, fd, {request_number}, b'x' * 8) for fd in (master, slave)]
    os.close(master)
    os.close(slave)
    """
    assert ask(shared, code) == [-errno.EPERM] * 2


@row("D17", "there is no controlling terminal")
def test_d17_no_controlling_terminal(shared):
    """/dev/tty answers ENXIO to code and to commands: no terminal of the host is within reach."""
    code = """
    import os
    try:
        os.open('/dev/tty', os.O_RDWR)
        answer = 0
    except OSError as error:
        answer = error.errno
    """
    assert ask(shared, code) == errno.ENXIO
    assert "No such device" in shell(shared, "exec 3<>/dev/tty").stderr


@row("D18", "works, as any file of one's own: executing is no privilege, and the child has the same locks")
def test_d18_a_program_from_memory_has_the_same_locks(shared):
    """memfd_create and fexecve are allowed; what runs from there has the filter, no_new_privs and no capability."""
    code = """
    import os, subprocess, shutil
    fd = os.memfd_create('program', 0)
    with open(shutil.which('cat'), 'rb') as source:
        os.write(fd, source.read())
    read, write = os.pipe()
    if os.fork() == 0:
        os.dup2(write, 1)
        os.execve(fd, ['cat', '/proc/self/status'], {})
    os.close(write)
    status = dict(line.split(':\\t') for line in open(read).read().splitlines())
    os.wait()
    os.close(fd)
    answer = [status['Seccomp'], status['NoNewPrivs'], status['CapEff'], status['CapBnd'], status['Uid']]
    """
    assert ask(shared, code) == ["2", "1", "0" * 16, "0" * 16, "1000\t1000\t1000\t1000"]


@row("D19", "EPERM")
@refused(
    ("name_to_handle_at", "-100, b'/', bytes(8), bytes(4), 0", "EPERM"),
    ("open_by_handle_at", "3, bytes(16), 0", "EPERM"),
)
def test_d19_no_file_by_its_handle(shared, name, arguments, expected):
    """Handles, which know no mount and no root, are refused in both directions."""
    assert answer_of(shared, name, arguments) == expected


@row("D20", "absent: /dev has ten names; a node that is brought along cannot be made, and would not open")
def test_d20_no_device_but_the_declared(shared):
    """/dev is a list of ours; making a device node is refused everywhere that can be written, for devices and whiteouts alike."""
    code = """
    import os, stat, errno
    answer = [sorted(os.listdir('/dev'))]
    for place in ('/home/user', '/root', '/tmp', '/dev/shm'):
        for kind in (stat.S_IFCHR, stat.S_IFBLK):
            for device in ((1, 1), (1, 3), (8, 0), (10, 200), (10, 229), (10, 232), (0, 0)):
                try:
                    os.mknod(f'{place}/node', kind | 0o666, os.makedev(*device))
                    os.unlink(f'{place}/node')
                    answer.append([place, device])
                except OSError as error:
                    if error.errno not in (errno.EPERM, errno.EACCES):
                        answer.append([place, device, error.errno])
    """
    names, *made = ask(shared, code)
    assert set(names) == {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "fd", "stdin", "stdout", "stderr"}  # fmt: skip
    from cellfork.guest import linux

    assert [found for found in made if found[1] != [0, 0] or linux.landlock_abi()] == []


@row("D20", "every mount but the six device nodes and the terminals is nodev")
def test_d20_no_mount_lets_a_device_through(shared):
    """A node inside an image, an archive or a disk could not be opened: nodev on every place, nosuid on all."""
    lines = [line.split() for line in ask(shared, "answer = open('/proc/self/mounts').read()").splitlines()]
    devices = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "pts")}
    for _source, place, _kind, options, *_ in lines:
        flags = options.split(",")
        assert "nosuid" in flags, place
        covered = place.startswith("/proc/")  # /dev/null over a file
        assert place in devices or covered or "nodev" in flags, place


@row("D23", "EROFS, for a user that could write them as well")
def test_d23_no_setting_of_the_kernel_is_written(shared):
    """Not one file below /proc/sys opens for writing; the triggers elsewhere in /proc are absent, or /dev/null."""
    code = """
    import os
    opened, tried = [], 0
    places = [os.path.join(place, name) for place, _, names in os.walk('/proc/sys') for name in names]
    for path in [*places, '/proc/sysrq-trigger', '/proc/mtrr', '/proc/irq/default_smp_affinity', '/proc/pressure/memory']:
        tried += 1
        try:
            fd = os.open(path, os.O_WRONLY)
            if os.fstat(fd).st_rdev != os.stat('/dev/null').st_rdev:
                opened.append(path)
            os.close(fd)
        except OSError:
            pass
    answer = [tried, opened]
    """
    tried, opened = ask(shared, code)
    assert tried > 300
    assert opened == []


@row("D23", "sysctl -w and route_localnet fail in bash")
def test_d23_no_setting_from_a_shell(shared):
    """Settings of the sandbox's own network namespace are refused as well: it belongs to the zygote."""
    script = """
    for setting in net/ipv4/conf/all/route_localnet net/ipv4/ping_group_range kernel/core_pattern kernel/hostname vm/drop_caches; do
        echo 1 > /proc/sys/$setting && echo "wrote $setting"
    done
    """
    done = shell(shared, script)
    assert done.stdout == ""
    assert done.stderr.count("/proc/sys/") == 5


@row("D24", "EPERM for host name, domain name and clocks; time namespaces EPERM")
@refused(
    ("sethostname", "b'evil', 4", "EPERM"),
    ("setdomainname", "b'evil', 4", "EPERM"),
    ("unshare", "0x80", "EPERM"),
    ("clock_settime", "0, bytes(16)", "EPERM"),
)
def test_d24_names_and_clocks_stay(shared, name, arguments, expected):
    """The sandbox is called ``sandbox`` and keeps the time of the machine."""
    assert answer_of(shared, name, arguments) == expected
    assert ask(shared, "import socket\nanswer = socket.gethostname()") == "sandbox"


@row(
    "D25",
    "documented leak: CPU model, load and time stamp counter are the host's; nothing of the host's devices and processes is",
)
def test_d25_what_can_be_measured(shared):
    """/proc shows the machine's processor, memory and load, which LIMITATIONS.md tells; interrupts and disks it does not."""
    code = """
    import os
    seen = {name: len(open('/proc/' + name).read()) for name in ('cpuinfo', 'meminfo', 'stat', 'loadavg', 'uptime', 'version')}
    hidden = {name: open('/proc/' + name).read() for name in ('interrupts', 'diskstats', 'softirqs', 'vmstat', 'zoneinfo', 'cmdline') if os.path.exists('/proc/' + name)}
    answer = [all(seen.values()), ''.join(hidden.values())]
    """
    assert ask(shared, code) == [True, ""]


@row("D14", "what programs need still works: calls that were taken away are ones that callers do without")
def test_d14_programs_do_without(shared):
    """Copying files, turning core dumps off, locking memory and syncing fall back or succeed as programs expect."""
    code = """
    import os, resource, shutil, subprocess, tempfile, fcntl
    with tempfile.TemporaryDirectory() as place:
        path = os.path.join(place, 'a')
        with open(path, 'wb') as file:
            file.write(b'x' * 300000)
            fcntl.flock(file, fcntl.LOCK_EX)
            fcntl.lockf(file, fcntl.LOCK_EX)
            os.fsync(file.fileno())
        os.sync()
        shutil.copy(path, path + '2')
        subprocess.run(['cp', path, path + '3'], check=True)
        piped = subprocess.run(f'cat {path} | cat | wc -c', shell=True, capture_output=True, text=True).stdout.strip()
        sizes = [os.path.getsize(path + n) for n in ('', '2', '3')]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answer = [sizes, piped, max(resource.getrlimit(resource.RLIMIT_CORE)) <= 1]
    """
    assert ask(shared, code) == [[300000] * 3, "300000", True]


PROGRAMS = {
    "gcc": """
        printf '#include <pthread.h>\\n#include <stdio.h>\\nvoid *f(void *a) { puts("fine"); return 0; }\\n' > a.c
        printf 'int main() { pthread_t t; pthread_create(&t, 0, f, 0); pthread_join(t, 0); }\\n' >> a.c
        gcc -pthread a.c -o a && ./a""",
    "node": """
        node -e 'const {Worker} = require("worker_threads"); require("fs").watch("/tmp"); require("os").networkInterfaces();
        new Worker("1", {eval: true}).on("exit", () => { console.log("fine"); process.exit(0) })'""",
    "git": """
        git init -q repository && cd repository && git config user.email a@b && git config user.name a
        echo x > x && git add x && git commit -qm x && git gc -q && git clone -q . ../clone && echo fine""",
    "gpg": "gpg --batch --list-keys 2>/dev/null && echo fine",
    "perl": "perl -e 'print \"fine\\n\"'",
    "top": "top -bn1 > /dev/null && ps aux > /dev/null && free > /dev/null && uptime > /dev/null && echo fine",
    "python3": "python3 -m venv --without-pip venv && venv/bin/python -c 'import multiprocessing as m; m.Pool(2).map(abs, [1]); print(\"fine\")'",
}


@row(
    "D14",
    "compilers, Node, git, gpg and the tools that read /proc run: they miss nothing that was taken away",
)
@pytest.mark.parametrize("program", PROGRAMS)
def test_d14_programs_run(program):
    """Programs whose C libraries and runtimes use much of the kernel work behind the filter."""
    if not any(os.path.exists(f"{place}/{program}") for place in ("/usr/bin", "/bin")):
        pytest.skip(f"{program} is not installed on this host")
    with Sandbox.create(limits=Limits(memory="1G", cpu=2.0, pids=100)) as sandbox:
        done = shell(sandbox, f"cd /tmp\n{textwrap.dedent(PROGRAMS[program])}", timeout=60)
    assert done.stdout.splitlines()[-1:] == ["fine"], done.stderr


def test_the_account_of_reachable_calls_is_told():
    """The number of calls that reach the kernel is the one that LIMITATIONS.md and doctor name."""
    assert json.dumps(len(seccomp.allowed("x86_64"))) == "256"
