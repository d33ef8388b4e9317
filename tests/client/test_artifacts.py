"""Files that code made, in real sandboxes: told with the execution, and fetched."""

import hashlib
from collections.abc import Iterator

import pytest

from cellfork import Execution, Sandbox


@pytest.fixture(params=["namespaces", "none"])
def any_sandbox(request: pytest.FixtureRequest, create) -> Iterator[Sandbox]:
    with create(isolation=request.param) as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(create) -> Iterator[Sandbox]:
    with create() as sandbox:
        yield sandbox


def paths(execution: Execution) -> list[str]:
    return sorted(artifact.path for artifact in execution.artifacts)


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python", "open('a.txt', 'w').write('a'); open('b.csv', 'wb').write(bytes(1000))"),
        ("python", "!printf a > a.txt; head -c 1000 /dev/zero > b.csv"),
        ("bash", "printf a > a.txt; head -c 1000 /dev/zero > b.csv"),
    ],
    ids=["python", "python's shell", "bash"],
)
def test_in_every_language(any_sandbox: Sandbox, language: str, code: str):
    """Whatever language and whichever process wrote it: path, size, type and digest, and the content can be fetched."""
    execution = any_sandbox.run_code(code, language=language)
    assert execution.error is None
    assert paths(execution) == ["/home/user/a.txt", "/home/user/b.csv"]
    for artifact in execution.artifacts:
        content = any_sandbox.files.read(artifact.path, format="bytes")
        assert (artifact.size, artifact.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert {artifact.mime for artifact in execution.artifacts} == {"text/plain", "text/csv"}
    assert any_sandbox.run_code("1", language=language).artifacts == []


def test_nothing_of_a_fresh_sandbox_is_an_artifact(sandbox: Sandbox):
    """What is in a home from the start, and what libraries keep there, is none of the code's results."""
    code = (
        "import matplotlib.pyplot as plt, pandas as pd\nplt.plot([1]); plt.show()\npd.DataFrame({'a': [1]})"
    )
    assert sandbox.run_code(code).artifacts == []
    assert sandbox.run_code("import sys, os\nos.listdir()").artifacts == []


@pytest.mark.parametrize(
    ("code", "status", "options"),
    [
        ("1 / 0", "error", {}),
        ("while True: pass", "timed_out", {"timeout": 0.5}),
        ("import os; os._exit(3)", "lost", {}),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "lost", {}),
    ],
)
def test_however_it_ends(sandbox: Sandbox, code: str, status: str, options: dict[str, float]):
    """What was written before an error, a timeout or the interpreter's end is told all the same."""
    execution = sandbox.run_code(f"open('made', 'w').write('x')\n{code}", timeout=options.get("timeout", 60))
    assert (execution.status, paths(execution)) == (status, ["/home/user/made"])
    assert sandbox.run_code("open('made').read()").text == "'x'"


def test_what_the_caller_writes_is_not_the_codes(sandbox: Sandbox):
    """Uploads and commands between two executions are nobody's artifacts; what code does with them afterwards is."""
    sandbox.run_code("1")
    sandbox.files.write("up.csv", "a,b\n")
    sandbox.commands.run("echo x > by-command")
    assert sandbox.run_code("open('up.csv').read()").artifacts == []
    assert paths(sandbox.run_code("open('up.csv', 'w').write('A,B\\n')")) == ["/home/user/up.csv"]
    handle = sandbox.commands.run("sleep 0.5; echo y > late", background=True)
    handle.wait()
    assert sandbox.run_code("1").artifacts == []


def test_a_working_directory_elsewhere(sandbox: Sandbox):
    """The working directory of a context counts beside the home, other places do not."""
    sandbox.files.make_dir("/tmp/work")
    context = sandbox.create_code_context(cwd="/tmp/work")
    code = "open('here', 'w').close(); open('/tmp/there', 'w').close(); open('/home/user/home', 'w').close()"
    assert paths(sandbox.run_code(code, context=context)) == ["/home/user/home", "/tmp/work/here"]


def test_contexts_have_their_own(sandbox: Sandbox):
    """What one context makes is not told of the next execution in another one."""
    other = sandbox.create_code_context()
    assert paths(sandbox.run_code("open('one', 'w').close()")) == ["/home/user/one"]
    assert paths(sandbox.run_code("open('two', 'w').close()", context=other)) == ["/home/user/two"]
    late = "import threading\nthreading.Timer(0.1, lambda: open('late', 'w').close()).start()"
    sandbox.run_code(late)
    assert sandbox.run_code("import time; time.sleep(0.3)", context=other).artifacts != []  # while it ran
    sandbox.run_code(late.replace("'late'", "'later'"))
    sandbox.commands.run("sleep 0.3")
    assert sandbox.run_code("1", context=other).artifacts == []


def test_odd_names(sandbox: Sandbox):
    """Names with quotes, newlines and spaces arrive as they are and can be given back; such as are no UTF-8 are marked."""
    code = "for name in ['a b', 'it\\'s \"so\"', 'line\\nbreak', 'ü', b'\\xff']: open(name, 'w').close()"
    execution = sandbox.run_code(code)
    plain = {artifact.name for artifact in execution.artifacts if not artifact.lossy}
    assert plain == {"a b", 'it\'s "so"', "line\nbreak", "ü"}
    assert [artifact.name for artifact in execution.artifacts if artifact.lossy] == ["\\xff"]
    assert all(sandbox.files.exists(a.path) for a in execution.artifacts if not a.lossy)


def test_links_lead_nowhere(sandbox: Sandbox):
    """Symbolic links are neither told nor followed, wherever they lead; a FIFO makes nobody wait."""
    code = "import os\nos.symlink('/etc', 'etc')\nos.symlink('/etc/passwd', 'passwd')\nos.mkfifo('fifo')\nos.symlink('.', 'self')"
    assert sandbox.run_code(code, timeout=20).artifacts == []


def test_so_many_files(sandbox: Sandbox):
    """Ten thousand files are no burden: the list is cut, says so, and the next execution answers soon."""
    code = "import os\nos.mkdir('d')\nfor i in range(10_000): open(f'd/{i}', 'w').close()"
    execution = sandbox.run_code(code)
    assert (len(execution.artifacts), execution.artifacts_truncated) == (1000, True)
    assert sandbox.run_code("1 + 1", timeout=10).text == "2"


FORGERY = """
import json, os, socket, stat, struct, time
def is_socket(fd):
    try:
        return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError:
        return False
own = socket.socket(fileno=next(fd for fd in range(100, 1024) if is_socket(fd)))
header = json.dumps({"op": "artifacts", "execution": "x", "truncated": False}).encode()
body = b'[["/etc/shadow", 1, null, false]]'
own.sendall(struct.pack(">III", len(header), len(body), 0) + header + body)
time.sleep(20)
"""


def test_a_kernel_does_not_tell_them(sandbox: Sandbox):
    """Init looks for itself: a kernel that says what was made breaks the protocol, and is ended."""
    execution = sandbox.run_code(FORGERY)
    assert (execution.status, execution.artifacts) == ("lost", [])


WRITE: dict[str, str] = {
    "javascript": "Deno.writeTextFileSync('a.txt', 'x')",
    "typescript": "const text: string = 'x'; Deno.writeTextFileSync('a.txt', text)",
    "r": "cat('x', file='a.txt')",
    "java": 'java.nio.file.Files.writeString(java.nio.file.Path.of("a.txt"), "x")',
    "go": 'import "os"\n%%\nos.WriteFile("a.txt", []byte("x"), 0644)',
}


@pytest.mark.parametrize("language", WRITE)
def test_in_languages_with_a_kernel_of_their_own(sandbox: Sandbox, language: str):
    """The same for every other language: what its code wrote, and nothing that its kernel keeps for itself."""
    execution = sandbox.run_code(WRITE[language], language=language, timeout=120)
    assert (execution.error, paths(execution)) == (None, ["/home/user/a.txt"])
    assert sandbox.files.read("a.txt") == "x"
    assert sandbox.run_code("1", language=language).artifacts == []
