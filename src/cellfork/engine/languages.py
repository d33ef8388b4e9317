"""The languages that contexts can have, by name."""

from collections.abc import Mapping
from types import MappingProxyType

from cellfork.model.errors import InvalidRequest, Unsupported

DEFAULT_LANGUAGE = "python"

LANGUAGES: Mapping[str, tuple[str, ...]] = MappingProxyType({"python": ("py", "python3")})
"""Language → other names for it."""


def language_of(name: str | None) -> str:
    """Return the language that a caller means; ``None`` or nothing means Python.

    Case and surrounding space do not matter.  Raises :class:`Unsupported`, naming the known ones.
    """
    if name is not None and not isinstance(name, str):
        raise InvalidRequest(f"a language is a name, not {name!r}")
    wanted = (name or DEFAULT_LANGUAGE).strip().lower() or DEFAULT_LANGUAGE
    for language, others in LANGUAGES.items():
        if wanted == language or wanted in others:
            return language
    raise Unsupported(f"no kernel for the language {wanted[:80]!r}; known: {', '.join(sorted(LANGUAGES))}")
