"""The generations of E2B's own packages, each of which has an environment away from cellfork's."""

from dataclasses import dataclass
from pathlib import Path

from scripts.parity.environments import javascript_environment, python_environment


@dataclass(frozen=True)
class Environment:
    """A generation of E2B's packages, and the ways in which its clients are run (mode, then flavour)."""

    name: str
    packages: tuple[str, ...]
    runs: tuple[str, ...]
    newest: tuple[str, ...] = ()
    """What is installed instead where the newest packages are asked for."""

    @property
    def is_python(self) -> bool:
        """Whether it is one of Python's; the other ones are Node's."""
        return self.name.startswith("python")

    def make(self, *, newest: bool = False) -> Path:
        """Return the interpreter of a Python's environment, the directory of a Node's, made now where it is not there.

        Raises :class:`subprocess.CalledProcessError` where the packages cannot be had.
        """
        again = newest and bool(self.newest)
        make = python_environment if self.is_python else javascript_environment
        return make(self.name, self.newest if again else self.packages, again=again)


ENVIRONMENTS = {
    environment.name: environment
    for environment in (
        Environment(
            "python-new",
            ("e2b-code-interpreter==2.11.5", "e2b==2.63.0"),
            ("url-sync", "url-async", "domain-sync", "debug-async"),
            newest=("e2b-code-interpreter", "e2b"),
        ),
        Environment(
            "python-old",
            ("e2b-code-interpreter==2.9.1", "e2b==2.45.1"),
            ("url-sync", "url-async", "domain-async", "debug-sync"),
        ),
        Environment(
            "python-1x",
            ("e2b-code-interpreter==1.5.2", "e2b==1.11.1"),
            ("domain-sync", "domain-async", "debug-sync", "debug-async"),
        ),
        Environment(
            "javascript-new",
            ("@e2b/code-interpreter@2.8.0", "e2b@2.51.0"),
            ("url", "domain", "debug"),
            newest=("@e2b/code-interpreter", "e2b"),
        ),
        Environment(
            "javascript-old", ("@e2b/code-interpreter@2.7.1", "e2b@2.45.0"), ("url", "domain", "debug")
        ),
        Environment("javascript-1x", ("@e2b/code-interpreter@1.5.1", "e2b@1.13.2"), ("domain", "debug")),
    )
}
"""The newest pair that was looked at, the oldest one of the second wire generation, and the first generation."""
