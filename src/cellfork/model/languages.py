"""The languages that are known by name: what else they are called, and the one command that installs each."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

EXTRA = "pip install 'cellfork[languages]'"
JUPYTER = "jupyter:"
"""What precedes the name of a kernelspec where the name alone means something else."""


@dataclass(frozen=True, slots=True)
class Language:
    """A language that cellfork knows.

    ``aliases`` are other names for it; ``program`` is what runs it, ``version`` the arguments that make that tell its version;
    ``remedy`` is the command that installs what is missing, for Debian and its like.
    """

    name: str
    aliases: tuple[str, ...]
    program: str
    version: tuple[str, ...]
    remedy: str


KNOWN: Mapping[str, Language] = MappingProxyType(
    {
        language.name: language
        for language in (
            Language("python", ("py", "python3"), "python3", ("--version",), ""),
            Language("bash", ("sh", "shell"), "bash", ("--version",), "apt-get install bash"),
            Language("javascript", ("js", "node", "nodejs"), "deno", ("--version",), EXTRA),
            Language("typescript", ("ts", "deno"), "deno", ("--version",), EXTRA),
            Language(
                "r", ("ir",), "R", ("--version",), f"apt-get install r-base-core r-cran-irkernel && {EXTRA}"
            ),
            Language(
                "java",
                ("jjava",),
                "java",
                ("-version",),
                f"apt-get install openjdk-17-jdk-headless && {EXTRA}",
            ),
            Language(
                "go", ("golang", "gonb"), "cellfork-go", ("--version",), "cellfork languages --install go"
            ),
        )
    }
)
"""Every known language by its name."""


def remedy_of(language: str) -> str:
    """Return the command that installs ``language``, nothing where it is not known."""
    known = KNOWN.get(language)
    return "" if known is None else known.remedy
