"""Commands and terminals."""

import asyncio
import time

from harness import ALL, Client, case, eventually, raises


@case(modes=ALL)
async def run(client: Client) -> None:
    """A command gives its output, its errors and its exit code."""
    sandbox = await client.create()
    done = await sandbox.commands.run("echo out; echo err >&2")
    assert (done.stdout, done.stderr, done.exit_code) == ("out\n", "err\n", 0)


@case(modes=ALL)
async def failure(client: Client) -> None:
    """A command that fails raises, with its exit code and what it printed."""
    sandbox = await client.create()
    async with raises("CommandExitException") as caught:
        await sandbox.commands.run("echo some; echo bad >&2; exit 7")
    assert (caught[0].exit_code, caught[0].stdout, caught[0].stderr) == (7, "some\n", "bad\n")


@case(modes=ALL)
async def callbacks(client: Client) -> None:
    """Output is handed to callbacks while the command runs."""
    sandbox = await client.create()
    out, err = [], []
    arrived, loop = asyncio.Event(), asyncio.get_running_loop()

    def note(text):
        out.append(text)
        loop.call_soon_threadsafe(arrived.set)

    waits = (
        "echo a; for i in $(seq 300); do [ -e /tmp/heard ] && echo b && break; sleep 0.05; done; echo e >&2"
    )
    running = asyncio.create_task(sandbox.commands.run(waits, on_stdout=note, on_stderr=err.append))
    await asyncio.wait_for(arrived.wait(), 20)
    await sandbox.files.write("/tmp/heard", "")  # only who has heard the first line lets the second one come
    await running
    assert "".join(out) == "a\nb\n" and "".join(err) == "e\n"


@case(modes=ALL)
async def environment_and_cwd(client: Client) -> None:
    """A command has the variables and the directory it was given, and a home otherwise."""
    sandbox = await client.create()
    done = await sandbox.commands.run('pwd; printf %s "$V"', envs={"V": "a'b\"c\n$"}, cwd="/tmp")
    assert done.stdout == "/tmp\na'b\"c\n$"
    assert (await sandbox.commands.run("pwd; echo $HOME; whoami")).stdout == "/home/user\n/home/user\nuser\n"


@case(modes=ALL)
async def missing_cwd(client: Client) -> None:
    """A directory that is not there is an argument error, not a command that failed."""
    sandbox = await client.create()
    async with raises("InvalidArgumentException", "SandboxException", containing="/no/such"):
        await sandbox.commands.run("true", cwd="/no/such")


@case(modes=ALL)
async def users(client: Client) -> None:
    """A command has the name and the home of the user asked for; one that there is not is refused."""
    sandbox = await client.create()
    assert (await sandbox.commands.run("echo $USER $HOME; pwd", user="root")).stdout == "root /root\n/root\n"
    assert (await sandbox.commands.run("sudo -E bash -c 'echo $USER'")).stdout == "root\n"
    async with raises("AuthenticationException", "SandboxException", containing="nobody-at-all"):
        await sandbox.commands.run("true", user="nobody-at-all")


@case(modes=ALL)
async def timeout(client: Client) -> None:
    """A command that takes longer than its time is ended, and the caller told."""
    sandbox = await client.create()
    started = time.monotonic()
    async with raises("TimeoutException"):
        await sandbox.commands.run("exec sleep 297", timeout=1)
    assert time.monotonic() - started < 8

    async def gone():
        return not [each for each in await sandbox.commands.list() if "sleep 297" in " ".join(each.args)]

    await eventually(gone, "the command ended")


@case(modes=ALL)
async def background(client: Client) -> None:
    """A command in the background is listed, can be waited for, and gives what it printed."""
    sandbox = await client.create()
    handle = await sandbox.commands.run("echo begun; sleep 0.5; echo done; exit 3", background=True)
    assert handle.pid > 0
    listed = {each.pid: each for each in await sandbox.commands.list()}
    assert handle.pid in listed
    assert listed[handle.pid].cmd == "/bin/bash"
    async with raises("CommandExitException") as caught:
        await handle.wait()
    assert (caught[0].exit_code, caught[0].stdout) == (3, "begun\ndone\n")
    assert handle.pid not in {each.pid for each in await sandbox.commands.list()}


@case(modes=ALL)
async def kill(client: Client) -> None:
    """A command can be killed by its handle or its number; what is not there answers False."""
    sandbox = await client.create()
    handle = await sandbox.commands.run("exec sleep 300", background=True)
    assert await handle.kill() is True
    async with raises("CommandExitException"):
        await handle.wait()
    other = await sandbox.commands.run("exec sleep 300", background=True)
    assert await sandbox.commands.kill(other.pid) is True
    assert await sandbox.commands.kill(999_999) is False


@case(modes=ALL)
async def connect(client: Client) -> None:
    """Whoever connects to a running command follows its output and its end."""
    sandbox = await client.create()
    handle = await sandbox.commands.run("for i in 1 2 3 4 5 6; do echo $i; sleep 0.4; done", background=True)
    await handle.disconnect()
    again = await sandbox.commands.connect(handle.pid)
    assert again.pid == handle.pid
    done = await again.wait()
    assert done.exit_code == 0
    assert done.stdout.endswith("6\n")
    async with raises("NotFoundException"):
        missing = await sandbox.commands.connect(999_999)
        await missing.wait()


@case("Commands.run:stdin")
async def standard_input(client: Client) -> None:
    """What is sent to a command's input it reads, and its end is the end of its input."""
    sandbox = await client.create()
    handle = await sandbox.commands.run("cat", background=True, stdin=True)
    await sandbox.commands.send_stdin(handle.pid, "first\n")
    client.require("Commands.close_stdin")
    await handle.send_stdin(b"second\n")
    await sandbox.commands.close_stdin(handle.pid)
    assert (await handle.wait()).stdout == "first\nsecond\n"
    other = await sandbox.commands.run("wc -c", background=True, stdin=True)
    await other.send_stdin("x" * 200_000)
    await other.close_stdin()
    assert (await other.wait()).stdout.strip() == "200000"


@case("Commands.send_stdin", modes=ALL)
async def input_by_number(client: Client) -> None:
    """Input can be sent to any running command by its number; to none that is not there."""
    sandbox = await client.create()
    options = {"stdin": True} if client.has("Commands.run:stdin") else {}
    handle = await sandbox.commands.run("read line; echo got $line", background=True, **options)
    await sandbox.commands.send_stdin(handle.pid, "it\n")
    assert (await handle.wait()).stdout == "got it\n"
    async with raises("NotFoundException", "SandboxException"):
        await sandbox.commands.send_stdin(999_999, "x")


@case("Commands.stream_input")
async def streamed_input(client: Client) -> None:
    """Input can be streamed to a command and to a terminal."""
    sandbox = await client.create()
    handle = await sandbox.commands.run("cat", background=True, stdin=True)
    await stream(client, sandbox.commands, handle.pid, ["a\n", b"b\n", "c\n"])
    await sandbox.commands.close_stdin(handle.pid)
    assert (await handle.wait()).stdout == "a\nb\nc\n"


async def stream(client: Client, part, pid: int, chunks):
    """Stream input: the synchronous SDK takes an iterable, the asynchronous one gives a handle."""
    if client.flavour == "sync":
        await part.stream_input(pid, iter(chunks))
        return
    handle = await part.stream_input(pid)
    for chunk in chunks:
        await handle.send(chunk)
    await handle.close()


@case("CommandHandle.close_stdin")
async def no_input(client: Client) -> None:
    """A command without input reads its end at once instead of waiting."""
    sandbox = await client.create()
    done = await sandbox.commands.run("cat; echo end", timeout=10)
    assert done.stdout == "end\n"


@case(modes=ALL)
async def binary_and_much(client: Client) -> None:
    """Megabytes of output arrive whole; characters that two chunks share are not broken."""
    sandbox = await client.create()
    done = await sandbox.commands.run("python3 -c \"print('ü€' * 700_000)\"")
    assert len(done.stdout) == 1_400_001
    assert set(done.stdout) == {"ü", "€", "\n"}


@case()
async def kill_during_a_command(client: Client) -> None:
    """A command whose sandbox is killed fails and says so."""
    sandbox = await client.create()
    other = await client.Sandbox.connect(sandbox.sandbox_id)
    handle = await sandbox.commands.run("sleep 60", background=True, timeout=0)
    waiting = asyncio.create_task(handle.wait())
    await asyncio.sleep(0.3)
    await other.kill()
    named = ("TimeoutException",) if client.has("v2") else ("Exception",)
    async with raises(*named):
        await asyncio.wait_for(waiting, 20)


@case(flavours=("sync",), modes=ALL)
async def iterated(client: Client) -> None:
    """The handle of the synchronous SDK can be iterated over."""
    sandbox = await client.create()
    handle = await sandbox.commands.run("echo a; echo b >&2", background=True)
    parts = await asyncio.to_thread(lambda: list(handle.raw))
    assert "".join(out for out, _, _ in parts if out) == "a\n"
    assert "".join(err for _, err, _ in parts if err) == "b\n"


@case("Commands.run:retain_output")
async def not_retained(client: Client) -> None:
    """Output that is not to be retained still reaches the callback."""
    sandbox = await client.create()
    out = []
    done = await sandbox.commands.run("echo x", on_stdout=out.append, retain_output=False)
    assert "".join(out) == "x\n"
    assert not done.stdout


# ------------------------------------------------------------------------------------------- terminals


async def terminal(client: Client, sandbox, **options):
    """A terminal and the list of what it prints."""
    seen: list[bytes] = []
    size = client.e2b.PtySize(rows=30, cols=90)
    if client.flavour == "async":
        return await sandbox.pty.create(size, on_data=seen.append, **options), seen
    return await sandbox.pty.create(size, **options), seen


async def finish(client: Client, handle, seen):
    """Wait for the end of a terminal; returns its exit code."""
    try:
        if client.flavour == "async":
            return (await handle.wait()).exit_code
        return (await handle.wait(on_pty=seen.append)).exit_code
    except client.e2b.CommandExitException as error:
        return error.exit_code


@case(modes=ALL)
async def pty(client: Client) -> None:
    """A terminal is a login shell with the size, the variables and the directory asked for."""
    sandbox = await client.create()
    handle, seen = await terminal(client, sandbox, cwd="/tmp", envs={"V": "vvv"})
    await sandbox.pty.send_stdin(handle.pid, b"stty size; echo $V-$TERM; pwd; tty; exit 5\n")
    assert await finish(client, handle, seen) == 5
    text = b"".join(seen).decode()
    assert "30 90" in text and "vvv-xterm" in text and "/tmp" in text and "/dev/pts/" in text, text


@case(modes=ALL)
async def pty_resize(client: Client) -> None:
    """A terminal can be resized while it runs."""
    sandbox = await client.create()
    handle, seen = await terminal(client, sandbox)
    await sandbox.pty.resize(handle.pid, client.e2b.PtySize(rows=11, cols=44))
    await sandbox.pty.send_stdin(handle.pid, b"stty size; exit\n")
    assert await finish(client, handle, seen) == 0
    assert "11 44" in b"".join(seen).decode()


@case(modes=ALL)
async def pty_kill(client: Client) -> None:
    """A terminal can be killed; one that is not there answers False."""
    sandbox = await client.create()
    handle, seen = await terminal(client, sandbox, timeout=0)
    assert await sandbox.pty.kill(handle.pid) is True
    assert await finish(client, handle, seen) != 0
    assert await sandbox.pty.kill(999_999) is False


@case("Pty.connect")
async def pty_connect(client: Client) -> None:
    """Whoever connects to a terminal sees what it prints from then on."""
    sandbox = await client.create()
    handle, _ = await terminal(client, sandbox)
    await handle.disconnect()
    seen: list[bytes] = []
    if client.flavour == "async":
        again = await sandbox.pty.connect(handle.pid, on_data=seen.append)
    else:
        again = await sandbox.pty.connect(handle.pid)
    await sandbox.pty.send_stdin(handle.pid, b"echo re$((1+1))joined; exit\n")
    assert await finish(client, again, seen) == 0
    assert "re2joined" in b"".join(seen).decode()


@case("Pty.stream_input")
async def pty_streamed_input(client: Client) -> None:
    """Input can be streamed to a terminal."""
    sandbox = await client.create()
    handle, seen = await terminal(client, sandbox)
    await stream(client, sandbox.pty, handle.pid, ["echo st$((1+1))", b"ream; exit\n"])
    assert await finish(client, handle, seen) == 0
    assert "st2ream" in b"".join(seen).decode()
