"""Code and its contexts, and how what runs is stopped."""

from typing import Final

from cellfork.dialects.opensandbox.execd import code, errors, schema
from cellfork.dialects.opensandbox.execd.calls import Call, Route, Routes
from cellfork.dialects.opensandbox.execd.commands import Commands
from cellfork.dialects.opensandbox.execd.paths import directory
from cellfork.dialects.opensandbox.execd.sessions import Sessions
from cellfork.engine.contexts import Context
from cellfork.engine.languages import language_of
from cellfork.engine.sandbox import Sandbox
from cellfork.model.errors import NotFound, Unsupported
from cellfork.model.specs import HOME, ContextSpec

COMMAND_LANGUAGES: Final = frozenset({"", "command", "background-command"})
"""Languages of ``POST /code`` that mean a shell command."""


class Contexts:
    """Code runs in contexts; what has no language is a command."""

    def __init__(self, commands: Commands, sessions: Sessions) -> None:
        self._commands = commands
        self._sessions = sessions

    def routes(self) -> Routes:
        """Return what is served."""
        return (
            Route("POST", "/code", self.run),
            Route("DELETE", "/code", self.interrupt),
            Route("DELETE", "/command", self.interrupt),
            Route("POST", "/code/context", self.create),
            Route("GET", "/code/contexts", self.list),
            Route("DELETE", "/code/contexts", self.remove_all),
            Route("GET", "/code/contexts/{id}", self.get),
            Route("DELETE", "/code/contexts/{id}", self.remove),
        )

    async def run(self, call: Call) -> None:
        """Run code in a context, or in its language's default one."""
        body = await call.body(schema.RunCode)
        wanted = body.context or schema.CodeContext()
        language = (wanted.language or "").strip().lower()
        if not wanted.id and language in COMMAND_LANGUAGES:
            in_background = language == "background-command"
            command = schema.RunCommand(command=body.code, cwd=wanted.cwd, background=in_background)
            await self._commands.run(call, command)
            return
        context = await _chosen(call.sandbox, wanted)
        await code.stream(call.sandbox, context, body.code, call.receive, call.send)

    async def interrupt(self, call: Call) -> None:
        """Stop what runs in a context, a command, or a session."""
        id, sandbox = call.wanted("id"), call.sandbox
        try:
            sandbox.contexts.get(id).interrupt()
        except NotFound:
            if await self._sessions.knows(sandbox, id):
                await self._sessions.remove(sandbox, id)
            elif not await self._commands.interrupt(sandbox, id):
                problem = "error interruptting code context. no such session"
                raise errors.Refused(404, errors.RUNTIME_ERROR, problem) from None
        await call.answer()

    async def create(self, call: Call) -> None:
        """Make a context; its kernel is ready when this answers."""
        body = await call.body(schema.CreateContext)
        if not body.language:
            raise errors.invalid("language is missing")
        cwd = await directory(call.sandbox, body.cwd) if body.cwd else HOME
        spec = ContextSpec(language=language_of(body.language), cwd=cwd)
        context = await call.sandbox.contexts.create(spec)
        await call.answer({**_told(context), **({"cwd": cwd} if body.cwd else {})})

    async def list(self, call: Call) -> None:
        """List contexts, all or those of one language."""
        await call.answer([_told(context) for context in _of_language(call)])

    async def remove_all(self, call: Call) -> None:
        """Remove all contexts of a language."""
        call.wanted("language")
        for context in _of_language(call):
            call.sandbox.contexts.remove(context.id)
        await call.answer()

    async def get(self, call: Call) -> None:
        """Return a context."""
        await call.answer(_told(_by_id(call.sandbox, call.parts["id"])))

    async def remove(self, call: Call) -> None:
        """Remove a context."""
        call.sandbox.contexts.remove(_by_id(call.sandbox, call.parts["id"]).id)
        await call.answer()


async def _chosen(sandbox: Sandbox, wanted: schema.CodeContext) -> Context:
    """Return the context to run in.  Raises :class:`Refused` for one that is not there, or is not as the request says."""
    if wanted.id:
        context = _by_id(sandbox, wanted.id)
        if wanted.language and _language(wanted.language) != context.language:
            raise errors.invalid(f"the language of context {context.id} is {context.language}")
    else:
        language = language_of(wanted.language)
        await sandbox.contexts.prepare(language)
        context = sandbox.contexts.default(language)
    if wanted.cwd and await directory(sandbox, wanted.cwd) != context.cwd:
        raise errors.invalid(
            f"context {context.id} began in {context.cwd}; make another one for another directory"
        )
    return context


def _by_id(sandbox: Sandbox, id: str) -> Context:
    try:
        return sandbox.contexts.get(id)
    except NotFound:
        raise errors.no_context(id) from None


def _of_language(call: Call) -> list[Context]:
    """Return the contexts of the language that the query names, all of them where it names none."""
    contexts = call.sandbox.contexts.list()
    wanted = call.value("language")
    return [context for context in contexts if not wanted or context.language == _language(wanted)]


def _language(name: str) -> str | None:
    """Return the language of a name; ``None`` for what cannot be one."""
    try:
        return language_of(name)
    except Unsupported:
        return None


def _told(context: Context) -> dict[str, str]:
    return {"id": context.id, "language": context.language}
