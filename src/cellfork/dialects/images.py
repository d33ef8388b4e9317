"""Container images → templates: a name stands for a template of the server, by a table of patterns.

Nothing is pulled and no image is unpacked.
"""

import fnmatch
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from cellfork.dialects.base import Templates
from cellfork.model.specs import Template

BUILT_IN: Final[Mapping[str, str]] = {
    "opensandbox/code-interpreter:*": "default",
    "*/opensandbox/code-interpreter:*": "default",
    "python:3": "default",
    "python:3[.-]*": "default",
    "python:latest": "default",
    "python:slim": "default",
}
"""What official examples ask for: an environment with Python in it."""
HUB: Final = ("docker.io/library/", "docker.io/", "index.docker.io/library/", "index.docker.io/")
"""What may be written before the name of an image of Docker's own registry, and means nothing."""


class Images:
    """The table of a server: its owner's patterns, in their order, then those that are built in.

    A pattern is compared with the whole name, tag included (``:latest`` where a request names none); ``*`` is anything, also ``/``.
    """

    def __init__(self, table: Mapping[str, str], templates: Templates) -> None:
        self._table = {**table, **{name: to for name, to in BUILT_IN.items() if name not in table}}
        self._templates = templates

    def find(self, image: str) -> Template | None:
        """Return the template that an image stands for, or ``None``."""
        wanted = [*_spellings(image)]
        for pattern, name in self._table.items():
            if any(fnmatch.fnmatchcase(spelling, pattern) for spelling in wanted):
                template = self._templates.find(name)
                if template is not None:
                    return template
        return None

    def unknown(self, image: str) -> str:
        """Return what to tell whoever asks for an image that stands for nothing: which ones do, and who can change that."""
        return (
            f"the image {image[:200]!r} stands for no template of this server; its templates are {_named(self._templates.names())}, "
            f"and images for them {_named(self._table)}. The server's setting `images` maps further ones"
        )


def _spellings(image: str) -> Iterator[str]:
    """Yield the name as a pattern may have it: with a tag, and without Docker's own registry."""
    name = image.partition("@")[0]  # a digest names one build of what the name says
    if ":" not in name.rpartition("/")[2]:
        name += ":latest"
    yield name
    for registry in HUB:
        if name.startswith(registry):
            yield name.removeprefix(registry)


def _named(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in [*names][:20])
