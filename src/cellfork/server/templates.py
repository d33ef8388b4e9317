"""The templates that a server offers: by name, and by the names that other systems' clients ask for."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from cellfork.model.errors import InvalidRequest
from cellfork.model.limits import Limits
from cellfork.model.specs import Template
from cellfork.server import parsing

DEFAULT = "default"
"""The template of whoever names none.  There always is one; a table of this name changes it."""
DEFAULT_ALIASES = ("code-interpreter-v1", "base", "code-interpreter-beta", "code-interpreter")
"""What clients of E2B call the template that they expect to find."""

_LISTS = ("preload", "languages")


@dataclass(frozen=True, slots=True)
class Named:
    """A template with its other names; ``has_limits`` tells whether it brings limits of its own."""

    template: Template
    aliases: tuple[str, ...] = ()
    has_limits: bool = False


def parse_templates(tables: Any) -> tuple[Named, ...]:
    """Read ``[templates.NAME]`` tables; the default template comes first.  Raises :class:`InvalidRequest`."""
    if not isinstance(tables, Mapping) or not all(isinstance(table, Mapping) for table in tables.values()):
        raise InvalidRequest("templates are tables: [templates.NAME]")
    found = {DEFAULT: Named(Template(), DEFAULT_ALIASES)}
    for name, table in tables.items():
        try:
            found[name] = _parse(name, table)
        except InvalidRequest as error:
            raise InvalidRequest(f"template {name!r:.60}: {error}") from error
    _check_names(found)
    return tuple(found.values())


def parse_images(table: Any) -> tuple[tuple[str, str], ...]:
    """Read the table ``[images]``: pattern of an image, name of a template.  Raises :class:`InvalidRequest`."""
    if not isinstance(table, Mapping):
        raise InvalidRequest("images are a table: [images], with lines such as 'python:3.12*' = 'default'")
    for pattern, name in table.items():
        if not pattern or not isinstance(name, str) or not name:
            raise InvalidRequest(
                f"the image {pattern!r:.80} stands for a template by its name, not for {name!r:.60}"
            )
    return tuple(table.items())


def _parse(name: str, table: Mapping[str, Any]) -> Named:
    known = ({item.name for item in fields(Template)} - {"name"}) | {"aliases"}
    unknown = sorted(set(table) - known)
    if unknown:
        raise InvalidRequest(f"there is no setting {unknown[0]!r:.60}; known: {', '.join(sorted(known))}")
    values: dict[str, Any] = {key: parsing.words(table[key]) for key in _LISTS if key in table}
    if "interpreter" in table:
        values["interpreter"] = _interpreter(table["interpreter"])
    if "limits" in table:
        values["limits"] = parsing.limits(table["limits"])
    aliases = parsing.words(table.get("aliases", DEFAULT_ALIASES if name == DEFAULT else ()))
    return Named(Template(name, **values), aliases, "limits" in values)


def _interpreter(value: Any) -> str:
    file = parsing.path(value)
    if file is None or not file.is_file():
        raise InvalidRequest(f"there is no interpreter {value!r:.200}")
    return str(file)


def _check_names(found: Mapping[str, Named]) -> None:
    owners: dict[str, str] = {}
    for name, named in found.items():
        for word in (name, *named.aliases):
            if not word or len(word) > 128 or not word.isprintable() or "/" in word:
                raise InvalidRequest(f"{word!r:.60} cannot be the name of a template")
            if owners.setdefault(word, name) != name:
                raise InvalidRequest(
                    f"{word!r:.60} names two templates: {owners[word]!r:.60} and {name!r:.60}"
                )


class TemplateTable:
    """The templates of a server, as dialects see them.  ``limits`` are those of a template that names none."""

    def __init__(self, templates: Iterable[Named], limits: Limits) -> None:
        self._named = {
            named.template.name: named if named.has_limits else _with_limits(named, limits)
            for named in templates
        }
        self._names = {word: name for name, named in self._named.items() for word in (name, *named.aliases)}

    def find(self, name: str) -> Template | None:
        """Return the template of this name or alias, or ``None``."""
        real = self._names.get(name)
        return None if real is None else self._named[real].template

    def names(self) -> list[str]:
        """Return the names of the templates (aliases left out), the default one first."""
        return list(self._named)

    def aliases(self, name: str) -> list[str]:
        """Return the other names of a template."""
        named = self._named.get(name)
        return [] if named is None else list(named.aliases)


def _with_limits(named: Named, limits: Limits) -> Named:
    return Named(replace(named.template, limits=limits), named.aliases)
