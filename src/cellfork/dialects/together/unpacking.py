"""What the sandbox of a build does with the context, as a program inside it: ``python3 -I -S -c SOURCE JSON``.

The host never unpacks what a client sends.  Standard library only; the interpreter is the template's.
"""

import fnmatch
import json
import os
import posixpath
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any, Dict, List, Optional  # noqa: UP035 - for any interpreter that a template may have


class Problem(Exception):
    """What is wrong with the context, or with what is asked of it."""


def unpack(archive: Path, directory: Path) -> None:
    """Unpack a context; nothing of it lands outside of ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(archive) as tar:
            if hasattr(tarfile, "tar_filter"):
                tar.extractall(directory, filter="tar")
            else:
                tar.extractall(directory)  # noqa: S202 - an older interpreter; it is inside the sandbox all the same
    except (tarfile.TarError, EOFError) as error:
        raise Problem(f"{archive.name} is no archive that can be unpacked: {error}") from None


def copy(
    context: Path,
    sources: List[str],  # noqa: UP006
    destination: str,
    mode: Optional[int] = None,  # noqa: UP045
    unpacks: bool = False,
) -> None:
    """Copy files and the contents of directories out of a context, as ``COPY`` does; ``unpacks``: as ``ADD`` does."""
    found = [place for source in sources for place in matching(context, source)]
    if len(found) > 1 and not destination.endswith("/"):
        raise Problem("where there are several sources, the destination is a directory and ends with /")
    target = Path(destination)
    into = destination.endswith("/") or target.is_dir()
    for place in found:
        if place.is_dir():
            put(place, target, mode)
        elif unpacks and tarfile.is_tarfile(place):
            unpack(place, target)
        else:
            wanted = target / place.name if into else target
            wanted.parent.mkdir(parents=True, exist_ok=True)
            put(place.resolve(), wanted, mode)


def matching(context: Path, pattern: str) -> List[Path]:  # noqa: UP006
    """Return what a source names: a path below the context, or a pattern.  ``..`` leads no higher than the context."""
    found = [context]
    for part in posixpath.normpath("/" + pattern).split("/"):
        if any(sign in part for sign in "*?["):
            inside = [place for parent in found if parent.is_dir() for place in sorted(parent.iterdir())]
            found = [place for place in inside if fnmatch.fnmatchcase(place.name, part)]
        elif part:
            found = [parent / part for parent in found if (parent / part).exists()]
    root = context.resolve()
    for place in found:
        if root not in [place.resolve(), *place.resolve().parents]:
            raise Problem(f"{pattern!r} leads out of the context")
    if not found:
        raise Problem(f"the context has no {pattern!r}")
    return found


def put(source: Path, target: Path, mode: Optional[int]) -> None:  # noqa: UP045
    """Copy a file or link, or what is in a directory, over what is there."""
    if source.is_dir() and not source.is_symlink():
        target.mkdir(parents=True, exist_ok=True)
        for place in sorted(source.iterdir()):
            put(place, target / place.name, mode)
            if mode is not None and not place.is_symlink():
                (target / place.name).chmod(mode)
        return
    if target.is_dir() and not target.is_symlink():
        raise Problem(f"{str(target)!r} is a directory")
    if target.exists() or target.is_symlink():
        target.unlink()
    shutil.copy2(source, target, follow_symlinks=False)
    if mode is not None and not target.is_symlink():
        target.chmod(mode)


def main(wanted: Dict[str, Any]) -> None:  # noqa: UP006
    """Do what is asked: unpack the context and tell the environment, or copy from the context."""
    context = Path(wanted["context"])
    if wanted["do"] == "unpack":
        unpack(Path(wanted["archive"]), context)
        sys.stdout.write(json.dumps(dict(os.environ)))
    else:
        copy(context, wanted["sources"], wanted["destination"], wanted["mode"], wanted["do"] == "ADD")


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]))
    except (Problem, OSError, shutil.Error) as problem:
        sys.exit(str(problem))
