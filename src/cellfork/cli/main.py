"""The ``cellfork`` command."""

import os
import sys
import traceback
from importlib import import_module

import rich_click as click

from cellfork import __version__
from cellfork.cli.exits import HELP, Exit, exit_of_error
from cellfork.model.errors import CellforkError

COMMANDS = ("run", "serve", "execd", "env", "config", "cert", "doctor", "languages", "bench")
"""Subcommands: ``cellfork.cli.<name>`` has a click command called ``command``."""


class _LazyGroup(click.RichGroup):
    """A group whose subcommands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"cellfork.cli.{cmd_name}").command
        return command


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, epilog=HELP)
@click.version_option(__version__, prog_name="cellfork")
def cli() -> None:
    """Run model-written code in forked, isolated sandboxes on this machine."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with one of :class:`~cellfork.cli.exits.Exit`."""
    sys.exit(_run(arguments))


def _run(arguments: list[str] | None) -> int:
    try:
        code = cli.main(args=arguments, prog_name="cellfork", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return Exit.INTERRUPTED
    except CellforkError as error:
        from cellfork.render.text import clean

        print(f"cellfork: {clean(str(error))}", file=sys.stderr)  # it may quote what a sandbox said
        return exit_of_error(error)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # whoever read our output left: end in silence
        return Exit.RAISED
    except Exception:  # noqa: BLE001 - whatever it is, 1 would say that the user's code raised
        traceback.print_exc()
        print("cellfork: this is a bug in cellfork; please report it", file=sys.stderr)
        return Exit.INTERNAL
    return code if isinstance(code, int) else Exit.OK


if __name__ == "__main__":
    main()
