"""Requests that are wrong before anything runs: a typed error of the caller's, and nothing happened."""

from collections.abc import Callable

import pytest

from cellfork import Sandbox
from cellfork.model.errors import (
    CellforkError,
    InvalidRequest,
    IsADirectory,
    LimitExceeded,
    NotADirectory,
    NotFound,
    PathNotFound,
    Unsupported,
)

from .driver import MiB, assert_usable, failure, files, host_memory_within, within

HOSTILE_TEXT = ["a\0b", "lone \ud800 surrogate", "\udcff"]


@pytest.mark.parametrize("language", ["cobol", "", "PYTHON\0", "py\ud800thon", "x" * 100_000])
def test_unknown_language(sandbox: Sandbox, language: str) -> None:
    """An unknown language is refused as unsupported (or as no name at all); nothing starts."""
    with pytest.raises((Unsupported, InvalidRequest)) as caught:
        sandbox.run_code("1", language=language or "\0")
    assert len(str(caught.value)) < 1000
    with pytest.raises((Unsupported, InvalidRequest)):
        sandbox.create_code_context(language=language or "\0")
    assert_usable(sandbox)


@pytest.mark.parametrize("context", ["nope", "", "../1", "1\0", "\ud800", "x" * 1_000_000])
def test_unknown_context(sandbox: Sandbox, context: str) -> None:
    """An id that no context has is not found, for every call that takes one, however long it is."""
    calls: list[Callable[[str], object]] = [
        lambda id: sandbox.run_code("1", context=id),
        sandbox.restart_code_context,
        sandbox.remove_code_context,
        sandbox.interrupt,
    ]
    for call in calls:
        with pytest.raises(NotFound) as caught:
            call(context)
        assert len(str(caught.value)) < 1000
    assert_usable(sandbox)


def test_context_of_another_sandbox(sandbox: Sandbox, neighbour: Sandbox) -> None:
    """A context is known in its own sandbox only."""
    foreign = neighbour.create_code_context()
    with pytest.raises(NotFound):
        sandbox.run_code("1", context=foreign)


def test_removed_context(sandbox: Sandbox) -> None:
    """A removed context is not found any more; its name cannot come back."""
    context = sandbox.create_code_context()
    assert_usable(sandbox, context.id)
    sandbox.remove_code_context(context)
    with pytest.raises(NotFound):
        sandbox.run_code("1", context=context)
    with pytest.raises(NotFound):
        sandbox.remove_code_context(context)
    assert context.id not in [other.id for other in sandbox.list_code_contexts()]
    assert_usable(sandbox)


@pytest.mark.parametrize(
    "cwd", ["/nowhere", "/etc/passwd", "../../root/.ssh", "\0", "/\ud800", "/" + "x" * 5000]
)
def test_context_in_a_bad_directory(sandbox: Sandbox, cwd: str) -> None:
    """A context whose directory cannot be one is refused; relative paths lead nowhere outside."""
    with pytest.raises(InvalidRequest):
        sandbox.create_code_context(cwd=cwd)
    assert_usable(sandbox)


def test_missing_file(sandbox: Sandbox) -> None:
    """A missing file, a directory in a file's place and the reverse each have an error of their own."""
    sandbox.run_code("import os; os.makedirs('d/e'); open('f', 'w').close()")
    for path, error in [
        ("/home/user/none", PathNotFound),
        ("none/deeper", PathNotFound),
        ("d", IsADirectory),
        ("f/deeper", NotADirectory),
    ]:
        with pytest.raises(error):
            files(sandbox, "read", path)
    assert_usable(sandbox)


@pytest.mark.parametrize(
    "path",
    [
        "../../etc/shadow",
        "/etc/shadow",
        "/home/user/../../etc/shadow",
        "/root/.bashrc",
        "/root/.ssh",
        "/proc/1/root/etc/shadow",
        "/.old/etc/shadow",
        "/var/run/docker.sock",
        "/sys/fs/cgroup/cgroup.procs",
    ],
)
def test_path_outside(sandbox: Sandbox, path: str) -> None:
    """Files of the host are not refused but absent: for the file API and for code alike."""
    assert not files(sandbox, "exists", path)
    with pytest.raises(CellforkError) as caught:
        files(sandbox, "read", path)
    assert caught.value.code in {"path_not_found", "path_not_permitted", "not_a_directory"}
    execution = sandbox.run_code(f"open({path!r}).read()")
    assert failure(execution) in {"FileNotFoundError", "PermissionError"}
    assert_usable(sandbox)


def test_link_to_the_outside(sandbox: Sandbox) -> None:
    """A symbolic link made inside leads to the sandbox's own root, never to the host's."""
    sandbox.run_code("import os; os.symlink('/../../../etc/shadow', 'link'); os.symlink('/', 'root')")
    for path in ("link", "root/etc/shadow", "root/root/.ssh"):
        with pytest.raises(PathNotFound):
            files(sandbox, "read", path)


@pytest.mark.parametrize("path", [*HOSTILE_TEXT, "x" * 10_000, ""])
def test_malformed_path(sandbox: Sandbox, path: str) -> None:
    """A path that no system call takes is an invalid request, before it travels anywhere."""
    for operation, args in [("read", ()), ("write", (b"x",)), ("list", ()), ("remove", ()), ("make_dir", ())]:
        with pytest.raises(CellforkError) as caught:
            files(sandbox, operation, path, *args)
        assert caught.value.code in {"invalid_request", "is_a_directory", "path_not_permitted", "path_exists"}
        assert len(str(caught.value)) < 1000
    assert_usable(sandbox)


def test_nul_in_code(sandbox: Sandbox) -> None:
    """Code that holds NUL is a syntax error of the code, as Python says."""
    execution = sandbox.run_code("x = 1\0\nprint(x)")
    assert failure(execution) in {"SyntaxError", "ValueError"}
    assert_usable(sandbox)


@pytest.mark.parametrize("code", ["print('\ud800')", "\udcff", "x = 1  # \udfff"])
def test_lone_surrogate_in_code(sandbox: Sandbox, code: str) -> None:
    """Code that is not valid text is an invalid request, which says where."""
    with pytest.raises(InvalidRequest, match="surrogate"):
        sandbox.run_code(code)
    assert_usable(sandbox)


def test_surrogates_made_inside(sandbox: Sandbox) -> None:
    """Surrogates that the code makes are printed, returned and raised with escapes, and break nothing."""
    execution = sandbox.run_code("print('\\ud800'); '\\udcff'")
    assert execution.status == "ok", execution
    assert execution.logs.stdout == ["\\ud800\n"]
    execution = sandbox.run_code("raise ValueError('\\ud800')")
    assert failure(execution) == "ValueError"
    assert execution.error is not None
    assert execution.error.value == "\\ud800"
    execution.to_json().encode()
    assert_usable(sandbox)


@pytest.mark.parametrize(
    "envs",
    [
        {"A": "a\0b"},
        {"A\0": "x"},
        {"A=B": "x"},
        {"": "x"},
        {"A": "\ud800"},
        {"\udcff": "x"},
        {"A": 1},
        {"A": "x" * 10_000_000},
        {f"A{n}": "x" for n in range(100_000)},
    ],
    ids=["nul", "nul-name", "equals", "empty", "surrogate", "surrogate-name", "number", "large", "many"],
)
def test_malformed_envs(sandbox: Sandbox, envs: dict[str, str]) -> None:
    """Variables that cannot be ones are refused, for a run, a context and a sandbox."""
    calls: list[Callable[[], object]] = [
        lambda: sandbox.run_code("1", envs=envs),
        lambda: sandbox.create_code_context(envs=envs),
        lambda: Sandbox.create(envs=envs),
    ]
    for call in calls:
        with pytest.raises((InvalidRequest, LimitExceeded)) as caught:
            call()
        assert len(str(caught.value)) < 1000
    assert_usable(sandbox)


def test_envs_travel_as_data(sandbox: Sandbox) -> None:
    """Whatever is in a variable arrives unchanged, and is gone after the run; one that was there is restored."""
    values = {
        "QUOTES": """it's "quoted" \\ $(id) `id` ${HOME} %s {x}""",
        "LINES": "a\nb\r\n\tc\n",
        "UNICODE": "Grüße 🎉 \u2028 \x1b[31m",
        "HOME": "/elsewhere",
        "EMPTY": "",
    }
    sandbox.run_code("import os, subprocess; before = dict(os.environ)")
    execution = sandbox.run_code(
        f"subprocess.run(['env', '-0'], capture_output=True).stdout.decode(); {{k: os.environ[k] for k in {list(values)}}}",
        envs=values,
    )
    assert execution.status == "ok", execution
    assert execution.results[0].json == values
    assert sandbox.run_code("dict(os.environ) == before").text == "True"


def test_envs_are_restored_after_a_failure(sandbox: Sandbox) -> None:
    """Variables of a run are taken back however it ended, and what the run itself did to them as well."""
    sandbox.run_code("import os; os.environ['KEPT'] = 'old'")
    for code in ("raise ValueError", "del os.environ['KEPT']", "os.environ['KEPT'] = 'changed'", "1/"):
        sandbox.run_code(code, envs={"KEPT": "new", "GONE": "x"})
        assert sandbox.run_code("os.environ.get('KEPT'), os.environ.get('GONE')").text == "('old', None)"


def test_fifty_megabytes_of_code(sandbox: Sandbox) -> None:
    """Code beyond the bound is refused at once; the host makes one copy of it at most."""
    code = "#" * (50 * MiB)
    with within(5), host_memory_within(64 * MiB):
        with pytest.raises(LimitExceeded, match="bytes long"):
            sandbox.run_code(code)
    assert_usable(sandbox)


def test_a_lot_of_code(sandbox: Sandbox) -> None:
    """Code below the bound runs or runs out of memory; either way the context can be used again."""
    execution = sandbox.run_code("x = '" + "y" * (8 * MiB) + "'\nlen(x)", timeout=60)
    assert execution.status in {"ok", "killed"}, execution
    if execution.status == "ok":
        assert execution.text == str(8 * MiB)
    assert_usable(sandbox)


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "5", True])
def test_malformed_timeout(sandbox: Sandbox, timeout: float) -> None:
    """A timeout that is no positive number is an invalid request."""
    with pytest.raises(InvalidRequest):
        sandbox.run_code("1", timeout=timeout)
    assert_usable(sandbox)


@pytest.mark.parametrize("code", [None, 5, b"print(1)", ["1"]])
def test_code_that_is_no_text(sandbox: Sandbox, code: str) -> None:
    """Code has to be text."""
    with pytest.raises(InvalidRequest):
        sandbox.run_code(code)
    assert_usable(sandbox)
