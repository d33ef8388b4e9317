"""Code that closes, replaces or writes to descriptors that are not its own: the run ends, the next one works."""

import pytest

from cellfork import Sandbox

from .driver import assert_usable, stdout, within

SOCKETS = """
import os, socket
found = []
for name in os.listdir('/proc/self/fd'):
    try:
        if os.readlink(f'/proc/self/fd/{name}').startswith('socket:'):
            found.append(int(name))
    except OSError:
        pass
"""
ENDED = {"ok", "error", "lost", "timed_out", "killed"}


@pytest.mark.parametrize(
    "code",
    [
        "for fd in (0, 1, 2): os.close(fd)",
        "for fd in (1, 2): os.dup2(os.open('/dev/null', os.O_RDONLY), fd)",
        "for fd in (0, 1, 2): os.dup2(os.open('/dev/full', os.O_RDWR), fd)",
        "for fd in (0, 1, 2): os.set_blocking(fd, False)",
        "sys.stdout.close(); sys.stderr.close(); sys.stdin and sys.stdin.close()",
        "os.close(1); open('mine', 'w'); print('into the file?')",
    ],
)
def test_standard_descriptors(sandbox: Sandbox, code: str) -> None:
    """Descriptors 0 to 2 are the code's to close or replace: what Python prints arrives all the same."""
    with within(10):
        execution = sandbox.run_code(f"import os, sys\n{code}\nprint('still here')\n6 * 7", timeout=5)
    assert (execution.status, execution.text) == ("ok", "42"), execution
    assert "still here\n" in stdout(execution)
    again = sandbox.run_code("print('again'); 1", timeout=5)
    assert (again.status, stdout(again)) == ("ok", "again\n")
    assert_usable(sandbox)


@pytest.mark.parametrize("flood", [1, 200_000])
def test_non_blocking_output(sandbox: Sandbox, flood: int) -> None:
    """A pipe that was made non-blocking loses nothing that Python prints."""
    execution = sandbox.run_code(f"import os\nos.set_blocking(1, False)\nfor n in range({flood}): print(n)")
    assert execution.status == "ok"
    assert stdout(execution).splitlines() == [str(n) for n in range(flood)]


@pytest.mark.parametrize(
    "code",
    [
        "os.closerange(3, 4096)",
        "os.closerange(0, 4096)",
        "[os.dup2(1, int(fd)) for fd in os.listdir('/proc/self/fd') if int(fd) > 2 and os.path.exists('/proc/self/fd/' + fd)]",
        "null = os.open('/dev/null', os.O_RDWR)\nfor fd in range(3, 1000): os.dup2(null, fd)",
        "[socket.socket(fileno=fd).shutdown(socket.SHUT_RDWR) for fd in found]",
        "[socket.socket(fileno=fd).shutdown(socket.SHUT_RD) for fd in found]",
        "[os.write(fd, b'garbage' * 100) for fd in found]",
        "[os.write(fd, bytes(4096)) for fd in found]",
        "[os.write(fd, b'\\xff' * 4096) for fd in found]",
        "[os.write(fd, (2**17).to_bytes(4, 'big') + (2**20).to_bytes(4, 'big') + bytes(4)) for fd in found]",
        "[socket.socket(fileno=os.dup(fd)).recv(1, socket.MSG_DONTWAIT) for fd in found]",
        "[os.set_blocking(fd, False) for fd in found]",
        "import select; [select.select([], [fd], []) for fd in found]",
    ],
    ids=[
        "close-private",
        "close-all",
        "dup-over",
        "null-over",
        "shutdown",
        "shutdown-read",
        "garbage",
        "zeros",
        "ones",
        "half-a-frame",
        "steal",
        "non-blocking",
        "look",
    ],
)
def test_private_descriptors(sandbox: Sandbox, neighbour: Sandbox, code: str) -> None:
    """Whatever code does to the kernel's own descriptors ends at most this kernel, in bounded time."""
    with within(20):
        execution = sandbox.run_code(f"{SOCKETS}\n{code}\nprint('end')", timeout=4)
    assert execution.status in ENDED, execution
    assert sandbox.is_running()
    with within(20):
        first = sandbox.run_code("1", timeout=5)  # may still meet a kernel that lost its hearing
    assert first.status in ENDED
    assert_usable(sandbox)


FRAME = (
    SOCKETS
    + """
import json, struct
def frame(header, body=b'', epoch=0):
    text = json.dumps(header).encode()
    return struct.pack('>III', len(text), len(body), epoch) + text + body
def tell(*frames):
    for fd in found:
        for one in frames:
            os.write(fd, one)
"""
)


@pytest.mark.parametrize(
    "frames",
    [
        "frame({'op': 'done', 'execution': 'else', 'status': 'ok', 'count': 1, 'next_count': 2, 'name': None, 'parts': []})",
        "frame({'op': 'reply', 'id': 1, 'ok': True, 'result': {}})",
        "frame({'op': 'kernel_exit', 'code': 0, 'signal': None, 'execution': None})",
        "frame({'op': 'ready', 'version': 1, 'pid': 1})",
        "frame({'op': 'display', 'execution': 7})",
        "frame({'op': 'stdout', 'execution': 'x', 'dropped': 0}, b'forged')",
        "frame({'op': 'missed'})",
        "frame({'op': 'unknown'})",
        "frame([])",
        "frame({'op': 5})",
        "frame({'op': 'clear', 'execution': 'x', 'wait': False}, epoch=2**32 - 1)",
    ],
)
def test_forged_frames(sandbox: Sandbox, neighbour: Sandbox, frames: str) -> None:
    """A well-formed lie for another execution is dropped; a malformed one ends this kernel, and no more."""
    with within(15):
        execution = sandbox.run_code(f"{FRAME}\ntell({frames})\nprint('told')\n'mine'", timeout=5)
    assert execution.status in {"ok", "lost"}, execution
    if execution.status == "ok":
        assert (execution.text, stdout(execution)) == ("'mine'", "told\n")
    assert sandbox.is_running()
    assert_usable(sandbox)


def test_forged_done(sandbox: Sandbox, neighbour: Sandbox) -> None:
    """Code may end its own execution early: its later words count for nothing, not even for the next execution."""
    code = """
mine = get_ipython().reporter.execution
tell(frame({'op': 'done', 'execution': mine, 'status': 'ok', 'count': 1, 'next_count': 2, 'name': None, 'parts': []}))
tell(*[frame({'op': 'display', 'execution': mine, 'parts': [['text/plain', 's', 4]], 'metadata': {}, 'display_id': None, 'main': True}, b'lie!')] * 3)
"""
    execution = sandbox.run_code(FRAME + code, timeout=10)
    assert execution.status == "ok"
    assert execution.results == []
    after = sandbox.run_code("'truth'", timeout=10)
    assert after.status in {"ok", "lost"}
    assert "lie!" not in str(after.results)
    assert_usable(sandbox)


def test_flood_of_frames(sandbox: Sandbox, neighbour: Sandbox) -> None:
    """Displays without end are bounded in number; the rest is counted, dropped and told."""
    execution = sandbox.run_code("for n in range(5_000): display(n)", timeout=60)
    assert execution.status == "ok", execution
    assert len(execution.results) == 1000
    assert "4,000 results dropped" in "".join(execution.logs.stderr)
    assert execution.accounting.truncated
    assert_usable(sandbox)


def test_descriptors_run_out(sandbox: Sandbox, neighbour: Sandbox) -> None:
    """Code that opens files without end gets EMFILE; afterwards the kernel works."""
    code = """
import errno
held = []
try:
    while True: held.append(open('/dev/null'))
except OSError as error:
    print(errno.errorcode[error.errno], len(held) > 500)
"""
    execution = sandbox.run_code(code)
    assert stdout(execution) == "EMFILE True\n"
    execution = sandbox.run_code("print('full'); 1 / 0")
    assert stdout(execution) == "full\n"
    execution = sandbox.run_code("[file.close() for file in held]; 6 * 7")
    assert execution.text == "42", execution
