"""Which runtimes there are: names, where they are loaded from, what to install for them."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import NamedTuple, cast

from cellfork.model.errors import Unsupported
from cellfork.runtimes.base import Runtime


class RuntimeEntry(NamedTuple):
    """Where a runtime is loaded from (``module:Class``), and what makes it loadable."""

    target: str
    hint: str


RUNTIMES: Mapping[str, RuntimeEntry] = MappingProxyType(
    {
        "namespaces": RuntimeEntry(
            "cellfork.runtimes.namespaces.runtime:NamespacesRuntime", "it comes with cellfork; it needs Linux"
        ),
        "none": RuntimeEntry("cellfork.runtimes.none:NoneRuntime", "it comes with cellfork"),
    }
)
"""Name of an isolation → its runtime."""


class LazyRuntimes(Mapping[str, Runtime]):
    """Makes each runtime when it is asked for first."""

    def __init__(self, entries: Mapping[str, RuntimeEntry] = RUNTIMES) -> None:
        self._entries = entries
        self._made: dict[str, Runtime] = {}

    def __getitem__(self, name: str) -> Runtime:
        if name not in self._made:
            self._made[name] = load_runtime(name, self._entries[name])
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def load_runtime(name: str, entry: RuntimeEntry) -> Runtime:
    """Import and make a runtime; :class:`Unsupported` with the hint where it cannot be imported."""
    module, _, attribute = entry.target.partition(":")
    try:
        factory = getattr(import_module(module), attribute)
    except ImportError as error:
        raise Unsupported(f"isolation {name!r} cannot be loaded ({error}); {entry.hint}") from error
    return cast("Runtime", factory())
