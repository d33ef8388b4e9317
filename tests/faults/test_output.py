"""Output without end, results of any size, objects that misbehave when they are shown."""

import re
import sys

import pytest

from cellfork import Execution, Limits, Sandbox

from .driver import MiB, assert_usable, failure, host_memory_within, stderr, stdout, within

CAP = 16 * MiB
"""The default of ``Limits.output``."""


def kept(text: str) -> int:
    return len(text.encode())


def dropped(text: str) -> int:
    """The number of bytes that the marker of a truncated stream tells."""
    found = re.search(r"… ([\d,]+) bytes of \w+ dropped …", text)
    assert found, text[-200:]
    return int(found[1].replace(",", ""))


FLOODS = {
    "print": "while True: print('x' * 65536)",
    "lines": "while True: print('a line of ordinary length, nothing special about it')",
    "os.write": "import os\nwhile True: os.write(1, b'x' * 65536)",
    "child": "import subprocess; subprocess.run(['cat', '/dev/zero'])",
    "shell": "!yes",
    "stderr": "import sys\nwhile True: sys.stderr.write('e' * 65536)",
    "both": "import sys\nwhile True:\n    print('x' * 4096)\n    print('e' * 4096, file=sys.stderr)",
}


@pytest.mark.parametrize("flood", FLOODS)
def test_endless_output(sandbox: Sandbox, flood: str) -> None:
    """Output without end is kept up to the cap and counted beyond it, until the run's time is over.

    The host's memory stays within twice the cap of the two streams, whatever was produced.
    """
    with within(20), host_memory_within(2 * 2 * CAP):
        execution = sandbox.run_code(FLOODS[flood], timeout=2)
    assert execution.status == "timed_out", execution
    streams = [stdout(execution), stderr(execution)]
    produced = execution.accounting.output_bytes
    assert any(kept(text) >= CAP for text in streams) or produced <= len(streams) * CAP  # it had two seconds
    for text in streams:
        assert kept(text) <= CAP + 256 * 1024
    if execution.accounting.truncated:
        assert sum(dropped(text) for text in streams if "dropped …" in text[-200:]) > 0
        assert produced > CAP
    assert_usable(sandbox)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_ten_gigabytes_of_output(sandbox: Sandbox) -> None:
    """Ten gigabytes pass through in a bounded time, counted to the byte, and the host does not grow with them."""
    code = "import subprocess; subprocess.run('head -c 10G /dev/zero', shell=True)"
    with within(150), host_memory_within(3 * CAP):
        execution = sandbox.run_code(code, timeout=140)
    assert execution.status in {"ok", "timed_out"}, execution
    text = stdout(execution)
    assert kept(text) <= CAP + 256 * 1024
    produced = execution.accounting.output_bytes
    assert dropped(text) >= produced - CAP - 256 * 1024
    if execution.status == "ok":
        assert produced == 10 * 1024**3
    assert_usable(sandbox)


def test_one_endless_line(sandbox: Sandbox) -> None:
    """A line of a gigabyte is no different from many short ones: bounded, counted, and no buffer grows with it."""
    code = "import os\nblock = b'x' * 2**20\nsent = sum(os.write(1, block) for _ in range(1024))\nos.write(1, b'\\n')\nsent"
    with within(60), host_memory_within(3 * CAP):
        execution = sandbox.run_code(code, timeout=60)
    assert execution.status == "ok", execution
    sent = int(execution.text or 0)  # a write may be cut short by a signal, as for the freezer of a host
    assert sent > 1000 * MiB
    assert execution.accounting.output_bytes == sent + 1
    assert CAP <= kept(stdout(execution)) <= CAP + 256 * 1024
    assert_usable(sandbox)


def test_one_huge_print(sandbox: Sandbox) -> None:
    """One ``print`` of 100 MB is cut like any other output."""
    with within(30), host_memory_within(3 * CAP):
        execution = sandbox.run_code("print('x' * 100_000_000)", timeout=30)
    assert execution.status == "ok", execution
    assert dropped(stdout(execution)) >= 100_000_001 - CAP - 256 * 1024
    assert_usable(sandbox)


def test_output_limit_of_the_sandbox() -> None:
    """``Limits.output`` bounds each stream of each run anew."""
    with Sandbox.create(limits=Limits(output="64K")) as sandbox:
        for _ in range(2):
            execution = sandbox.run_code(
                "import sys\nfor n in range(100_000): print('x' * 10)\nprint('e' * 10**6, file=sys.stderr)"
            )
            assert execution.status == "ok"
            for text in (stdout(execution), stderr(execution)):
                assert 64 * 1024 <= kept(text) <= 64 * 1024 + 300 * 1024
                assert dropped(text) > 500_000
        assert stdout(sandbox.run_code("print('short')")) == "short\n"


def test_output_that_is_no_text(sandbox: Sandbox) -> None:
    """Invalid UTF-8 is replaced, NUL and escape bytes arrive as they are; nothing after them is lost."""
    code = (
        "import os, sys\n"
        "os.write(1, b'a\\xff\\xfe\\x80b\\x00c\\x1b[31mred\\x1b[0m\\xed\\xa0\\x80\\xf0\\x9f')\n"
        "sys.stdout.buffer.write(b'\\xc3')\n"
        "os.write(1, b'\\xa9\\n')\n"
        "print('after')"
    )
    execution = sandbox.run_code(code)
    text = stdout(execution)
    assert text.startswith("a���b\0c\x1b[31mred\x1b[0m")
    assert text.endswith("é\nafter\n")
    text.encode()
    execution.to_json().encode()
    execution.to_llm()
    assert_usable(sandbox)


def test_output_that_looks_like_a_marker(sandbox: Sandbox) -> None:
    """Bytes that begin like the protocol's own markers are text, however they are cut."""
    code = """
import os
mark = b'\\x00\\x1bCF'
for size in range(1, 5):
    os.write(1, mark[:size] + b'|')
os.write(1, mark + bytes(12) + b'|' + mark)
os.write(2, mark * 1000)
print('end')
"""
    execution = sandbox.run_code(code)
    mark = "\x00\x1bCF"
    expected = "".join(mark[:size] + "|" for size in range(1, 5)) + mark + "\0" * 12 + "|" + mark + "end\n"
    assert stdout(execution) == expected
    assert stderr(execution) == mark * 1000
    assert_usable(sandbox)


# ------------------------------------------------------------------------------------------------ results


RESULT = "'x' * 500_000_000"


def test_result_of_half_a_gigabyte(sandbox: Sandbox) -> None:
    """With the default memory limit a result of 500 MB is the sandbox's memory problem, or is cut; never the host's."""
    with within(60), host_memory_within(192 * MiB):
        execution = sandbox.run_code(RESULT, timeout=60)
    assert_cut_or_out_of_memory(execution)
    assert_usable(sandbox)


@pytest.mark.slow
def test_result_of_half_a_gigabyte_with_memory_enough() -> None:
    """Where there is memory for it, a result of 500 MB is cut to ``Limits.result``, with a note."""
    with Sandbox.create(limits=Limits(memory="4G")) as sandbox:
        with within(90), host_memory_within(256 * MiB):
            execution = sandbox.run_code(RESULT, timeout=90)
        assert execution.status == "ok", execution
        text = execution.text or ""
        assert 16 * MiB < len(text) <= 33 * MiB
        assert "cut to 32.0 MiB" in text
        assert (text[:2], text[-2:]) == ("'x", "x'")
        assert_usable(sandbox)


@pytest.mark.slow
@pytest.mark.parametrize("mime", ["image/png", "text/html", "application/json"])
def test_rich_result_that_is_too_large(mime: str) -> None:
    """A part of a result that does not fit is left out; a note in its place says what and how large."""
    with Sandbox.create(limits=Limits(memory="2G", result="1M")) as sandbox:
        with within(60), host_memory_within(64 * MiB):
            execution = sandbox.run_code(
                f"display({{{mime!r}: 'A' * 200_000_000, 'text/plain': 'the rest'}}, raw=True)", timeout=60
            )
        assert execution.status == "ok", execution
        (result,) = execution.results
        assert result.formats() == ["text"]
        assert result.text is not None
        assert result.text.startswith("the rest\n")
        assert f"{mime} of" in result.text
        assert "dropped" in result.text
        assert_usable(sandbox)


def test_many_results(sandbox: Sandbox) -> None:
    """Results are bounded in number and in bytes together; the rest is dropped and counted."""
    code = "for n in range(40): display({'text/html': 'h' * 8_000_000}, raw=True)"
    with within(60), host_memory_within(512 * MiB):
        execution = sandbox.run_code(code, timeout=60)
    assert execution.status == "ok", execution
    assert sum(len(result.html or "") for result in execution.results) <= 5 * 33 * MiB
    assert re.search(r"\d+ results dropped", stderr(execution))
    assert_usable(sandbox)


def test_updates_without_end(sandbox: Sandbox) -> None:
    """Updating one display for ever keeps one content, not all of them."""
    code = """
handle = display({'text/html': ''}, raw=True, display_id='one')
for n in range(200): handle.update({'text/html': str(n) * 500_000}, raw=True)
"""
    with within(60), host_memory_within(400 * MiB):
        execution = sandbox.run_code(code, timeout=60)
    assert execution.status == "ok", execution
    (result,) = execution.results
    assert result.html == "199" * 500_000
    assert_usable(sandbox)


# ------------------------------------------------------------------------------- objects that misbehave


def test_repr_that_raises(sandbox: Sandbox) -> None:
    """A result whose ``__repr__`` raises is an error of the cell."""
    execution = sandbox.run_code("class Bad:\n    def __repr__(self): raise ValueError('no')\nBad()")
    assert failure(execution) == "ValueError"
    assert_usable(sandbox)


@pytest.mark.parametrize("method", ["__repr__", "__str__"])
def test_exception_whose_text_raises(sandbox: Sandbox, method: str) -> None:
    """An exception that cannot be shown is reported by its class."""
    code = f"""
class Bad(Exception):
    def {method}(self): raise ValueError('no')
    __str__ = {method}
raise Bad('text')
"""
    execution = sandbox.run_code(code)
    assert failure(execution) == "Bad"
    assert execution.error is not None
    assert "Bad" in execution.error.value
    assert_usable(sandbox)


@pytest.mark.parametrize(
    "escape", ["BaseException('x')", "SystemExit(3)", "KeyboardInterrupt()", "GeneratorExit()"]
)
def test_exception_whose_text_tries_to_leave(sandbox: Sandbox, escape: str) -> None:
    """Not even what is raised to end a program gets out of an exception's text."""
    execution = sandbox.run_code(
        f"class Bad(Exception):\n    def __str__(self): raise {escape}\n    __repr__ = __str__\nx = 1\nraise Bad('text')"
    )
    assert execution.status in {"error", "interrupted"}, execution
    assert sandbox.run_code("x").text == "1"


def test_exception_whose_class_lies(sandbox: Sandbox) -> None:
    """Strange class names and attributes of exceptions travel as text."""
    code = """
Bad = type('Bad\\n\\x1b' + 'x' * 100_000, (Exception,), {'__module__': 5, '__traceback__': property(lambda s: 1/0)})
raise Bad('\\x00\\ud800')
"""
    execution = sandbox.run_code(code)
    assert failure(execution).startswith("Bad\n")
    execution.to_json().encode()
    assert_usable(sandbox)


def test_exception_whose_text_hangs(sandbox: Sandbox) -> None:
    """Showing an exception counts as the code's own time."""
    code = "import time\nclass Bad(Exception):\n    def __str__(self): time.sleep(3600)\nx = 1\nraise Bad"
    with within(15):
        execution = sandbox.run_code(code, timeout=1)
    assert execution.status == "timed_out", execution
    assert_usable(sandbox)


def test_huge_exception_text(sandbox: Sandbox) -> None:
    """A message of 100 MB is too much for the sandbox's own memory, or arrives bounded; the host is not touched."""
    with within(60), host_memory_within(256 * MiB):
        execution = sandbox.run_code("raise ValueError('x' * 100_000_000)", timeout=60)
    assert execution.status in {"killed", "error"}, execution
    assert execution.error is not None
    assert len(execution.error.value) <= 65 * MiB
    assert_usable(sandbox)


@pytest.mark.slow
def test_huge_exception_text_with_memory_enough() -> None:
    """Where there is memory for it, a message beyond what a frame can carry is cut, with a note."""
    with Sandbox.create(limits=Limits(memory="4G")) as sandbox:
        with within(60), host_memory_within(512 * MiB):
            execution = sandbox.run_code("raise ValueError('x' * 200_000_000)", timeout=60)
        assert failure(execution) == "ValueError"
        assert execution.error is not None
        assert len(execution.error.value) <= 65 * MiB
        assert "cut to 64.0 MiB" in execution.error.value
        assert_usable(sandbox)


def test_large_exception_text(sandbox: Sandbox) -> None:
    """A message of 10 MB is kept whole; its traceback is cut."""
    with within(60):
        execution = sandbox.run_code("raise ValueError('x' * 10_000_000)", timeout=60)
    assert failure(execution) == "ValueError"
    assert execution.error is not None
    assert len(execution.error.value) == 10_000_000
    assert len(execution.error.traceback) <= MiB
    assert_usable(sandbox)


def test_chain_of_exceptions(sandbox: Sandbox) -> None:
    """A chain of ten thousand causes, and one that bites its tail, are shown in bounded time."""
    code = """
error = None
for n in range(10_000):
    new = ValueError(n); new.__cause__ = error; error = new
raise error
"""
    with within(60):
        execution = sandbox.run_code(code, timeout=30)
    assert execution.status in {"error", "timed_out"}, execution
    assert_usable(sandbox)
    code = "a, b = ValueError('a'), ValueError('b')\na.__cause__, b.__cause__ = b, a\nraise a"
    with within(20):
        assert failure(sandbox.run_code(code, timeout=10)) == "ValueError"
    assert_usable(sandbox)


@pytest.mark.parametrize(
    "body",
    ["return 5", "return b'bytes'", "return None", "return ['<b>', {}]", "return object()"],
)
@pytest.mark.parametrize("method", ["_repr_html_", "_repr_png_", "_repr_json_", "_repr_mimebundle_"])
def test_rich_repr_of_a_wrong_type(sandbox: Sandbox, method: str, body: str) -> None:
    """A format that is of the wrong type is left out; the text is there all the same."""
    execution = sandbox.run_code(
        f"class Odd:\n    def {method}(self, **options): {body}\n    def __repr__(self): return 'odd'\nOdd()"
    )
    assert execution.status == "ok", execution
    assert execution.text == "odd"
    execution.to_json().encode()
    execution.to_llm()
    assert_usable(sandbox)


@pytest.mark.parametrize("method", ["_repr_html_", "_repr_png_", "_repr_mimebundle_"])
def test_rich_repr_that_raises(sandbox: Sandbox, method: str) -> None:
    """As in a notebook, the error is told, and the formats that could be made are shown."""
    execution = sandbox.run_code(
        f"class Odd:\n    def {method}(self, **options): raise ValueError('no')\n    def __repr__(self): return 'odd'\nOdd()"
    )
    assert failure(execution) == "ValueError"
    assert execution.text == "odd"
    assert_usable(sandbox)


@pytest.mark.parametrize("method", ["_repr_html_", "__repr__"])
def test_repr_that_hangs(sandbox: Sandbox, method: str) -> None:
    """Showing a result counts as the code's own time."""
    code = f"import time\nclass Odd:\n    def {method}(self): time.sleep(3600)\nOdd()"
    with within(15):
        execution = sandbox.run_code(code, timeout=1)
    assert (execution.status, execution.text) == ("timed_out", None), execution
    assert_usable(sandbox)


def test_object_that_answers_everything(sandbox: Sandbox) -> None:
    """An object that has every attribute is shown by its text."""
    code = """
class Yes:
    def __getattr__(self, name): return Yes()
    def __call__(self, *args, **kwargs): return Yes()
    def __repr__(self): return 'yes'
Yes()
"""
    execution = sandbox.run_code(code)
    assert (execution.status, execution.text) == ("ok", "yes"), execution
    assert_usable(sandbox)


@pytest.mark.parametrize(
    "code",
    [
        "x = []; x.append(x); x",
        "x = {}; x['x'] = x; x",
        "x = []\nfor _ in range(100_000): x = [x]\nx",
        "{object(): object()}",
        "{1: {2: float('nan'), None: float('inf')}}",
        "[10 ** 5000]",
        "{('a', 1): b'x', 5: {1, 2}}",
    ],
)
def test_odd_containers(sandbox: Sandbox, code: str) -> None:
    """Containers that JSON cannot say are shown as text, or are an error of the cell; nothing breaks."""
    with within(30):
        execution = sandbox.run_code(code, timeout=20)
    assert execution.status in {"ok", "error"}, execution
    execution.to_json().encode()
    assert_usable(sandbox)


def test_deep_recursion(sandbox: Sandbox) -> None:
    """Endless recursion is a ``RecursionError`` with a traceback of bounded size."""
    with within(20):
        execution = sandbox.run_code("def deeper(n): return deeper(n + 1)\ndeeper(0)", timeout=20)
    assert failure(execution) == "RecursionError"
    assert execution.error is not None
    assert len(execution.error.traceback) <= MiB
    assert_usable(sandbox)


@pytest.mark.parametrize(
    "code",
    [
        "eval('(' * 10_000 + ')' * 10_000)",
        "(" * 500 + ")" * 500,
        "-" * 100_000 + "1",
        "x" + ".x" * 50_000,
        "[" * 90 + "]" * 90,
    ],
    ids=["eval", "parentheses", "signs", "attributes", "lists"],
)
def test_deeply_nested_code(sandbox: Sandbox, code: str) -> None:
    """Code that is nested too deeply to be compiled is an error, or a lost kernel; the next run works."""
    with within(30):
        execution = sandbox.run_code(code, timeout=20)
    assert execution.status in {"ok", "error", "lost", "killed"}, execution
    assert_usable(sandbox)


def test_metadata_that_does_not_fit(sandbox: Sandbox) -> None:
    """Metadata that is too large or no JSON is left out; MIME types that are none are as well."""
    code = (
        "display({'text/plain': 'x', 5: 'y', 'a' * 1000: 'z', '': ''}, raw=True, metadata={'big': 'm' * 10**6})\n"
        "display({'text/plain': 'x'}, raw=True, metadata={'odd': object()})\n"
        "display({f'x/{n}': 'v' for n in range(10_000)}, raw=True)"
    )
    execution = sandbox.run_code(code)
    assert execution.status == "ok", execution
    assert execution.results[0].text == "x"
    assert_usable(sandbox)


def assert_cut_or_out_of_memory(execution: Execution) -> None:
    if execution.status == "ok":
        assert sys.getsizeof(execution.text) <= 40 * MiB
    elif execution.status == "error":
        assert execution.error is not None
        assert execution.error.name == "MemoryError"
    else:
        assert execution.status == "killed", execution
        assert execution.error is not None
        assert execution.error.value.startswith("memory:")
