"""Generate the message classes and services of envd's wire from the .proto files.

    python scripts/stubs.py            write src/cellfork/dialects/e2b/envd/stubs
    python scripts/stubs.py --check    fail where a .proto file is not the one that they were written from

The generators are tools for whoever changes a .proto file and no dependency of anything:

    pip install buf-bin==1.75.0 protoc-gen-py==0.7.0 protoc-gen-connectrpc==0.13.0

The check needs none of them: the stubs carry the digest of what they were written from.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVD = ROOT / "src" / "cellfork" / "dialects" / "e2b" / "envd"
PROTO, STUBS = ENVD / "proto", ENVD / "stubs"
PLUGINS = ("protoc-gen-py", "protoc-gen-connectrpc")
TEMPLATE = {"version": "v2", "plugins": [{"local": plugin, "out": "."} for plugin in PLUGINS]}
HEADER = '"""Generated from ../proto by scripts/stubs.py; do not edit."""\n\nDIGEST = "{digest}"\n"""Of the .proto files."""\n'


def digest() -> str:
    """Return what tells one state of the .proto files from another."""
    texts = [path.name.encode() + b"\0" + path.read_bytes() for path in sorted(PROTO.glob("*.proto"))]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


def check() -> str | None:
    """Return what is wrong with the stubs, if anything is."""
    expected = HEADER.format(digest=digest())
    if (STUBS / "__init__.py").read_text(encoding="utf-8") != expected:
        return f"{STUBS.relative_to(ROOT)} is not what the .proto files give: python scripts/stubs.py"
    return None


def generate() -> None:
    """Write the stubs anew."""
    directory = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{directory}{os.pathsep}{os.environ.get('PATH', '')}"}
    missing = [tool for tool in ("buf", *PLUGINS) if shutil.which(tool, path=environment["PATH"]) is None]
    if missing:
        sys.exit(f"not found: {', '.join(missing)}; see the top of scripts/stubs.py")
    with tempfile.TemporaryDirectory() as made:
        command = ["buf", "generate", "--template", json.dumps(TEMPLATE), "-o", made, "."]
        subprocess.run(command, cwd=PROTO, env=environment, check=True)
        shutil.rmtree(STUBS, ignore_errors=True)
        STUBS.mkdir()
        for path in sorted(Path(made).glob("*.py")):
            shutil.copyfile(path, STUBS / path.name)
    (STUBS / "__init__.py").write_text(HEADER.format(digest=digest()), encoding="utf-8")


def main() -> None:
    """Generate, or check."""
    if sys.argv[1:] == ["--check"]:
        problem = check()
        if problem:
            sys.exit(problem)
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        generate()


if __name__ == "__main__":
    main()
