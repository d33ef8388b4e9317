"""bash: what is its own, beside the kernel suite."""

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from cellfork import Execution, Limits, Sandbox
from cellfork.guest.bash import kernel as bash_kernel
from cellfork.guest.bash.kernel import Ending, failure_of
from cellfork.guest.bash.script import Numbers


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox.create(limits=Limits(memory="1G", pids=256, output="16M")) as sandbox:
        yield sandbox


class Session:
    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.context = sandbox.create_code_context(language="bash")

    def run(self, code: str, **options: Any) -> Execution:
        return self.sandbox.run_code(code, context=self.context, timeout=30, **options)

    def out(self, code: str, **options: Any) -> str:
        execution = self.run(code, **options)
        assert execution.error is None, execution.error
        assert execution.logs.stderr == []
        return "".join(execution.logs.stdout)

    def status(self, code: str) -> str:
        """Return the status with which a cell failed; the shell must live on."""
        execution = self.run(code)
        assert execution.error is not None
        assert execution.error.name == "ExitCode", execution.error
        return execution.error.value

    def interrupted(self, code: str, after: float = 0.3) -> Execution:
        ended: list[Execution] = []
        runner = threading.Thread(target=lambda: ended.append(self.run(code)))
        runner.start()
        time.sleep(after)
        while not self.sandbox.interrupt(self.context):  # it may not have been handed over yet
            time.sleep(0.001)
        runner.join()
        return ended[0]


@pytest.fixture
def bash(sandbox: Sandbox) -> Iterator[Session]:
    session = Session(sandbox)
    yield session
    sandbox.remove_code_context(session.context)


# ------------------------------------------------------------------------------------------------- state


def test_state_of_every_kind_is_kept(bash: Session) -> None:
    """Variables, arrays, functions, aliases, options, the directory and descriptors are what an earlier cell made them."""
    bash.run("x=1 a=(1 'two three') ; declare -A m=([k]=v); f() { echo \"f $1\"; }; alias hi='echo hello'")
    assert bash.out('echo $x "${a[1]}" ${m[k]}; f 2\nhi') == "1 two three v\nf 2\nhello\n"
    bash.run("cd /tmp; shopt -s nullglob; exec 7>kept; umask 077")
    assert (
        bash.out("pwd; shopt -q nullglob && echo on; echo text >&7; cat kept; umask")
        == "/tmp\non\ntext\n0077\n"
    )


def test_statuses(bash: Session) -> None:
    """A cell fails with the status of its last command, which the next cell finds in ``$?``."""
    assert bash.status("true; (exit 3)") == "3"
    assert bash.out("echo $?") == "3\n"
    assert bash.status("return 5") == "5"
    assert bash.status("no-such-command-here") == "127"
    assert bash.status("kill -9 $BASHPID &\nwait $!") == "137"


@pytest.mark.parametrize(
    "code", ["echo 'unbalanced", "if true", "f() {", "echo )", 'echo "a', "cat <<X | (", "case"]
)
def test_code_that_is_not_complete(bash: Session, code: str) -> None:
    """What cannot be parsed fails as a whole and leaves nothing behind that could swallow the next cell."""
    execution = bash.run(code)
    assert execution.error is not None
    assert "".join(execution.logs.stderr)
    assert bash.out("echo next") == "next\n"


def test_texts(bash: Session) -> None:
    """Here-documents, here-strings and substitutions work; NUL is dropped from code; unicode stays."""
    assert bash.out("x=1\ncat <<A\n$x é\nA\ncat <<'B'\n$x\nB\ncat <<<漢字\necho $(cat < <(echo sub))") == (
        "1 é\n$x\n漢字\nsub\n"
    )
    assert bash.out("echo a\0b") == "ab\n"


def test_large_cells(bash: Session) -> None:
    """A cell of a megabyte runs, in one line or in many."""
    assert bash.out(f"x='{'a' * 1_000_000}'\necho ${{#x}}") == "1000000\n"
    assert bash.out("y=1\n" * 250_000 + "echo $y") == "1\n"


def test_background_jobs(bash: Session) -> None:
    """A job goes on after its cell without a word of the shell's; a later cell can wait for it."""
    assert bash.out("(sleep 0.2; echo later >/tmp/later; exit 4) & echo started") == "started\n"
    assert bash.status("wait $!") == "4"
    assert bash.out("cat /tmp/later; jobs") == "later\n"


def test_pipes_break(bash: Session) -> None:
    """A writer whose reader has left ends in silence, as in any shell."""
    assert bash.out("yes | head -n 1; echo ${PIPESTATUS[*]}") == "y\n141 0\n"


def test_options(bash: Session) -> None:
    """``set -u``, ``-x`` and ``pipefail`` hold for the user's code alone, from cell to cell."""
    bash.run("set -ux -o pipefail")
    traced = bash.run("echo a")
    assert (traced.logs.stdout, traced.logs.stderr) == (["a\n"], ["++ echo a\n"])
    bash.run("set +x")
    assert bash.status("false | true") == "1"
    assert bash.run("echo $undefined").error is not None
    assert bash.out("echo on", envs={"NEW": "1"}) == "on\n"


def test_errexit_ends_the_shell(bash: Session) -> None:
    """``set -e`` ends the shell where a command fails, and only there; the next cell finds a new one."""
    assert bash.out("x=1; set -e; false || echo caught") == "caught\n"
    assert bash.out("[[ $x == 2 ]] || echo $x", envs={"NEW": "1"}) == "1\n"
    execution = bash.run("false; echo not reached")
    assert execution.error is not None
    assert (execution.error.value, execution.logs.stdout) == ("1", [])
    assert bash.out("echo [$x]") == "[]\n"


def test_leaving(bash: Session) -> None:
    """``exit`` runs its trap, whose words arrive; ``exec`` replaces the shell; both end it."""
    left = bash.run("trap 'echo bye; echo err >&2' EXIT; exit 3")
    assert left.error is not None
    assert (left.error.value, left.logs.stdout, left.logs.stderr) == ("3", ["bye\n"], ["err\n"])
    assert bash.out("exec echo replaced") == "replaced\n"
    assert bash.out("echo new") == "new\n"


# ------------------------------------------------------------------------------------------- what cells break


@pytest.mark.parametrize(
    "code",
    [
        "printf() { :; }; eval() { :; }; read() { :; }; declare() { :; }; unset() { :; }; local() { :; }; return() { :; }",
        'set() { :; }; source() { :; }; test() { :; }; echo() { command echo "$@"; }; exit() { :; }',
        "alias builtin=false __cellfork_begin=false __cellfork_end=false; alias '[['=false; alias '{'=false",
        "__cellfork_end() { :; }; true",
        "unset -f __cellfork_begin __cellfork_end; true",
        "IFS=0123456789; true",
        "PROMPT_COMMAND='echo noise' PS1='$(echo noise)' PS2=x PS4=y PS0='noise'",
        "POSIXLY_CORRECT=1",
        "set -o posix",
        "set -n; set -v; set -f; set -C; set -k; set -a; true",
        "trap 'echo noise >&2' DEBUG; trap - DEBUG",
        "exec >/tmp/gone 2>&1; echo hidden",
        "exec <&- >&- 2>&-",
        "LC_ALL=C; LANG=C; PATH=/nowhere; HOME=/nowhere",
        "shopt -s extdebug expand_aliases failglob nocasematch",
        "BASH_ENV=/nowhere ENV=/nowhere HISTFILE=/tmp/h TIMEFORMAT=x",
    ],
)
def test_a_cell_that_redefines_what_it_can(bash: Session, code: str) -> None:
    """Whatever a cell redefines, redirects or switches, ends are told, and the next cell and its variables are fine."""
    bash.run("keep=kept")
    bash.run(code)
    execution = bash.run('command echo "$keep" "$A"', envs={"A": "given"})
    assert execution.error is None, execution.error
    assert "".join(execution.logs.stdout) == "kept given\n"
    assert "".join(bash.run('command echo "[$A]"').logs.stdout) == "[]\n"


@pytest.mark.parametrize(
    "code", ["builtin() { :; }", "enable -n printf", 'for i in {3..255}; do eval "exec $i>&-"; done']
)
def test_a_cell_that_takes_everything_away(bash: Session, code: str) -> None:
    """Where the end of a cell cannot be told any more, that is told, within a moment, and the next shell is new."""
    began = time.monotonic()
    execution = bash.run(f"keep=1; {code}")
    assert time.monotonic() - began < 3
    assert execution.error is not None
    assert bash.out("echo [$keep]") == "[]\n"


def test_forged_answers(bash: Session) -> None:
    """What a cell writes to the shell's own descriptors disturbs nobody: not its own status, not a later cell."""
    numbers = Numbers.below(10**6)
    flood = f"for i in {{1..300}}; do echo '0 end 0' >&{numbers.answers}; printf '\\0\\xff' >&{numbers.answers}; done"
    assert bash.status(f"{flood}; (exit 9)") == "9"
    bash.run(f"(sleep 0.2; {flood}) & true")
    assert bash.out("sleep 0.5; echo fine") == "fine\n"


def test_a_shell_that_dies(bash: Session) -> None:
    """A shell that is killed, in a cell or between two, is told of or replaced; nothing hangs."""
    killed = bash.run("kill -9 $$")
    assert killed.error is not None
    assert "SIGKILL" in killed.error.traceback
    bash.run("keep=1; (sleep 0.1; kill -9 $$) & true")
    time.sleep(0.5)
    assert bash.out("echo [$keep]") == "[]\n"


# ------------------------------------------------------------------------------------------------- variables


def test_values_of_every_byte(bash: Session) -> None:
    """A variable of an execution arrives with every character that is not NUL, and is exported."""
    value = "".join(map(chr, range(1, 256))) + "漢😀\u2028"
    code = 'printf %s "$A" | od -An -tx1 -v | tr -d " \\n"; printenv A | od -An -tx1 -v | tr -d " \\n"'
    told = value.encode().hex()
    assert bash.out(code, envs={"A": value}) == f"{told}{told}0a"


def test_attributes_are_restored(bash: Session) -> None:
    """What was exported, an integer, an array, upper case, declared, or not there at all, is so again afterwards."""
    bash.run(
        "export X=1; P=5; declare -i I=4; declare -ai B=(1 2); declare -A M=([k]='v w'); declare -u U=ab; declare -x D; unset N"
    )
    envs = dict.fromkeys(("X", "P", "I", "B", "M", "U", "D", "N"), "1+1 low")
    code = "echo $X/$P/$I/$B/$M/$U/$D/$N"
    assert bash.out(code, envs=envs) == "/".join(["1+1 low"] * 8) + "\n"
    assert bash.out("declare -p X P I B M U D; [[ -v N ]] || echo gone").splitlines() == [
        'declare -x X="1"',
        'declare -- P="5"',
        'declare -i I="4"',
        'declare -ai B=([0]="1" [1]="2")',
        'declare -A M=([k]="v w" )',
        'declare -u U="AB"',
        "declare -x D",
        "gone",
    ]


def test_variables_that_cannot_be(bash: Session) -> None:
    """Where a variable cannot be set (readonly, or no name for a shell) the code is not run, and the reason is told."""
    bash.run("readonly R=1")
    for envs, word in (({"R": "2"}, "readonly"), ({"a.b": "2"}, "'a.b'")):
        refused = bash.run("echo ran; touch /tmp/ran", envs={"FINE": "1", **envs})
        assert refused.error is not None
        assert (refused.error.name, refused.logs.stdout) == ("ShellError", [])
        assert word in refused.error.value
    assert bash.out("echo $R [$FINE]; ls /tmp/ran 2>&1 | grep -c 'cannot access'") == "1 []\n1\n"


def test_few_descriptors() -> None:
    """With room for 64 open files the shell finds numbers for its own."""
    with Sandbox.create(limits=Limits(open_files=64)) as sandbox:
        execution = sandbox.run_code("ulimit -n; echo $A", language="bash", envs={"A": "x"})
        assert "".join(execution.logs.stdout) == "64\nx\n"


def test_posix_from_the_environment() -> None:
    """A sandbox whose environment asks for POSIX mode gets it, and a shell that works."""
    with Sandbox.create(envs={"POSIXLY_CORRECT": "it's"}) as sandbox:
        execution = sandbox.run_code("shopt -oq posix && echo posix $POSIXLY_CORRECT", language="bash")
        assert "".join(execution.logs.stdout) == "posix it's\n"


# ------------------------------------------------------------------------------------------------ interrupts


@pytest.mark.parametrize(
    "code",
    [
        "while :; do :; done",
        "sleep 30",
        "sleep 30 | cat",
        "sleep 30 & wait",
        "read x < <(sleep 30)",
        "f() { sleep 30; }; f; echo after",
        "(sleep 30; echo sub)",
        "x=$(sleep 30); echo x",
        "for i in 1 2 3; do sleep 10; done",
        "eval 'sleep 30'",
        "exec 2>&1; sleep 30",
        "set -e; sleep 30",
        "yes >/dev/null",
    ],
)
def test_interrupts(bash: Session, code: str) -> None:
    """In whatever state a cell is, an interrupt ends it at once, and the shell and its variables live on."""
    bash.run("keep=1")
    began = time.monotonic()
    execution = bash.interrupted(code)
    assert time.monotonic() - began < 2
    assert execution.status == "interrupted"
    assert "after" not in "".join(execution.logs.stdout)
    assert bash.out("echo $keep") == "1\n"


def test_interrupts_that_come_early(bash: Session) -> None:
    """An interrupt at any moment of a cell's beginning, between fork and exec of a command as well, is not lost."""
    bash.run("keep=1")
    for number in range(60):
        execution = bash.interrupted("sleep 10", after=0.0002 * (number % 20))
        assert execution.status == "interrupted", (number, execution.error)
        assert execution.error is not None
        assert "did not react" not in execution.error.value, number
    assert bash.out("echo $keep") == "1\n"


def test_trapped_interrupts(bash: Session) -> None:
    """A trap on INT runs once; the cell then goes on, and its status is its own."""
    execution = bash.interrupted("trap 'echo caught' INT; sleep 30; echo done")
    assert (execution.status, "".join(execution.logs.stdout)) == ("ok", "caught\ndone\n")


def test_ignored_interrupts(bash: Session) -> None:
    """Who ignores the interrupt loses the shell after the grace, not the context."""
    execution = bash.interrupted("trap '' INT; sleep 30")
    assert execution.status == "interrupted"
    assert bash.out("echo on") == "on\n"


# --------------------------------------------------------------------------------------------------- pieces


@pytest.mark.parametrize(
    ("ending", "told"),
    [
        (Ending(0), None),
        (Ending(2), ("error", "2", "exit code 2")),
        (Ending(137), ("error", "137", "exit code 137 (SIGKILL)")),
        (Ending(255), ("error", "255", "exit code 255")),
        (Ending(130, interrupted=True), ("interrupted", "", "KeyboardInterrupt")),
        (Ending(0, interrupted=True), None),
        (Ending(1, refused="why"), ("error", "why", "ShellError: why")),
    ],
)
def test_what_is_told_of_an_ending(ending: Ending, told: tuple[str, str, str] | None) -> None:
    """A status other than 0 is an error; an interrupt counts where it ended the cell."""
    failure = failure_of(ending)
    assert (None if failure is None else (failure.status, failure.value, failure.traceback)) == told


def test_who_dies_of_an_interrupt() -> None:
    """Only a process that neither catches nor ignores nor blocks the signal should have died of it."""
    assert not bash_kernel.dies_of_interrupt(os.getpid())  # Python catches it
    assert not bash_kernel.dies_of_interrupt(2**22 + 1)
    assert os.getpid() in bash_kernel.group(os.getpgid(0))
