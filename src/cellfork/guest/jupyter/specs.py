"""Which Jupyter kernels there are, and which one speaks a language (standard library only).

Sources: "Kernel specs" and "Data files" of the Jupyter documentation.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

MAX_SPEC = 64 * 1024


@dataclass(frozen=True)
class KernelSpec:
    """How a kernel is started.  ``argv`` may hold ``{connection_file}`` and ``{resource_dir}``."""

    name: str
    argv: tuple[str, ...]
    language: str
    message_interrupts: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    directory: str = ""
    transport: str = "ipc"
    """``ipc``, or ``tcp`` (on the sandbox's own loopback device) for kernels whose ZeroMQ does not know ``ipc``."""
    setup: str = ""
    """Code that is run once, before the kernel belongs to anybody, and of which nothing is seen."""
    values_are_displays: bool = False
    """Whether the kernel sends the values of statements as displays."""
    counts_everything: bool = False
    """Whether its numbers count the code of ours as well, so that they are of no use."""
    rename: Callable[[str, str], tuple[str, str]] | None = None
    """Gives an error the name and the message that it has in its language, where the kernel has others."""
    barrier: str = ""
    """Code that sends a stream named ``cellfork`` with the number in the place of ``%d``, for kernels whose messages may come
    after the end that they belong before: when it is here, everything is."""
    repeats_output: bool = False
    """Whether what it writes to its standard output has been sent as a message already."""
    patience: float | None = None
    """Seconds after which a kernel that does not react to an interrupt is ended, where it is known to be unable to."""
    noise: bytes = b""
    """How lines begin that the kernel itself writes to its standard error while code runs."""

    @property
    def is_ready(self) -> bool:
        """Whether its program is there."""
        return shutil.which(self.argv[0]) is not None

    def command(self, connection_file: str) -> list[str]:
        """Return the command that starts it."""
        places = {"{connection_file}": connection_file, "{resource_dir}": self.directory}
        return [_fill(argument, places) for argument in self.argv]


DENO = KernelSpec("deno", ("deno", "jupyter", "--kernel", "--conn", "{connection_file}"), "typescript", transport="tcp")  # fmt: skip
BUILT_IN: Mapping[str, KernelSpec] = {
    "javascript": replace(DENO, language="javascript"),
    "typescript": DENO,
}
"""Language → kernel, for those that bring no kernelspec of their own."""
WITHOUT_IPC = frozenset({"java", "go"})
"""Languages whose kernels have a ZeroMQ of their own that does not know ``ipc``."""


def find(language: str) -> KernelSpec | None:
    """Return the kernel of ``language`` (the name of a language or of a kernelspec), ``None`` where there is none.

    A kernelspec of that name comes first, then one of that language, then what is built in.
    """
    specs = {spec.name: spec for spec in reversed(list(installed())) if spec.is_ready}
    if language in specs:
        return specs[language]
    named = next((spec for spec in specs.values() if spec.language == language), None)
    built_in = BUILT_IN.get(language)
    return named or (built_in if built_in is not None and built_in.is_ready else None)


def ready() -> set[str]:
    """Return the languages that :func:`find` knows a kernel of."""
    built_in = {language for language, spec in BUILT_IN.items() if spec.is_ready}
    return {spec.language for spec in installed() if spec.is_ready} | built_in


def installed() -> Iterator[KernelSpec]:
    """Yield the kernelspecs of this environment and of the system, those that count first."""
    for path in search_path():
        try:
            names = sorted(os.listdir(path))
        except OSError:
            continue
        for name in names:
            spec = _read(name, os.path.join(path, name))
            if spec is not None:
                yield spec


def search_path() -> list[str]:
    """Return the directories in which kernelspecs are looked for: beside every ``bin`` of PATH, as pip installs them."""
    homes = [os.path.dirname(path) for path in os.environ.get("PATH", "").split(":") if path.endswith("/bin")]
    beside = [os.path.join(home, "share/jupyter") for home in homes]
    extra = [path for path in os.environ.get("JUPYTER_PATH", "").split(":") if path]
    return [os.path.join(path, "kernels") for path in dict.fromkeys([*extra, *beside])]


def _read(name: str, directory: str) -> KernelSpec | None:
    try:
        with open(os.path.join(directory, "kernel.json"), encoding="utf-8") as file:
            content = json.loads(file.read(MAX_SPEC))
        return _spec_of(name, directory, content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None  # not a kernelspec that anything could be started with


def _spec_of(name: str, directory: str, content: Mapping[str, Any]) -> KernelSpec:
    language = str(content.get("language", name)).lower()
    if not content["argv"] or isinstance(content["argv"], str):
        raise ValueError("there is no command")
    return KernelSpec(
        name=name.lower(),
        argv=tuple(map(str, content["argv"])),
        language=language,
        message_interrupts=content.get("interrupt_mode") == "message",
        env={str(key): str(value) for key, value in dict(content.get("env") or {}).items()},
        directory=directory,
        transport="tcp" if language in WITHOUT_IPC else "ipc",
    )


def _fill(argument: str, places: Mapping[str, str]) -> str:
    for place, value in places.items():
        argument = argument.replace(place, value)
    return argument
