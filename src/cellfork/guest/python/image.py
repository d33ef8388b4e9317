"""Preparing the image that kernels are forked from: imports and warm-up, once, in the zygote."""

import contextlib
import ctypes
import gc
import importlib
import inspect
import io
import os
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from cellfork.guest.python import entropy, printing
from cellfork.guest.python.streams import STDERR, STDOUT, Outlet, TextStream
from cellfork.guest.python.transport import Interrupts, Reporter
from cellfork.model.errors import StartupFailed

INLINE_BACKEND = "module://matplotlib_inline.backend_inline"

WARM_UP = (
    "1 + 1",
    "print('warm')\nimport sys\nprint('warm', file=sys.stderr)",
    "undefined_name",
    "def f(x):\n    return [x, {'a': 1.5}]\nf(2)",
)
WARM_ROUNDS = 10
"""After so many rounds the interpreter has specialised its code, and a fork no longer writes to those pages."""
WARM_UP_PANDAS = "import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': ['x', 'y']})"
WARM_UP_MATPLOTLIB = (
    "import matplotlib.pyplot as plt\n"
    "figure, axes = plt.subplots()\n"
    "axes.plot([1, 2, 3], [1, 4, 9], label='a')\n"
    "axes.set_title('t')\naxes.set_xlabel('x')\naxes.legend()\nplt.show()"
)


@dataclass
class Image:
    """A prepared interpreter.  ``missing`` maps modules that could not be preloaded to the reason."""

    shell: Any
    outlet: Outlet
    interrupts: Interrupts
    reporter: Reporter
    stdout: TextStream
    stderr: TextStream
    fflush: Any
    missing: dict[str, str] = field(default_factory=dict)
    sources: entropy.Sources = field(default_factory=entropy.Sources)
    """The random generators that it holds."""


def prepare(preload: Sequence[str]) -> Image:
    """Import IPython and ``preload``, build the shell and warm it up.

    Leaves one thread, no open file and no event loop behind.  A module that cannot be imported is
    reported in ``Image.missing``.  Raises :class:`StartupFailed` where IPython cannot be imported, or
    where a thread was started (the message says by which import).
    """
    outlet = Outlet()
    interrupts = Interrupts()
    reporter = Reporter(outlet, interrupts)
    stdout, stderr = TextStream(outlet, STDOUT), TextStream(outlet, STDERR)
    _replace_streams(stdout, stderr)
    printing.install()
    os.environ.setdefault("MPLBACKEND", INLINE_BACKEND)
    sys.argv = [""]
    try:
        from cellfork.guest.python.shell import make_shell
    except ImportError as error:
        raise StartupFailed(
            f"the Python kernel needs IPython in the template's environment: {error}"
        ) from error
    check_threads("IPython")
    with _quiet_warnings():
        shell = make_shell(reporter)
        check_threads("IPython's shell")
        with shell.builtin_trap:  # what looks around while it is imported (pandas) must find a notebook
            missing = import_all(preload)
        _show_images_here()
        _warm_up(shell)
    check_threads("the warm-up")
    if "" not in sys.path:
        sys.path.insert(
            0, ""
        )  # for code, as in Jupyter; the image itself imports nothing from where it stands
    sources = entropy.find_sources()
    image = Image(shell, outlet, interrupts, reporter, stdout, stderr, _c_stdio(), missing, sources)
    gc.collect()
    gc.freeze()
    return image


def _show_images_here() -> None:
    """Let Pillow display the images that code shows, where it would prefer a viewer that is installed."""
    if "PIL.Image" not in sys.modules:
        return
    with contextlib.suppress(ImportError, AttributeError):
        from PIL import ImageShow

        ImageShow.register(ImageShow.IPythonViewer, 0)


def import_all(modules: Sequence[str]) -> dict[str, str]:
    """Import ``modules``; return those that failed, with the reason."""
    missing: dict[str, str] = {}
    for name in modules:
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it may fail in any way, and is then not preloaded
            missing[name] = f"{type(error).__name__}: {error}"
        check_threads(name)
    return missing


def check_threads(suspect: str) -> None:
    """Raise :class:`StartupFailed` if this process has more than one thread."""
    tasks = os.listdir("/proc/self/task")
    if len(tasks) == 1:
        return
    names = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    native = [_comm_of(task) for task in tasks if int(task) != os.getpid()]
    raise StartupFailed(
        f"{suspect} started {len(tasks) - 1} thread(s), which a fork would lose: "
        f"Python's {names}, the kernel's {native}. Preload something else, or set what keeps it single-threaded"
    )


def _comm_of(task: str) -> str:
    try:
        with open(f"/proc/self/task/{task}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "(ended)"


def _replace_streams(stdout: TextStream, stderr: TextStream) -> None:
    """Install the streams of the kernels to come, before anything can keep a reference to the old ones."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    sys.stdout = sys.__stdout__ = stdout  # type: ignore[misc,assignment]
    sys.stderr = sys.__stderr__ = stderr  # type: ignore[misc,assignment]
    if sys.stdin is None:
        sys.stdin = io.StringIO()


@contextlib.contextmanager
def _quiet_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _warm_up(shell: Any) -> None:
    cells = list(WARM_UP)
    if "pandas" in sys.modules:
        cells.append(WARM_UP_PANDAS)
    if "matplotlib.pyplot" in sys.modules:
        cells.append(WARM_UP_MATPLOTLIB)
    for cell in cells:
        shell.run_cell(cell, store_history=True)
    for _ in range(WARM_ROUNDS):
        for cell in WARM_UP:
            shell.run_cell(cell, store_history=True)
    make_pristine(shell)
    _hide_own_frames()
    shell.note_own_parts()


def make_pristine(shell: Any) -> None:
    """Let nothing of the warm-up be seen: names, history, numbers, figures, the last error."""
    _close_figures_and_fonts()
    shell.reset(new_session=True)
    for name in ("_", "__", "___"):
        setattr(shell.displayhook, name, "")
        shell.user_ns[name] = ""
    manager = shell.history_manager
    for name in ("outputs", "exceptions", "output_hist_reprs", "db_input_cache", "db_output_cache"):
        getattr(manager, name, {}).clear()  # not every IPython has all of them
    manager._i = manager._ii = manager._iii = manager._i00 = ""
    shell.begin_cell()
    shell.last_execution_succeeded = True
    shell.last_execution_result = None
    shell.compile._filename_map.clear()
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            delattr(sys, name)


def _hide_own_frames() -> None:
    """Let IPython leave this package's frames out of tracebacks, as it does with its own."""
    for name, module in sys.modules.items():
        if name.startswith(__package__ + ".") and module.__file__:
            inspect.modulesbyfile[module.__file__] = "IPython"


def _close_figures_and_fonts() -> None:
    """Close what matplotlib holds open: it keeps a file for every font that it has used."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close("all")
    forget = getattr(
        getattr(sys.modules.get("matplotlib.font_manager"), "_get_font", None), "cache_clear", None
    )
    if forget is not None:
        forget()


def _c_stdio() -> Any:
    """Let C's standard output leave line by line; return ``fflush``."""
    libc = ctypes.CDLL(None)
    stdout = ctypes.c_void_p.in_dll(libc, "stdout")
    libc.setvbuf.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    line_buffered = 1
    libc.setvbuf(stdout, None, line_buffered, 0)
    return libc.fflush
