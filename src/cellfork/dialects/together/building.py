"""Carries a Dockerfile out in a sandbox: what it runs, it runs there, and what it copies never was on the host's disk."""

import json
import platform
import posixpath
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from cellfork.dialects.together import unpacking
from cellfork.dialects.together.dockerfile import (
    WITHOUT_EFFECT,
    Dockerfile,
    Instruction,
    expand,
    words,
)
from cellfork.dialects.together.translate import inside
from cellfork.engine.execs import Exec
from cellfork.engine.sandbox import Sandbox
from cellfork.model.specs import ExecSpec

PLACE: Final = "/tmp/.cellfork-build"
ARCHIVE: Final = f"{PLACE}/context.tar.gz"
CONTEXT: Final = f"{PLACE}/context"
MAX_DOCKERFILE: Final = 256 * 1024
LONGEST_LINE: Final = 4096
"""Characters of one line of output; what is longer becomes several lines."""
TOLD: Final = 2000
"""Characters of a failed command's output that are repeated in the error."""
SHELL: Final = ("/bin/sh", "-c")
USERS: Final[Mapping[str, str]] = {"root": "root", "0": "root", "user": "user", "1000": "user"}
MACHINES: Final[Mapping[str, str]] = {"x86_64": "amd64", "aarch64": "arm64"}

Log = Callable[[str], None]


class BuildFailed(Exception):
    """The build cannot go on: a command failed, a file is not there, something is not supported here."""


class Builder:
    """Builds in one sandbox, which holds the context.

    ``arguments`` are the values that the client has for ``ARG``.  ``log`` takes a line.
    """

    def __init__(self, sandbox: Sandbox, arguments: Mapping[str, str], log: Log) -> None:
        self._sandbox = sandbox
        self._given = arguments
        self._log = log
        self._base: Mapping[str, str] = {}
        self._outer: Mapping[str, str] = {}
        self._arguments: dict[str, str] = {}
        self._envs: dict[str, str] = {}
        self._shell: tuple[str, ...] = SHELL
        self._user = "user"
        self._workdir = "/"
        self._number = 0
        self._steps: Mapping[str, Callable[[Instruction], Awaitable[None]]] = {
            "ADD": self._copy,
            "ARG": self._arg,
            "COPY": self._copy,
            "ENV": self._env,
            "RUN": self._run,
            "SHELL": self._set_shell,
            "USER": self._set_user,
            "WORKDIR": self._set_workdir,
        }

    async def unpack(self) -> None:
        """Unpack the context.  Raises :class:`BuildFailed`, :class:`CellforkError`."""
        told = await self._inside(do="unpack", archive=ARCHIVE, context=CONTEXT)
        try:
            environment = json.loads(told)
        except (ValueError, RecursionError):
            raise BuildFailed("the sandbox's interpreter does not answer") from None
        if isinstance(environment, dict):
            self._base = {str(name): str(value) for name, value in environment.items()}

    async def dockerfile(self, path: str) -> str:
        """Return the text of the Dockerfile.  Raises :class:`BuildFailed`, :class:`CellforkError`."""
        place = f"{CONTEXT}/{path}"
        if not await self._sandbox.files.exists(place):
            raise BuildFailed(f"the context has no {path!r}")
        content = await self._sandbox.files.read_range(place, 0, MAX_DOCKERFILE + 1)
        if len(content) > MAX_DOCKERFILE:
            raise BuildFailed(f"the Dockerfile is larger than {MAX_DOCKERFILE:,} bytes")
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError:
            raise BuildFailed("the Dockerfile is not UTF-8") from None

    async def carry_out(self, plan: Dockerfile) -> None:
        """Do what follows ``FROM``.  Raises :class:`BuildFailed`, :class:`DockerfileError`, :class:`CellforkError`."""
        self._outer = arguments_of(plan, self._given)
        for step in plan.steps:
            self._number += 1
            self._say(f"{step.name} {_short(step)}")
            if step.name in WITHOUT_EFFECT:
                self._say(f"note: {step.name} has no effect: {WITHOUT_EFFECT[step.name]}")
            else:
                await self._steps[step.name](step)
        unused = self._given.keys() - self._arguments.keys() - self._outer.keys()
        if unused:
            self._log(f"note: no ARG takes {', '.join(sorted(unused))[:400]}")

    async def tidy(self) -> None:
        """Remove what the build alone needed."""
        await self._sandbox.files.remove(PLACE)

    # ------------------------------------------------------------------------------------- instructions

    async def _arg(self, step: Instruction) -> None:
        for name, value in declared(step, self._variables):
            found = self._given.get(name, self._outer.get(name) if value is None else value)
            if found is not None:
                self._arguments[name] = found

    async def _env(self, step: Instruction) -> None:
        self._envs.update([*pairs(step, self._variables)])
        self._say("note: ENV holds for this build; sandboxes get variables with their execs")

    async def _set_shell(self, step: Instruction) -> None:
        items = step.items()
        if not items:
            raise step.error('it is written as ["program", "argument"]')
        self._shell = tuple(items)

    async def _set_user(self, step: Instruction) -> None:
        wanted = expand(step, self._variables, step.text)
        name, _, group = wanted.partition(":")
        if name not in USERS or group not in {"", *USERS}:
            raise step.error(
                f"there is no user {wanted[:80]!r}; there are 'user' and 'root', with the same rights"
            )
        self._user = USERS[name]
        self._say("note: whatever USER says, everything runs with the rights of the sandbox's one user")

    async def _set_workdir(self, step: Instruction) -> None:
        self._workdir = self._joined(expand(step, self._variables, step.text))
        await self._sandbox.files.make_dir(self._place(self._workdir))

    async def _run(self, step: Instruction) -> None:
        items = step.items()
        if items == []:
            raise step.error("there is no command")
        argv = tuple(items) if items else (*self._shell, step.text)
        place = inside(self._workdir)
        envs = {
            "PWD": place,
            **self._arguments,
            **self._envs,
        }  # a shell tells the name, not where a link leads
        spec = ExecSpec(argv, cwd=place, envs=envs, user=self._user)
        code, tail = await self._follow(await self._sandbox.execs.create(spec))
        if code:
            raise BuildFailed(f"line {step.line}: RUN {_short(step)}: exit code {code}\n{tail}".rstrip())

    async def _copy(self, step: Instruction) -> None:
        items = step.items()
        found = words(step, self._variables) if items is None else self._expanded(step, items)
        if len(found) < 2:
            raise step.error("it has a source and a destination")
        *sources, destination = found
        for source in sources:
            if step.name == "ADD" and re.match(r"[a-z+]+://|git@", source):
                raise step.error("nothing is fetched; put the file into the context, or RUN what fetches it")
        if step.flags.get("chown"):
            self._say("note: --chown has no effect: all files belong to the sandbox's one user")
        if "link" in step.flags:
            self._say("note: --link has no effect: there are no layers")
        is_directory = destination in {".", ".."} or destination.endswith(("/", "/.", "/.."))
        place = self._place(self._joined(destination))
        await self._inside(
            step,
            do=step.name,
            context=CONTEXT,
            sources=sources,
            destination=place + "/" if is_directory else place,
            mode=_mode(step),
        )

    # ------------------------------------------------------------------------------------------ details

    @property
    def _variables(self) -> dict[str, str]:
        """What ``$name`` is in an instruction: an ``ENV`` goes before an ``ARG``."""
        return {**self._base, **self._arguments, **self._envs}

    def _expanded(self, step: Instruction, items: Sequence[str]) -> list[str]:
        return [expand(step, self._variables, item) for item in items]

    def _joined(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self._workdir, path)).replace("//", "/")

    def _place(self, path: str) -> str:
        """Return where a path is in the sandbox; where that is elsewhere, the log says so."""
        place = inside(path)
        if place != path:
            self._say(f"note: {path} is {place} in a sandbox, whose root is read-only")
        return place

    async def _inside(self, step: Instruction | None = None, **wanted: object) -> str:
        """Let the sandbox do something with the context; return what it prints."""
        spec = ExecSpec(("python3", "-I", "-S", "-c", _program(), json.dumps(wanted)), cwd="/")
        running = await self._sandbox.execs.create(spec)
        await running.wait()
        self._sandbox.execs.forget(running)
        if running.exit_code is None:
            raise running.gone()
        if running.exit_code:
            reason = running.log.text("stderr").strip()[-TOLD:] or f"exit code {running.exit_code}"
            raise step.error(reason) if step is not None else BuildFailed(reason)
        return running.log.text("stdout")

    async def _follow(self, running: Exec) -> tuple[int, str]:
        """Log what a command writes; return its exit code, and the end of what it wrote."""
        lines = Lines()
        tail = ""
        async for piece in running.stream_output():
            for line in lines.feed(piece.type, piece.output):
                self._say(line)
            tail = (tail + piece.output)[-TOLD:]
        for line in lines.rest():
            self._say(line)
        self._sandbox.execs.forget(running)
        if running.exit_code is None:
            raise running.gone()
        return running.exit_code, tail.strip()

    def _say(self, line: str) -> None:
        """Log a line with the number of its step: so none can be taken for the end of the log."""
        self._log(f"#{self._number} {line}")


@cache
def _program() -> str:
    """Return the source of what runs inside."""
    return Path(unpacking.__file__).read_text("utf-8")


class Lines:
    """Cuts pieces of two streams into lines, each stream's for itself."""

    def __init__(self) -> None:
        self._rest: dict[str, str] = {}

    def feed(self, stream: str, text: str) -> Iterator[str]:
        """Take a piece; yield the lines that it completes."""
        found = (self._rest.pop(stream, "") + text).splitlines(keepends=True)
        if found and found[-1].splitlines()[0] == found[-1] and len(found[-1]) < LONGEST_LINE:
            self._rest[stream] = found.pop()
        for line in found:
            yield from _cut(line)

    def rest(self) -> Iterator[str]:
        """Yield what has no end of line."""
        for line in self._rest.values():
            yield from _cut(line)


def _cut(line: str) -> Iterator[str]:
    text = line.rstrip()
    for start in range(0, len(text) or 1, LONGEST_LINE):
        yield text[start : start + LONGEST_LINE]


def arguments_of(plan: Dockerfile, given: Mapping[str, str]) -> dict[str, str]:
    """Return the values of the ``ARG`` before ``FROM``."""
    found = dict(platform_arguments())
    for step in plan.arguments:
        for name, default in declared(step, found):
            value = given.get(name, default)
            if value is not None:
                found[name] = value
    return found


def image_of(plan: Dockerfile, given: Mapping[str, str]) -> str:
    """Return the image that ``FROM`` names.  Raises :class:`DockerfileError`."""
    step, variables = plan.source, arguments_of(plan, given)
    found = words(step, variables)
    wanted = expand(step, variables, step.flags.get("platform", ""))
    own = f"linux/{machine()}"
    if wanted not in {"", own}:
        raise step.error(f"the platform {wanted[:80]!r} is not to be had: this server's is {own!r}")
    if len(found) not in {1, 3} or not found[0] or (len(found) == 3 and found[1].upper() != "AS"):
        raise step.error("it names an image, and may name the stage: FROM image AS name")
    return found[0]


def declared(step: Instruction, variables: Mapping[str, str]) -> Iterator[tuple[str, str | None]]:
    """Yield the names that an ``ARG`` declares, and the default of each.  Raises :class:`DockerfileError`."""
    for word in words(step, variables):
        name, equals, value = word.partition("=")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise step.error(f"{name[:80]!r} cannot be the name of a variable")
        yield name, value if equals else None


def pairs(step: Instruction, variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield names and values of an ``ENV``, in its newer form and its older one.  Raises :class:`DockerfileError`."""
    name, _, value = step.text.partition(" ")
    if "=" not in name:
        if not value.strip():
            raise step.error("it is written as name=value")
        yield name, expand(step, variables, value.strip())
        return
    for word in words(step, variables):
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise step.error("it is written as name=value")
        yield name, value


def machine() -> str:
    """Return this machine's architecture as container images name it."""
    return MACHINES.get(platform.machine(), platform.machine())


def platform_arguments() -> dict[str, str]:
    """Return the values that every build has for ``ARG``: where it builds, and what for."""
    own = machine()
    values = {"PLATFORM": f"linux/{own}", "OS": "linux", "ARCH": own}
    return {f"{kind}{name}": value for kind in ("TARGET", "BUILD") for name, value in values.items()}


def _mode(step: Instruction) -> int | None:
    wanted = step.flags.get("chmod")
    if wanted is None:
        return None
    if not re.fullmatch(r"0?[0-7]{3}", wanted):
        raise step.error(f"--chmod={wanted[:40]}: it is an octal number such as 755")
    return int(wanted, 8)


def _short(step: Instruction) -> str:
    return " ".join(step.text.split())[:200]
