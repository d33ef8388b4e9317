"""Sessions: shell commands one after the other, each with the directory and the exported variables of the one before.

As upstream has it, every run is a shell of its own: ``exit`` ends a run and not the session, and only what is exported survives.
"""

import asyncio
import contextlib
import re
import weakref
from dataclasses import dataclass, field
from typing import Final

from cellfork.dialects.opensandbox.execd import errors, schema
from cellfork.dialects.opensandbox.execd.calls import Call, Route, Routes
from cellfork.dialects.opensandbox.execd.environment import environment
from cellfork.dialects.opensandbox.execd.following import follow
from cellfork.dialects.opensandbox.execd.paths import directory, expanded
from cellfork.engine.execs import Exec
from cellfork.engine.sandbox import Sandbox
from cellfork.model.errors import PathNotFound
from cellfork.model.ids import new_id
from cellfork.model.specs import HOME, ExecSpec

MOST = 1000
"""Sessions that a sandbox may have."""
LONGEST = 24 * 3600.0
"""Seconds that a run may take where the client names no time."""
_ID = re.compile(r"[a-z0-9]{1,64}")
SCRIPT: Final = """\
exec 2>&1
__session=$1 __cwd=$2 __command=$3
set --
[ -f "$__session/env" ] && . "$__session/env" 2>/dev/null
[ -n "$__cwd" ] || __cwd=$(cat "$__session/cwd" 2>/dev/null)
cd -- "${__cwd:-$HOME}" || exit
__session_end() {
  local code=$?
  trap - EXIT
  pwd >"$__session/cwd"
  declare -px >"$__session/env.new" && mv -f "$__session/env.new" "$__session/env"
  exit "$code"
}
trap __session_end EXIT
eval "$__command"
"""
"""Takes the session's directory, another working directory or nothing, and the command."""


@dataclass(slots=True)
class _Session:
    """Whose turn it is in a session, and what ran last."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    exec: Exec | None = None
    removed: bool = False


class Sessions:
    """The sessions of every sandbox, by id."""

    def __init__(self) -> None:
        self._tables: weakref.WeakKeyDictionary[Sandbox, dict[str, _Session]] = weakref.WeakKeyDictionary()

    def routes(self) -> Routes:
        """Return what is served."""
        return (
            Route("POST", "/session", self.begin),
            Route("POST", "/session/{id}/run", self.run),
            Route("DELETE", "/session/{id}", self.end),
        )

    async def begin(self, call: Call) -> None:
        """Make a session."""
        id = await self.create(call.sandbox, await call.body(schema.CreateSession))
        await call.answer({"session_id": id})

    async def end(self, call: Call) -> None:
        """Forget a session."""
        await self.remove(call.sandbox, call.parts["id"])
        await call.answer()

    async def create(self, sandbox: Sandbox, body: schema.CreateSession) -> str:
        """Make a session and its working directory; return its id."""
        table = self._tables.setdefault(sandbox, {})
        if len(table) >= MOST:
            raise errors.Refused(429, errors.RUNTIME_ERROR, f"a sandbox may have {MOST} sessions")
        cwd = expanded(sandbox, body.cwd) if body.cwd else HOME
        await sandbox.files.make_dir(cwd)
        id = new_id()
        await sandbox.files.write(f"{_place(id)}/cwd", (await directory(sandbox, cwd)).encode())
        table[id] = _Session()
        return id

    async def run(self, call: Call) -> None:
        """Run a command when those before it have ended, and answer with its events."""
        sandbox, id = call.sandbox, call.parts["id"]
        body = await call.body(schema.RunInSession)
        session = await self._find(sandbox, id)
        envs = await environment(sandbox)
        cwd = await directory(sandbox, body.cwd, envs) if body.cwd else ""
        argv = ("/bin/bash", "--noprofile", "--norc", "-c", SCRIPT, "bash", _place(id), cwd, body.command)
        timeout = body.timeout / 1000 if body.timeout else LONGEST
        async with session.turn:
            if session.removed:
                raise errors.no_context(id)
            session.exec = exec_ = await sandbox.execs.create(ExecSpec(argv, envs=envs), timeout=timeout)
            await follow(sandbox, exec_, call.receive, call.send)
            await exec_.wait()  # a client that is gone does not let the next one begin

    async def remove(self, sandbox: Sandbox, id: str) -> None:
        """Forget a session, with what it kept; what runs in it is ended, what waits is refused."""
        session = await self._find(sandbox, id)
        session.removed = True
        self._tables[sandbox].pop(id, None)
        if session.exec is not None:
            session.exec.stop()
        async with session.turn:
            with contextlib.suppress(PathNotFound):
                await sandbox.files.remove(_place(id))

    async def knows(self, sandbox: Sandbox, id: str) -> bool:
        """Tell whether a sandbox has this session: what it keeps is there, whoever made it."""
        if id in self._tables.get(sandbox, ()):
            return True
        return _ID.fullmatch(id) is not None and await sandbox.files.exists(f"{_place(id)}/cwd")

    async def _find(self, sandbox: Sandbox, id: str) -> _Session:
        if not await self.knows(sandbox, id):
            raise errors.no_context(id)
        return self._tables.setdefault(sandbox, {}).setdefault(id, _Session())


def _place(id: str) -> str:
    return f"/tmp/.session-{id}"
