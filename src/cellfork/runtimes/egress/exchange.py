"""One plain HTTP request and its response: checked, passed on without what is the proxy's, and the end of its connection."""

from base64 import b64encode
from collections.abc import Callable

from cellfork.model.hosts import BadHost
from cellfork.runtimes.egress.account import Account
from cellfork.runtimes.egress.heads import (
    BadHead,
    Fields,
    Request,
    Response,
    body_length,
    encode,
    end_to_end,
    parse_response,
    values_of,
)
from cellfork.runtimes.egress.indexes import Endpoint
from cellfork.runtimes.egress.replies import CONTINUE
from cellfork.runtimes.egress.streams import Count, Idle, Stream, carry, pump
from cellfork.runtimes.egress.targets import Target, parse_target

SCHEME = "http://"
SAFE = frozenset({"GET", "HEAD"})


def split_url(url: str) -> tuple[Target, str]:
    """Return the target of an absolute ``http`` URL and its path; :class:`BadHead` or :class:`BadHost` otherwise."""
    if url[: len(SCHEME)].lower() != SCHEME:
        raise BadHead("this is a proxy: it takes CONNECT, and requests with an absolute http URL")
    rest = url[len(SCHEME) :]
    cut = min((position for mark in "/?#" if (position := rest.find(mark)) >= 0), default=len(rest))
    path = rest[cut:] or "/"
    if "#" in path or "@" in rest[:cut]:
        raise BadHead("the URL has a fragment or a user")
    return parse_target(rest[:cut], 80), path if path.startswith("/") else "/" + path


def check_host(request: Request, target: Target, default_port: int) -> None:
    """Raise :class:`BadHead` unless the Host header, of which there may be one, names ``target``."""
    hosts = request.values("host")
    if len(hosts) > 1 or (not hosts and request.minor == 1 and request.method != "CONNECT"):
        raise BadHead("a request has one Host header")
    for host in hosts:
        try:
            named = parse_target(host, default_port)
        except BadHost as error:
            raise BadHead(f"the Host header is malformed: {error}") from error
        if named != target:
            raise BadHead("the Host header and the URL name different hosts", 403)


def request_head(request: Request, target: Target, path: str, endpoint: Endpoint | None) -> bytes:
    """Return the head to send on: origin form, one Host, nothing that is between the sandbox and the proxy."""
    fields: Fields = [(name, value) for name, value in end_to_end(request.fields) if name != "host"]
    if body_length(request) is None:
        fields.append(("transfer-encoding", "chunked"))
    if (
        endpoint is not None
        and endpoint.login
        and request.method in SAFE
        and not values_of(fields, "authorization")
    ):
        fields.append(("authorization", "Basic " + b64encode(endpoint.login.encode()).decode()))
    line = f"{request.method} {path} HTTP/1.{request.minor}".encode("ascii")
    return encode(line, [("host", target.authority), *fields, ("connection", "close")])


async def send_body(request: Request, client: Stream, server: Stream, account: Account, idle: Idle) -> None:
    """Carry the body, and not a byte that comes after it."""
    size = body_length(request)
    if size != 0 and "100-continue" in (value.lower() for value in request.values("expect")):
        await client.write(CONTINUE)
    if size is not None:
        await carry(size, client, server, account.count_sent, idle.moved)
        return
    await _carry_chunks(client, server, account.count_sent, idle.moved)


async def read_response(server: Stream) -> tuple[Response, int]:
    """Return the head of the final response, and its size in bytes; :class:`BadHead` with 502 otherwise."""
    for _ in range(8):
        try:
            head = await server.read_head()
            response = parse_response(head)
        except BadHead as error:
            raise BadHead(f"the server's answer is malformed: {error}", 502) from error
        if response.status == 101:
            break
        if response.status >= 200:
            return response, len(head)
    raise BadHead("the server's answer is not understood", 502)


def response_head(response: Response) -> bytes:
    """Return the head to give to the sandbox: the connection ends after this response."""
    fields = end_to_end(response.fields)
    codings = values_of(response.fields, "transfer-encoding")
    fields += [("transfer-encoding", coding) for coding in codings]
    return encode(response.line, [*fields, ("connection", "close")])


async def pass_body(
    request: Request, response: Response, server: Stream, client: Stream, account: Account, idle: Idle
) -> None:
    """Carry the body of the response: as long as it says, else to the end of the connection.

    A server that was asked to end the connection may not do so.
    """
    if request.method == "HEAD" or response.status in {204, 304}:
        return
    lengths = values_of(response.fields, "content-length")
    chunked = values_of(response.fields, "transfer-encoding")
    if [coding.lower() for coding in chunked] == ["chunked"]:
        await _carry_chunks(server, client, account.count_received, idle.moved)
    elif len(lengths) == 1 and lengths[0].isdecimal() and len(lengths[0]) <= 18 and not chunked:
        await carry(int(lengths[0]), server, client, account.count_received, idle.moved)
    else:
        await pump(server, client, account.count_received, idle.moved)


async def _carry_chunks(source: Stream, sink: Stream, count: Count, moved: Callable[[], None]) -> None:
    """Carry a body in chunks to its end; what may come behind it (trailers, another message) stays behind."""
    while size := _chunk_size(await source.read_line()):
        await sink.write(b"%x\r\n" % size)
        await carry(size, source, sink, count, moved)
        if await source.read_line(0):
            raise BadHead("a chunk does not end where it should")
        await sink.write(b"\r\n")
    await sink.write(b"0\r\n\r\n")


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip(b" \t")
    if not 0 < len(digits) <= 8 or not all(digit in b"0123456789abcdefABCDEF" for digit in digits):
        raise BadHead("the size of a chunk is malformed")
    return int(digits, 16)
