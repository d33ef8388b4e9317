"""The code plane: what a sandbox's port 49999 answers.

``/execute`` is the hot route, so this is ASGI without a framework.  One sandbox, already found and awake, is in
``scope["state"]["sandbox"]``; the traffic token was checked by whoever found it.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from cellfork.dialects import asgi
from cellfork.dialects.asgi import Message, Receive, Scope, Send
from cellfork.dialects.base import Services
from cellfork.dialects.e2b.code import errors, schema
from cellfork.dialects.e2b.code.execute import EventLines, Lines, UpstreamLines, stream
from cellfork.dialects.e2b.extension.errors import code_header
from cellfork.dialects.e2b.notes import notes_of
from cellfork.engine.contexts import Context
from cellfork.engine.languages import language_of
from cellfork.engine.sandbox import Sandbox
from cellfork.model.errors import CellforkError, LimitExceeded, NotFound, SandboxGone
from cellfork.model.specs import HOME, ContextSpec, ExecuteRequest

DIALECT: Final = "e2b"
DEFAULT_LANGUAGES = ("python", "javascript")
"""Languages whose default contexts clients expect in the list, first, whether they were used or not."""
PREFLIGHT_SECONDS = b"600"

Handler = Callable[[Sandbox, Scope, Receive, Send], Awaitable[None]]

_CONTEXT = re.compile(r"/contexts/([^/]+)(/restart)?")


class CodeApp:
    """Runs code and keeps contexts.  Any web page may call it (``Access-Control-Allow-Origin: *``): who has the token may."""

    def __init__(self, services: Services) -> None:
        self._limits = services.limits
        self._routes: Mapping[str, Mapping[str, Handler]] = {
            "/health": {"GET": self._health},
            "/execute": {"POST": self._execute},
            "/contexts": {"GET": self._list, "POST": self._create},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if asgi.header(scope, b"origin") is not None:
            send = _open_to_all(send)
            if _is_preflight(scope):
                await _answer_preflight(scope, send)
                return
        sandbox: Sandbox = scope["state"]["sandbox"]
        path: str = scope["path"]
        handlers = self._routes.get(path)
        if handlers is not None:
            asgi.name_route(scope, DIALECT, path)
            await self._dispatch(handlers, sandbox, scope, receive, send)
        elif (match := _CONTEXT.fullmatch(path)) is not None:
            asgi.name_route(scope, DIALECT, f"/contexts/{{id}}{match[2] or ''}")
            handlers = {"POST": self._restart} if match[2] else {"DELETE": self._remove}
            await self._dispatch(handlers, sandbox, scope, receive, send)
        else:
            asgi.name_route(scope, DIALECT, "unknown")
            await asgi.send_json(send, 404, {"detail": "Not Found"})

    async def _dispatch(
        self, handlers: Mapping[str, Handler], sandbox: Sandbox, scope: Scope, receive: Receive, send: Send
    ) -> None:
        handler = handlers.get(scope["method"])
        if handler is None:
            allow = (b"allow", ", ".join(handlers).encode())
            await asgi.send_json(send, 405, {"detail": "Method Not Allowed"}, [allow])
            return
        try:
            await handler(sandbox, scope, receive, send)
        except schema.Invalid as error:
            await asgi.send_json(send, 422, {"detail": str(error)})
        except SandboxGone as error:
            gone = {"sandboxId": sandbox.id, "message": errors.GONE, "code": 502}
            await asgi.send_json(send, 502, gone, code_header(error))
        except CellforkError as error:
            await _refuse(send, error, str(error))

    # ------------------------------------------------------------------------------------------ routes

    async def _health(self, sandbox: Sandbox, scope: Scope, receive: Receive, send: Send) -> None:
        await asgi.send_json(send, 200, "OK")

    async def _execute(self, sandbox: Sandbox, scope: Scope, receive: Receive, send: Send) -> None:
        if not _may_enter(sandbox, scope):
            await asgi.send_json(send, 401, {"code": 401, "message": errors.UNAUTHORIZED})
            return
        body = schema.read_execute(await asgi.read_body(scope, receive, self._limits.body))
        if body.context_id and body.language:
            await _say(send, 400, errors.ONLY_ONE)
            return
        try:
            context = await _context_of(sandbox, body.context_id, body.language)
        except NotFound as error:
            await _refuse(send, error, errors.no_context(body.context_id or ""))
            return
        except SandboxGone:
            raise
        except CellforkError as error:
            await _refuse(send, error, errors.not_created(error))
            return
        request, lines = _asked(sandbox, context, body)
        try:
            await stream(sandbox, context, request, lines, receive, send)
        except LimitExceeded as error:
            full = context.waiting >= sandbox.settings.queue
            await _refuse(send, error, str(error), 429 if full else 413)

    async def _list(self, sandbox: Sandbox, scope: Scope, receive: Receive, send: Send) -> None:
        await asgi.send_json(send, 200, [_told(context) for context in await _contexts(sandbox)])

    async def _create(self, sandbox: Sandbox, scope: Scope, receive: Receive, send: Send) -> None:
        wanted = schema.read_create_context(await asgi.read_body(scope, receive, self._limits.body))
        try:
            spec = ContextSpec(language=language_of(wanted.language), cwd=wanted.cwd or HOME)
            context = await sandbox.contexts.create(spec)
        except SandboxGone:
            raise
        except CellforkError as error:
            await _refuse(send, error, errors.not_created(error))
            return
        await asgi.send_json(send, 200, _told(context))

    async def _restart(self, sandbox: Sandbox, scope: Scope, receive: Receive, send: Send) -> None:
        id = _id_in(scope)
        try:
            await sandbox.contexts.restart(id)
        except NotFound as error:
            await _refuse(send, error, errors.no_context(id))
            return
        await asgi.send_json(send, 200, None)

    async def _remove(self, sandbox: Sandbox, scope: Scope, receive: Receive, send: Send) -> None:
        id = _id_in(scope)
        try:
            sandbox.contexts.remove(id)
        except NotFound as error:
            await _refuse(send, error, errors.no_context(id))
            return
        await asgi.send_json(send, 200, None)


# ---------------------------------------------------------------------------------------------- contexts


async def _context_of(sandbox: Sandbox, id: str | None, language: str | None) -> Context:
    """Return the context to run in; the default one of a language has its kernel when this returns."""
    if id:
        return sandbox.contexts.get(id)
    await sandbox.contexts.prepare(language)
    return sandbox.contexts.default(language)


def _asked(sandbox: Sandbox, context: Context, body: schema.Execute) -> tuple[ExecuteRequest, Lines]:
    """Return what to run, and the lines of the answer: upstream's, or events for our own client."""
    envs, own = body.env_vars or {}, body.cellfork
    if own is None:
        return ExecuteRequest(body.code, envs, timeout=None), UpstreamLines(sandbox, context)
    return ExecuteRequest(body.code, envs, own.timeout, allow_input=own.input), EventLines()


async def _contexts(sandbox: Sandbox) -> list[Context]:
    """Return the default contexts of Python and JavaScript, then the others, the newest last.

    One that was not used yet is made now, without a kernel; a language that the template lacks has none.
    """
    there = await sandbox.languages()
    defaults = [sandbox.contexts.default(name) for name in DEFAULT_LANGUAGES if name in there]
    return [*defaults, *(context for context in sandbox.contexts.list() if context not in defaults)]


def _told(context: Context) -> schema.Context:
    return schema.Context(context.id, context.language, context.cwd)


# ---------------------------------------------------------------------------------------------- requests


def _may_enter(sandbox: Sandbox, scope: Scope) -> bool:
    """Tell whether a request may run code: with the sandbox's token where it has one, or from inside."""
    if scope["state"].get("inside"):
        return True
    notes = notes_of(sandbox)
    return notes is None or notes.may_enter(asgi.header(scope, b"x-access-token"))


def _id_in(scope: Scope) -> str:
    match = _CONTEXT.fullmatch(scope["path"])
    return match[1] if match is not None else ""


async def _refuse(send: Send, error: CellforkError, text: str, status: int | None = None) -> None:
    """Answer with an error: upstream's text for its clients, our code for ours."""
    await _say(send, status or errors.status_of(error), text, code_header(error))


async def _say(send: Send, status: int, text: str, headers: asgi.Headers = ()) -> None:
    """Answer with plain text, as upstream does; its clients show it."""
    await asgi.send_body(send, status, text.encode(errors="replace"), b"text/plain; charset=utf-8", headers)


# -------------------------------------------------------------------------------------------------- CORS


def _open_to_all(send: Send) -> Send:
    async def send_with_origin(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"access-control-allow-origin", b"*")]
        await send(message)

    return send_with_origin


def _is_preflight(scope: Scope) -> bool:
    return scope["method"] == "OPTIONS" and asgi.header(scope, b"access-control-request-method") is not None


async def _answer_preflight(scope: Scope, send: Send) -> None:
    asgi.name_route(scope, DIALECT, "preflight")
    wanted = asgi.header(scope, b"access-control-request-headers") or "*"
    headers = [
        (b"access-control-allow-methods", b"DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"),
        (b"access-control-allow-headers", wanted.encode("latin-1")),
        (b"access-control-max-age", PREFLIGHT_SECONDS),
    ]
    await asgi.send_body(send, 200, b"OK", b"text/plain; charset=utf-8", headers)
