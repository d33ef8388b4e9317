"""Preparing leaves a quiet process behind, whatever is preloaded."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.guest.python.harness import Server


def run_python(code: str, **environment: str) -> str:
    """Run a program that prepares an image; return what it writes to its real standard output."""
    program = "import os\ndef say(x): os.write(1, (str(x) + '\\n').encode())\n" + textwrap.dedent(code)
    return subprocess.run(
        [sys.executable, "-c", program],
        env={
            **os.environ,
            "OPENBLAS_NUM_THREADS": "1",
            "IPYTHONDIR": os.environ["TMPDIR"] + "/ip",
            **environment,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout


def test_missing_modules_are_told(server: Server):
    """A module that cannot be imported is told with its reason, the others are there."""
    assert list(server.report["missing"]) == ["no_such_module"]
    assert "ModuleNotFoundError" in server.report["missing"]["no_such_module"]


def test_what_prepare_leaves_behind(tmp_path: Path):
    """One thread, no new descriptor, no event loop, no file; nothing is written to standard output."""
    out = run_python(
        """
        from cellfork.guest.python import kernel
        before = set(os.listdir('/proc/self/fd'))
        image = kernel.prepare(['numpy', 'pandas', 'matplotlib.pyplot'])
        say(len(os.listdir('/proc/self/task')))
        say(set(os.listdir('/proc/self/fd')) - before)
        import IPython.core.async_helpers as h
        say(h._asyncio_event_loop)
        """,
        IPYTHONDIR=str(tmp_path / "ipython"),
    )
    assert out.split() == ["1", "set()", "None"]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_the_image_is_pristine():
    """No name, history, figure or error of the warm-up is left."""
    out = run_python(
        """
        import sys
        from cellfork.guest.python import kernel
        image = kernel.prepare(['pandas', 'matplotlib.pyplot'])
        shell = image.shell
        say(sorted(n for n in shell.user_ns if not n.startswith('_')))
        say((shell.execution_count, shell.user_ns['In'], shell.user_ns['Out'], shell.user_ns['_']))
        say(sys.modules['matplotlib.pyplot'].get_fignums())
        say((hasattr(sys, 'last_value'), shell.history_manager.input_hist_raw, len(shell.compile._filename_map)))
        """
    )
    assert out.splitlines() == [
        "['In', 'Out', 'exit', 'get_ipython', 'open', 'quit']",
        "(1, [''], {}, '')",
        "[]",
        "(False, [''], 0)",
    ]


def test_a_thread_is_refused(tmp_path: Path):
    """A preload that starts a thread is refused by its name, with the thread's."""
    (tmp_path / "threading_library.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(100,), name='culprit', daemon=True).start()\n"
    )
    out = run_python(
        """
        from cellfork.guest.python import kernel
        from cellfork.model.errors import StartupFailed
        try:
            kernel.prepare(['json', 'threading_library'])
        except StartupFailed as error:
            say(error)
        """,
        PYTHONPATH=str(tmp_path),
    )
    assert out.startswith("threading_library started 1 thread") and "culprit" in out


def test_without_ipython(tmp_path: Path):
    """Without IPython the error says what is missing."""
    (tmp_path / "IPython.py").write_text("raise ImportError('not here')\n")
    out = run_python(
        """
        from cellfork.guest.python import kernel
        from cellfork.model.errors import StartupFailed
        try:
            kernel.prepare([])
        except StartupFailed as error:
            say(error)
        """,
        PYTHONPATH=str(tmp_path),
    )
    assert "needs IPython" in out


def test_hostile_preloads(tmp_path: Path):
    """A preload that prints, raises, warns, exits or changes the streams does not break preparing."""
    (tmp_path / "noisy.py").write_text(
        "import sys, warnings\nprint('noise')\nwarnings.warn('w')\nsys.stdout = None\n"
    )
    (tmp_path / "leaving.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "broken.py").write_text("1/0\n")
    out = run_python(
        """
        from cellfork.guest.python import kernel
        image = kernel.prepare(['noisy', 'leaving', 'broken', 'no spaces allowed', '', '.relative'])
        say(sorted(image.missing))
        """,
        PYTHONPATH=str(tmp_path),
    )
    assert out.strip() == repr(sorted(["leaving", "broken", "no spaces allowed", "", ".relative"]))


def test_only_the_standard_library_at_import():
    """Importing the kernel's modules imports nothing but the standard library and cellfork."""
    out = run_python(
        """
        import sys
        import cellfork.guest.python.kernel, cellfork.guest.kernels
        own = {'cellfork'} | set(sys.stdlib_module_names)
        say(sorted({n.partition('.')[0] for n, m in sys.modules.items() if getattr(m, '__file__', None)} - own - {'__main__'}))
        """
    )
    names = eval(out)
    assert [n for n in names if n in {"IPython", "numpy", "traitlets", "msgspec"}] == []
