"""Top-level await, tasks that go on between cells, and a loop that is there where a notebook has one."""

import time

from tests.guest.python.harness import Session


def test_top_level_await(session: Session):
    """``await``, ``async for`` and ``async with`` work at the top level; the value of an awaited expression is the result."""
    code = """
import asyncio
async def numbers():
    for i in range(3):
        await asyncio.sleep(0); yield i
class Manager:
    async def __aenter__(self): return 'in'
    async def __aexit__(self, *a): print('out')
async for n in numbers(): print(n)
async with Manager() as m: print(m)
await asyncio.sleep(0.01, 'value')
"""
    ran = session.run(code).ok()
    assert ran.order == [("stdout", "0\n1\n2\nin\nout\n"), ("display", "'value'")]


def test_errors_of_awaited_code(session: Session):
    """An error in awaited code has its traceback."""
    ran = session.run("async def f():\n    1/0\nawait f()")
    assert ran.error["name"] == "ZeroDivisionError" and "await f()" in ran.error["traceback"]


def test_tasks_go_on_between_cells(session: Session):
    """A task that a cell started runs while no cell does, and what it writes comes with the next."""
    code = "import asyncio\nasync def f():\n    for i in range(3):\n        await asyncio.sleep(0.05)\n        print(i)\n    display('end')\ntask = asyncio.create_task(f())"
    session.run(code).ok()
    time.sleep(0.5)
    assert session.run("task.done()").order == [
        ("stdout", "0\n1\n2\n"),
        ("display", "'end'"),
        ("display", "True"),
    ]


def test_servers_answer_between_cells(session: Session):
    """A server that a cell started answers while no cell runs."""
    session.run(
        "import asyncio\nasync def serve(r, w):\n    w.write(await r.readline()); await w.drain(); w.close()\nserver = await asyncio.start_server(serve, '127.0.0.1', 0)\nport = server.sockets[0].getsockname()[1]"
    ).ok()
    ran = session.run(
        'import subprocess, sys\nchild = subprocess.Popen([sys.executable, \'-c\', f\'import socket, time; time.sleep(0.2); s = socket.create_connection(("127.0.0.1", {port})); s.send(b"x\\\\n"); open("got", "wb").write(s.recv(9))\'])'
    )
    ran.ok()
    time.sleep(1.0)
    assert session.run("child.wait(5), open('got').read()").text == r"(0, 'x\n')"


def test_thread_safe_calls_between_cells(session: Session):
    """A thread may hand a coroutine to the loop while no cell runs."""
    session.run(
        "import asyncio, threading, time\nloop = asyncio.get_running_loop()\nbox = []\nasync def f(): box.append(1)\ndef work():\n    time.sleep(0.2); asyncio.run_coroutine_threadsafe(f(), loop).result(5); box.append(2)\nthreading.Thread(target=work).start()"
    ).ok()
    time.sleep(0.6)
    assert session.run("box").text == "[1, 2]"


def test_the_loop_runs_in_plain_cells(session: Session):
    """A cell that speaks of coroutines finds a running loop, and ``asyncio.run`` fails in it as in Jupyter."""
    assert session.run("import asyncio\nasyncio.get_running_loop().is_running()").ok().text == "True"
    session.run("async def f(): return 1")
    error = session.run("asyncio.run(f())").error
    assert error["name"] == "RuntimeError" and "running event loop" in error["value"]


def test_asyncio_run_without_a_loop(session: Session):
    """Code that only uses a library's ``asyncio.run`` works where no loop exists yet."""
    (
        session.run(
            "import importlib\nmodule = importlib.import_module('asy' + 'ncio')\nmodule.run(module.sleep(0, 5))"
        ).ok()
    )


def test_background_errors_do_not_kill(session: Session):
    """A task that raises, even ``SystemExit`` or ``KeyboardInterrupt``, leaves the kernel alive."""
    for error in ("ValueError('t')", "SystemExit(3)", "KeyboardInterrupt"):
        session.run(
            f"import asyncio\nasync def f():\n    await asyncio.sleep(0.02)\n    raise {error}\ntask = asyncio.create_task(f())"
        ).ok()
        time.sleep(0.2)
        assert session.run("1 + 1").text == "2"


def test_closing_the_loop(session: Session):
    """Code that closes the loop, or stops it, gets a new one when it awaits again."""
    session.run("import asyncio\nawait asyncio.sleep(0)\nloop = asyncio.get_running_loop()").ok()
    session.run("loop.call_later(0.01, loop.stop)").ok()
    time.sleep(0.1)
    session.run("await asyncio.sleep(0)").ok()
    session.run("import threading; threading.Timer(0.05, loop.call_soon_threadsafe, [loop.stop]).start()")
    time.sleep(0.2)
    assert session.run("await asyncio.sleep(0, 'again')").text == "'again'"


def test_subprocesses_of_asyncio(session: Session):
    """``asyncio.create_subprocess_exec`` works, its output in order."""
    ran = session.run(
        "import asyncio\np = await asyncio.create_subprocess_exec('echo', 'hi')\nawait p.wait()"
    ).ok()
    assert ran.order == [("stdout", "hi\n"), ("display", "0")]
