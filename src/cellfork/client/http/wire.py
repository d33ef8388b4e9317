"""Requests to one server: JSON in and out, errors as the same classes that the engine raises."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any
from urllib.parse import quote

import httpx2
import msgspec

from cellfork.dialects.e2b.extension.errors import HEADER, error_of
from cellfork.model.errors import InvalidRequest, ProtocolViolation, UnavailableError, Unsupported

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 90.0
"""An operation that waits for something says within 20 s that it still does; a kernel may take 30 s to start."""
SILENT_SECONDS = 30.0
"""A stream says something every 5 s; one that is silent for longer is cut."""
MOST_LINE = 256 * 1024 * 1024
MOST_TOLD = 500

Json = Mapping[str, Any]
Headers = Mapping[str, str]

_PLAIN = httpx2.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
_STREAM = httpx2.Timeout(SILENT_SECONDS, connect=CONNECT_SECONDS)


class Wire:
    """Connections to a server at ``url``.  Use in one event loop only."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self.url = url
        headers = {"user-agent": "cellfork-python"} | ({} if api_key is None else {"x-api-key": api_key})
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=60.0)
        try:
            self._client = httpx2.AsyncClient(base_url=url, headers=headers, limits=limits, timeout=_PLAIN)
        except (httpx2.InvalidURL, ValueError, TypeError) as error:
            raise InvalidRequest(f"{url!r:.200} is no URL of a server: {error}") from None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def aclose(self) -> None:
        """End every stream, close every connection."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content: bytes | None = None,
        query: Mapping[str, str] | None = None,
        headers: Headers | None = None,
    ) -> Any:
        """Send a request; return the JSON of its answer (``None``: there is none).  Raises what the server answers."""
        response = await self._send(method, path, body, content, query, headers, _PLAIN)
        return await self._answer(path, response)

    async def page(self, path: str, query: Mapping[str, str]) -> tuple[Any, str]:
        """Ask for a page of a list; return it, and the token of the next one (nothing: it is the last)."""
        response = await self._send("GET", path, None, None, query, None, _PLAIN)
        return await self._answer(path, response), response.headers.get("x-next-token", "")

    async def _answer(self, path: str, response: httpx2.Response) -> Any:
        try:
            answer = await response.aread()
        except httpx2.HTTPError as error:
            raise self._lost(error) from None
        finally:
            await response.aclose()
        self._check(response, answer)
        if not answer:
            return None
        try:
            return msgspec.json.decode(answer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise ProtocolViolation(f"the answer of {self.url} to {path} is no JSON") from None

    async def stream(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        headers: Headers | None = None,
    ) -> "Stream":
        """Send a request; return its answer as it comes.  Raises what the server answers instead."""
        response = await self._send(method, path, body, None, query, headers, _STREAM)
        if response.is_success:
            return Stream(self, response)
        try:
            answer = await response.aread()
        except httpx2.HTTPError as error:
            raise self._lost(error) from None
        finally:
            await response.aclose()
        self._check(response, answer)
        raise ProtocolViolation(f"{self.url} answered {response.status_code} to {path}")

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Run something that ends with the wire, at the latest."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever cares has awaited it

    async def _send(
        self,
        method: str,
        path: str,
        body: Any,
        content: bytes | None,
        query: Mapping[str, str] | None,
        headers: Headers | None,
        timeout: httpx2.Timeout,
    ) -> httpx2.Response:
        own = dict(headers or {})
        if body is not None:
            content, own["content-type"] = encoded(body), "application/json"
        try:
            request = self._client.build_request(
                method, path, content=content, params=query, headers=own, timeout=timeout
            )
            return await self._client.send(request, stream=True)
        except httpx2.UnsupportedProtocol:
            raise InvalidRequest(
                f"{self.url!r:.200} is no URL of a server: begin it with http:// or https://"
            ) from None
        except httpx2.HTTPError as error:
            raise self._lost(error) from None
        except RuntimeError as error:  # the client is closed: the program ends
            raise UnavailableError(f"{self.url} cannot be asked any more: {error}") from None

    def _check(self, response: httpx2.Response, answer: bytes) -> None:
        if response.is_success:
            return
        if response.is_redirect:
            raise Unsupported(
                f"{self.url} answers with a redirect to {response.headers.get('location', '')!r:.200}: use that URL"
            )
        raise error_of(response.status_code, _told(response, answer))

    def _lost(self, error: Exception) -> UnavailableError:
        return UnavailableError(f"the server at {self.url} does not answer: {type(error).__name__}: {error}")


class Stream:
    """An answer that comes piece by piece."""

    def __init__(self, wire: Wire, response: httpx2.Response) -> None:
        self._wire = wire
        self._response = response

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the bytes as they come.  Raises :class:`UnavailableError` where the connection breaks."""
        try:
            async for piece in self._response.aiter_bytes():
                yield piece
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            raise self._wire._lost(error) from None
        finally:
            await self._response.aclose()

    async def lines(self) -> AsyncIterator[Json]:
        """Yield the JSON objects of a stream that has one on each line.  Raises :class:`UnavailableError`."""
        rest = bytearray()
        async for piece in self.pieces():
            head, newline, tail = piece.rpartition(b"\n")
            if newline:
                rest += head
                for line in rest.split(b"\n"):
                    yield read_line(line)
                rest = bytearray(tail)
            else:
                rest += piece
                if len(rest) > MOST_LINE:
                    raise ProtocolViolation(f"a line of the stream is longer than {MOST_LINE:,} bytes")
        if rest:
            raise UnavailableError(f"the stream of {self._wire.url} ended in the middle of a line")

    async def aclose(self) -> None:
        """Close the connection, if the answer has not ended."""
        await self._response.aclose()


def read_line(line: bytes | bytearray) -> Json:
    """Return the JSON object of a line.  Raises :class:`ProtocolViolation`."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise ProtocolViolation("a line of the stream is no JSON") from None
    if not isinstance(value, dict):
        raise ProtocolViolation("a line of the stream is no object")
    return value


def encoded(body: Any) -> bytes:
    """Return a body as JSON.  Raises :class:`InvalidRequest` for what JSON cannot hold."""
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"the text holds a lone surrogate at {error.start}: it is not valid text"
        ) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"the request cannot be sent: {error}") from None


def quoted(id: object) -> str:
    """Return an id as a part of a path.  Raises :class:`InvalidRequest` for anything but text."""
    if not isinstance(id, str) or not id or id in {".", ".."}:
        raise InvalidRequest(f"an id is text, not {id!r:.80}")
    return quote(id[:200], safe="")


def _told(response: httpx2.Response, answer: bytes) -> Json:
    """Return what an answer says of an error, whichever form it has."""
    try:
        body = msgspec.json.decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        body = {"message": answer.decode("utf-8", "replace").strip()[:MOST_TOLD]}
    if not isinstance(body, dict):
        body = {"message": str(body)[:MOST_TOLD]}
    if HEADER in response.headers:
        body.setdefault("error", response.headers[HEADER])
    return body
