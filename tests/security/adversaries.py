"""Programs that do everything to outlive a kill: Python code for a cell, some with machine code of their own.

Each is a source text that starts its trick and returns, or never does.  The campaign in ``bench/kills`` and the tests
draw from the same table.
"""

import platform
import struct
from collections.abc import Mapping

_BASE = 0x400000


def _program(code: bytes) -> bytes:
    """Return a static program for x86_64 Linux that is nothing but ``code``."""
    size = 64 + 56 + len(code)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = ident + struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, _BASE + 120, 64, 0, 0, 64, 56, 1, 64, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 4096)
    return header + segment + code


def _call(number: int) -> bytes:
    """Machine code for a system call of this number, with the registers as they are."""
    return b"\xb8" + struct.pack("<I", number) + b"\x0f\x05"


_FORK, _SETSID, _EXIT = _call(57), _call(112), b"\x31\xff" + _call(60)
_IF_PARENT = b"\x85\xc0\x75"  # test eax, eax; jnz over
_IF_CHILD = b"\x85\xc0\x74"  # test eax, eax; jz over


def _back(code: bytes) -> bytes:
    return code + b"\xeb" + struct.pack("<b", -len(code) - 2)


RELAY = _program(_back(_SETSID + _FORK + _IF_CHILD + struct.pack("<b", len(_EXIT)) + _EXIT))
"""Each generation takes a session of its own, forks the next and ends: no pid stays for longer than a fork takes."""
BOMB = _program(_back(_SETSID + _FORK))
"""Every process forks for ever, each from a session of its own."""

_RUN = """
import os
def run(program, copies):
    fd = os.memfd_create('program', os.MFD_CLOEXEC)
    os.write(fd, program)
    for _ in range(copies):
        if os.posix_spawn(f'/proc/self/fd/{fd}', ['program'], {}) == 0:
            break
"""

_PLAIN: Mapping[str, str] = {
    "ignores every signal": """
import signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
while True:
    pass
""",
    "double fork": """
import os, time
for _ in range(6):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            os.closerange(0, 65536)
            while True:
                time.sleep(1)
        os._exit(0)
    os.wait()
""",
    "stops itself and its children": """
import os, signal
for _ in range(5):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.kill(0, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        while True:
            pass
os.kill(os.getpid(), signal.SIGSTOP)
""",
    "stops everybody": """
import os, signal, time
for _ in range(4):
    if os.fork() == 0:
        os.setsid()
        while True:
            try:
                os.kill(-1, signal.SIGSTOP)
            except OSError:
                pass
time.sleep(0.02)
""",
    "wakes everybody": """
import os, signal
for _ in range(4):
    if os.fork() == 0:
        os.setsid()
        while True:
            os.kill(-1, signal.SIGCONT)
while True:
    os.kill(-1, signal.SIGCONT)
""",
    "forks for ever": """
import os
while True:
    try:
        if os.fork() == 0:
            os.setsid()
    except OSError:
        pass
""",
    "stopped vfork": """
import ctypes, os, signal, time
libc = ctypes.CDLL(None)
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if libc.vfork() == 0:
            libc.kill(libc.getpid(), signal.SIGSTOP)
            libc._exit(0)
        os._exit(0)
time.sleep(0.02)
""",
    "zombies": """
import os, time
for _ in range(20):
    if os.fork() == 0:
        os._exit(0)
if os.fork() == 0:
    os.setsid()
    for _ in range(5):
        if os.fork() == 0:
            os._exit(0)
    while True:
        time.sleep(1)
while True:
    pass
""",
    "kills everybody": """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    time.sleep(0.01)
    os.kill(-1, signal.SIGKILL)
    os._exit(0)
time.sleep(0.1)
os.kill(1, signal.SIGKILL)
os.kill(1, signal.SIGSTOP)
os.kill(-1, signal.SIGKILL)
""",
    "closes everything": """
import os, time
if os.fork() == 0:
    os.setsid()
    os.closerange(0, 1 << 20)
    while True:
        time.sleep(1)
os.closerange(0, 1 << 20)
while True:
    pass
""",
    "replaces everything": """
import os, time
null = os.open('/dev/null', os.O_RDWR)
for fd in range(1024):
    if fd != null:
        os.dup2(null, fd)
if os.fork() == 0:
    os.setsid()
while True:
    time.sleep(1)
""",
    "never leaves": """
import atexit, os, time, threading
def stay():
    while True:
        if os.fork() == 0:
            os.setsid()
            while True:
                time.sleep(1)
        time.sleep(0.01)
atexit.register(stay)
threading.Thread(target=lambda: time.sleep(1000)).start()
exit()
""",
    "threads in C": """
import ctypes, hashlib, threading
for _ in range(4):
    work = lambda: hashlib.pbkdf2_hmac('sha256', b'x', b'y', 1 << 30)
    threading.Thread(target=work, daemon=True).start()
hashlib.pbkdf2_hmac('sha256', b'x', b'y', 1 << 30)
""",
    "first thread ends": """
import ctypes, hashlib, os, threading
work = lambda: hashlib.pbkdf2_hmac('sha256', b'x', b'y', 1 << 30)
if os.fork() == 0:
    os.setsid()
threading.Thread(target=work, daemon=True).start()
ctypes.CDLL(None).syscall(60, 0)
""",
    "signals of a parent": """
import ctypes, os, signal, time
libc = ctypes.CDLL(None)
for number in (signal.SIGCONT, signal.SIGSTOP, 0, signal.SIGUSR1):
    if os.fork() == 0:
        libc.prctl(1, number)
        os.setsid()
        if os.fork() == 0:
            libc.prctl(1, number)
            while True:
                time.sleep(1)
        time.sleep(0.01)
        os._exit(0)
""",
    "other terminals and groups": """
import fcntl, os, termios, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        if os.fork() == 0:
            os.setpgid(0, 0)
            if os.fork() == 0:
                os.setsid()
            while True:
                time.sleep(1)
        while True:
            time.sleep(1)
""",
    "children without a signal": """
import ctypes, os, time
libc = ctypes.CDLL(None)
for flags in (0, 10, 0x8000, 0x8000 | 10):  # another exit signal, none, CLONE_PARENT
    if libc.syscall(56, flags, 0, 0, 0, 0) == 0:
        os.setsid()
        if libc.syscall(56, 0, 0, 0, 0, 0) == 0:
            os.setsid()
        while True:
            time.sleep(1)
""",
    "a reaper of its own": """
import ctypes, os, time
if os.fork() == 0:
    os.setsid()
    ctypes.CDLL(None).prctl(36, 1)
    for _ in range(4):
        if os.fork() == 0:
            if os.fork() == 0:
                os.setsid()
                while True:
                    time.sleep(1)
            os._exit(0)
    while True:
        time.sleep(1)
""",
    "lowers its limits": """
import os, resource, time
for locks, resident in ((1, None), (None, 1), (1, 1), (0, 0)):
    if os.fork() == 0:
        os.setsid()
        for number, limit in ((10, locks), (5, resident)):
            if limit is not None:
                resource.setrlimit(number, (limit, limit))
        while True:
            time.sleep(1)
""",
    "fills the memory": """
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        kept = []
        while True:
            try:
                kept.append(bytearray(1 << 20))
            except MemoryError:
                time.sleep(0.01)
while True:
    pass
""",
    "bash, disowned": """
import subprocess
subprocess.run(['bash', '-c', 'trap "" INT TERM HUP; for i in 1 2 3; do setsid nohup bash -c "trap \\\\"\\\\" INT TERM HUP; while :; do :; done" >/dev/null 2>&1 & disown; done'])
""",
    "writes for ever": """
import os
if os.fork() == 0:
    os.setsid()
    while True:
        with open('/tmp/full', 'wb') as file:
            try:
                for _ in range(16):
                    file.write(bytes(1 << 20))
                    os.fsync(file.fileno())
            except OSError:
                pass
while True:
    print('x' * 10000)
""",
    "sweeps descriptors with frames": """
import os
if os.fork() == 0:
    os.setsid()
for fd in range(3, 1024):
    try:
        os.write(fd, b'\\xff' * 64)
    except OSError:
        pass
while True:
    pass
""",
}

_NATIVE: Mapping[str, str] = {
    "relay": f"{_RUN}\nrun({RELAY!r}, 1)\n",
    "relays": f"{_RUN}\nrun({RELAY!r}, 8)\nwhile True: pass\n",
    "bomb": f"{_RUN}\nrun({BOMB!r}, 2)\nwhile True: pass\n",
}

ADVERSARIES: Mapping[str, str] = {**_PLAIN, **(_NATIVE if platform.machine() == "x86_64" else {})}
"""What it does → the code."""
