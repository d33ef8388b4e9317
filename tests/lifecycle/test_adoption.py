"""The server is killed: its sandboxes wait, the next one adopts them, and nothing else of it stays."""

import json
import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellfork.runtimes.namespaces.cgroups import Cgroups, Hierarchy

from .kept import Refused, Server, doors, end_all, groups, nothing_is_left, processes, server
from .programs import alive, wait_until


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A state directory, of which nothing is left at the end: no process, no control group, no socket."""
    place = tmp_path / "state"
    yield place
    end_all(place)
    nothing_is_left(place)


def test_everything_goes_on(path: Path):
    """Variables, files, contexts, working directories and background commands are as they were; calls answer at once."""
    with server(path) as first:
        id = first("await create(notes={'token': 'secret'}, envs={'A': 'b'})")
        first(
            f'await run(\'{id}\', \'import os; x = 41; os.chdir("/tmp"); open("/home/user/f", "w").write("text")\')'
        )
        context = first(f"await engine.get('{id}').contexts.create(ContextSpec(cwd='/tmp'))")
        first(f"await run('{id}', 'y = [1, 2]', '{context}')")
        exec_ = first(f"await command('{id}', 'while true; do echo tick; sleep 0.05; done')")
        first.kill()
    assert processes(path)
    with server(path) as second:
        assert (second.adopted, second.ended) == ([id], {})
        assert second(f"engine.get('{id}').notes") == {"token": "secret"}
        assert second(f"await run('{id}', 'x + 1, os.getcwd(), os.environ[\"A\"]')") == "(42, '/tmp', 'b')"
        assert second(f"await run('{id}', 'y', '{context}')") == "[1, 2]"
        assert second(f"(await engine.get('{id}').files.read('f')).decode()") == "text"
        known = f"engine.get('{id}').execs.get('{exec_}')"
        assert second(f"({known}.status, {known}.spec.argv[2][:5])") == ["RUNNING", "while"]
        wait_until(lambda: "tick" in second(f"{known}.log.text('stdout')"), 5)
        assert second(f"await {known}.end()") is True
        assert (
            second(f"(await engine.get('{id}').commands.run('echo $((1+1))', ExecSpec(()), 10)).stdout")
            == "2\n"
        )
        assert second(f"await engine.get('{id}').kill()") is None


def test_what_ran_is_interrupted(path: Path):
    """Code that ran when the server was killed is interrupted by the next one; its context keeps its variables."""
    with server(path) as first:
        id = first("await create()")
        first(f"await run('{id}', 'kept = 1')")
        running = first(
            f"begin('{id}', 'import time\\nmore = 2\\nopen(\"began\", \"w\").close()\\ntime.sleep(3600)')"
        )
        first(f"begin('{id}', 'never = 1')")
        wait_until(lambda: first(f"await engine.get('{id}').files.exists('began')"), 5)
        first.kill()
    with server(path) as second:
        assert second(f"await run('{id}', 'kept, more, \"never\" in globals()')") == "(1, 2, False)"
        assert (
            second(f"type(engine.get('{id}').execution('{running}').execution.terminal).__name__")
            == "Interrupted"
        )


def test_a_kernel_that_does_not_let_itself_be_interrupted(path: Path):
    """It is terminated as ever, and its context has a new one."""
    code = 'import signal, time\\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\\nopen("began", "w").close()\\ntime.sleep(3600)'
    with server(path) as first:
        id = first("await create()")
        first(f"begin('{id}', '{code}')")
        wait_until(lambda: first(f"await engine.get('{id}').files.exists('began')"), 5)
        first.kill()
    with server(path) as second:
        assert second(f"await run('{id}', '1 + 1')") == "2"
        assert second(f"await run('{id}', 'signal')") == "NameError"


def test_ends_meanwhile_are_told(path: Path):
    """A command that ends, and a kernel that dies, while there is no server: the next one knows how."""
    with server(path) as first:
        id = first("await create()")
        first(f"await run('{id}', 'x = 1')")
        exec_ = first(f"await command('{id}', 'sleep 0.3; echo last; exit 5')")
        killed = first(f"await command('{id}', 'exec sleep 3600')")
        first(f"await command('{id}', 'sleep 0.4; kill -9 $(pgrep -x sleep) $(pgrep -f cellfork-python)')")
        first(f"await run('{id}', 'import os, threading; threading.Timer(0.4, os._exit, [3]).start()')")
        first.kill()
    time.sleep(1)
    with server(path) as second:
        known = f"engine.get('{id}').execs.get('{exec_}')"
        wait_until(lambda: second(f"{known}.ended"), 5)
        assert second(f"({known}.exit_code, {known}.log.text('stdout'))") == [5, "last\n"]
        wait_until(lambda: second(f"engine.get('{id}').execs.get('{killed}').ended"), 5)
        assert second(f"engine.get('{id}').execs.get('{killed}').exit_code") == 137
        assert second(f"await run('{id}', 'x')") == "NameError"


def test_an_end_that_was_not_heard(path: Path):
    """The exit code of a command that ended in the moment of the kill is told by the next server."""
    with server(path) as first:
        id = first("await create()")
        exec_ = first(f"await command('{id}', 'exit 7')")
        first.process.send_signal(signal.SIGSTOP)
        time.sleep(0.2)
        first.kill()
    with server(path) as second:
        assert second(f"engine.get('{id}').execs.get('{exec_}').exit_code") == 7


def test_an_end_in_the_same_moment(path: Path):
    """Init, which hears at once that a command and the server have ended, waits for the next server as ever."""
    with server(path) as first:
        id = first("await create()")
        exec_ = first(f"await command('{id}', 'sleep 0.2; exit 7')")
        init = first(f"engine.get('{id}').guest.info['pid']")
        os.kill(init, signal.SIGSTOP)
        time.sleep(0.4)
        first.kill()
        os.kill(init, signal.SIGCONT)
    with server(path) as second:
        assert second(f"engine.get('{id}').execs.get('{exec_}').exit_code") == 7
        assert second(f"await run('{id}', '1 + 1')") == "2"


def test_output_waits(path: Path):
    """What a command writes meanwhile fills its pipe, and it waits; after the next server came it goes on, nothing lost."""
    with server(path) as first:
        id = first("await create()")
        exec_ = first(f"await command('{id}', 'read go; seq 1 1500000', stdin=True)")
        first(f"await engine.get('{id}').execs.get('{exec_}').send_stdin(b'go\\n')")
        first.process.send_signal(signal.SIGSTOP)
        time.sleep(0.3)
        first.kill()
    with server(path) as second:
        known = f"engine.get('{id}').execs.get('{exec_}')"
        wait_until(lambda: second(f"{known}.ended"), 20)
        assert second(f"{known}.exit_code") == 0
        lines = [*map(int, second(f"{known}.log.text('stdout')").split()[1:])]  # the first may be cut
        assert lines == [*range(lines[0], 1500001)]
        assert len(lines) > 1000


def test_a_kernel_that_writes_meanwhile(path: Path):
    """Code that prints without end while there is no server costs no memory, and its context can be used afterwards."""
    with server(path) as first:
        id = first("await create()")
        first(f"begin('{id}', 'while True: print(\"x\" * 1000)')")
        time.sleep(0.3)
        first.kill()
    time.sleep(1)
    with server(path) as second:
        assert second(f"await run('{id}', '1 + 1')") == "2"
        assert second(f"engine.get('{id}').usage().memory") < 200 * 1024 * 1024


def test_requests_of_the_dead_server(path: Path):
    """Uploads are dropped with their temporary files, watches end, and no late answer disturbs the next server."""
    with server(path) as first:
        id = first("await create()")
        first(f"await engine.get('{id}').requests.send('file.open', path='big', mode=None, append=False)")
        first(f"await engine.get('{id}').watches.start('.')")
        for _ in range(5):
            first.tell(f"await engine.get('{id}').commands.run('sleep 0.2', ExecSpec(()), 10)")
        first.tell(f"await engine.get('{id}').files.list('/usr', depth=6)")
        first.kill()
    with server(path) as second:
        names = f"[e.name for e in (await engine.get('{id}').files.list('.')).entries]"
        assert [name for name in second(names) if "cellfork" in name] == []
        assert second(f"await run('{id}', '1 + 1')") == "2"
        assert second(f"(await engine.get('{id}').watches.start('.')).number") == 1
        time.sleep(0.5)
        assert second(f"engine.get('{id}').state") == "running"


def test_no_server_comes(path: Path):
    """Sandboxes wait for a new host for as long as they were told, and end then, whatever they do; so do their zygotes."""
    with server(path, patience=1) as first:
        id = first("await create()")
        busy = first("await create()")
        first("await create(tenant='other')")
        code = "import os, signal\\nfor n in range(1, 64):\\n  try: signal.signal(n, signal.SIG_IGN)\\n  except (OSError, ValueError): pass"
        first(f"begin('{busy}', '{code}\\nos.fork()\\nwhile True: pass')")
        pids = processes(path)
        assert len(pids) >= 8
        first.kill()
    time.sleep(0.5)
    assert processes(path)
    wait_until(lambda: not alive(pids), 5)
    with server(path) as second:
        assert second.adopted == []
        assert {*second.ended} > {id}
        assert second("engine.list()") == []
        nothing_is_left(path)


def test_again_and_again(path: Path):
    """A sandbox outlives one server after the other; what each one changed is there for the next."""
    with server(path) as first:
        id = first("await create()")
        first(f"await run('{id}', 'x = 0')")
        first.kill()
    for number in range(1, 6):
        with server(path) as one:
            assert one.adopted == [id]
            assert one(f"await run('{id}', 'x += 1; x')") == str(number)
            one(f"engine.get('{id}').notes.update(number={number})")
            one(f"await engine.get('{id}').save()")
            one.kill()
    with server(path) as last:
        assert last(f"engine.get('{id}').notes") == {"number": 5}
        assert last(f"engine.get('{id}').life") == 6


def test_a_server_that_is_killed_while_it_adopts(path: Path):
    """Killed at any moment of the adoption, the next server adopts what this one had not, or had."""
    with server(path) as first:
        ids = [first("await create()") for _ in range(4)]
        for id in ids:
            first(f"await run('{id}', 'x = 1')")
        first.kill()
    for milliseconds in (150, 250, 300, 350, 400, 500):
        with server_in_silence(path) as killed:
            time.sleep(milliseconds / 1000)
            killed.kill()
    with server(path) as last:
        assert (last.ended, sorted(last.adopted)) == ({}, sorted(ids))
        assert [last(f"await run('{id}', 'x')") for id in ids] == ["1"] * 4


def test_the_zygote_serves_again(path: Path):
    """A zygote that was adopted with its sandboxes is forked from again: the next server's first sandbox is there at once."""
    with server(path) as first:
        id = first("await create()")
        zygote = first(f"engine.get('{id}').guest.record['zygote']")
        first.kill()
    with server(path) as second:
        other = second("await create()")
        assert second(f"engine.get('{other}').guest.record['zygote']") == zygote
        assert second(f"await run('{other}', '1 + 1')") == "2"
        second.kill()
    with server(path) as third:
        assert {*third.adopted} == {id, other}


def test_two_servers(path: Path):
    """A state directory has one server at a time; the second is refused, and the first is not disturbed."""
    with server(path) as first:
        id = first("await create()")
        with pytest.raises(AssertionError, match="another server uses the state directory"), server(path):
            pass
        assert first(f"await run('{id}', '1 + 1')") == "2"


def test_a_server_that_leaves(path: Path):
    """One that ends on purpose can leave its sandboxes to the next as well."""
    with server(path) as first:
        id = first("await create()")
        first(f"await run('{id}', 'x = 1')")
        first.end("leave")
    assert processes(path)
    with server(path) as second:
        assert second(f"await run('{id}', 'x')") == "1"
        second.end("close")
    nothing_is_left(path)


def test_creates_under_way(path: Path):
    """A server that is killed amid creates: what it had given out is adopted, and of the rest nothing is left."""
    for milliseconds in (0, 3, 6, 10, 15, 25, 40):
        with server(path) as one:
            for id in one("[s.id for s in engine.list()]"):
                one(f"await engine.get('{id}').kill()")
            one("(await create()).id")
            for _ in range(5):
                one.tell("await create()")
            time.sleep(milliseconds / 1000)
            one.kill()
        with server(path) as next_one:
            assert 1 <= len(next_one.adopted) <= 6
            assert next_one.ended == {}
            count = len(next_one.adopted)
            assert len({os.path.basename(group) for group in groups(path)}) == count
            assert len([name for name in doors(path) if name.startswith("forks/")]) == count


def test_a_posture_that_changed(path: Path):
    """A sandbox whose locks are not those that were seen before anything ran in it is ended, not adopted."""
    with server(path) as first:
        good, bad = first("await create()"), first("await create()")
        first.kill()
    change(path, bad, "fingerprint", "0" * 64)
    with server(path) as second:
        assert second.adopted == [good]
        assert "PostureMismatch" in second.ended[bad]
        assert len({os.path.basename(group) for group in groups(path)}) == 1


@pytest.mark.parametrize(
    ("field", "value"), [("pid", 1), ("start", 5), ("fork", "0" * 16), ("zygote", "absent")]
)
def test_a_record_that_names_another_process(path: Path, field: str, value: object):
    """Nobody else's process is adopted, and none is killed: the sandbox is ended, by what the zygote knows of it."""
    with server(path) as first:
        id = first("await create()")
        first.kill()
    change(path, id, field, value)
    with server(path) as second:
        assert second.adopted == []
        assert "StartupFailed" in second.ended[id]
        nothing_is_left(path)


def test_a_zygote_that_hangs(path: Path):
    """A zygote that does not answer its new host is killed, with everything in it; others are adopted."""
    with server(path) as first:
        id, other = first("await create()"), first("await create(tenant='other')")
        hung = first(f"engine.get('{id}').guest.record['zygote']")
        first.kill()
    pid = json.loads((path / "zygotes" / f"{hung}.json").read_text())["pid"]
    os.kill(pid, signal.SIGSTOP)
    with server(path) as second:
        assert second.adopted == [other]
        assert [*second.ended] == [id]
        assert not alive({pid})


def test_the_network_goes_on(path: Path):
    """A sandbox with a network policy reaches its proxy under the next server as well, and is refused what it was."""
    code = (
        "import urllib.request, urllib.error\\n"
        'try: urllib.request.urlopen("http://refused.example", timeout=5)\\n'
        "except urllib.error.HTTPError as error: print(error.code)"
    )
    read = f"(await engine.get('{{}}').run(None, ExecuteRequest('{code}'))).logs.stdout"
    with server(path) as first:
        id = first("await create(network=NetworkPolicy.of(['example.com']))")
        assert first(read.format(id)) == ["403\n"]
        first(f"engine.get('{id}').guest.network.set_policy(NetworkPolicy.of(['narrow.example']))")
        first("await engine.records.load('sandbox') and None")  # written by then, though nobody awaited it
        first.kill()
    with server(path) as second:
        assert second(read.format(id)) == ["403\n"]
        assert second(f"len(engine.get('{id}').guest.network.denied())") == 1
        assert second(f"engine.get('{id}').guest.network.policy.hosts") == ["narrow.example"]


def test_a_paused_sandbox(path: Path):
    """A sandbox that was paused when the server was killed is paused, and goes on with its variables when it is resumed."""
    with server(path) as first:
        id = first("await create()")
        first(f"await run('{id}', 'x = 1')")
        first(f"await engine.get('{id}').pause()")
        first.kill()
    with server(path) as second:
        assert second(f"engine.get('{id}').state") == "paused"
        with pytest.raises(Refused, match="SandboxPaused"):
            second(f"await run('{id}', 'x')")
        second(f"await engine.get('{id}').resume()")
        assert second(f"await run('{id}', 'x')") == "1"


def test_the_machine_has_started_anew(path: Path):
    """Records of sandboxes that cannot live any more, because everything was ended, cost the next start nothing."""
    with server(path) as first:
        id = first("await create()")
        pids = processes(path)
        first.kill()
    for note in (path / "zygotes").glob("*.json"):
        os.kill(json.loads(note.read_text())["pid"], signal.SIGKILL)
    wait_until(lambda: not alive(pids), 5)
    with server(path) as second:
        assert second.adopted == []
        assert "StartupFailed" in second.ended[id]
        nothing_is_left(path)


def test_groups_of_a_state_directory_that_is_gone(tmp_path: Path):
    """Empty groups that nobody will ask for are removed by the next program, new ones and those in use are not."""
    names = [f"cellfork-k0123456789ab-{name}" for name in ("old", "used", "new")] + ["cellfork-kind-old"]
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / names[1] / "process").touch()
    for name in (names[0], names[1], names[3]):
        os.utime(tmp_path / name, (1, 1))
    Cgroups({"memory": Hierarchy(2, tmp_path, tmp_path, frozenset({"memory"}))}).sweep()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[1:])


def change(path: Path, id: str, field: str, value: object) -> None:
    """Change what is recorded of a sandbox's guest."""
    database = sqlite3.connect(path / "records.sqlite")
    with database:
        ((text,),) = database.execute("SELECT value FROM records WHERE id = ?", (id,)).fetchall()
        record = json.loads(text)
        record["guest"][field] = value
        database.execute("UPDATE records SET value = ? WHERE id = ?", (json.dumps(record), id))
    database.close()


class Silent(Server):
    """A server that nobody listens to."""

    def __init__(self, process) -> None:
        self.process = process


def server_in_silence(path: Path):
    """Start a server without waiting until it is there."""
    from contextlib import contextmanager

    from .kept import SERVER
    from .programs import program

    @contextmanager
    def started() -> Iterator[Silent]:
        with program(SERVER, arguments=(str(path), "30")) as process:
            yield Silent(process)

    return started()
