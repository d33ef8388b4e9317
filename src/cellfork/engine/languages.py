"""From what a caller calls a language to its name."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cellfork.model.errors import InvalidRequest, ProtocolViolation, Unsupported
from cellfork.model.languages import KNOWN
from cellfork.model.specs import SandboxSpec

DEFAULT_LANGUAGE = "python"
MOST = 1000
_NAME = re.compile(r"(jupyter:)?[a-z0-9][a-z0-9_.+#-]{0,79}")


def language_of(name: str | None) -> str:
    """Return the language that a caller means; ``None`` or nothing means Python.

    Case and surrounding space do not matter.  A name that is not known is that of a Jupyter kernel, or of its language: whether
    the template has it is known inside.  Raises :class:`Unsupported` for what cannot be a name.
    """
    if name is not None and not isinstance(name, str):
        raise InvalidRequest(f"a language is a name, not {name!r}")
    wanted = (name or DEFAULT_LANGUAGE).strip().lower() or DEFAULT_LANGUAGE
    for language in KNOWN.values():
        if wanted == language.name or wanted in language.aliases:
            return language.name
    if not _NAME.fullmatch(wanted):
        raise Unsupported(f"no kernel for the language {wanted[:80]!r}; known: {', '.join(sorted(KNOWN))}")
    return wanted


def with_languages(spec: SandboxSpec) -> SandboxSpec:
    """Return ``spec`` with the languages that its template starts ahead named as they are known inside, each once.

    Python's kernel always is.  Raises :class:`InvalidRequest` and :class:`Unsupported` for what names no language.
    """
    if not spec.template.languages:
        return spec
    if isinstance(spec.template.languages, str):
        raise InvalidRequest("a template's languages are a tuple of names")
    names = dict.fromkeys(map(language_of, spec.template.languages))
    languages = tuple(name for name in names if name != DEFAULT_LANGUAGE)
    return replace(spec, template=replace(spec.template, languages=languages))


def ready_languages(answer: Mapping[str, Any]) -> list[str]:
    """Return the languages that init names.  Raises :class:`ProtocolViolation` for anything but names."""
    names = answer.get("ready")
    if not isinstance(names, list) or len(names) > MOST:
        raise ProtocolViolation("the languages are no list of names")
    if not all(isinstance(name, str) and len(name) <= MOST for name in names):
        raise ProtocolViolation("a language is no name")
    return [name for name in names if _NAME.fullmatch(name)]
