"""Generate the sync client from the async one.

    python scripts/unasync.py            write src/cellfork/client/_sync
    python scripts/unasync.py --check    fail when it is not what would be written

The two clients are one text; this script holds the only differences.  A rule that changes nothing any more
is an error, so that the table stays true.
"""

import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CLIENT = ROOT / "src" / "cellfork" / "client"
HEADER = "# Generated from client/_async/{name} by scripts/unasync.py; do not edit.\n"

RULES = (
    (r"AsyncIterator", "Iterator"),
    (r"Async([A-Z]\w*)", r"\1"),
    (r"async def", "def"),
    (r"async with", "with"),
    (r"an ``with", "a ``with"),
    (r"async for", "for"),
    (r"await ", ""),
    (r"_async", "_sync"),
    (r"__aenter__", "__enter__"),
    (r"__aexit__", "__exit__"),
    (r"aclose", "close"),
)
"""What to replace (a regular expression that begins and ends at word boundaries), and what by."""


@dataclass
class Translator:
    """Applies the rules, and remembers which ones changed something."""

    rules: tuple[tuple[str, str], ...] = RULES
    used: set[str] = field(default_factory=set)

    def translate(self, text: str) -> str:
        """Return the sync form of an async module."""
        for pattern, replacement in self.rules:
            text, count = re.subn(
                rf"(?<!\w){pattern}(?!\w)" if pattern[-1] != " " else pattern, replacement, text
            )
            if count:
                self.used.add(pattern)
        return text

    @property
    def unused(self) -> list[str]:
        """The rules that changed nothing."""
        return [pattern for pattern, _ in self.rules if pattern not in self.used]


def formatted(text: str, path: Path) -> str:
    """Return the text as the formatter lays it out: without ``await`` a call may fit on one line."""
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(path), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def generate(translator: Translator) -> dict[Path, str]:
    """Return what every generated file has to hold."""
    source, target = CLIENT / "_async", CLIENT / "_sync"
    wanted = {}
    for path in sorted(source.rglob("*.py")):
        name = path.relative_to(source)
        text = HEADER.format(name=name.as_posix()) + translator.translate(path.read_text())
        # Formatted under the name of its source: generated files themselves are excluded.
        wanted[target / name] = formatted(text, path)
    return wanted


def differences(wanted: dict[Path, str]) -> list[str]:
    """Return what is wrong with the generated files on disk, one line each."""
    present = set((CLIENT / "_sync").rglob("*.py"))
    stale = [f"{path.relative_to(ROOT)}: has no source" for path in sorted(present - set(wanted))]
    return stale + [
        f"{path.relative_to(ROOT)}: not what scripts/unasync.py writes"
        for path, text in wanted.items()
        if path not in present or path.read_text() != text
    ]


def write(wanted: dict[Path, str]) -> None:
    """Write the generated files, remove those without a source."""
    for path in set((CLIENT / "_sync").rglob("*.py")) - set(wanted):
        path.unlink()
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def main(arguments: list[str]) -> int:
    """Write or check; return the exit code."""
    translator = Translator()
    wanted = generate(translator)
    if not wanted:
        print("no async client yet")
        return 0
    complaints = [f"rule never used: {pattern!r}" for pattern in translator.unused]
    if "--check" in arguments:
        complaints += differences(wanted)
    else:
        write(wanted)
    print(*complaints, sep="\n", end="\n" if complaints else "")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
