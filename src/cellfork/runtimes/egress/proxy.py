"""The proxy: CONNECT and plain HTTP requests of sandboxes, each checked against the policy of its sandbox.

The order never changes: password, form, name, policy, look-up, *every* address of the answer, connection to one of those
addresses and no other.  A name that the policy does not know is never looked up.
"""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from cellfork.model.hosts import BadHost
from cellfork.model.network import NetworkPolicy
from cellfork.runtimes.egress import exchange
from cellfork.runtimes.egress.account import Account, Connection
from cellfork.runtimes.egress.addresses import Address, parse_address
from cellfork.runtimes.egress.heads import METHODS, BadHead, Request, body_length, parse_request
from cellfork.runtimes.egress.hello import MAX_HELLO, Hello, NotTls, parse_hello
from cellfork.runtimes.egress.indexes import NO_INDEXES, Indexes, read_indexes
from cellfork.runtimes.egress.replies import ESTABLISHED, reply
from cellfork.runtimes.egress.resolver import LookupFailed, Resolver, SystemResolver
from cellfork.runtimes.egress.rules import Denied, Grant
from cellfork.runtimes.egress.streams import Idle, Stream, both, pump
from cellfork.runtimes.egress.targets import Target, parse_target

CLIENT_BUFFER = 128 * 1024
SERVER_BUFFER = 512 * 1024
"""Of the kernel, for each direction of a connection: what a sandbox can make the host hold is bounded."""
MAX_TRIES = 4
HELLO_READS = 64
ALERT = bytes([21, 3, 3, 0, 2, 2, 49])
"""The TLS alert ``access_denied``."""

Connect = Callable[[Address, int], Awaitable[socket.socket]]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long, in seconds, the proxy waits for what."""

    head: float = 10.0
    lookup: float = 10.0
    connect: float = 10.0
    idle: float = 300.0
    reply: float = 5.0


async def connect_directly(address: Address, port: int) -> socket.socket:
    """Return a socket that is connected to ``address``; raises ``OSError``."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    connected = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        _prepare(connected, SERVER_BUFFER)
        await asyncio.get_running_loop().sock_connect(connected, (str(address), port))
    except BaseException:
        connected.close()
        raise
    return connected


class Proxy:
    """Serves the connections of all sandboxes of one runtime.

    ``resolver`` and ``connect`` replace the machine's own, ``indexes`` reads which package indexes it is configured to use.
    """

    def __init__(
        self,
        resolver: Resolver | None = None,
        connect: Connect = connect_directly,
        indexes: Callable[[], Indexes] = read_indexes,
        patience: Patience | None = None,
    ) -> None:
        self._resolver = resolver or SystemResolver()
        self._connect = connect
        self._indexes = indexes
        self._patience = patience or Patience()

    def indexes_of(self, policy: NetworkPolicy) -> Indexes:
        """Return the package indexes that ``policy`` allows.  Raises :class:`StartupFailed` where that cannot be told."""
        return self._indexes() if policy.packages else NO_INDEXES

    async def serve(self, account: Account, connection: Connection, accepted: socket.socket) -> None:
        """Serve one connection of a sandbox to its end."""
        accepted.setblocking(False)
        client = Stream(accepted)
        try:
            with contextlib.suppress(OSError):
                _prepare(accepted, CLIENT_BUFFER)
                await Visit(self, account, connection, client).serve()
        finally:
            client.close()

    async def dial(self, account: Account, target: Target, grant: Grant) -> Stream:
        """Return a connection to ``target``; raises :class:`Denied` or :class:`LookupFailed`."""
        addresses = (
            [target.address] if target.address is not None else await self._look_up(account, target, grant)
        )
        for address in addresses:
            account.rules.check_address(target, address, grant)
        try:
            async with asyncio.timeout(self._patience.connect):
                return Stream(await self._first_that_answers(addresses[:MAX_TRIES], target.port))
        except TimeoutError as error:
            raise LookupFailed(f"{target.host}:{target.port} does not answer", 504) from error
        except OSError as error:
            raise LookupFailed(
                f"{target.host}:{target.port} cannot be reached: {error.strerror or error}"
            ) from error

    @property
    def patience(self) -> Patience:
        """How long it waits."""
        return self._patience

    async def _look_up(self, account: Account, target: Target, grant: Grant) -> list[Address]:
        try:
            async with asyncio.timeout(self._patience.lookup), account.lookups:
                return await self._resolver.resolve(target.host, target.port, own=grant.endpoint is not None)
        except TimeoutError as error:
            raise LookupFailed(f"{target.host} could not be looked up in time", 504) from error

    async def _first_that_answers(self, addresses: list[Address], port: int) -> socket.socket:
        failure: OSError = OSError("there is no address")
        for address in addresses:
            try:
                async with asyncio.timeout(self._patience.connect / len(addresses)):
                    return await self._connect(address, port)
            except TimeoutError as error:
                failure = TimeoutError(*error.args)
            except OSError as error:
                failure = error
        raise failure


class Visit:
    """One connection of a sandbox: one request, or one tunnel."""

    def __init__(self, proxy: Proxy, account: Account, connection: Connection, client: Stream) -> None:
        self._proxy = proxy
        self._account = account
        self._connection = connection
        self._client = client
        self._answered = False
        self._target = Target("", 0)
        self._asked = ""

    async def serve(self) -> None:
        """Answer.  Whatever a sandbox sends, this raises nothing but ``OSError``."""
        try:
            head = await self._read_head()
            if head:
                await self._handle(parse_request(head))
        except BadHead as error:
            if error.status == 403:
                self._account.deny(self._target.host, self._target.port, str(error))
            await self._refuse(error.status, str(error), brief=str(error))
        except BadHost as error:
            self._account.deny(self._asked, 0, str(error))
            await self._refuse(400, str(error), brief=str(error))
        except LookupFailed as error:
            await self._refuse(error.status, str(error), brief=str(error))
        except Denied as denied:
            self._account.deny(self._target.host, self._target.port, str(denied))
            await self._refuse(denied.status, str(denied), brief=denied.brief)
        except TimeoutError:
            await self._refuse(504, "nothing has moved for too long")
        except OSError as error:
            await self._refuse(502, f"the connection broke: {error.strerror or error}")

    async def _read_head(self) -> bytes:
        try:
            async with asyncio.timeout(self._proxy.patience.head):
                return await self._client.read_head()
        except TimeoutError:
            raise BadHead("no request came in time", 408) from None

    async def _handle(self, request: Request) -> None:
        if not self._account.knows(request.values("proxy-authorization")):
            raise BadHead("the proxy's user and password are missing or wrong; they are in HTTP_PROXY", 407)
        self._asked = request.target[:200]
        if request.method == "CONNECT":
            await self._tunnel(request)
        elif request.method in METHODS:
            await self._exchange(request)
        else:
            raise BadHead(f"the method {request.method} is not passed on", 405)

    # ------------------------------------------------------------------------------------- plain HTTP

    async def _exchange(self, request: Request) -> None:
        body_length(request)  # what is ambiguous is refused before anybody is asked anything
        self._target, path = exchange.split_url(request.target)
        exchange.check_host(request, self._target, 80)
        grant = self._grant(tunnel=False)
        server = await self._proxy.dial(self._account, self._target, grant)
        try:
            head = exchange.request_head(request, self._target, path, grant.endpoint)
            self._account.count_sent(len(head))
            async with Idle(self._proxy.patience.idle) as idle:
                await server.write(head)
                await self._carry(request, server, idle)
        finally:
            server.close()
        await self._client.linger()

    async def _carry(self, request: Request, server: Stream, idle: Idle) -> None:
        """Carry the body one way and the response the other; the response ends the exchange, even an early one."""
        loop = asyncio.get_running_loop()
        sending = loop.create_task(exchange.send_body(request, self._client, server, self._account, idle))
        answering = loop.create_task(self._answer(request, server, idle))
        try:
            await asyncio.wait([sending, answering], return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() and isinstance(sending.exception(), OSError | None):
                await asyncio.wait([answering])
        finally:
            for task in (sending, answering):
                task.cancel()
            sent, answered = await asyncio.gather(sending, answering, return_exceptions=True)
        for outcome in (answered, sent):
            if isinstance(outcome, Exception) and not (outcome is sent and isinstance(outcome, OSError)):
                raise outcome

    async def _answer(self, request: Request, server: Stream, idle: Idle) -> None:
        response, size = await exchange.read_response(server)
        self._account.count_received(size)
        self._answered = True
        await self._client.write(exchange.response_head(response))
        await exchange.pass_body(request, response, server, self._client, self._account, idle)

    # ----------------------------------------------------------------------------------------- tunnels

    async def _tunnel(self, request: Request) -> None:
        self._target = parse_target(request.target)
        exchange.check_host(request, self._target, self._target.port)
        grant = self._grant(tunnel=True)
        server = await self._proxy.dial(self._account, self._target, grant)
        try:
            self._answered = True
            await self._client.write(ESTABLISHED)
            async with Idle(self._proxy.patience.idle) as idle:
                await both(
                    self._upwards(server, grant, idle),
                    pump(server, self._client, self._account.count_received, idle.moved),
                )
        except NotTls as error:
            self._account.deny(self._target.host, self._target.port, f"the tunnel did not carry TLS: {error}")
        finally:
            server.close()

    async def _upwards(self, server: Stream, grant: Grant, idle: Idle) -> None:
        first = await self._first_words(grant)
        if first:
            self._account.count_sent(len(first))
            await server.write(first)
            idle.moved()
        await pump(self._client, server, self._account.count_sent, idle.moved)

    async def _first_words(self, grant: Grant) -> bytes:
        """Return what the client said first, after a look at the server name in it; nothing was passed on by then."""
        if grant.look == "any":
            data = await self._client.read()
            if not data.startswith(b"\x16"):
                return data
        else:
            data = b""
        async with asyncio.timeout(self._proxy.patience.head):
            for _ in range(HELLO_READS):
                hello = parse_hello(data)
                if hello is not None:
                    await self._check_name(hello)
                    return data
                piece = await self._client.read()
                if not piece and not data:
                    return b""
                data += piece
                if not piece or len(data) > MAX_HELLO:
                    break
        raise NotTls("the ClientHello does not end")

    async def _check_name(self, hello: Hello) -> None:
        wanted, named = self._target, hello.server_name
        if wanted.address is not None:
            same = named is None or _same_address(named, wanted.address)
        else:
            same = named is not None and named.isascii() and named.lower() == wanted.host
        if not same:
            await self._client.write(ALERT)
            shown = "no server" if named is None else repr(named[:100])
            raise Denied(f"the tunnel is for {wanted.host}, but TLS in it names {shown}")

    # ------------------------------------------------------------------------------------------ common

    def _grant(self, *, tunnel: bool) -> Grant:
        self._connection.tunnel = tunnel
        self._connection.target = self._target
        self._connection.grant = self._account.rules.grant(self._target, tunnel=tunnel)
        return self._connection.grant

    async def _refuse(self, status: int, message: str, brief: str = "") -> None:
        if not self._answered:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._proxy.patience.reply):
                    await self._client.write(reply(status, message, brief))
            await self._client.linger()


def _same_address(named: str, address: Address) -> bool:
    try:
        return parse_address(named if ":" not in named else f"[{named}]") == address
    except BadHost:
        return False


def _prepare(connected: socket.socket, size: int) -> None:
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        connected.setsockopt(socket.SOL_SOCKET, option, size)
