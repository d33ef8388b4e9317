"""The IPython shell of the kernel.  Imported by ``prepare`` only: importing IPython takes a tenth of a second."""
# IPython carries no types that mypy follows, so its decorators are untyped.
# mypy: disable-error-code="untyped-decorator"

import builtins
import contextlib
import inspect
import os
import re
import sys
import traceback
import types
from collections.abc import Iterator, Mapping
from typing import Any

from IPython.core import page
from IPython.core.application import ProfileDir
from IPython.core.autocall import ZMQExitAutocall
from IPython.core.error import UsageError
from IPython.core.events import EventManager, available_events
from IPython.core.interactiveshell import InteractiveShell, InteractiveShellABC
from IPython.utils.text import LSString, SList
from traitlets import Instance, Type, default, observe
from traitlets.config import Config

from cellfork.guest.python.display import KernelDisplayFormatter, KernelDisplayHook, KernelDisplayPublisher
from cellfork.guest.python.failures import holds_group, native_traceback
from cellfork.guest.python.magics import KernelMagics, ScriptCellMagics
from cellfork.guest.python.processes import read_shell, run_shell
from cellfork.guest.python.transport import Reporter

Shown = tuple[type[BaseException], BaseException, list[str]]


class _LazyProfileDir(ProfileDir):  # type: ignore[misc]
    """A profile directory that exists once something is stored in it."""

    @observe("location")
    def _location_changed(self, change: Any) -> None:
        """Make nothing."""


MODULE_ATTRIBUTES: dict[str, Any] = {
    "__name__": "__main__",
    "__doc__": "Automatically created module for IPython interactive environment",
    "__package__": None,
    "__loader__": None,
    "__spec__": None,
    "__builtin__": builtins,
    "__builtins__": builtins,
}
BEFORE_CODE = frozenset({"pre_execute", "pre_run_cell"})
MAX_FRAMES = 3000
"""IPython formats tracebacks of so many frames; it would take minutes for a million."""
MAX_SHOWN_FRAMES = 50


class KernelStandIn:
    """``get_ipython().kernel``: libraries ask whether it is there (pandas), and widgets for its ``comm_manager``."""

    implementation = "cellfork"
    language_info: Mapping[str, Any] = {
        "name": "python",
        "mimetype": "text/x-python",
        "file_extension": ".py",
    }

    def __init__(self, shell: Any) -> None:
        self.shell = shell

    @property
    def comm_manager(self) -> Any:
        """Messages to widgets' other half, which nobody receives.  Needs the package ``comm``."""
        from comm import get_comm_manager

        return get_comm_manager()


_SPECIAL = re.compile(r"[%!?\f]|\A\s|^[ \t]*(?:[,;/]|>>>|\.\.\.|In *\[)", re.MULTILINE)
"""What IPython's static input transformations act on."""


class KernelEvents(EventManager):  # type: ignore[misc]
    """IPython's events, except that an interrupt of what is called before a cell ends the cell: IPython only prints it."""

    def trigger(self, event: str, *args: Any, **kwargs: Any) -> None:
        """Call what is registered for ``event``.  Raises ``KeyboardInterrupt`` before the code has begun."""
        with self.shell.reporter.interrupts.seen_from_here() as interrupts:
            super().trigger(event, *args, **kwargs)
            if interrupts.fired and event in BEFORE_CODE:
                raise KeyboardInterrupt


class ZMQInteractiveShell(InteractiveShell):  # type: ignore[misc]
    """An ``InteractiveShell`` whose displays and errors go to a :class:`Reporter`.

    The name, and the module's that :func:`make_shell` gives it, are those of ipykernel's: libraries look at them.
    """

    displayhook_class = Type(KernelDisplayHook)
    display_pub_class = Type(KernelDisplayPublisher)
    exiter = Instance(ZMQExitAutocall)

    reporter: Reporter
    events: EventManager
    keepkernel_on_exit: bool | None = None
    own_transforms: int
    """Number of IPython's own input transformations; the user may add some."""
    own_callbacks: int
    """The same for callbacks of events."""
    running_code: Any = None
    """Code object of the statement that runs."""
    shown: list[Shown]
    """Tracebacks that were shown while the present cell ran."""

    spoiled: bool
    """Whether telling an error had to be interrupted: it must not be tried again."""

    def __init__(self, **options: Any) -> None:
        self.shown = []
        self.spoiled = False
        self.kernel = KernelStandIn(self)
        super().__init__(**options)
        self.config.IPKernelApp.tqdm = "tqdm looks for this section of the configuration"
        self.note_own_parts()

    def begin_cell(self) -> None:
        """Forget the errors of the cell before."""
        self.shown.clear()
        self.spoiled = False

    def note_own_parts(self) -> None:
        """Remember how many callbacks and transformations there are before the user adds any."""
        manager = self.input_transformer_manager
        self.own_transforms = _count_transforms(manager)
        self.own_callbacks = sum(map(len, self.events.callbacks.values()))

    def init_events(self) -> None:
        """Use the kernel's."""
        super().init_events()
        events = KernelEvents(self, available_events)
        events.callbacks = self.events.callbacks
        self.events = events

    def init_display_formatter(self) -> None:
        """Use the kernel's."""
        self.display_formatter = KernelDisplayFormatter(parent=self)
        self.configurables.append(self.display_formatter)

    async def run_code(self, code_obj: Any, result: Any = None, *, async_: bool = False) -> Any:
        """Run one statement, and remember which."""
        __tracebackhide__ = "__ipython_bottom__"
        self.reporter.flush()
        self.running_code = code_obj
        return await super().run_code(code_obj, result, async_=async_)

    @default("exiter")
    def _default_exiter(self) -> Any:
        return ZMQExitAutocall(self)

    def init_profile_dir(self, profile_dir: Any) -> None:
        """Name a directory, without making it."""
        self.profile_dir = _LazyProfileDir(location=os.path.join(self.ipython_dir, "profile_default"))

    def init_virtualenv(self) -> None:
        """Do nothing: the kernel runs in the environment that IPython is installed in."""

    def init_environment(self) -> None:
        """Keep pagers of child processes from waiting for keys."""
        os.environ.setdefault("PAGER", "cat")
        os.environ.setdefault("GIT_PAGER", "cat")

    def init_hooks(self) -> None:
        """Let what would go through a pager be displayed."""
        super().init_hooks()
        self.set_hook("show_in_pager", page.as_hook(self.show_page), 99)

    def init_magics(self) -> None:
        """Add the kernel's own magics to IPython's."""
        super().init_magics()
        self.register_magics(KernelMagics, ScriptCellMagics)

    def transform_cell(self, raw_cell: str) -> str:
        """Turn IPython's syntax into Python's.

        A cell without any is not tokenized for it: this is done before every cell, several times in long ones.
        """
        manager = self.input_transformer_manager
        unusual = _count_transforms(manager) != self.own_transforms or self.input_transformers_post
        if unusual or _SPECIAL.search(raw_cell):
            return str(super().transform_cell(raw_cell))
        cell = raw_cell if raw_cell.endswith("\n") else raw_cell + "\n"
        if len(cell.splitlines()) == 1:
            with self.builtin_trap:
                cell = self.prefilter_manager.prefilter_lines(cell) + "\n"
        return cell

    def show_page(self, text: Any, start: int = 0, screen_lines: int = 0, pager_cmd: Any = None) -> None:
        """Display ``text`` (a string, or a MIME bundle)."""
        self.reporter.display(text if isinstance(text, dict) else {"text/plain": text})

    def enable_gui(self, gui: str | None = None) -> None:
        """Accept what needs no event loop of a user interface."""
        if gui not in {None, "inline", "agg", "asyncio"}:
            raise UsageError(f"there is no display here for the GUI event loop {gui!r}")

    def ask_exit(self) -> None:
        """Leave after this cell, unless asked to keep the kernel."""
        self.exit_now = not self.keepkernel_on_exit

    def set_next_input(self, text: str, replace: bool = False) -> None:
        """Display what a notebook would put into its next cell."""
        self.reporter.display({"text/plain": text})

    @contextlib.contextmanager
    def _tee(self, channel: str) -> Iterator[None]:
        """Keep no second copy of what is printed, as IPython would for its ``%notebook``."""
        yield

    def init_user_ns(self) -> None:
        """Fill the user's namespace: at the start, after ``%reset``, and when a cell has emptied it."""
        for name, value in MODULE_ATTRIBUTES.items():
            self.user_global_ns.setdefault(name, value)
        super().init_user_ns()

    def showtraceback(self, exc_tuple: Any = None, *args: Any, **options: Any) -> None:
        """Format the present exception and keep it for the end of the cell."""
        kind, error, trace = exc_tuple or sys.exc_info()
        if kind is not None and error is not None and _is_deep(trace):
            text = traceback.format_exception(error, limit=-MAX_SHOWN_FRAMES, chain=False)
            self._showtraceback(kind, error, ["".join(text).rstrip()])
            return
        if kind is not None and error is not None and holds_group(error):
            self._get_exc_info((kind, error, trace))  # which remembers it as the last error
            self._showtraceback(kind, error, [native_traceback(error).rstrip("\n")])
            return
        self._tell_inspect()
        with self.reporter.interrupts.seen_from_here() as interrupts:
            super().showtraceback(exc_tuple, *args, **options)
            self.spoiled = self.spoiled or interrupts.fired

    def get_exception_only(self, exc_tuple: Any = None) -> str:
        """Return the last line of a traceback; not from an exception whose text had to be interrupted."""
        if self.reporter.interrupts.fired:
            return "KeyboardInterrupt\n"
        return str(super().get_exception_only(exc_tuple))

    def getoutput(self, cmd: str, split: bool = True, depth: int = 0) -> Any:
        """Return what ``cmd`` writes, as IPython's list of lines or string.  An interrupt ends the cell."""
        out = read_shell(self.var_expand(cmd, depth=depth + 1))
        return SList(out.splitlines()) if split else LSString(out)

    def _tell_inspect(self) -> None:
        """Tell ``inspect`` which module the cells belong to.

        Looking for it, ``inspect.getmodule`` would touch every module there is: with the science stack
        preloaded, 8 MiB of copied pages for the first traceback of every sandbox.
        """
        try:
            here = os.getcwd()
        except OSError:
            return
        for name in self.compile._filename_map:
            inspect.modulesbyfile[name] = inspect.modulesbyfile[f"{here}/{name}"] = "__main__"

    def _showtraceback(self, etype: type[BaseException], evalue: BaseException, stb: list[str]) -> None:
        self.shown.append((etype, evalue, list(stb)))

    def _format_exception_for_storage(
        self, exception: BaseException, *args: Any, **options: Any
    ) -> dict[str, Any]:
        """Reuse the traceback that was formatted already."""
        shown = next((stb for _, value, stb in self.shown if value is exception), [])
        return {"ename": type(exception).__name__, "evalue": "", "traceback": shown}

    def system(self, cmd: str) -> None:
        """Run ``cmd`` in a shell whose output is the kernel's; its exit code is left in ``_exit_code``."""
        code = run_shell(self.var_expand(cmd, depth=1), self.reporter.outlet)
        self.user_ns["_exit_code"] = code
        if code and getattr(self, "system_raise_on_error", False):
            from subprocess import CalledProcessError

            raise CalledProcessError(code, cmd)

    system_piped = system
    system_raw = system


def _is_deep(trace: Any) -> bool:
    count = 0
    while trace is not None and count <= MAX_FRAMES:
        trace = trace.tb_next
        count += 1
    return count > MAX_FRAMES


def _count_transforms(manager: Any) -> int:
    return len(manager.cleanup_transforms) + len(manager.line_transforms) + len(manager.token_transformers)


InteractiveShellABC.register(ZMQInteractiveShell)


def make_shell(reporter: Reporter) -> ZMQInteractiveShell:
    """Make the one shell of this process and let libraries find it under ipykernel's name."""
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    ipython_dir = os.environ.get("IPYTHONDIR", "/tmp/.ipython")
    ZMQInteractiveShell.__module__ = "ipykernel.zmqshell"
    ZMQInteractiveShell.reporter = reporter
    shell: ZMQInteractiveShell = ZMQInteractiveShell.instance(config=config, ipython_dir=ipython_dir)
    shell.extension_manager.load_extension("storemagic")
    stand_in = types.ModuleType(
        "ipykernel.zmqshell", "cellfork's shell, where tqdm.auto looks for ipykernel's."
    )
    stand_in.ZMQInteractiveShell = ZMQInteractiveShell  # type: ignore[attr-defined]
    sys.modules.setdefault("ipykernel.zmqshell", stand_in)
    return shell
