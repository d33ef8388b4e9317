"""Which runtimes there are: names, where they are loaded from, what to install for them."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, cast

from cellfork.model.errors import Unsupported
from cellfork.runtimes.base import Runtime

if TYPE_CHECKING:
    from cellfork.runtimes.state import StateDirectory


class RuntimeEntry(NamedTuple):
    """Where a runtime is loaded from (``module:Class``), what makes it loadable, whether it takes a ``state`` directory."""

    target: str
    hint: str
    keeps: bool = False


RUNTIMES: Mapping[str, RuntimeEntry] = MappingProxyType(
    {
        "namespaces": RuntimeEntry(
            "cellfork.runtimes.namespaces.runtime:NamespacesRuntime",
            "it comes with cellfork; it needs Linux",
            keeps=True,
        ),
        "none": RuntimeEntry("cellfork.runtimes.none:NoneRuntime", "it comes with cellfork"),
    }
)
"""Name of an isolation → its runtime."""


class LazyRuntimes(Mapping[str, Runtime]):
    """Makes each runtime when it is asked for first.

    With ``state`` the sandboxes of those that can keep them outlive this process.
    """

    def __init__(
        self, entries: Mapping[str, RuntimeEntry] = RUNTIMES, *, state: "StateDirectory | None" = None
    ) -> None:
        self._entries = entries
        self._state = state
        self._made: dict[str, Runtime] = {}

    def __getitem__(self, name: str) -> Runtime:
        if name not in self._made:
            self._made[name] = load_runtime(name, self._entries[name], self._state)
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def load_runtime(name: str, entry: RuntimeEntry, state: "StateDirectory | None" = None) -> Runtime:
    """Import and make a runtime; :class:`Unsupported` with the hint where it cannot be imported."""
    module, _, attribute = entry.target.partition(":")
    try:
        factory = getattr(import_module(module), attribute)
    except ImportError as error:
        raise Unsupported(f"isolation {name!r} cannot be loaded ({error}); {entry.hint}") from error
    return cast("Runtime", factory(state=state) if entry.keeps and state is not None else factory())
