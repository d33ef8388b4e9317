"""From a method and a path to a handler.  One table says what is served; the specification and the coverage are made from it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar
from urllib.parse import unquote

MOST_SEGMENTS = 16

H = TypeVar("H", bound=Callable[..., object])


class Found(NamedTuple, Generic[H]):
    """The handler of a request: its pattern, and what stands in the places of the pattern's names."""

    handler: H
    pattern: str
    parameters: Mapping[str, str]


class WrongMethod(Exception):
    """The path exists, but not with this method; ``allowed`` lists those that do."""

    def __init__(self, allowed: Sequence[str]) -> None:
        super().__init__(", ".join(allowed))
        self.allowed = allowed


class Router(Generic[H]):
    """Finds handlers by patterns such as ``/sandboxes/{sandboxID}``; a word goes before a name."""

    def __init__(self, table: Mapping[tuple[str, str], H]) -> None:
        self._routes: dict[int, dict[tuple[str, ...], dict[str, H]]] = {}
        for (method, pattern), handler in table.items():
            segments = tuple(pattern[1:].split("/"))
            by_method = self._routes.setdefault(len(segments), {}).setdefault(segments, {})
            by_method[method] = handler
        for count, routes in self._routes.items():
            self._routes[count] = dict(
                sorted(routes.items(), key=lambda item: [_is_name(s) for s in item[0]])
            )

    def find(self, method: str, path: str) -> Found[H] | None:
        """Return the handler for a path as it was sent (percent-encoded); ``None`` where nothing is served.

        A percent-encoded slash does not end a segment.  Raises :class:`WrongMethod`.
        """
        segments = tuple(map(unquote, path[1:].split("/", MOST_SEGMENTS)))
        allowed: list[str] = []
        for pattern, handlers in self._routes.get(len(segments), {}).items():
            parameters = _match(pattern, segments)
            if parameters is None:
                continue
            if method in handlers:
                return Found(handlers[method], "/" + "/".join(pattern), parameters)
            allowed += handlers
        if allowed:
            raise WrongMethod(sorted(set(allowed)))
        return None


def _is_name(segment: str) -> bool:
    return segment.startswith("{")


def _match(pattern: tuple[str, ...], segments: tuple[str, ...]) -> dict[str, str] | None:
    parameters = {}
    for expected, given in zip(pattern, segments, strict=True):
        if _is_name(expected) and given:
            parameters[expected[1:-1]] = given
        elif expected != given:
            return None
    return parameters
