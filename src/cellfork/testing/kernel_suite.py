"""What every language promises, as a suite of tests for pytest.

::

    class TestR(KernelSuite):
        dialect = dialects.R

Each test uses the sandbox of its class and, where it can, one context.
"""

import threading
import time
from collections.abc import Iterator
from typing import ClassVar

import pytest

from cellfork import Execution, Limits, Sandbox
from cellfork.client import Context
from cellfork.testing.dialects import LARGE, UNICODE, Dialect

STOP_SECONDS = 2.0
"""Within which an interrupt has its effect."""
DEATH_SECONDS = 1.0
"""Within which the end of a killed kernel is told."""
SLACK = 1.5
"""Seconds that a machine with other things to do may add to either."""
AWKWARD = "it's \"quoted\" $HOME %s `id`\nsecond line\t\\n {x} grün 😀 '''"
LIMITS = Limits(memory="1G", pids=256, output="16M")


class KernelSuite:
    """The promises of a language.  ``dialect`` tells how it says things."""

    dialect: ClassVar[Dialect]
    isolation: ClassVar[str] = "namespaces"
    language: ClassVar[str | None] = None
    """What to ask for, where that is not the name of the dialect."""

    # ------------------------------------------------------------------------------------- helpers

    @pytest.fixture(scope="class")
    @classmethod
    def sandbox(cls) -> Iterator[Sandbox]:
        """Give the class a sandbox; skip it, with the reason, where the language is not installed."""
        with Sandbox.create(isolation=cls.isolation, limits=LIMITS) as sandbox:
            cls.skip_where_missing(sandbox)
            yield sandbox

    @classmethod
    def skip_where_missing(cls, sandbox: Sandbox) -> None:
        """Skip where the language has no kernel."""
        if cls.language is None and cls.dialect.name not in sandbox.list_languages():
            pytest.skip(f"{cls.dialect.name} is not installed here: see `cellfork languages`")

    @pytest.fixture(scope="class")
    @classmethod
    def context(cls, sandbox: Sandbox) -> Context:
        """Give the class a context whose kernel, and whatever it starts, is there already."""
        context = cls.new_context(sandbox)
        sandbox.run_code(cls.dialect.out("ready"), context=context)
        return context

    @pytest.fixture
    def own(self, sandbox: Sandbox) -> Iterator[Context]:
        """Give a test a context that it may spoil."""
        context = self.new_context(sandbox)
        yield context
        sandbox.remove_code_context(context)

    @classmethod
    def new_context(
        cls, sandbox: Sandbox, cwd: str | None = None, envs: dict[str, str] | None = None
    ) -> Context:
        """Make a context of the language."""
        return sandbox.create_code_context(cwd=cwd, language=cls.language or cls.dialect.name, envs=envs)

    @staticmethod
    def stdout(execution: Execution) -> str:
        """Return what an execution printed; it must have run through."""
        assert execution.error is None, execution.error
        return "".join(execution.logs.stdout)

    def interrupted(self, sandbox: Sandbox, context: Context, code: str, after: float = 0.4) -> Execution:
        """Run code, interrupt it ``after`` so many seconds, look at the time that took."""
        ended: list[Execution] = []
        runner = threading.Thread(
            target=lambda: ended.append(sandbox.run_code(code, context=context, timeout=60))
        )
        runner.start()
        time.sleep(after)
        while not sandbox.interrupt(context):  # it was not handed over yet
            assert runner.is_alive(), ended
            time.sleep(0.001)
        began = time.monotonic()
        runner.join()
        assert time.monotonic() - began < STOP_SECONDS + SLACK
        assert ended[0].status == "interrupted", ended[0]
        return ended[0]

    # ------------------------------------------------------------------------------------- running

    def test_value(self, sandbox: Sandbox, context: Context) -> None:
        """The value of the last expression is the main result, and there is only one."""
        if self.dialect.value is None:
            return
        execution = sandbox.run_code(self.dialect.value, context=context)
        assert execution.error is None
        assert [result.is_main_result for result in execution.results] == [True]
        assert (execution.text or "").removeprefix("[1] ") == "4"

    def test_state(self, sandbox: Sandbox, context: Context) -> None:
        """What one execution defines, the next one finds; numbers count executions."""
        first = sandbox.run_code(self.dialect.assign, context=context)
        second = sandbox.run_code(self.dialect.recall, context=context)
        assert self.stdout(second) == "5\n"
        assert first.execution_count is not None
        assert second.execution_count == first.execution_count + 1

    def test_streams(self, sandbox: Sandbox, context: Context) -> None:
        """Standard output and standard error arrive apart, unchanged, and without the kernel's own words."""
        out = sandbox.run_code(self.dialect.out("hello"), context=context)
        err = sandbox.run_code(self.dialect.err("oops"), context=context)
        assert ("".join(out.logs.stdout), "".join(out.logs.stderr)) == ("hello\n", "")
        assert ("".join(err.logs.stdout), "".join(err.logs.stderr)) == ("", "oops\n")

    def test_error(self, sandbox: Sandbox, context: Context) -> None:
        """An error has a name, a message and a traceback without colours; what was printed before it is kept."""
        code = f"{self.dialect.out('before')}\n{self.dialect.fail}"
        execution = sandbox.run_code(code, context=context)
        assert execution.error is not None
        assert execution.status == "error"
        assert execution.error.name == self.dialect.error_name
        assert self.dialect.error_value in execution.error.value
        assert execution.error.traceback
        assert "\x1b" not in execution.error.traceback
        assert "".join(execution.logs.stdout) == "before\n"
        assert self.stdout(sandbox.run_code(self.dialect.out("after"), context=context)) == "after\n"

    def test_unicode(self, sandbox: Sandbox, context: Context) -> None:
        """Text beyond ASCII, and beyond the first plane, arrives unchanged."""
        assert self.stdout(sandbox.run_code(self.dialect.unicode, context=context)) == f"{UNICODE}\n"

    def test_large_output(self, sandbox: Sandbox, context: Context) -> None:
        """Ten megabytes arrive whole and in order."""
        assert self.stdout(sandbox.run_code(self.dialect.large, context=context, timeout=90)) == LARGE

    def test_child_output(self, sandbox: Sandbox, context: Context) -> None:
        """What a process that the code starts prints belongs to the execution."""
        assert self.stdout(sandbox.run_code(self.dialect.child, context=context)) == "child\n"

    # ----------------------------------------------------------------------------------- questions

    def test_question(self, sandbox: Sandbox, context: Context) -> None:
        """A question reaches the client, and its answer the code."""
        if self.dialect.ask is None:
            return
        execution = sandbox.run_code(
            self.dialect.ask, context=context, on_input=lambda _question: "Ada Łovelace", timeout=30
        )
        assert self.stdout(execution).endswith("Ada Łovelace\n")

    def test_question_that_nobody_answers(self, sandbox: Sandbox, context: Context) -> None:
        """Without anybody to answer a question ends at once, and the kernel goes on."""
        if self.dialect.ask is None:
            return
        began = time.monotonic()
        execution = sandbox.run_code(self.dialect.ask, context=context, timeout=30)
        assert time.monotonic() - began < STOP_SECONDS + SLACK
        assert (execution.error.name if execution.error else None) == self.dialect.refusal
        assert self.stdout(sandbox.run_code(self.dialect.out("on"), context=context)) == "on\n"

    # ---------------------------------------------------------------------------------- interrupts

    def test_interrupt_of_what_computes(self, sandbox: Sandbox, own: Context) -> None:
        """A loop stops within two seconds, and the state is what it was."""
        sandbox.run_code(self.dialect.assign, context=own)
        self.interrupted(sandbox, own, self.dialect.spin)
        after = sandbox.run_code(self.dialect.recall, context=own)
        assert (self.stdout(after), "".join(after.logs.stderr)) == ("5\n", "")

    def test_interrupt_of_what_waits(self, sandbox: Sandbox, own: Context) -> None:
        """A sleep stops within two seconds, and the context is usable."""
        sandbox.run_code(self.dialect.assign, context=own)
        execution = self.interrupted(sandbox, own, self.dialect.sleep)
        assert execution.error is not None
        assert execution.error.name == "KeyboardInterrupt"
        if self.dialect.sleep_keeps_state:
            assert self.stdout(sandbox.run_code(self.dialect.recall, context=own)) == "5\n"
        assert self.stdout(sandbox.run_code(self.dialect.out("on"), context=own)) == "on\n"

    def test_interrupt_at_once(self, sandbox: Sandbox, own: Context) -> None:
        """An interrupt right behind the code, the context's first as well, stops it, and the state is what it was."""
        first = self.interrupted(sandbox, own, self.dialect.spin, after=0)
        assert "kernel was ended" not in (first.error.value if first.error else "")
        sandbox.run_code(self.dialect.assign, context=own)
        for _ in range(5):
            self.interrupted(sandbox, own, self.dialect.spin, after=0)
        assert self.stdout(sandbox.run_code(self.dialect.recall, context=own)) == "5\n"

    def test_timeout(self, sandbox: Sandbox, own: Context) -> None:
        """Time runs out for the code, not for the start of its kernel."""
        execution = sandbox.run_code(self.dialect.spin, context=own, timeout=0.5)
        assert execution.status == "timed_out"
        assert self.stdout(sandbox.run_code(self.dialect.out("on"), context=own)) == "on\n"

    # ---------------------------------------------------------------------------- places and values

    def test_cwd(self, sandbox: Sandbox) -> None:
        """A context starts in its directory."""
        sandbox.files.make_dir("/home/user/a place")
        context = self.new_context(sandbox, cwd="/home/user/a place")
        assert self.stdout(sandbox.run_code(self.dialect.cwd, context=context)).endswith("/a place\n")
        sandbox.remove_code_context(context)

    def test_variables_of_a_context(self, sandbox: Sandbox, context: Context) -> None:
        """A context's variables are its own, whatever characters they hold."""
        code = self.dialect.env("CELLFORK_OWN")
        other = self.new_context(sandbox, envs={"CELLFORK_OWN": AWKWARD})
        assert self.stdout(sandbox.run_code(code, context=other)) == f"{AWKWARD}\n"
        assert self.stdout(sandbox.run_code(code, context=context)) == "\n"
        sandbox.remove_code_context(other)

    def test_variables_of_an_execution(self, sandbox: Sandbox) -> None:
        """An execution's variables are data, hold for it alone, and leave no trace: no output, no count."""
        context = self.new_context(sandbox, envs={"CELLFORK_OLD": "old"})
        old, new = self.dialect.env("CELLFORK_OLD"), self.dialect.env("CELLFORK_NEW")
        envs = {"CELLFORK_OLD": AWKWARD, "CELLFORK_NEW": ""}
        runs = [
            sandbox.run_code(old, context=context, envs=envs),
            sandbox.run_code(old, context=context),
            sandbox.run_code(new, context=context, envs={"CELLFORK_NEW": "new"}),
            sandbox.run_code(new, context=context),
            sandbox.run_code(self.dialect.fail, context=context, envs=envs),
            sandbox.run_code(old, context=context),
        ]
        texts = ["".join(run.logs.stdout) for run in runs]
        assert texts == [f"{AWKWARD}\n", "old\n", "new\n", "\n", "", "old\n"]
        numbers = [run.execution_count for run in runs]
        assert numbers == list(range(1, 7))
        sandbox.remove_code_context(context)

    # ---------------------------------------------------------------------------------------- life

    def test_two_contexts(self, sandbox: Sandbox, own: Context) -> None:
        """What one context defines, another does not see."""
        other = self.new_context(sandbox)
        sandbox.run_code(self.dialect.assign, context=other)
        seen = sandbox.run_code(self.dialect.recall, context=own)
        assert "5" not in "".join(seen.logs.stdout)
        sandbox.remove_code_context(other)

    def test_restart(self, sandbox: Sandbox, own: Context) -> None:
        """A context that is restarted forgets, and counts from one."""
        sandbox.run_code(self.dialect.assign, context=own)
        sandbox.restart_code_context(own)
        seen = sandbox.run_code(self.dialect.recall, context=own)
        assert "5" not in "".join(seen.logs.stdout)
        assert seen.execution_count == 1

    def test_kernel_that_is_killed(self, sandbox: Sandbox, own: Context) -> None:
        """The end of a killed kernel is told within a second, as what it is; the next execution gets a new one."""
        pid = self.stdout(sandbox.run_code(self.dialect.pid, context=own)).strip()
        ended: list[Execution] = []
        runner = threading.Thread(
            target=lambda: ended.append(sandbox.run_code(self.dialect.sleep, context=own, timeout=30))
        )
        runner.start()
        time.sleep(0.4)
        sandbox.commands.run(f"kill -9 {pid}")
        began = time.monotonic()
        runner.join()
        assert time.monotonic() - began < DEATH_SECONDS + SLACK
        assert ended[0].status in {"lost", "error"}
        assert ended[0].error is not None
        assert "SIGKILL" in ended[0].error.value + ended[0].error.traceback
        assert self.stdout(sandbox.run_code(self.dialect.out("new"), context=own)) == "new\n"

    def test_code_that_leaves(self, sandbox: Sandbox, own: Context) -> None:
        """Code may end its program; the next execution finds a new one."""
        sandbox.run_code(self.dialect.assign, context=own)
        left = sandbox.run_code(self.dialect.leave, context=own, timeout=30)
        assert left.status in {"ok", "lost"}
        seen = sandbox.run_code(self.dialect.recall, context=own)
        assert "5" not in "".join(seen.logs.stdout)
        assert seen.execution_count == 1
