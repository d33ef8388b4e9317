"""How one says the same few things in each language: what the kernel suite needs to know of it.

A language of your own passes through :class:`cellfork.testing.kernel_suite.KernelSuite` with a :class:`Dialect` of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Dialect:
    """Small pieces of code in one language.

    ``value`` is an expression whose text is ``4`` (``None``: statements have no values).  ``out`` and ``err`` print a text of
    ASCII letters and a newline; ``assign`` keeps the number 5 that ``recall`` prints; ``fail`` raises an error of ``error_name``
    whose message holds ``error_value``.  ``spin`` computes for ever, ``sleep`` waits for a minute.  ``env`` prints a variable and a
    newline, ``cwd`` the working directory, ``pid`` the number of the process.  ``unicode`` prints :data:`UNICODE`, ``large``
    :data:`LARGE`, ``child`` lets another process print ``child``.  ``ask`` prints what a question is answered with (``None``: there are
    no questions); ``refusal`` is the name of the error where nobody answers (``None``: the language has a value for that).
    ``leave`` ends the program.  ``sleep_keeps_state``: whether a sleep can be interrupted without a new kernel.
    """

    name: str
    value: str | None
    out: Callable[[str], str]
    err: Callable[[str], str]
    assign: str
    recall: str
    fail: str
    error_name: str
    error_value: str
    spin: str
    sleep: str
    env: Callable[[str], str]
    cwd: str
    pid: str
    unicode: str
    large: str
    child: str
    ask: str | None
    refusal: str | None
    leave: str
    sleep_keeps_state: bool = True


UNICODE = "grün 漢字 😀 \u200d"
LARGE = "".join(f"{number:04d}{'x' * 9_995}\n" for number in range(1000))
"""Ten megabytes, whose order can be seen."""

PYTHON = Dialect(
    name="python",
    value="2 + 2",
    out=lambda text: f"print('{text}')",
    err=lambda text: f"import sys; print('{text}', file=sys.stderr)",
    assign="x = 5",
    recall="print(x)",
    fail="raise ValueError('too bad')",
    error_name="ValueError",
    error_value="too bad",
    spin="while True: pass",
    sleep="import time; time.sleep(60)",
    env=lambda name: f"import os; print(os.environ.get('{name}', ''))",
    cwd="import os; print(os.getcwd())",
    pid="import os; print(os.getpid())",
    unicode=f"print('{UNICODE}')",
    large="for number in range(1000): print(f'{number:04d}' + 'x' * 9995)",
    child="import subprocess; subprocess.run(['echo', 'child']); None",
    ask="print(input('name? '))",
    refusal="StdinNotImplementedError",
    leave="exit()",
)
BASH = Dialect(
    name="bash",
    value=None,
    out=lambda text: f"echo {text}",
    err=lambda text: f"echo {text} >&2",
    assign="x=5",
    recall="echo $x",
    fail="ls /nowhere",
    error_name="ExitCode",
    error_value="2",
    spin="while :; do :; done",
    sleep="sleep 60",
    env=lambda name: f'printf "%s\\n" "${name}"',
    cwd="pwd",
    pid="echo $$",
    unicode=f"echo '{UNICODE}'",
    large="x=$(printf '%9995s' ''); x=${x// /x}; for ((n = 0; n < 1000; n++)); do printf '%04d%s\\n' $n $x; done",
    child="/bin/echo child",
    ask=None,
    refusal=None,
    leave="exit 0",
)
_DENO = Dialect(
    name="javascript",
    value="2 + 2",
    out=lambda text: f"console.log('{text}')",
    err=lambda text: f"console.error('{text}')",
    assign="let x = 5",
    recall="console.log(x)",
    fail="throw new RangeError('too bad')",
    error_name="RangeError",
    error_value="too bad",
    spin="while (true) {}",
    sleep="await new Promise(done => setTimeout(done, 60000))",
    env=lambda name: f"console.log(process.env.{name} ?? '')",
    cwd="console.log(Deno.cwd())",
    pid="console.log(Deno.pid)",
    unicode=f"console.log('{UNICODE}')",
    large="for (let n = 0; n < 1000; n++) console.log(String(n).padStart(4, '0') + 'x'.repeat(9995))",
    child="const run = await new Deno.Command('echo', {args: ['child']}).output(); await Deno.stdout.write(run.stdout); null",
    ask="console.log(prompt('name? '))",
    refusal=None,  # prompt() is null
    leave="Deno.exit(0)",
    sleep_keeps_state=False,
)
JAVASCRIPT = _DENO
TYPESCRIPT = Dialect(
    **{
        **_DENO.__dict__,
        "name": "typescript",
        "value": "((n: number): number => n + 2)(2)",
        "assign": "let x: number = 5",
        "fail": "class Broken extends Error { override name = 'Broken' }\nthrow new Broken('too bad')",
        "error_name": "Broken",
    }
)
R = Dialect(
    name="r",
    value="cat(''); 4L",
    out=lambda text: f"cat('{text}\\n')",
    err=lambda text: f"cat('{text}\\n', file = stderr())",
    assign="x <- 5",
    recall="cat(x, '\\n', sep='')",
    fail="stop('too bad')",
    error_name="ERROR",
    error_value="too bad",
    spin="while (TRUE) {}",
    sleep="Sys.sleep(60)",
    env=lambda name: f"cat(Sys.getenv('{name}'), '\\n', sep='')",
    cwd="cat(getwd(), '\\n', sep='')",
    pid="cat(Sys.getpid(), '\\n', sep='')",
    unicode=f"cat('{UNICODE}\\n')",
    large="for (n in 0:999) cat(sprintf('%04d', n), strrep('x', 9995), '\\n', sep='')",
    child="system('echo child')",
    ask="cat(readline('name? '), '\\n', sep='')",
    refusal="StdinNotImplementedError",
    leave="quit()",
)
JAVA = Dialect(
    name="java",
    value="2 + 2",
    out=lambda text: f'System.out.println("{text}");',
    err=lambda text: f'System.err.println("{text}");',
    assign="int x = 5;",
    recall="System.out.println(x);",
    fail='throw new IllegalStateException("too bad");',
    error_name="IllegalStateException",
    error_value="too bad",
    spin="while (true) {}",
    sleep="Thread.sleep(60000);",
    env=lambda name: f'System.out.println(Objects.requireNonNullElse(System.getenv("{name}"), ""));',
    cwd='System.out.println(new java.io.File("").getAbsolutePath());',
    pid="System.out.println(ProcessHandle.current().pid());",
    unicode=f'System.out.println("{UNICODE}");',
    large='for (int n = 0; n < 1000; n++) System.out.println(String.format("%04d", n) + "x".repeat(9995));',
    child='new ProcessBuilder("echo", "child").inheritIO().start().waitFor(); String done = "done";',
    ask='System.out.print("name? "); System.out.println(new Scanner(System.in).nextLine());',
    refusal="NoSuchElementException",
    leave="System.exit(0);",
)
GO = Dialect(
    name="go",
    value="2 + 2",
    out=lambda text: f'fmt.Println("{text}")',
    err=lambda text: f'fmt.Fprintln(os.Stderr, "{text}")',
    assign="x := 5",
    recall="fmt.Println(x)",
    fail='panic("too bad")',
    error_name="panic",
    error_value="too bad",
    spin="for {}",
    sleep="time.Sleep(time.Minute)",
    env=lambda name: f'fmt.Println(os.Getenv("{name}"))',
    cwd="place, _ := os.Getwd()\nfmt.Println(place)",
    pid="fmt.Println(os.Getpid())",
    unicode=f'fmt.Println("{UNICODE}")',
    large='for n := 0; n < 1000; n++ { fmt.Printf("%04d%s\\n", n, strings.Repeat("x", 9995)) }',
    child='run := exec.Command("echo", "child")\nrun.Stdout = os.Stdout\nrun.Run()',
    ask=None,
    refusal=None,
    leave="os.Exit(0)",
)
DIALECTS = {dialect.name: dialect for dialect in (PYTHON, BASH, JAVASCRIPT, TYPESCRIPT, R, JAVA, GO)}
"""Every language that is described here, by its name."""
