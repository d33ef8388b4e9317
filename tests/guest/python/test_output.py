"""Everything that is written arrives, in order, at once."""

import time
from pathlib import Path

import pytest

from tests.guest.python.harness import KiB, MiB, Session

CHILD = "subprocess.run([sys.executable, '-c', 'import os; os.write(1, b\"child\\\\n\")'])"
C_STDIO = "ctypes.CDLL(None).printf(b'from C, no newline')"


def test_print(session: Session):
    """One ``print`` is one piece of text, its newline included."""
    ran = session.run("print('Hello', 'world')")
    assert [(f.header["op"], f.body) for f in ran.frames[:-1]] == [("stdout", b"Hello world\n")]


def test_every_way_of_writing_keeps_its_place_among_displays(session: Session):
    """Text of Python, C, ``os.write`` and children stays where it was written relative to displays."""
    code = f"""
import ctypes, os, subprocess, sys
display(0)
print('python')
display(1)
_ = os.write(1, b'os.write\\n')
display(2)
_ = {CHILD}
display(3)
_ = {C_STDIO}
display(4)
sys.stderr.write('err')
display(5)
_ = os.system('echo system')
display(6)
_ = os.write(2, b'err2')
7
"""
    assert session.run(code).ok().order == [
        ("display", "0"),
        ("stdout", "python\n"),
        ("display", "1"),
        ("stdout", "os.write\n"),
        ("display", "2"),
        ("stdout", "child\n"),
        ("display", "3"),
        ("stdout", "from C, no newline"),
        ("display", "4"),
        ("stderr", "err"),
        ("display", "5"),
        ("stdout", "system\n"),
        ("display", "6"),
        ("stderr", "err2"),
        ("display", "7"),
    ]


def test_order_holds_under_load(session: Session):
    """The order survives thousands of changes between streams and displays."""
    code = """
import sys
for i in range(1000):
    print('o', i)
    print('e', i, file=sys.stderr)
    display(i)
"""
    expected = [
        item
        for i in range(1000)
        for item in (("stdout", f"o {i}\n"), ("stderr", f"e {i}\n"), ("display", str(i)))
    ]
    assert session.run(code).ok().order == expected


def test_stdout_and_stderr_of_python_keep_their_order(session: Session):
    """Python's own writing keeps its order across the two streams, also around shell commands and scripts."""
    code = """
import sys
print('a'); print('b', file=sys.stderr); print('c')
!echo d >&2
print('e')
"""
    assert session.run(code).order == [
        ("stdout", "a\n"),
        ("stderr", "b\n"),
        ("stdout", "c\n"),
        ("stderr", "d\n"),
        ("stdout", "e\n"),
    ]


def test_a_line_arrives_while_the_cell_runs(session: Session):
    """A line, and a part of a line, arrives within milliseconds, not at the end of the cell."""
    session.run("1")
    session.send("import time\nprint('first')\ntime.sleep(0.5)\nprint('par', end='')\ntime.sleep(0.5)")
    started = time.monotonic()
    assert session.next().body == b"first\n"
    first = time.monotonic() - started
    assert session.next().body == b"par"
    second = time.monotonic() - started
    session.collect()
    assert first < 0.4
    assert 0.4 < second < 0.9


def test_a_hundred_thousand_lines(session: Session):
    """All of 100,000 lines arrive, gathered into few frames."""
    ran = session.run("for i in range(100_000): print(i)")
    assert ran.stdout == "".join(f"{i}\n" for i in range(100_000))
    assert len(ran.frames) < 2_000


def test_large_writes(session: Session):
    """Text larger than the pipe arrives whole."""
    ran = session.run(f"print('x' * {8 * MiB})")
    assert len(ran.stdout) == 8 * MiB + 1


def test_the_cap_of_a_stream(session: Session):
    """Beyond ``output`` bytes, a stream's text is dropped and counted, each stream by itself; the rest goes on."""
    code = "import sys\nprint('x' * 100_000)\nprint('err', file=sys.stderr)\ndisplay(1)\nprint('tail')"
    ran = session.run(code, output=1000).ok()
    assert len(ran.stdout) == 1000
    assert ran.stderr == "err\n"
    assert [("display", "1")] == [item for item in ran.order if item[0] == "display"]
    dropped = [(f.header["op"], f.header["dropped"]) for f in ran.frames if f.header.get("dropped")]
    assert dropped == [("stdout", 100_001 - 1000 + 5)]
    assert session.run("print('again')").stdout == "again\n"


@pytest.mark.slow
def test_endless_output_needs_no_memory(session: Session):
    """A gigabyte of output is counted, and init stays small."""
    ran = session.run("chunk = 'x' * (1 << 20)\nfor _ in range(1000): print(chunk, end='')", output=1000)
    assert sum(f.header.get("dropped", 0) for f in ran.frames) == 1000 * (1 << 20) - 1000
    status = Path(f"/proc/{session.ping()['init']}/status").read_text()
    peak = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
    assert peak < 250 * KiB


def test_output_between_cells_comes_with_the_next(session: Session):
    """What threads and children write while nothing runs is kept, up to 64 KiB, and starts the next execution."""
    session.run("import threading, time\nthreading.Timer(0.2, lambda: print('late')).start()").ok()
    time.sleep(0.5)
    assert session.run("print('next')").order == [("stdout", "late\nnext\n")]
    session.run("threading.Timer(0.1, lambda: print('x' * 100_000)).start()")
    time.sleep(0.5)
    ran = session.run("1").ok()
    assert len(ran.stdout) == 64 * KiB
    assert sum(f.header.get("dropped", 0) for f in ran.frames) == 100_001 - 64 * KiB


def test_displays_between_cells_come_with_the_next(session: Session):
    """So do displays."""
    session.run("import threading\nthreading.Timer(0.1, lambda: display('late')).start()").ok()
    time.sleep(0.4)
    assert session.run("1").order == [("display", "'late'"), ("display", "1")]


def test_threads_write_while_the_cell_runs(session: Session):
    """Text and displays of threads belong to the cell that runs; no line is torn by another thread's."""
    code = """
import threading
def work(name):
    for i in range(200):
        sys.stdout.write(f'{name}-{i}\\n')
    display(name)
import sys
threads = [threading.Thread(target=work, args=(n,)) for n in 'abcd']
[t.start() for t in threads]; [t.join() for t in threads]
None
"""
    ran = session.run(code).ok()
    assert sorted(ran.stdout.split()) == sorted(f"{n}-{i}" for n in "abcd" for i in range(200))
    assert sorted(d["text/plain"] for d in ran.displays) == ["'a'", "'b'", "'c'", "'d'"]


def test_the_streams_are_files(session: Session):
    """``sys.stdout`` is a text file: encoding, bytes, descriptor, and what is no text is refused."""
    assert session.run(
        "import sys\nsys.stdout.encoding, sys.stdout.isatty(), sys.stdout.fileno(), sys.stderr.fileno()"
    ).text == ("('utf-8', False, 1, 2)")
    assert (
        session.run(
            "_ = sys.stdout.buffer.write(b'bytes\\n'); sys.stdout.writelines(['a', 'b']); print(flush=True)"
        ).stdout
        == "bytes\nab\n"
    )
    assert session.run("sys.stdout.write(1)").error["name"] == "TypeError"
    assert session.run("print('\\ud800é')").stdout == "\\ud800é\n"
    assert session.run(
        "import subprocess\nsubprocess.run(['echo', 'x'], stdout=sys.stdout).returncode"
    ).order == [("stdout", "x\n"), ("display", "0")]
    assert session.run("print('old', file=sys.__stdout__)").stdout == "old\n"


def test_logging_and_warnings(session: Session):
    """Warnings and log records go to stderr."""
    assert "UserWarning: careful" in session.run("import warnings; warnings.warn('careful')").stderr
    assert session.run("import logging; logging.warning('logged')").stderr == "WARNING:root:logged\n"


def test_redirected_output_is_not_sent(session: Session):
    """``redirect_stdout`` and ``%%capture`` keep text and displays from being sent."""
    ran = session.run(
        "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as b: print('x')\nb.getvalue()"
    )
    assert ran.order == [("display", "'x\\n'")]
    assert session.run("%%capture c\nprint('x'); display(1)").order == []
    assert session.run("c.stdout, len(c.outputs)").text == "('x\\n', 1)"


def test_a_forged_marker_hurts_nobody(session: Session):
    """Bytes that look like markers are text, or at worst disturb their author's own order."""
    ran = session.run(
        "import os\n_ = os.write(1, b'a\\x00\\x1bCF12345678\\x00\\x00\\x00\\x01b\\n')\n_ = os.write(1, b'\\x00\\x1bC')\n5"
    )
    assert ran.stdout == "a\x00\x1bCF12345678\x00\x00\x00\x01b\n\x00\x1bC"
    assert ran.text == "5"


def test_nonblocking_pipes_lose_nothing(session: Session):
    """A child that makes its output non-blocking does not make the kernel lose text."""
    session.run("import os\nos.set_blocking(1, False)")
    assert len(session.run("print('y' * 3_000_000)").stdout) == 3_000_001


def test_lines_of_threads_are_whole(session: Session):
    """A print of several values is one write: threads that print at once do not cut each other's lines."""
    code = """
import threading
def work(name):
    for number in range(300):
        print('worker', name, number, sep='-')
threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
None
"""
    lines = session.run(code).ok().stdout.splitlines()
    assert sorted(lines) == sorted(f"worker-{n}-{number}" for n in range(4) for number in range(300))


def test_print_is_pythons_print(session: Session):
    """Separators, ends, other files, None, wrong types, pickling and introspection work as they always did."""
    code = """
import io, pickle, builtins
other = io.StringIO()
print(1, None, 'x', sep='+', end='!\\n', file=other)
assert other.getvalue() == '1+None+x!\\n'
print('a', 'b', sep=None, end=None)
assert pickle.loads(pickle.dumps(print)) is print is builtins.print
assert print.__doc__ and print.__name__ == 'print'
try:
    print('x', sep=3)
except TypeError as error:
    print(error)
"""
    assert session.run(code).ok().stdout == "a b\nsep must be None or a string, not int\n"


def test_what_raises_inside_print_shows_the_users_frames(session: Session):
    """The traceback of an error in ``__str__`` leads from the cell to the class, not through the kernel."""
    code = "class C:\n    def __str__(self): return 1 / 0\nprint(C())"
    error = session.run(code).error
    assert error["name"] == "ZeroDivisionError"
    assert "printing.py" not in error["traceback"]
