"""The bridge to Jupyter kernels: how it starts them, what it believes, how both end."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellfork import Execution, Sandbox, StartupFailed, Unsupported
from cellfork.guest.jupyter import specs, variables
from cellfork.guest.jupyter.adjustments import adjusted
from cellfork.guest.jupyter.connection import Connection
from cellfork.guest.jupyter.places import Places
from cellfork.guest.jupyter.specs import KernelSpec

HERE = Path(__file__).parent
KERNELS = "/home/user/jupyter/kernels"
IPYKERNEL = ["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"]


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox.create(envs={"JUPYTER_PATH": "/home/user/jupyter"}) as sandbox:
        yield sandbox


def install(sandbox: Sandbox, name: str, argv: list[str], **more: object) -> None:
    """Install a kernelspec inside."""
    sandbox.files.write(f"{KERNELS}/{name}/kernel.json", json.dumps({"argv": argv, "language": name, **more}))


def test_a_kernel_that_ends_at_its_start(sandbox):
    """A kernel that does not get ready is a typed error that quotes what it printed."""
    install(sandbox, "broken", ["sh", "-c", "echo no such library >&2; exit 3"])
    with pytest.raises(StartupFailed, match=r"(?s)'broken'.*code 3.*no such library"):
        sandbox.create_code_context(language="broken")
    with pytest.raises(StartupFailed, match="no such library"):
        sandbox.run_code("1", language="broken")
    assert sandbox.run_code("1 + 1").text == "2"


def test_a_kernel_that_cannot_be_executed(sandbox):
    """A program that is found and cannot be run is told as well."""
    sandbox.files.write("/home/user/.local/bin/strange", "no program")
    sandbox.commands.run("chmod +x /home/user/.local/bin/strange")
    install(sandbox, "strange", ["/home/user/.local/bin/strange"])
    with pytest.raises(StartupFailed, match="strange"):
        sandbox.create_code_context(language="strange")


def test_a_kernel_whose_program_is_missing_is_no_language(sandbox):
    """A kernelspec without its program is not ready, and the answer names what is."""
    install(sandbox, "absent", ["/nowhere/kernel"])
    with pytest.raises(Unsupported, match=r"'absent'.*there are: .*python"):
        sandbox.run_code("1", language="absent")
    assert sandbox.list_code_contexts() == []
    assert "absent" not in sandbox.list_languages()


def test_any_kernelspec_is_a_language(sandbox):
    """A kernelspec that appears in the search path is a language at once, by its name."""
    install(sandbox, "mine", IPYKERNEL)
    assert "mine" in sandbox.list_languages()
    context = sandbox.create_code_context(language="Mine")
    assert sandbox.run_code("6 * 7", context=context).text == "42"
    assert sandbox.run_code("6 * 7", language="jupyter:mine").text == "42"


def test_variables_that_cannot_be_set_are_refused(sandbox):
    """Where a language has no way to set variables for one run, the run is refused, not run without them."""
    install(sandbox, "mine", IPYKERNEL)
    context = sandbox.create_code_context(language="mine")
    execution = sandbox.run_code("print('ran')", context=context, envs={"A": "b"})
    assert execution.error.name == "Unsupported"
    assert execution.logs.stdout == []


def test_the_connection_file_is_private(sandbox):
    """The sockets and the key are in a directory that nobody else can enter."""
    install(sandbox, "mine", IPYKERNEL)
    sandbox.create_code_context(language="mine")
    modes = sandbox.commands.run("stat -c '%a %F' /tmp/.kernel-* /tmp/.kernel-*/connection.json").stdout
    assert modes.splitlines() == ["700 directory", "600 regular file"]


def test_a_hostile_kernel(sandbox):
    """Forged, malformed and absurd messages are dropped; the bridge goes on."""
    sandbox.files.write("/home/user/hostile.py", (HERE / "hostile.py").read_text())
    install(sandbox, "hostile", ["python", "/home/user/hostile.py", "{connection_file}"])
    context = sandbox.create_code_context(language="hostile")
    for number in (1, 2):
        execution = sandbox.run_code("anything", context=context, timeout=20)
        assert execution.error is None
        assert execution.execution_count == number
        text = "".join(execution.logs.stdout)
        assert "forged" not in text
        assert text.endswith("kept\n")


def test_the_end_of_the_bridge_is_the_end_of_its_kernel(sandbox):
    """When the bridge is killed its kernel goes with it, and what ran ends as lost within a second."""
    install(sandbox, "mine", IPYKERNEL)
    context = sandbox.create_code_context(language="mine")
    kernel = int(sandbox.run_code("import os; print(os.getpid())", context=context).logs.stdout[0])
    ended: list[Execution] = []
    runner = threading.Thread(
        target=lambda: ended.append(sandbox.run_code("import time; time.sleep(50)", context=context))
    )
    runner.start()
    time.sleep(0.3)
    began = time.monotonic()
    sandbox.commands.run(
        f"kill -9 $(ps -o ppid= -p {kernel} || awk '/PPid/ {{print $2}}' /proc/{kernel}/status)"
    )
    runner.join()
    assert time.monotonic() - began < 2.5
    assert ended[0].status == "lost"
    assert sandbox.commands.run(f"test -d /proc/{kernel} && echo there || echo gone").stdout == "gone\n"


def test_a_removed_context_takes_its_kernel_along(sandbox):
    """Removing a context while its kernel starts leaves no process of it."""
    install(sandbox, "slow", ["sh", "-c", "sleep 77"])
    failed = []

    def create() -> None:
        try:
            sandbox.run_code("1", language="slow", timeout=30)
        except StartupFailed as error:
            failed.append(error)

    runner = threading.Thread(target=create)
    runner.start()
    time.sleep(0.4)
    slow = next(context for context in sandbox.list_code_contexts() if context.language == "slow")
    sandbox.remove_code_context(slow)
    runner.join()
    gone = "for i in $(seq 300); do grep -qa 7[7] /proc/[0-9]*/cmdline || exit 0; sleep 0.1; done; exit 1"
    assert sandbox.commands.run(gone, timeout=60).exit_code == 0


def test_an_interrupt_before_the_cell_began(sandbox):
    """An interrupt that comes while the code is still being handed over reaches that code, and only that."""
    install(sandbox, "mine", IPYKERNEL)
    context = sandbox.create_code_context(language="mine")
    for _ in range(5):
        ended: list[Execution] = []
        runner = threading.Thread(
            target=lambda ended=ended: ended.append(
                sandbox.run_code("import time\ntime.sleep(30)", context=context)
            )
        )
        runner.start()
        while not sandbox.interrupt(context):
            pass
        runner.join()
        assert ended[0].status == "interrupted"
        assert sandbox.run_code("1 + 1", context=context).text == "2"


# -------------------------------------------------------------------------------------------- without a sandbox


def test_messages_that_are_not_signed_with_the_key_are_dropped(tmp_path):
    """A message signed with another key, or changed after it was signed, is not read."""
    mine = Connection(Places.fresh(str(tmp_path), "ipc"))
    other = Connection(Places.fresh(str(tmp_path), "ipc"))
    try:
        good = mine.session.serialize(mine.session.msg("stream", {"name": "stdout", "text": "x"}))
        bad = other.session.serialize(other.session.msg("stream", {"name": "stdout", "text": "x"}))
        signed = mine.session.serialize(mine.session.msg("stream", {"name": "stdout", "text": "x"}))
        changed = [*signed[:-1], signed[-1].replace(b'"x"', b'"y"')]
        assert mine._checked(good) is not None
        assert mine._checked(good) is None, "it is sent twice"
        assert mine._checked(bad) is None
        assert mine._checked(changed) is None
    finally:
        mine.close()
        other.close()


def test_kernelspecs_are_read_with_care(tmp_path, monkeypatch):
    """What is no kernelspec is passed over; one whose program is there is found by name and by language."""
    kernels = tmp_path / "kernels"
    for name, text in (
        ("good", json.dumps({"argv": ["sh", "{connection_file}"], "language": "Fish"})),
        ("list", "[]"),
        ("text", "no json"),
        ("argv", json.dumps({"argv": "sh"} | {"env": 3})),
        ("empty", json.dumps({"argv": [], "language": "none"})),
    ):
        (kernels / name).mkdir(parents=True)
        (kernels / name / "kernel.json").write_text(text)
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    assert specs.find("fish") == specs.find("good")
    good = specs.find("good")
    assert good is not None
    assert good.command("/c") == ["sh", "/c"]
    assert specs.find("list") is specs.find("text") is specs.find("empty") is specs.find("none") is None


def test_what_is_added_to_the_java_kernel():
    """JJava is started without its launcher, with a heap that fits and with the options that the caller gave."""
    spec = KernelSpec(
        "java", ("java", "-jar", "/k/jjava-launcher.jar", "/k/jjava.jar", "{connection_file}"), "java"
    )
    argv = adjusted(spec, 1024**3, {"JJAVA_JVM_OPTS": "-Da=b"}).argv
    assert argv[-4:] == ("-Da=b", "-jar", "/k/jjava.jar", "{connection_file}")
    assert "-Xmx483183820" in argv
    assert not any(part.startswith("-Xmx") for part in adjusted(spec, None, {}).argv)


def test_what_the_environment_says_already_is_left_alone():
    """A setting of the caller's wins over ours."""
    changed = adjusted(specs.DENO, 1024**3, {"DENO_V8_FLAGS": "--own"})
    assert "DENO_V8_FLAGS" not in changed.env
    assert changed.env["NO_COLOR"] == "1"


@pytest.mark.parametrize("language", sorted(variables.CODE))
def test_values_are_data_in_the_code_that_sets_them(language):
    """No name and no value can end the literal that it travels in."""
    code = variables.set_all(language, {'A"; evil(); "': "x\"'\\\n`${evil}` 😀"})
    assert "evil()" not in code.replace('\\\\\\"; evil(); \\\\\\"', "")
