"""Magics that differ in a kernel from those of a terminal."""
# IPython carries no types that mypy follows, so its decorators are untyped.
# mypy: disable-error-code="untyped-decorator"

import os
import shlex
import sys
from typing import Any

from IPython.core import magic_arguments
from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.core.magics.script import ScriptMagics, script_args
from IPython.utils.process import arg_split

from cellfork.guest.python.processes import run


@magics_class
class KernelMagics(Magics):  # type: ignore[misc]
    """What needs no terminal here."""

    @line_magic
    def less(self, line: str) -> None:
        """Display a file."""
        if not line:
            raise UsageError("Missing filename.")
        with open(os.path.expanduser(line), encoding="utf-8", errors="replace") as file:
            self.shell.show_page(file.read())

    more = line_magic("more")(less)

    @line_magic
    def man(self, line: str) -> None:
        """Display a manual page."""
        self.shell.show_page(self.shell.getoutput(f"man {line} | col -b", split=False))

    @line_magic
    def pip(self, line: str) -> None:
        """Run pip in the kernel's environment; where it fails and could not have reached an index, say so."""
        self.shell.system(f"{shlex.quote(sys.executable)} -m pip {line}")
        hint = os.environ.get("CELLFORK_PIP_HINT")
        if not self.shell.user_ns.get("_exit_code"):
            print("Note: you may need to restart the kernel to use updated packages.")
        elif hint and line.lstrip().startswith(("install", "download", "wheel")):
            print(hint, file=sys.stderr)

    @line_magic
    def clear(self, line: str) -> None:
        """Clear the output of the cell."""
        self.shell.display_pub.clear_output()

    @line_magic
    def edit(self, line: str) -> None:
        """Refuse: there is no editor here."""
        raise UsageError("there is no editor here; write files with %%writefile")

    ed = line_magic("ed")(edit)


@magics_class
class ScriptCellMagics(ScriptMagics):  # type: ignore[misc]
    """``%%script`` and its kin without a thread, in the order in which the script writes."""

    @magic_arguments.magic_arguments()
    @script_args
    @cell_magic("script")
    def shebang(self, line: str, cell: str) -> Any:
        """Run the cell with a program, given by its command line.

        ``--out``, ``--err``, ``--bg`` and ``--proc`` work as in IPython.
        """
        args, command = self.shebang.parser.parse_known_args(arg_split(line, posix=True))
        if args.out or args.err or args.bg or args.proc:
            return super().shebang(line, cell)
        text = (cell if cell.endswith("\n") else cell + "\n").encode("utf8", "replace")
        try:
            code = run(command, self.shell.reporter.outlet, text)
        except FileNotFoundError:
            print(f"Couldn't find program: {command[0]!r}")
            return None
        if code and args.raise_error:
            from subprocess import CalledProcessError

            raise CalledProcessError(code, text)
        return None
