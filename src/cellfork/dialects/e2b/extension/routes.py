"""The extension: ``/cellfork/sandboxes/{id}/…``, for cellfork's own client.

The caller is who may create and kill sandboxes: an API key of the sandbox's tenant is asked for, not the sandbox's token.  So
nothing inside a sandbox can call this, whatever it knows.
"""

import re
from typing import Final
from urllib.parse import parse_qs

import msgspec

from cellfork.dialects import asgi
from cellfork.dialects.asgi import Abort, ClientGone, Receive, Scope, Send
from cellfork.dialects.base import Services
from cellfork.dialects.e2b.extension import codec
from cellfork.dialects.e2b.extension.endings import Endings
from cellfork.dialects.e2b.extension.errors import body_of, http_status_of
from cellfork.dialects.e2b.extension.operations import Operations, info_of
from cellfork.engine.files import WINDOW
from cellfork.engine.sandbox import Sandbox
from cellfork.model.errors import InvalidRequest, NotFound, SandboxGone, Unauthorized

PREFIX: Final = "/cellfork/"
DIALECT: Final = "e2b"
OCTETS: Final = b"application/octet-stream"
MOST_QUERY = 16 * 1024
OCTAL, DECIMAL = 8, 10
_DIGITS = {OCTAL: set("01234567"), DECIMAL: set("0123456789")}

_ALL = "/cellfork/sandboxes"
_SANDBOX = re.compile(r"/cellfork/sandboxes/([a-z0-9]{1,128})(?:/([a-z_.]{1,40})(?:/([0-9]{1,18}))?)?")


class WrongMethod(InvalidRequest):
    """The path takes other methods: ``allowed``."""

    def __init__(self, allowed: str, method: str) -> None:
        super().__init__(f"this path takes {allowed}, not {method[:20]}")
        self.allowed = allowed


class ExtensionApp:
    """Carries out operations.  An ASGI app for requests whose path begins with :data:`PREFIX`."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._operations = Operations(services)
        self._endings = Endings()

    async def aclose(self) -> None:
        """Wait for what was begun and nobody waits for."""
        await self._operations.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request.  An error of ours is answered, then raised, so that the server logs it."""
        begun = _Begun(send)
        try:
            await self._answer(scope, receive, begun.send)
        except (ClientGone, Abort):
            raise
        except WrongMethod as error:
            body = {**body_of(error), "code": 405}
            await asgi.send_json(send, 405, body, [(b"allow", error.allowed.encode())])
        except Exception as error:
            if begun.yes:
                raise Abort from error
            status = http_status_of(error)
            await asgi.send_json(send, status, body_of(error))
            if status == 500:
                raise

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == _ALL:
            await self._list(scope, send)
            return
        match = _SANDBOX.fullmatch(scope["path"])
        if match is None:
            asgi.name_route(scope, DIALECT, "/cellfork/unknown")
            self._tenant(scope)  # whoever has no key is told of nothing else
            raise NotFound("there is no such path in the extension")
        id, operation, handle = match.groups()
        asgi.name_route(scope, DIALECT, "/cellfork/sandboxes/{id}" + (f"/{operation}" if operation else ""))
        tenant = self._tenant(scope)
        asgi.state(scope)["tenant"] = tenant
        if operation is None and handle is None:
            _check_method(scope, "GET")
            await asgi.send_json(
                send, 200, self._endings.info(tenant, id) or info_of(self._sandbox(tenant, id))
            )
            return
        sandbox = self._sandbox(tenant, id)
        asgi.state(scope)["sandbox"] = sandbox
        if operation == "files" and handle is None:
            await self._file(sandbox, scope, receive, send)
        elif operation == "uploads" and handle is not None:
            _check_method(scope, "PUT")
            await self._piece(sandbox, int(handle), scope, receive, send)
        elif handle is None:
            await self._operate(sandbox, operation, scope, receive, send)
        else:
            raise NotFound("there is no such path in the extension")

    async def _list(self, scope: Scope, send: Send) -> None:
        """Tell of every sandbox of the caller's, the oldest first."""
        asgi.name_route(scope, DIALECT, _ALL)
        tenant = self._tenant(scope)
        _check_method(scope, "GET")
        mine = [sandbox for sandbox in self._services.engine.list() if sandbox.spec.tenant == tenant]
        await asgi.send_json(send, 200, {"sandboxes": [info_of(sandbox, tokens=False) for sandbox in mine]})

    async def _operate(self, sandbox: Sandbox, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        operation = self._operations.by_name.get(name)
        if operation is None:
            asgi.name_route(scope, DIALECT, "/cellfork/unknown")
            raise NotFound(f"there is no operation {name!r}")
        _check_method(scope, "POST")
        content = await asgi.read_body(scope, receive, self._services.limits.body)
        try:
            body = msgspec.json.decode(content or b"{}", type=operation.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest(f"the body is not what {name} takes: {error}") from None
        await asgi.send_json(send, 200, await operation.run(sandbox, body))

    # ------------------------------------------------------------------------------------------ files

    async def _file(self, sandbox: Sandbox, scope: Scope, receive: Receive, send: Send) -> None:
        query = _query(scope)
        if scope["method"] == "GET":
            offset, length = query.number("offset"), query.number("length", most=WINDOW)
            if offset is not None and length is not None:
                await self._read_range(sandbox, query.text("path"), offset, length, send)
            else:
                await self._read(sandbox, query.text("path"), send)
        elif scope["method"] == "PUT":
            mode, append = query.number("mode", OCTAL, most=0o7777), query.text("append", "") == "1"
            upload = await sandbox.files.open_upload(query.text("path"), mode=mode, append=append)
            try:
                asgi.allow_body(scope, self._services.limits.upload)
                async for piece in asgi.stream_body(receive):
                    await upload.write(piece)
                entry = await upload.commit()
            except BaseException:
                upload.abort()
                raise
            await asgi.send_json(send, 200, codec.entry_of(entry))
        else:
            _check_method(scope, "GET, PUT")

    async def _read_range(self, sandbox: Sandbox, path: str, offset: int, length: int, send: Send) -> None:
        await asgi.send_body(send, 200, await sandbox.files.read_range(path, offset, length), OCTETS)

    async def _read(self, sandbox: Sandbox, path: str, send: Send) -> None:
        begun = False
        async for piece in sandbox.files.stream(path):
            if not begun:
                await send(
                    {"type": "http.response.start", "status": 200, "headers": [(b"content-type", OCTETS)]}
                )
                begun = True
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        if begun:
            await send({"type": "http.response.body", "body": b""})
        else:
            await asgi.send_body(send, 200, b"", OCTETS)

    async def _piece(self, sandbox: Sandbox, handle: int, scope: Scope, receive: Receive, send: Send) -> None:
        """Add bytes to an upload; return when they are in the file."""
        upload = self._operations.upload(sandbox, handle)
        async for piece in asgi.stream_body(receive):
            await upload.write(piece)
        await asgi.send_json(send, 200, {})

    # ---------------------------------------------------------------------------------------- who asks

    def _tenant(self, scope: Scope) -> str:
        presented = asgi.header(scope, b"x-api-key")
        tenant = self._services.keys.owner(presented)
        if tenant is None:
            raise Unauthorized(
                "the API key is missing: send one of this server as X-API-KEY"
                if presented is None
                else "this server does not know the API key"
            )
        return tenant

    def _sandbox(self, tenant: str, id: str) -> Sandbox:
        """Return a sandbox of the caller's.  Raises :class:`SandboxGone`: why it ended, or that nothing is known of it."""
        try:
            sandbox = self._services.engine.get(id)
        except NotFound:
            raise self._endings.error(tenant, id) or _unknown(id) from None
        if sandbox.spec.tenant != tenant:
            raise _unknown(id)
        self._endings.watch(sandbox)
        return sandbox


class _Begun:
    """Remembers whether an answer has begun: then an error can only end the connection."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.yes = False

    async def send(self, message: asgi.Message) -> None:
        self.yes = True
        await self._send(message)


class _Query:
    """The parameters of a query."""

    def __init__(self, values: dict[str, list[str]]) -> None:
        self._values = values

    def text(self, name: str, default: str | None = None) -> str:
        values = self._values.get(name, [] if default is None else [default])
        if len(values) != 1:
            raise InvalidRequest(f"the query has one parameter {name!r}")
        return values[0]

    def number(self, name: str, base: int = 10, most: int = 2**62) -> int | None:
        text = self.text(name, "")
        if not text:
            return None
        number = int(text, base) if text.isascii() and text.isdecimal() and _DIGITS[base] >= set(text) else -1
        if not 0 <= number <= most:
            raise InvalidRequest(
                f"the query parameter {name!r} is a number of base {base}, and not too large"
            )
        return number


def _unknown(id: str) -> SandboxGone:
    return SandboxGone(f"there is no sandbox {id!r} here: it ended long ago, or never was")


def _query(scope: Scope) -> _Query:
    text = scope["query_string"][:MOST_QUERY].decode("latin-1")
    try:
        return _Query(parse_qs(text, keep_blank_values=True, errors="strict", max_num_fields=8))
    except (ValueError, UnicodeDecodeError):
        raise InvalidRequest("the query is malformed") from None


def _check_method(scope: Scope, allowed: str) -> None:
    if scope["method"] != allowed:
        raise WrongMethod(allowed, scope["method"])
