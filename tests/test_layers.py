"""What may import what, where import-linter cannot tell: the packages that run inside the sandbox."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import cellfork

PACKAGE = Path(cellfork.__file__).parent
INSIDE = ("model", "wire", "guest")
KERNEL = PACKAGE / "guest" / "python"
"""The Python kernel's modules, which are imported where a kernel starts; IPython comes with these alone."""
BRIDGE = PACKAGE / "guest" / "jupyter" / "connection.py"
"""What speaks to Jupyter kernels; a bridge imports it when it has started one."""
MODULES = sorted(path for name in INSIDE for path in (PACKAGE / name).rglob("*.py"))


def imports_at_import_time(tree: ast.Module) -> Iterator[str]:
    """Yield the modules that a module imports when it is imported itself."""
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_type_checking(node):
            pending.extend(ast.iter_child_nodes(node))


def is_type_checking(node: ast.AST) -> bool:
    """Tell whether this is ``if TYPE_CHECKING:``."""
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_code_inside_the_sandbox_needs_the_standard_library_only(path: Path):
    """What runs inside any Python image imports the standard library and its own layers.

    The Python kernel is built on IPython (and on traitlets, which IPython brings), the bridge to other kernels on
    jupyter_client (and on zmq, which that brings).
    """
    allowed = {f"cellfork.{name}" for name in INSIDE}
    if path.is_relative_to(KERNEL):
        allowed |= {"IPython", "traitlets"}
    if path == BRIDGE:
        allowed |= {"jupyter_client", "zmq"}
    for name in imports_at_import_time(ast.parse(path.read_text())):
        top, two = name.partition(".")[0], ".".join(name.split(".")[:2])
        assert top in sys.stdlib_module_names or {top, two} & allowed, name


def test_guest_imports_without_third_party_packages():
    """Init, files, processes: all but the Python kernel and the bridge's sockets can be imported where nothing is installed."""
    names = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in MODULES
        if path.name != "__main__.py" and path != BRIDGE and not path.is_relative_to(KERNEL)
    ]
    program = f"import sys, importlib; sys.path.append({str(PACKAGE.parent)!r})\n" + "".join(
        f"importlib.import_module({name!r})\n" for name in names
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
