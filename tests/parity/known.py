"""Differences that are meant or not ours: the only ones that the comparison accepts, as long as they are there."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Known:
    """Why a cell differs, and in which of the comparison's aspects."""

    aspects: frozenset[str]
    reason: str


def _known(reason: str, *aspects: str) -> Known:
    return Known(frozenset(aspects), reason)


GROUPS = (
    "ipykernel writes the traceback of an exception group to stderr and tells none with the error; cellfork tells it with "
    "the error, like every other"
)

KNOWN_DIFFERENCES: Mapping[tuple[str, str], Known] = {
    ("asyncio_work", "a task group with failures"): _known(GROUPS, "order"),
    ("asyncio_work", "is it there in the next cell"): _known(
        "ipykernel forgets the context variables that a cell with await has set; cellfork keeps them, as it does "
        "those of other cells",
        "stdout",
    ),
    ("asyncio_work", "prints into the cell that runs then"): _known(
        "ipykernel gives the text of a task to the cell that made it, which has ended and whose frontend may have gone; "
        "cellfork to the cell that runs",
        "stdout",
    ),
    ("errors_everyday", "tabs and dedent"): _known(
        "cellfork runs IPython's tokenizer only over cells with IPython's syntax, so this error comes from Python's "
        "compiler: the same message and line, and the cell's name instead of <tokenize>",
        "traceback",
        "error value",
    ),
    ("errors_raised", "exception group"): _known(GROUPS, "order"),
    ("errors_raised", "an error whose text raises"): _known(
        "ipykernel fails to report such an error and reports that failure as a second one; cellfork tells the first",
        "order",
    ),
    ("notebook_libraries", "widgets: interact"): _known(
        "no frontend holds the other half of a widget, so what an Output widget captures stays in the cell's output, "
        "where a model sees it",
        "order",
    ),
    ("notebook_libraries", "widgets: output"): _known(
        "as for interact: the captured text stays visible", "stdout"
    ),
    ("processes_and_files", "exit code, stderr"): _known(
        "ipykernel runs !command in a pseudo terminal, where stderr is stdout; cellfork keeps the two apart",
        "order",
    ),
    ("standard_library", "bytes to stdout"): _known(
        "ipykernel's sys.stdout has no buffer and the cell fails; cellfork's has one, as in a script", "order"
    ),
    ("standard_library", "syntax warnings"): _known(
        "ipykernel compiles a cell twice and warns twice; cellfork once", "stderr"
    ),
    ("standard_library", "debugger without anybody to ask"): _known(
        "ipykernel's debugpy ignores breakpoint() where no debugger is attached; cellfork starts pdb, and says that "
        "nobody answers its prompt",
        "order",
    ),
}
"""(notebook, title of the cell) → why it differs."""
