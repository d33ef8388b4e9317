"""The contexts of a sandbox of a server."""

from typing import TYPE_CHECKING, Any

from cellfork.client.values import Context
from cellfork.model.errors import InvalidRequest, ProtocolViolation
from cellfork.model.specs import ContextSpec

if TYPE_CHECKING:
    from cellfork.client.http.sandbox import HttpSandbox


class HttpContexts:
    """Creates and removes contexts, as :class:`cellfork.engine.context_table.Contexts` does."""

    def __init__(self, sandbox: "HttpSandbox") -> None:
        self._sandbox = sandbox

    async def create(self, spec: ContextSpec) -> Context:
        """Create a context and wait until its kernel is there."""
        fields = {"language": spec.language, "cwd": spec.cwd, "envs": dict(spec.envs)}
        return _read(await self._sandbox.do("contexts.create", **fields))

    async def list(self) -> "list[Context]":
        """Return the contexts in the order of their creation."""
        return [_read(fields) for fields in (await self._sandbox.do("contexts.list"))["contexts"]]

    async def prepare(self, language: str | None) -> None:
        """Have the default context of a language and wait for its kernel."""
        if language is not None and not isinstance(language, str):
            raise InvalidRequest(f"a language is a name, not {language!r}")
        await self._sandbox.do("contexts.prepare", language=language)

    async def restart(self, id: str) -> None:
        """Replace a context's kernel."""
        await self._sandbox.do("contexts.restart", id=id)

    async def remove(self, id: str) -> None:
        """Remove a context."""
        await self._sandbox.do("contexts.remove", id=id)


def _read(fields: Any) -> Context:
    try:
        return Context(fields["id"], fields["language"], fields["cwd"], dict(fields["envs"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolViolation(f"the server told of a context what cannot be: {error!r}") from None
