"""What particular kernels need besides their kernelspec: memory that fits, plain text, quiet, a way to be interrupted.

A kernel that is not mentioned here is started as its kernelspec says.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from cellfork.guest.jupyter.specs import KernelSpec

MiB = 1024 * 1024
HEAP_SHARE = 0.45
"""What of a sandbox's memory a managed heap may take: its runtime's own memory, files and other processes need the rest."""
LEAST_HEAP = 32 * MiB
R_OVERHEAD = 160 * MiB
"""What R, its packages and the bridge take beside its vectors."""
EXPLICIT = "cellfork.explicit"
"""In the metadata of a display: the code asked for it, it is no value of a statement."""

JAVA_OPTIONS = (
    "--add-opens=jdk.jshell/jdk.jshell=ALL-UNNAMED",  # the kernel itself looks inside JShell
    "--add-opens=java.base/java.lang=ALL-UNNAMED",  # the two through which variables of one execution are set
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",  # no file in /tmp
    "-XX:TieredStopAtLevel=1",  # starts in a third less time, and needs less memory
)
_JAVA_ERROR = re.compile(r"((?:[\w$]+\.)*)([\w$]+), (.*)", re.DOTALL)
JAVA_SETUP = "((Runnable) () -> System.getenv().forEach(System.getProperties()::putIfAbsent)).run();"
"""Variables are system properties as well, as those of one execution are.  The first snippet takes longer than later ones;
it had better not be the user's."""
DENO_BARRIER = 'globalThis[Symbol.for("cellfork.flush")](%d)'
DENO_PATIENCE = 0.8
"""Deno stops code that computes, but not a cell that awaits: V8 has nothing to terminate then."""
DENO_NOISE = b"CDP response has null result."
JJAVA_LAUNCHER = "jjava-launcher.jar"
R_SETUP = """options(jupyter.base_display_func = local({
  show <- getOption("jupyter.base_display_func")
  function(data, metadata = NULL) show(data, c(as.list(metadata), list(cellfork.explicit = TRUE)))
}))
local({
  imports <- parent.env(asNamespace("IRkernel"))
  evaluate <- imports$evaluate
  unlockBinding("evaluate", imports)
  imports$evaluate <- function(input, ...) {
    if (identical(input, "stop()")) {
      tryCatch(allowInterrupts(Sys.sleep(0)), interrupt = function(late) NULL)
      suspendInterrupts(evaluate(input, ...))
    } else allowInterrupts(evaluate(input, ...))
  }
})"""
"""IRkernel sends values and what code displays alike; the latter is marked.

An interrupt that comes while IRkernel prepares a cell, or sends its reply, ends R; so it waits until the cell runs.
Before each, IRkernel evaluates ``stop()``: whatever came for an earlier cell is forgotten then.
"""
R_MAIN, R_SHIELDED_MAIN = "IRkernel::main()", "suspendInterrupts(IRkernel::main())"


DENO_SETUP = """{
  const print = Deno[Deno.internal].core.print, decoder = new TextDecoder();
  const textOf = (data) => typeof data === "string" ? data : decoder.decode(data);
  for (const [own, node, isError] of [[Deno.stdout, process.stdout, false], [Deno.stderr, process.stderr, true]]) {
    own.writeSync = (data) => { print(textOf(data), isError); return data.length; };
    own.write = async (data) => own.writeSync(data);
    node.write = (data, encoding, done) => {
      print(textOf(data), isError);
      const after = typeof encoding === "function" ? encoding : done;
      if (after) queueMicrotask(() => after());
      return true;
    };
  }
  const broadcast = Deno.jupyter.broadcast;
  const flush = (number) => { broadcast("stream", {name: "cellfork", text: String(number)}); };
  Object.defineProperty(globalThis, Symbol.for("cellfork.flush"), {value: flush});
}"""
"""``deno jupyter`` reads nothing of the pipe that it puts in the place of standard output; only the console is passed on."""


def adjusted(spec: KernelSpec, memory: int | None, environment: Mapping[str, str]) -> KernelSpec:
    """Return ``spec`` with what its kernel needs in a sandbox of ``memory`` bytes (``None``: no limit is known).

    What ``environment`` says already is left as it is.
    """
    if os.path.basename(spec.argv[0]).startswith("python"):
        # ipykernel, and what is built on it, reads its own standard output, sends that as messages, and writes it again.
        return replace(spec, repeats_output=True)
    adjust = _BY_LANGUAGE.get(spec.language)
    return spec if adjust is None else adjust(spec, memory, environment)


def _adjust_java(spec: KernelSpec, memory: int | None, environment: Mapping[str, str]) -> KernelSpec:
    """Give the JVM a heap that fits, and start the kernel itself instead of a JVM that starts another one."""
    if os.path.basename(spec.argv[0]) != "java":
        return spec
    heap = () if memory is None else (f"-Xmx{_heap(memory)}",)
    own = environment.get("JJAVA_JVM_OPTS", "").split()
    rest = spec.argv[1:]
    if len(rest) == 4 and rest[1].endswith(JJAVA_LAUNCHER):
        rest = ("-jar", *rest[2:])
    return replace(
        spec,
        argv=(spec.argv[0], *JAVA_OPTIONS, *heap, *own, *rest),
        message_interrupts=True,
        setup=JAVA_SETUP,
        counts_everything=True,
        rename=_java_error,
    )


def _java_error(name: str, value: str) -> tuple[str, str]:
    """JJava calls whatever code throws ``RuntimeException``, and its message ``its.own.Name, message``."""
    told = _JAVA_ERROR.fullmatch(value) if name == "RuntimeException" else None
    return (name, value) if told is None else (told[2].rpartition("$")[2], told[3])


def _adjust_deno(spec: KernelSpec, memory: int | None, environment: Mapping[str, str]) -> KernelSpec:
    """Let Deno write plain text, ask nobody for a newer version, and keep V8's heap below the limit."""
    env = {"NO_COLOR": "1", "DENO_NO_UPDATE_CHECK": "1"}
    if memory is not None:
        env["DENO_V8_FLAGS"] = f"--max-old-space-size={_heap(memory) // MiB}"
    changed = replace(
        spec,
        message_interrupts=True,
        setup=DENO_SETUP,
        barrier=DENO_BARRIER,
        patience=DENO_PATIENCE,
        noise=DENO_NOISE,
    )
    return _with_env(changed, env, environment)


def _adjust_r(spec: KernelSpec, memory: int | None, environment: Mapping[str, str]) -> KernelSpec:
    """Let R refuse a vector that would not fit, tell values from displays, and be interrupted amid a cell only."""
    argv = tuple(R_SHIELDED_MAIN if word == R_MAIN else word for word in spec.argv)
    env = {} if memory is None else {"R_MAX_VSIZE": str(max(memory - R_OVERHEAD, LEAST_HEAP))}
    return _with_env(replace(spec, argv=argv, setup=R_SETUP, values_are_displays=True), env, environment)


def _heap(memory: int) -> int:
    return max(int(memory * HEAP_SHARE), LEAST_HEAP)


def _with_env(spec: KernelSpec, env: Mapping[str, str], environment: Mapping[str, str]) -> KernelSpec:
    new = {name: value for name, value in env.items() if name not in environment}
    return replace(spec, env={**new, **spec.env})


_BY_LANGUAGE: Mapping[str, Callable[[KernelSpec, int | None, Mapping[str, str]], KernelSpec]] = {
    "java": _adjust_java,
    "javascript": _adjust_deno,
    "typescript": _adjust_deno,
    "r": _adjust_r,
}
