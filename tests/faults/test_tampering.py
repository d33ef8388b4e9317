"""Code that changes the interpreter under itself: streams, builtins, modules, signal handlers, IPython's own parts."""

import pytest

from cellfork import Sandbox

from .driver import assert_usable, stdout, stopped_by, within

TAMPERING = {
    "stdout": "import io, sys; sys.stdout = io.StringIO(); sys.stderr = sys.stdout",
    "no stdout": "import sys; sys.stdout = sys.stderr = None",
    "deleted stdout": "import sys; del sys.stdout, sys.stderr",
    "hostile stdout": (
        "import sys\nclass S:\n    def __getattr__(self, name): raise ValueError(name)\nsys.stdout = sys.stderr = S()"
    ),
    "stdout that prints": "import sys\nclass S:\n    def write(self, text): print(text)\n    flush = None\nsys.stdout = S()",
    "print": "import builtins; builtins.print = None",
    "builtins": "import builtins\nfor name in [n for n in dir(builtins) if not n.startswith('_')]: delattr(builtins, name)",
    "some builtins": "import builtins\nfor name in ('len', 'isinstance', 'int', 'str', 'open', 'Exception', 'type'): delattr(builtins, name)",
    "import": "import builtins; builtins.__import__ = None",
    "json": "import json; json.dumps = json.loads = lambda *a, **k: 'tampered'",
    "os.write": "import os; os.write = lambda *a: 10**9",
    "os functions": "import os\nfor n in ('read', 'write', 'fork', 'close', '_exit', 'environ'): setattr(os, n, None)",
    "socket": "import socket; socket.socket.sendall = socket.socket.recv = socket.socket.send = None",
    "struct": "import struct; struct.pack = struct.unpack = None",
    "threading": "import threading; threading.RLock = threading.Lock = threading.Thread = None",
    "signals": "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass",
    "signal module": "import signal; signal.signal = signal.pthread_sigmask = None",
    "modules": "import sys; sys.modules.clear()",
    "own modules": "import sys\nfor n in [n for n in sys.modules if 'cellfork' in n or 'IPython' in n]: del sys.modules[n]",
    "path": "import sys; sys.path.clear(); sys.meta_path.clear()",
    "hooks": "import sys; sys.displayhook = sys.excepthook = sys.unraisablehook = None",
    "trace": "import sys; sys.settrace(lambda *a: 1 / 0); sys.setprofile(lambda *a: None)",
    "recursion limit": "import sys; sys.setrecursionlimit(60)",
    "switch interval": "import sys; sys.setswitchinterval(1000)",
    "gc": "import gc; gc.disable(); gc.set_threshold(1); gc.callbacks.append(lambda *a: 1 / 0)",
    "every object": "import gc\nfor o in gc.get_objects():\n    if type(o).__name__ in ('Kernel', 'Inbox', 'Reporter', 'Outlet'): o.__dict__.clear()",
    "shell": "ip = get_ipython(); ip.run_cell = ip.run_cell_async = ip.display_formatter = None",
    "shell's reporter": "get_ipython().reporter.__dict__.clear()",
    "events": "get_ipython().events.register('post_run_cell', lambda result: 1 / 0)",
    "transformer": "get_ipython().input_transformers_post.append(lambda lines: 1 / 0)",
    "ast transformer": "get_ipython().ast_transformers.append(5)",
    "custom exceptions": "get_ipython().set_custom_exc((Exception,), lambda *a, **k: 1 / 0)",
    "namespace": "globals().clear()",
    "In and Out": "In = Out = _ = __ = None; get_ipython().user_ns['Out'] = 5; get_ipython().history_manager = None",
    "environment": "import os; os.environ.clear(); os.environ['PATH'] = '/nowhere'",
    "rlimits": "import resource\nfor n in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC): resource.setrlimit(n, (1, 1))",
    "cpu limit": "import resource; resource.setrlimit(resource.RLIMIT_CPU, (1, 1))",
    "address space": "import resource; resource.setrlimit(resource.RLIMIT_AS, (1, 1))",
    "stack": "import resource; resource.setrlimit(resource.RLIMIT_STACK, (1, 1))",
    "umask": "import os; os.umask(0o777)",
    "locale": "import locale; locale.setlocale(locale.LC_ALL, 'C')",
    "time": "import time; time.monotonic = time.time = time.sleep = lambda *a: 0",
    "codecs": "import codecs; codecs.lookup = None; codecs.register(lambda name: 1 / 0)",
    "warnings": "import warnings; warnings.simplefilter('error')",
    "atexit": "import atexit\natexit.register(lambda: 1 / 0)",
    "audit": "import sys\nsys.addaudithook(lambda name, args: (_ for _ in ()).throw(RuntimeError(name)) if name != 'os.putenv' else None)",
}


@pytest.mark.parametrize("name", TAMPERING)
def test_tampering(sandbox: Sandbox, neighbour: Sandbox, name: str) -> None:
    """Whatever code does to its interpreter, every run has exactly one end in bounded time.

    Either the context goes on, or its kernel is lost or can be replaced by a restart; other contexts never notice.
    """
    other = sandbox.create_code_context()
    sandbox.run_code("mine = 'untouched'", context=other)
    runs = [TAMPERING[name], "6 * 7", "print('text')", "1 / 0", "6 * 7"]
    with within(40):
        executions = [sandbox.run_code(code, timeout=3) for code in runs]
    for execution in executions:
        assert execution.status in {"ok", "error", "lost", "timed_out", "killed"}, execution
        assert execution.terminal is not None
        execution.to_json().encode()
        execution.to_llm()
    assert sandbox.run_code("mine", context=other, timeout=20).text == "'untouched'"
    default = sandbox.list_code_contexts()
    for context in default:
        if context.id != other.id:
            with within(20):
                sandbox.restart_code_context(context)
    assert_usable(sandbox)


@pytest.mark.parametrize(
    "name",
    [
        "stdout",
        "no stdout",
        "print",
        "json",
        "os.write",
        "signals",
        "hooks",
        "namespace",
        "environment",
        "warnings",
        "time",
        "umask",
        "gc",
        "path",
    ],
)
def test_tampering_that_is_survived(sandbox: Sandbox, name: str) -> None:
    """The kernel does not depend on what code commonly replaces: later cells give results and errors as before."""
    assert sandbox.run_code(TAMPERING[name], timeout=10).status in {"ok", "error"}
    execution = sandbox.run_code("6 * 7", timeout=10)
    assert (execution.status, execution.text) == ("ok", "42"), execution
    execution = sandbox.run_code("1 / 0", timeout=10)
    assert execution.status == "error", execution
    assert execution.error is not None
    assert execution.error.name == "ZeroDivisionError"


def test_replaced_stdout_keeps_its_text(sandbox: Sandbox) -> None:
    """What is printed into a stream of the code's own is the code's; given back, output arrives again."""
    sandbox.run_code(
        "import io, sys\nreal = sys.stdout\nsys.stdout = mine = io.StringIO()\nprint('into mine')"
    )
    assert stdout(sandbox.run_code("print('more')")) == ""
    execution = sandbox.run_code("sys.stdout = real\nprint('back')\nmine.getvalue()")
    assert (stdout(execution), execution.text) == ("back\n", "'into mine\\nmore\\n'")


def test_signal_handler_is_put_back(sandbox: Sandbox) -> None:
    """A cell's own handler of SIGINT does not outlive the cell: the next one can be interrupted."""
    sandbox.run_code("import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN)")
    execution = sandbox.run_code("time.sleep(3600)", timeout=0.5)
    assert execution.status == "timed_out"
    assert stopped_by(execution) == "interrupt"
    assert_usable(sandbox)
