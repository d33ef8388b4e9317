"""Which kernel speaks which language, inside a sandbox."""

from collections.abc import Mapping
from functools import partial

from cellfork.guest.bash import kernel as bash_kernel
from cellfork.guest.go import kernel as go_kernel
from cellfork.guest.jupyter import kernel as jupyter_kernel
from cellfork.guest.jupyter import specs
from cellfork.guest.kernels import Body
from cellfork.guest.python import kernel as python_kernel
from cellfork.model.errors import Unsupported
from cellfork.model.languages import JUPYTER, remedy_of

NATIVE: Mapping[str, Body] = {"python": python_kernel.run, "bash": bash_kernel.run}


def body_of(language: str, memory: int | None = None) -> Body:
    """Return what the kernel process of ``language`` runs, in a sandbox of ``memory`` bytes.

    ``jupyter:NAME`` is the Jupyter kernel of that name, whatever its language.  Raises :class:`Unsupported`, which tells
    what there is, and how what is missing gets installed.
    """
    body = NATIVE.get(language)
    if body is not None:
        return body
    spec = specs.find(language.removeprefix(JUPYTER))
    if spec is None and language == "go" and go_kernel.driver() is not None:
        return go_kernel.run
    if spec is None:
        raise Unsupported(_no_kernel(language))
    return partial(jupyter_kernel.run, spec, memory)


def announces(body: Body) -> bool:
    """Tell whether a kernel says when it is ready: Python's is at once."""
    return body is not python_kernel.run


def ready() -> list[str]:
    """Return the languages that have a kernel here."""
    go = ["go"] if go_kernel.driver() is not None else []
    return sorted({*NATIVE, *go, *specs.ready()})


def _no_kernel(language: str) -> str:
    remedy = remedy_of(language)
    hint = f"; install it with: {remedy}" if remedy else ""
    return f"no kernel for the language {language[:80]!r} in this template{hint}; there are: {', '.join(ready())}"
