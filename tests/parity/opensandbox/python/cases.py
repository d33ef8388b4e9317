"""The cases.  Each docstring is the rule."""

import asyncio
import os
import time
import uuid
from datetime import UTC, datetime, timedelta

import httpx
import opensandbox
from harness import IMAGE, Client, case, settle
from opensandbox.exceptions import SandboxApiException, SandboxException
from opensandbox.models.execd import ExecutionHandlers, RunCommandOpts
from opensandbox.models.execd_sync import ExecutionHandlersSync
from opensandbox.models.filesystem import (
    ContentReplaceEntry,
    DirectoryListEntry,
    MoveEntry,
    SearchEntry,
    SetPermissionEntry,
    WriteEntry,
)
from opensandbox.models.sandboxes import (
    PVC,
    Host,
    NetworkPolicy,
    NetworkRule,
    SandboxFilter,
    SnapshotFilter,
    Volume,
)

NEW = hasattr(opensandbox.Sandbox, "create_from_template")
"""Whether these are the packages that know templates."""


def texts(messages) -> list[str]:
    return [message.text for message in messages]


def unique() -> str:
    return uuid.uuid4().hex[:12]


# --------------------------------------------------------------------------------------------- lifecycle


@case
async def life(client: Client) -> None:
    """A sandbox runs when it was created, tells what it was asked for, can be found, renewed and ended."""
    tag = unique()
    async with client.sandbox(metadata={"tag": tag}, env={"WHO": "me"}) as sandbox:
        info = await settle(sandbox.get_info())
        assert (info.id, info.status.state) == (sandbox.id, "Running")
        assert info.entrypoint == ["tail", "-f", "/dev/null"]
        assert info.image.image == IMAGE
        assert info.metadata == {"tag": tag}
        assert timedelta(minutes=4) < info.expires_at - info.created_at <= timedelta(minutes=5, seconds=1)
        assert await settle(sandbox.is_healthy())
        await settle(sandbox.check_ready(timedelta(seconds=5), timedelta(milliseconds=100)))
        renewed = await settle(sandbox.renew(timedelta(minutes=20)))
        assert renewed.expires_at > info.expires_at
        again = await settle(client.sandboxes.connect(sandbox.id, connection_config=client.config))
        ran = await settle(again.commands.run("echo $WHO"))
        assert texts(ran.logs.stdout) == ["me"]
        await settle(again.close())


@case
async def no_end(client: Client) -> None:
    """Without a timeout a sandbox has no end, and cannot be renewed."""
    async with client.sandbox(timeout=None) as sandbox:
        assert (await settle(sandbox.get_info())).expires_at is None
        async with client.raises(SandboxApiException) as caught:
            await settle(sandbox.renew(timedelta(minutes=20)))
        assert caught[0].status_code == 409


@case
async def metadata(client: Client) -> None:
    """Metadata is merged, removed by null, and refused where it could be no label."""
    async with client.sandbox(metadata={"one": "1", "two": "2"}) as sandbox:
        info = await settle(sandbox.patch_metadata({"one": None, "three": "3"}))
        assert info.metadata == {"two": "2", "three": "3"}
        async with client.raises(SandboxApiException) as caught:
            await settle(sandbox.patch_metadata({"opensandbox.io/id": "x"}))
        assert caught[0].status_code == 400
        assert (await settle(sandbox.get_info())).metadata == info.metadata


@case
async def manager(client: Client) -> None:
    """The manager lists by states and metadata in pages, and does what a sandbox does by its id."""
    tag = unique()
    manager = await client.manager()
    async with (
        client.sandbox(metadata={"tag": tag, "n": "1"}) as one,
        client.sandbox(metadata={"tag": tag}) as two,
    ):
        await settle(manager.pause_sandbox(two.id))
        for states, wanted in (
            (["Running"], {one.id}),
            (["Paused"], {two.id}),
            (["Running", "Paused"], {one.id, two.id}),
        ):
            page = await settle(
                manager.list_sandbox_infos(SandboxFilter(states=states, metadata={"tag": tag}))
            )
            assert {info.id for info in page.sandbox_infos} == wanted, states
        page = await settle(manager.list_sandbox_infos(SandboxFilter(metadata={"tag": tag, "n": "1"})))
        assert [info.id for info in page.sandbox_infos] == [one.id]
        page = await settle(
            manager.list_sandbox_infos(SandboxFilter(metadata={"tag": tag}, page=1, page_size=1))
        )
        assert [info.id for info in page.sandbox_infos] == [two.id]
        assert (page.pagination.total_items, page.pagination.has_next_page) == (2, True)
        await settle(manager.resume_sandbox(two.id))
        assert (await settle(manager.get_sandbox_info(two.id))).status.state == "Running"
        assert (await settle(manager.patch_sandbox_metadata(two.id, {"n": "2"}))).metadata["n"] == "2"
        await settle(manager.renew_sandbox(two.id, timedelta(minutes=9)))
        await settle(manager.kill_sandbox(two.id))
        async with client.raises(SandboxApiException) as caught:
            await settle(manager.get_sandbox_info(two.id))
        assert caught[0].status_code == 404
        two.destroy = two.kill = two.close
    await settle(manager.close())


@case
async def pause(client: Client) -> None:
    """What runs stands still in a pause and goes on afterwards; twice is a conflict."""
    async with client.sandbox() as sandbox:
        counting = "i=0; while :; do i=$((i+1)); echo $i > /tmp/new; mv /tmp/new /tmp/count; sleep 0.05; done"
        await settle(sandbox.commands.run(counting, opts=RunCommandOpts(background=True)))
        while (await settle(sandbox.commands.run("test -s /tmp/count"))).exit_code != 0:
            await asyncio.sleep(0.05)
        await settle(sandbox.pause())
        assert (await settle(sandbox.get_info())).status.state == "Paused"
        async with client.raises(SandboxApiException) as caught:
            await settle(sandbox.pause())
        assert caught[0].status_code == 409
        resumed = await settle(client.sandboxes.resume(sandbox.id, connection_config=client.config))
        before = int(await settle(resumed.files.read_file("/tmp/count")))
        await asyncio.sleep(0.5)
        assert int(await settle(resumed.files.read_file("/tmp/count"))) > before
        await settle(resumed.close())


@case
async def snapshots(client: Client) -> None:
    """A snapshot keeps files; a sandbox that is started with it has them; it can be found and deleted."""
    manager = await client.manager()
    name = unique()
    async with client.sandbox() as sandbox:
        await settle(sandbox.files.write_file("/home/user/kept.txt", "kept"))
        made = await settle(sandbox.create_snapshot(name))
        second = await settle(manager.create_snapshot(sandbox.id))
        found = await settle(manager.get_snapshot(made.id))
        assert (found.status.state, found.sandbox_id, found.name) == ("Ready", sandbox.id, name)
        page = await settle(manager.list_snapshots(SnapshotFilter(sandbox_id=sandbox.id, states=["Ready"])))
        assert [one.id for one in page.snapshot_infos] == [second.id, made.id]
    async with client.sandbox(snapshot_id=made.id) as copy:
        assert await settle(copy.files.read_file("/home/user/kept.txt")) == "kept"
        assert (await settle(copy.get_info())).snapshot_id == made.id
    for id in (made.id, second.id):
        await settle(manager.delete_snapshot(id))
    async with client.raises(SandboxApiException) as caught:
        await settle(manager.get_snapshot(made.id))
    assert caught[0].status_code == 404
    await settle(manager.close())


@case
async def images(client: Client) -> None:
    """Images of the examples are known; another one is refused, and the refusal names what there is."""
    async with client.sandbox(image="python:3.12-slim") as sandbox:
        ran = await settle(sandbox.commands.run("python3 -c 'print(6*7)'"))
        assert texts(ran.logs.stdout) == ["42"]
    async with client.raises(SandboxApiException) as caught:
        await client.create(image="example.com/unknown:1")
    assert caught[0].status_code == 400
    assert "default" in str(caught[0])


@case
async def entrypoint(client: Client) -> None:
    """The entrypoint runs, with the sandbox's environment; one that cannot be started is refused."""
    command = ["sh", "-c", "echo $WORD > /tmp/started; sleep 60"]
    async with client.sandbox(entrypoint=command, env={"WORD": "yes"}) as sandbox:
        assert (await settle(sandbox.get_info())).entrypoint == command
        for _ in range(50):
            ran = await settle(sandbox.commands.run("cat /tmp/started"))
            if ran.exit_code == 0:
                break
            await asyncio.sleep(0.05)
        assert texts(ran.logs.stdout) == ["yes"]
    async with client.raises(SandboxApiException) as caught:
        await client.create(entrypoint=["/no/such/program"])
    assert caught[0].status_code == 400


@case
async def pools(client: Client) -> None:
    """A pool is a template of the server: its name is enough; another name is refused."""
    async with client.sandbox(extensions={"poolRef": "default"}) as sandbox:
        assert await settle(sandbox.is_healthy())
    async with client.raises(SandboxApiException) as caught:
        await client.create(extensions={"poolRef": "nothing"})
    assert caught[0].status_code == 400


@case
async def refusals(client: Client) -> None:
    """What cannot be had is refused with the reason, and leaves nothing behind."""
    manager = await client.manager()
    tag = unique()
    for options in (
        {"resource": {"gpu": "1"}},
        {"resource": {"memory": "1Zi"}},
        {"metadata": {"tag": "no label!"}},
        {"timeout": timedelta(seconds=5)},
        {"timeout": timedelta(days=400)},
        {"extensions": {"access.renew.extend.seconds": "1"}},
        {
            "network_policy": NetworkPolicy(
                defaultAction="allow", egress=[NetworkRule(action="deny", target="example.com")]
            )
        },
        {"volumes": [Volume(name="v", host=Host(path="/etc"), mountPath="/home/user/etc")]},
    ):
        async with client.raises(SandboxApiException) as caught:
            await client.create(**{"metadata": {"tag": tag}, **options})
        assert caught[0].status_code == 400, options
    page = await settle(manager.list_sandbox_infos(SandboxFilter(metadata={"tag": tag})))
    assert page.sandbox_infos == []
    await settle(manager.close())


@case
async def keys(client: Client) -> None:
    """A wrong key is 401, with the id of the request."""
    stranger = Client(client.flavour, client.proxy, key="x" * 32)
    async with client.raises(SandboxApiException) as caught:
        await stranger.create()
    assert caught[0].status_code == 401
    assert caught[0].request_id


@case
async def request_ids(client: Client) -> None:
    """The id that a client gives to its requests is told back, also with an error."""
    config = client.config
    config.headers["X-Request-ID"] = "told-back-1"
    async with client.raises(SandboxApiException) as caught:
        await settle(client.sandboxes.connect("missing", connection_config=config))
    assert (caught[0].status_code, caught[0].request_id) == (404, "told-back-1")


@case
async def diagnostics(client: Client) -> None:
    """Diagnostics are not served, as by upstream's own server: 501."""
    manager = await client.manager()
    async with client.sandbox() as sandbox:
        for owner, first in ((sandbox, ()), (manager, (sandbox.id,))):
            for method in (owner.get_diagnostic_logs, owner.get_diagnostic_events):
                async with client.raises(SandboxApiException) as caught:
                    await settle(method(*first, "container"))
                assert caught[0].status_code == 501
    await settle(manager.close())


@case
async def no_templates(client: Client) -> None:
    """A template is one of the server's, by its name; they are not managed over the API."""
    if not NEW:
        return
    from opensandbox.models.templates import TemplateFilter

    created = client.sandboxes.create_from_template(
        "default", timeout=timedelta(minutes=2), connection_config=client.config
    )
    sandbox = await settle(created)
    try:
        assert await settle(sandbox.is_healthy())
        assert (await settle(sandbox.get_egress_policy())).default_action == "deny"
    finally:
        await settle(sandbox.destroy())
    manager = await client.manager()
    async with client.raises(SandboxApiException) as caught:
        await settle(manager.list_templates(TemplateFilter()))
    assert caught[0].status_code == 501
    await settle(manager.close())


# ------------------------------------------------------------------------------------ ports and the network


@case
async def ports(client: Client) -> None:
    """A program's port is reached under the address that is told for it; a port where nothing listens is 502."""
    async with client.sandbox() as sandbox:
        await settle(sandbox.files.write_file("/home/user/www/index.html", "<p>hello</p>"))
        serving = "cd /home/user/www && exec python3 -m http.server 8123"
        await settle(sandbox.commands.run(serving, opts=RunCommandOpts(background=True)))
        endpoint = await settle(sandbox.get_endpoint(8123))
        assert "://" not in endpoint.endpoint
        assert endpoint.endpoint.endswith("/8123")
        async with httpx.AsyncClient() as web:
            for _ in range(100):
                answer = await web.get(f"http://{endpoint.endpoint}/index.html", headers=endpoint.headers)
                if answer.status_code == 200:
                    break
                await asyncio.sleep(0.05)
            assert answer.text == "<p>hello</p>"
            closed = await settle(sandbox.get_endpoint(8124))
            assert (await web.get(f"http://{closed.endpoint}/")).status_code == 502


@case
async def secure_access(client: Client) -> None:
    """With secure access a port asks for the header that its endpoint tells; a signed one opens a single port, until a time."""
    async with client.sandbox(secure_access=True) as sandbox:
        ran = await settle(sandbox.commands.run("echo in"))
        assert texts(ran.logs.stdout) == ["in"]
        endpoint = await settle(sandbox.get_endpoint(44772))
        url = f"http://{endpoint.endpoint}/ping"
        until = int(time.time()) + 60
        async with httpx.AsyncClient() as web:
            assert (await web.get(url)).status_code == 401
            assert (await web.get(url, headers=endpoint.headers)).status_code == 200
            if not client.proxy:
                signed = await settle(sandbox.get_signed_endpoint(44772, until))
                assert signed.headers != endpoint.headers
                assert (await web.get(url, headers=signed.headers)).status_code == 200
                other = await settle(sandbox.get_signed_endpoint(8123, until))
                assert (await web.get(url, headers=other.headers)).status_code == 401
                async with client.raises(SandboxApiException):
                    await settle(sandbox.get_signed_endpoint(44772, until - 3600))
    async with client.sandbox() as sandbox:
        async with client.raises(SandboxApiException):
            await settle(sandbox.get_signed_endpoint(44772, until))


@case
async def egress(client: Client) -> None:
    """The policy of a sandbox can be seen and changed: merged, the first rule for a target wins, and removed."""
    policy = NetworkPolicy(
        defaultAction="deny", egress=[NetworkRule(action="allow", target="one.example.com")]
    )
    async with client.sandbox(network_policy=policy) as sandbox:

        async def rules() -> list[tuple[str, str]]:
            found = await settle(sandbox.get_egress_policy())
            assert found.default_action == "deny"
            return [(rule.action, rule.target) for rule in found.egress]

        assert await rules() == [("allow", "one.example.com")]
        await settle(
            sandbox.patch_egress_rules(
                [
                    NetworkRule(action="allow", target="two.example.com"),
                    NetworkRule(action="deny", target="one.example.com"),
                    NetworkRule(action="deny", target="two.example.com"),
                ]
            )
        )
        assert await rules() == [("allow", "two.example.com"), ("deny", "one.example.com")]
        await settle(sandbox.delete_egress_rules(["one.example.com", "never.example.com"]))
        assert await rules() == [("allow", "two.example.com")]
        blocked = await settle(sandbox.commands.run("curl -sS -m 5 https://one.example.com"))
        assert blocked.error is not None
        async with client.raises(SandboxException):
            await settle(sandbox.patch_egress_rules([NetworkRule(action="allow", target="10.0.0.1")]))
        assert await rules() == [("allow", "two.example.com")]


@case
async def no_vault(client: Client) -> None:
    """There is no credential vault, and who asks for one is told."""
    async with client.sandbox() as sandbox:
        vault = getattr(sandbox, "credential_vault", None) or sandbox._egress_service
        async with client.raises(SandboxException):
            await settle(vault.get())


@case
async def renewal(client: Client) -> None:
    """A sandbox that lives by its requests gets more time with each."""
    options = {"timeout": timedelta(seconds=90), "extensions": {"access.renew.extend.seconds": "300"}}
    async with client.sandbox(**options) as sandbox:
        await settle(sandbox.commands.run("true"))
        info = await settle(sandbox.get_info())
        assert info.expires_at - datetime.now(UTC) > timedelta(seconds=280)


# ------------------------------------------------------------------------------------------------ volumes


@case
async def host_volume(client: Client) -> None:
    """A directory of the host is seen, written to, and kept from being written to where it is read-only."""
    path = os.environ["PARITY_HOST_VOLUME"]
    name = unique()
    volume = Volume(name="data", host=Host(path=path), mountPath="/mnt/data-of-host")
    async with client.sandbox(volumes=[volume]) as sandbox:
        await settle(sandbox.commands.run(f"echo written > /mnt/data-of-host/{name}"))
    only = Volume(name="data", host=Host(path=path), mountPath="/home/user/data", readOnly=True)
    async with client.sandbox(volumes=[only]) as sandbox:
        assert await settle(sandbox.files.read_file(f"/home/user/data/{name}")) == "written\n"
        assert (await settle(sandbox.commands.run("touch /home/user/data/x"))).error is not None


@case
async def named_volume(client: Client) -> None:
    """A named volume is made, kept from one sandbox to the next, seen in part, and goes with its sandbox where that was asked for."""
    name = f"parity-{unique()}"
    whole = Volume(name="v", pvc=PVC(claimName=name), mountPath="/workspace")
    async with client.sandbox(volumes=[whole]) as sandbox:
        await settle(sandbox.commands.run("mkdir -p /workspace/a/b && echo deep > /workspace/a/b/file"))
    part = Volume(
        name="v", pvc=PVC(claimName=name), mountPath="/home/user/part", subPath="a/b", readOnly=True
    )
    async with client.sandbox(volumes=[part]) as sandbox:
        assert await settle(sandbox.files.read_file("/home/user/part/file")) == "deep\n"
    missing = Volume(
        name="v", pvc=PVC(claimName=f"{name}-no", createIfNotExists=False), mountPath="/workspace"
    )
    async with client.raises(SandboxApiException) as caught:
        await client.create(volumes=[missing])
    assert caught[0].status_code == 400


# ------------------------------------------------------------------------------------------ inside: commands


@case
async def commands(client: Client) -> None:
    """Lines are told one by one, streams apart; the exit code and the error agree; environment and directory hold for one command."""
    async with client.sandbox() as sandbox:
        ran = await settle(sandbox.commands.run("echo one; echo two; echo three >&2"))
        assert texts(ran.logs.stdout) == ["one", "two"]
        assert texts(ran.logs.stderr) == ["three"]
        assert (ran.exit_code, ran.error) == (0, None)
        options = RunCommandOpts(working_directory="/tmp", envs={"A": "it's"})
        ran = await settle(sandbox.commands.run("pwd; echo $A", opts=options))
        assert texts(ran.logs.stdout) == ["/tmp", "it's"]
        ran = await settle(sandbox.commands.run("exit 7"))
        assert (ran.exit_code, ran.error.name, ran.error.value, ran.complete) == (
            7,
            "CommandExecError",
            "7",
            None,
        )
        if NEW:
            ran = await settle(sandbox.commands.run(["printf", "%s|", "a b", "$A"]))
            assert "".join(texts(ran.logs.stdout)) == "a b|$A|"


@case
async def handlers(client: Client) -> None:
    """Handlers hear of each event once, in order."""
    heard = []

    def hear(kind):
        async def told(event):
            heard.append((kind, getattr(event, "text", None)))

        def told_sync(event):
            heard.append((kind, getattr(event, "text", None)))

        return told if client.is_async else told_sync

    kind = ExecutionHandlers if client.is_async else ExecutionHandlersSync
    names = ("on_init", "on_stdout", "on_stderr", "on_execution_complete", "on_error")
    async with client.sandbox() as sandbox:
        listening = kind(**{name: hear(name) for name in names})
        await settle(sandbox.commands.run("echo a; sleep 0.2; echo b", handlers=listening))
    assert heard == [
        ("on_init", None),
        ("on_stdout", "a"),
        ("on_stdout", "b"),
        ("on_execution_complete", None),
    ]


@case
async def background(client: Client) -> None:
    """A command in the background is told about, its output read from a cursor on, and stopped."""
    async with client.sandbox() as sandbox:
        options = RunCommandOpts(background=True)
        started = await settle(
            sandbox.commands.run("echo first; sleep 0.4; echo second; sleep 60", opts=options)
        )
        status = await settle(sandbox.commands.get_command_status(started.id))
        assert (status.running, status.exit_code) == (True, None)
        text, cursor = "", None
        for _ in range(100):
            logs = await settle(sandbox.commands.get_background_command_logs(started.id, cursor=cursor))
            text, cursor = text + logs.content, logs.cursor
            if "second" in text:
                break
            await asyncio.sleep(0.05)
        assert text == "first\nsecond\n"
        await settle(sandbox.commands.interrupt(started.id))
        status = await settle(sandbox.commands.get_command_status(started.id))
        assert (status.running, status.exit_code == 0) == (False, False)


@case
async def sessions(client: Client) -> None:
    """What is exported and where one is survives from run to run of a session."""
    async with client.sandbox() as sandbox:
        session = await settle(sandbox.commands.create_session(working_directory="/tmp"))
        await settle(sandbox.commands.run_in_session(session, "export A=1; cd /home/user"))
        ran = await settle(sandbox.commands.run_in_session(session, "echo $A; pwd"))
        assert texts(ran.logs.stdout) == ["1", "/home/user"]
        await settle(sandbox.commands.delete_session(session))
        async with client.raises(SandboxApiException):
            await settle(sandbox.commands.run_in_session(session, "true"))


@case
async def set_env(client: Client) -> None:
    """A variable that is set holds for every command that follows."""
    if not NEW:
        return
    async with client.sandbox() as sandbox:
        await settle(sandbox.commands.set_env("LATER", "yes"))
        ran = await settle(sandbox.commands.run("echo $LATER"))
        assert texts(ran.logs.stdout) == ["yes"]


@case
async def metrics(client: Client) -> None:
    """What a sandbox uses is told."""
    async with client.sandbox() as sandbox:
        found = await settle(sandbox.get_metrics())
        assert found.cpu_count > 0
        assert 0 <= found.memory_used_in_mib <= found.memory_total_in_mib
        assert abs(time.time() * 1000 - found.timestamp) < 60_000


# --------------------------------------------------------------------------------------------- inside: files


@case
async def files(client: Client) -> None:
    """Files are written, read whole, in part and in pieces, found, moved, changed and deleted."""
    async with client.sandbox() as sandbox:
        files, place = sandbox.files, "/home/user/place"
        await settle(files.create_directories([WriteEntry(path=place, mode=755)]))
        await settle(files.write_file(f"{place}/a.txt", "hello\nworld\n"))
        await settle(files.write_files([WriteEntry(path=f"{place}/b.bin", data=bytes(range(256)), mode=600)]))
        assert await settle(files.read_file(f"{place}/a.txt")) == "hello\nworld\n"
        assert await settle(files.read_bytes(f"{place}/b.bin", range_header="bytes=10-12")) == b"\x0a\x0b\x0c"
        stream = await settle(files.read_bytes_stream(f"{place}/b.bin"))
        pieces = [piece async for piece in stream] if client.is_async else [*stream]
        assert b"".join(pieces) == bytes(range(256))
        info = await settle(files.get_file_info([f"{place}/a.txt", f"{place}/b.bin"]))
        assert (info[f"{place}/a.txt"].size, info[f"{place}/b.bin"].mode) == (12, 600)
        found = await settle(files.search(SearchEntry(path=place, pattern="*.txt")))
        assert [entry.path for entry in found] == [f"{place}/a.txt"]
        listed = await settle(files.list_directory(DirectoryListEntry(path=place)))
        assert [entry.path for entry in listed] == [f"{place}/a.txt", f"{place}/b.bin"]
        entry = ContentReplaceEntry(path=f"{place}/a.txt", old_content="world", new_content="there")
        assert (await settle(files.replace_contents_detailed([entry])))[0].replaced_count == 1
        back = ContentReplaceEntry(path=f"{place}/a.txt", old_content="there", new_content="world")
        await settle(files.replace_contents([back]))
        await settle(files.set_permissions([SetPermissionEntry(path=f"{place}/a.txt", mode=600)]))
        await settle(files.move_files([MoveEntry(src=f"{place}/a.txt", dest=f"{place}/c.txt")]))
        assert await settle(files.read_file(f"{place}/c.txt")) == "hello\nworld\n"
        await settle(files.delete_files([f"{place}/c.txt"]))
        async with client.raises(SandboxApiException, SandboxException):
            await settle(files.read_file(f"{place}/c.txt"))
        await settle(files.delete_directories([place]))
        assert (await settle(sandbox.commands.run(f"test -e {place}"))).exit_code == 1


@case
async def identities(client: Client) -> None:
    """Files can be asked for as the sandbox's own user."""
    if not NEW:
        return
    async with client.sandbox() as sandbox:
        mine = sandbox.files_with_identity(1000, 1000)
        await settle(mine.write_file("/home/user/mine.txt", "mine"))
        again = sandbox.files.with_identity(1000, 1000)
        assert await settle(again.read_file("/home/user/mine.txt")) == "mine"


# ---------------------------------------------------------------------------------------------- inside: code


@case
async def code(client: Client) -> None:
    """State stays in a context; the last expression is the result; what is written comes as it is."""
    async with client.interpreter() as interpreter:
        codes = interpreter.codes
        context = await settle(codes.create_context("python"))
        first = await settle(codes.run("x = 20\nprint('hi')\nx + 1", context=context))
        assert "".join(texts(first.logs.stdout)) == "hi\n"
        assert first.result[0].text == "21"
        second = await settle(codes.run("x * 2", context=context))
        assert second.result[0].text == "40"
        assert second.id == first.id == context.id
        failing = await settle(codes.run("1/0", context=context))
        assert (failing.error.name, failing.error.value) == ("ZeroDivisionError", "division by zero")
        default = await settle(codes.run("2 + 2", language="python"))
        assert default.result[0].text == "4"
        if NEW:
            assert await settle(interpreter.ping())
            assert await settle(codes.ping())
            assert await settle(interpreter.is_healthy())
            await settle(interpreter.check_ready(timedelta(seconds=5), timedelta(milliseconds=100)))
            if client.is_async:
                await interpreter.aclose()
                await codes.aclose()


@case
async def contexts(client: Client) -> None:
    """Contexts are listed, found, apart from each other, and removed one by one or all of a language."""
    async with client.interpreter() as interpreter:
        codes = interpreter.codes
        one = await settle(codes.create_context("python"))
        two = await settle(codes.create_context("python"))
        shell = await settle(codes.create_context("bash"))
        await settle(codes.run("x = 1", context=one))
        assert (await settle(codes.run("x", context=two))).error.name == "NameError"
        ran = await settle(codes.run("echo $((6*7))", context=shell))
        assert "".join(texts(ran.logs.stdout)).strip() == "42"
        found = {context.id for context in await settle(codes.list_contexts("python"))}
        assert {one.id, two.id} <= found
        assert shell.id not in found
        assert (await settle(codes.get_context(one.id))).language == "python"
        await settle(codes.delete_context(one.id))
        await settle(codes.delete_contexts("python"))
        assert await settle(codes.list_contexts("python")) == []
        async with client.raises(SandboxApiException):
            await settle(codes.get_context(one.id))


@case
async def interrupt(client: Client) -> None:
    """Code that runs is stopped by the id that its first event told; the context goes on."""
    async with client.interpreter() as interpreter:
        codes = interpreter.codes
        context = await settle(codes.create_context("python"))
        running = asyncio.ensure_future(
            codes.run("import time\nprint('in')\ntime.sleep(60)", context=context)
            if client.is_async
            else asyncio.to_thread(codes.run, "import time\nprint('in')\ntime.sleep(60)", context=context)
        )
        await asyncio.sleep(1.0)
        await settle(codes.interrupt(context.id))
        ended = await asyncio.wait_for(running, 20)
        assert ended.error.name == "KeyboardInterrupt"
        assert (await settle(codes.run("1 + 1", context=context))).result[0].text == "2"
