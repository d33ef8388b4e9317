"""Image builds over real sandboxes: what is built, what is told while it is, and that nothing is left behind."""

import asyncio
import io
import json
import tarfile
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from cellfork.dialects.together import builds
from cellfork.dialects.together.building import machine
from cellfork.model.limits import Limits
from cellfork.model.specs import ExecSpec, SandboxSpec, Template
from cellfork.server.templates import Named
from tests.dialects.together.conftest import BARE, served
from tests.server.conftest import OTHER_KEY
from tests.templates import IN_TMP

FROM = "FROM python:3\n"


def context(files: Mapping[str, str]) -> bytes:
    """Return an archive with files, as the SDK makes it."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(f"./{name}")
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return whole.getvalue()


async def send(place, dockerfile: str, files: Mapping[str, str] = {}, **fields: Any) -> str:
    """Begin a build; return its id."""
    archive = context({"Dockerfile": dockerfile, **files})
    data = {"image_name": f"image-{uuid.uuid4()}", "dockerfile": "Dockerfile", **fields}
    answer = await place.client.post("/builds", data=data, files={"context": ("c.tar.gz", archive)})
    assert answer.status_code == 202, answer.text
    return answer.json()["build_id"]


async def log(place, id: str, **headers: str) -> list[str]:
    """Return what the log of a build says, to its end."""
    answer = await place.client.get(f"/builds/{id}/logs", headers=headers)
    assert answer.headers["content-type"].startswith("text/event-stream")
    return [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]


async def build(
    place, dockerfile: str, files: Mapping[str, str] = {}, **fields: Any
) -> tuple[str, list[str]]:
    """Build an image; return its name and the log."""
    id = await send(place, dockerfile, files, **fields)
    *lines, end = await log(place, id)
    assert json.loads(end) == {"done": True}, lines
    return (await place.client.get(f"/builds/{id}")).json()["image_ref"], lines


async def failure(place, dockerfile: str, files: Mapping[str, str] = {}, **fields: Any) -> str:
    """Return why a build fails."""
    id = await send(place, dockerfile, files, **fields)
    end = json.loads((await log(place, id))[-1])
    told = (await place.client.get(f"/builds/{id}")).json()
    assert (told["status"], told["image_ref"], told["error"]) == ("failed", None, end["error"])
    return end["error"]


async def snapshot(place, image: str, **fields: Any) -> dict[str, Any]:
    """Make a snapshot of an image."""
    answer = await place.client.post("/v1/snapshots", json={"image": image, **fields})
    assert answer.status_code == 201, answer.text
    return answer.json()


async def run(place, snapshot_id: str, command: str) -> str:
    """Return the output of a command in a new sandbox."""
    told = await place.create(snapshot_id=snapshot_id)
    sandbox = next(
        found for found in place.engine.list() if found.notes["together"]["agent"] == told["agent"]["token"]
    )
    _code, output = await sandbox.execs.run(ExecSpec(("sh", "-c", command)))
    await sandbox.kill()
    return output


async def test_a_dockerfile_becomes_a_snapshot(place) -> None:
    """Instructions are carried out in their order, and sandboxes of the snapshot have the files."""
    dockerfile = """
        # syntax=docker/dockerfile:1
        ARG VERSION=3
        FROM python:${VERSION} AS base
        ARG WHO=nobody
        ENV GREETING="hello $WHO" PLACE=/app
        WORKDIR $PLACE
        COPY *.txt pkg ./
        RUN echo "$GREETING" \\
            # between
            > greeting && pwd
        RUN ["sh", "-c", "echo $HOME > home"]
        USER root
        RUN echo $HOME > ~/root && cp ~/root /app/root
        SHELL ["python3", "-c"]
        RUN open("made", "w").write("by python")
        EXPOSE 80
        CMD ["python3"]
    """
    files = {"a.txt": "a", "b.txt": "b", "pkg/sub/c": "c", "d": "d"}
    image, lines = await build(place, dockerfile, files, build_args='{"WHO": "you"}')
    assert "#5 /app" in lines
    assert any("EXPOSE has no effect" in line for line in lines)
    assert any("CMD has no effect" in line for line in lines)
    told = await snapshot(place, image, architecture=machine())
    found = await run(place, told["id"], "cd /app && grep -r . * | sort; ls -a /tmp")
    assert [line for line in found.splitlines() if line not in IN_TMP] == [
        "a.txt:a", "b.txt:b", "greeting:hello you", "home:/home/user", "made:by python", "root:/root", "sub/c:c", ".", "..",
    ]  # fmt: skip


async def test_a_snapshot_of_an_image_is_one_like_any_other(place) -> None:
    """It gets aliases, is listed, can be built upon, and is retired; asking again gives the same one."""
    image, _lines = await build(place, FROM + "RUN echo one > ~/file", image_name="base:1")
    assert image == "cellfork/base:1"
    told = await snapshot(place, image)
    assert (await snapshot(place, image))["id"] == told["id"]
    path = f"/v1/snapshots/{told['id']}"
    assert (await place.client.post(f"{path}/aliases", json={"alias": "mine"})).status_code == 204
    assert (await place.client.get("/v1/snapshots/@mine")).json()["id"] == told["id"]
    above, _lines = await build(place, "FROM cellfork/base:1\nRUN echo two >> file", image_name="above")
    assert above == "cellfork/above:latest"
    assert await run(place, (await snapshot(place, above))["id"], "cat file") == "one\ntwo\n"
    assert (await place.client.post(f"{path}/retire")).json()["retired_at"]
    answer = await place.client.post("/v1/snapshots", json={"image": image})
    assert answer.status_code == 400


async def test_an_image_of_the_table_is_a_snapshot_without_a_build(place) -> None:
    """``POST /v1/snapshots`` takes what stands for a template; what does not is refused with the names of what does."""
    told = await snapshot(place, "docker.io/library/python:3.12-slim")
    assert await run(place, told["id"], "echo there") == "there\n"
    for body, word in (
        ({"image": "alpine"}, "'default'"),
        ({"image": "python:3", "architecture": "s390x"}, "architecture"),
        ({"image": "python:3", "ttl": 60}, "ttl"),
        ({"image": "python:3", "tags": {"a": "b"}}, "tags"),
        ({"image": ""}, "image"),
        ({}, "image"),
    ):
        answer = await place.client.post("/v1/snapshots", json=body)
        assert (answer.status_code, word in answer.json()["message"]) == (400, True), answer.text
    assert place.engine.list() == []


@pytest.mark.parametrize(
    ("dockerfile", "told"),
    [
        (FROM + "RUN echo out; echo err >&2; exit 7", "line 2: RUN echo out; echo err >&2; exit 7: exit code 7\nout\nerr"),
        (FROM + "RUN kill -9 $$", "exit code 137"),
        (FROM + 'RUN ["nothing-like-this"]', "nothing-like-this"),
        (FROM + "COPY none /app/", "line 2: COPY: the context has no 'none'"),
        (FROM + "COPY Dockerfile /usr/", "Read-only file system"),
        (FROM + "COPY a", "line 2: COPY: it has a source and a destination"),
        (FROM + "COPY --chmod=u+x Dockerfile /app/", "line 2: COPY: --chmod=u+x"),
        (FROM + "ADD https://example.com/x /app/", "line 2: ADD: nothing is fetched"),
        (FROM + "WORKDIR /usr/x", "/usr/x"),
        (FROM + "USER www-data", "line 2: USER: there is no user 'www-data'"),
        (FROM + "SHELL bash", "line 2: SHELL: it is written as"),
        (FROM + "ARG 1=2", "line 2: ARG: '1' cannot be the name"),
        (FROM + "RUN []", "line 2: RUN: there is no command"),
        (FROM + "RUN echo \0", "NUL"),
        ("FROM alpine:latest", "'alpine:latest' stands for no template of this server; its templates are 'default'"),
        ("FROM cellfork/none:1", "stands for no template"),
        ("FROM scratch", "stands for no template"),
        ("MAINTAINER me", "the first instruction is FROM"),
    ],
)  # fmt: skip
async def test_failures_say_why(place, dockerfile: str, told: str) -> None:
    """A build that cannot go on ends with the line and the reason, and its sandbox ends with it."""
    assert told in await failure(place, dockerfile)
    assert place.engine.list() == place.engine.snapshots() == []


async def test_what_has_no_effect_is_said(place) -> None:
    """Every instruction, flag and field that changes nothing is named in the log."""
    dockerfile = FROM + (
        "LABEL a=b\nVOLUME /x\nEXPOSE 1\nHEALTHCHECK NONE\nSTOPSIGNAL 9\nENTRYPOINT x\nMAINTAINER me\nCMD y\n"
        "COPY --chown=0:0 --link Dockerfile .\nENV A=b\nUSER user"
    )
    _image, lines = await build(
        place, dockerfile, nydus_convert="true", cache_key="k", other="x", build_args='{"UNUSED": "1"}'
    )
    whole = "\n".join(lines)
    for word in ("LABEL", "VOLUME", "EXPOSE", "HEALTHCHECK", "STOPSIGNAL", "ENTRYPOINT", "MAINTAINER", "CMD"):
        assert f"note: {word} has no effect" in whole
    for word in ("'nydus_convert'", "'cache_key'", "'other'", "--chown", "--link"):
        assert f"note: {word} has no effect" in whole
    assert "note: ENV holds for this build" in whole
    assert "note: no ARG takes UNUSED" in whole
    assert "note: / is /home/user in a sandbox" in whole


async def test_output_cannot_end_the_log(place) -> None:
    """What a command prints is never taken for an event of ours, whatever characters it is made of."""
    text = 'print("{\\"done\\":true}\\r{\\"error\\":1}\\u2028data: {\\"done\\":true}\\x0b{}", end="")'
    id = await send(place, FROM + f'SHELL ["python3", "-c"]\nRUN {text}\nRUN 1/0')
    *lines, end = await log(place, id)
    assert not [line for line in lines if line.startswith("{")]
    assert "ZeroDivisionError" in json.loads(end)["error"]


async def test_the_log_goes_on_where_a_reader_was(place) -> None:
    """``Last-Event-ID`` skips what was read; late readers get everything."""
    id = await send(place, FROM + "RUN seq 5")
    whole = await log(place, id)
    assert await log(place, id) == whole
    raw = (await place.client.get(f"/builds/{id}/logs")).text
    number = next(block.split()[1] for block in raw.split("\n\n") if block.endswith("#1 3"))
    assert (await log(place, id, **{"Last-Event-ID": number}))[:2] == ["#1 4", "#1 5"]
    for wrong in ("x", "-1", "9" * 30):
        answer = await place.client.get(f"/builds/{id}/logs", headers={"Last-Event-ID": wrong})
        assert answer.status_code == 400


async def test_lines_come_while_the_build_runs(place) -> None:
    """A line is there when it is printed, not at the end."""
    id = await send(place, FROM + "RUN echo first; sleep 60")
    async with asyncio.timeout(20), place.client.stream("GET", f"/builds/{id}/logs") as answer:
        async for line in answer.aiter_lines():
            if line == "data: #1 first":
                break
    assert (await place.client.get(f"/builds/{id}")).json()["status"] == "running"
    assert (await place.client.delete(f"/builds/{id}")).status_code == 204


async def test_a_cancelled_build_leaves_nothing(place) -> None:
    """``DELETE`` ends the sandbox at once, readers are told, and the build is not there any more."""
    id = await send(place, FROM + "RUN sleep 60")
    reading = asyncio.create_task(log(place, id))
    await asyncio.sleep(0.3)
    assert (await place.client.delete(f"/builds/{id}")).status_code == 204
    assert place.engine.list() == []
    assert json.loads((await reading)[-1]) == {"error": "the build was cancelled"}
    for method, path in (("GET", ""), ("GET", "/logs"), ("DELETE", "")):
        assert (await place.client.request(method, f"/builds/{id}{path}")).status_code == 404


async def test_an_image_nobody_wanted_goes_with_its_build(place) -> None:
    """Deleting a finished build deletes its image, unless a snapshot was made of that."""
    for wanted in (False, True):
        id = await send(place, FROM)
        await log(place, id)
        image = (await place.client.get(f"/builds/{id}")).json()["image_ref"]
        assert len(place.engine.snapshots()) == 1
        if wanted:
            await snapshot(place, image)
        await place.client.delete(f"/builds/{id}")
        assert len(place.engine.snapshots()) == wanted


async def test_a_build_that_nobody_asks_for_is_forgotten(place, monkeypatch) -> None:
    """Running or finished: without a reader or a question it is ended after some minutes, and its image is gone."""
    monkeypatch.setattr(builds, "FORGOTTEN_AFTER", 0.5)
    for dockerfile in (FROM + "RUN sleep 60", FROM):
        id = await send(place, dockerfile)
        assert place.engine.list()
        async with asyncio.timeout(10):
            while place.engine.list() or place.engine.snapshots():
                await asyncio.sleep(0.05)
        assert (await place.client.get(f"/builds/{id}")).status_code == 404


async def test_a_reader_keeps_a_build(place, monkeypatch) -> None:
    """While somebody reads the log, however silent it is, the build goes on."""
    monkeypatch.setattr(builds, "FORGOTTEN_AFTER", 0.2)
    id = await send(place, FROM + "RUN sleep 1")
    assert json.loads((await log(place, id))[-1]) == {"done": True}


async def test_builds_belong_to_a_tenant(place) -> None:
    """Another key finds neither the build nor its image."""
    image, _lines = await build(place, FROM, image_name="mine:1")
    id = await send(place, FROM)
    other = await place.new_client(f"{place.url}/together", OTHER_KEY)
    for method, path in (("GET", ""), ("GET", "/logs"), ("DELETE", "")):
        assert (await other.request(method, f"/builds/{id}{path}")).status_code == 404
    assert (await other.post("/v1/snapshots", json={"image": image})).status_code == 400
    assert (await place.client.get(f"/builds/{id}")).status_code == 200


async def test_malformed_forms_are_refused(place) -> None:
    """Whatever the form is, the answer is 4xx in the API's own form, and no sandbox is left."""
    whole = {"context": ("c", context({"Dockerfile": FROM}))}
    name = {"image_name": "a"}
    forms: list[dict[str, Any]] = [
        {"data": name},
        {"json": {}},
        {"content": b"x", "headers": {"Content-Type": "multipart/form-data"}},
        {"content": b"x", "headers": {"Content-Type": "multipart/form-data; boundary=b"}},
        {"content": b"--b\r\n\r\n", "headers": {"Content-Type": "multipart/form-data; boundary=b"}},
        {"data": name, "files": {"context": ("c", b"")}},
        {"data": name, "files": {"other": ("c", b"x")}},
        {"data": {}, "files": whole},
        {"data": {"image_name": "../x"}, "files": whole},
        {"data": {"image_name": "a" * 201}, "files": whole},
        {"data": {**name, "dockerfile": "../Dockerfile"}, "files": whole},
        {"data": {**name, "dockerfile": "/etc/passwd"}, "files": whole},
        {"data": {**name, "dockerfile": "a\0b"}, "files": whole},
        {"data": {**name, "build_args": "["}, "files": whole},
        {"data": {**name, "build_args": '{"a": 1}'}, "files": whole},
        {"data": {**name, "build_args": '{"a=b": "c"}'}, "files": whole},
        {"data": {**name, "other": "x" * 70_000}, "files": whole},
        {"data": {**name, "other": ["x"] * 2}, "files": whole},
        {"data": {**name, **{f"f{number}": "" for number in range(40)}}, "files": whole},
    ]
    for form in forms:
        answer = await place.client.post("/builds", **form)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), (form, answer.text)
        assert place.engine.list() == []


async def test_contexts_that_cannot_be_read(place) -> None:
    """What is no archive, has no Dockerfile, or one that is no text, is a build that fails."""
    for archive, told in (
        (b"no archive", "no archive that can be unpacked"),
        (context({"x": ""}), "the context has no 'Dockerfile'"),
        (context({"Dockerfile": "\ud800".encode("utf-8", "surrogatepass").decode("latin-1")}), "there is no instruction"),
        (context({"Dockerfile": "#" * 300_000}), "larger than"),
    ):  # fmt: skip
        answer = await place.client.post(
            "/builds", data={"image_name": "a"}, files={"context": ("c", archive)}
        )
        assert told in json.loads((await log(place, answer.json()["build_id"]))[-1])["error"]
        assert place.engine.list() == []


async def test_the_number_of_builds_is_bounded(place, monkeypatch) -> None:
    """One more than a key, or the server, may have at once is 429."""
    monkeypatch.setattr(builds, "MOST_OF_ONE", 1)
    data, files = {"image_name": "a"}, {"context": ("c", context({"Dockerfile": FROM}))}
    id = await send(place, FROM + "RUN sleep 60")
    assert (await place.client.post("/builds", data=data, files=files)).status_code == 429
    other = await place.new_client(f"{place.url}/together", OTHER_KEY)
    monkeypatch.setattr(builds, "MOST_RUNNING", 1)
    assert (await other.post("/builds", data=data, files=files)).status_code == 429
    await place.client.delete(f"/builds/{id}")
    assert (await other.post("/builds", data=data, files=files)).status_code == 202


async def test_the_oldest_builds_are_forgotten_first(place, monkeypatch) -> None:
    """Of a key's builds that have ended the newest are kept; an image that nobody wanted goes with its build."""
    monkeypatch.setattr(builds, "KEPT_OF_ONE", 2)
    ids = []
    for _ in range(4):
        ids.append(await send(place, FROM))
        await log(place, ids[-1])
    assert [(await place.client.get(f"/builds/{id}")).status_code for id in ids] == [404, 404, 200, 200]
    async with asyncio.timeout(5):
        while len(place.engine.snapshots()) != 2:
            await asyncio.sleep(0.02)


async def test_builds_that_run_are_not_forgotten(place, monkeypatch) -> None:
    """Where everything that is kept is in use, one more is 429."""
    monkeypatch.setattr(builds, "KEPT_OF_ONE", 1)
    await send(place, FROM + "RUN sleep 60")
    data, files = {"image_name": "a"}, {"context": ("c", context({"Dockerfile": FROM}))}
    assert (await place.client.post("/builds", data=data, files=files)).status_code == 429


async def test_the_time_of_a_build_is_bounded(place, monkeypatch) -> None:
    """A build whose time is over ends, and says so."""
    monkeypatch.setattr(builds, "BUILD_SECONDS", 1.0)
    assert "the sandbox of the build ended" in await failure(place, FROM + "RUN sleep 60")


async def test_a_full_disk_is_a_failure_of_the_build(place) -> None:
    """A context that unpacks to more than the sandbox may hold ends the build, not the server."""
    told = await failure(place, FROM, {"big": "0" * 100_000_000})
    assert "space" in told.lower() or "memory" in told.lower()


async def test_a_client_that_leaves_during_the_upload_leaves_nothing(place) -> None:
    """Half a context is no build."""

    async def half():
        yield b'--b\r\ncontent-disposition: form-data; name="context"; filename="c"\r\n\r\n' + b"x" * 100_000
        await asyncio.sleep(60)

    headers = {"content-type": "multipart/form-data; boundary=b"}
    sending = asyncio.create_task(place.client.post("/builds", content=half(), headers=headers))
    async with asyncio.timeout(10):
        while not place.engine.list():
            await asyncio.sleep(0.02)
    sending.cancel()
    async with asyncio.timeout(10):
        while place.engine.list():
            await asyncio.sleep(0.02)
    answer = await place.client.post("/builds", data={"image_name": "a"})
    assert answer.status_code == 400


async def test_pages_in_a_browser_cannot_build() -> None:
    """Any page can send a form without asking: where no key is asked for, a form with an origin is refused."""
    async with served(api_key=(), anonymous=True) as place:
        client = await place.new_client(f"{place.url}/together", None)
        form: dict[str, Any] = {
            "data": {"image_name": "a"},
            "files": {"context": ("c", context({"Dockerfile": FROM}))},
        }
        answer = await client.post("/builds", **form, headers={"Origin": place.url})
        assert (answer.status_code, place.engine.list()) == (403, [])
        assert (await client.post("/builds", **form)).status_code == 202


async def test_an_image_may_be_another_template() -> None:
    """The context goes to a sandbox of the template that the image stands for, and the first one ends."""
    other = Template("other", preload=(), limits=Limits(disk="64M", memory="300M"))
    templates = tuple(Named(template, (), has_limits=True) for template in (BARE, other))
    async with served(templates=templates, images=(("mine/*", "other"),)) as place:
        image, lines = await build(place, "FROM mine/app\nCOPY x /app/", {"x": "1"})
        assert "note: mine/app is the template 'other' of this server" in lines
        assert [found.template.name for found in place.engine.snapshots()] == ["other"]
        assert place.engine.list() == []
        assert await run(place, (await snapshot(place, image))["id"], "cat /app/x") == "1"


async def test_a_build_is_cancelled_at_any_moment(place) -> None:
    """However far it is: nothing of it is left, and what follows works."""
    for number in range(12):
        id = await send(place, FROM + "RUN true\nCOPY Dockerfile x\nRUN true")
        await asyncio.sleep(number * 0.02)
        assert (await place.client.delete(f"/builds/{id}")).status_code == 204
        assert place.engine.list() == place.engine.snapshots() == []
    await build(place, FROM)


async def test_builds_end_with_the_server(place) -> None:
    """What is being built when a server ends is ended with it, and images that nobody wanted are gone."""
    await build(place, FROM)
    running = await send(place, FROM + "RUN sleep 60")
    reading = asyncio.create_task(log(place, running))
    await asyncio.sleep(0.2)
    together = next(found for found in place.app.parts.dialects if found.name == "together")
    await together.aclose()
    assert json.loads((await reading)[-1]) == {"error": "the build was cancelled"}
    assert place.engine.list() == place.engine.snapshots() == []


async def test_sandboxes_of_an_earlier_servers_builds_are_ended(place) -> None:
    """A server that finds the sandbox of a build whose server is gone ends it, and no other one."""
    spec = SandboxSpec(template=BARE, limits=BARE.limits)
    stray = await place.engine.create(replace(spec, notes={builds.NOTES: True}))
    kept = await place.engine.create(spec)
    together = next(found for found in place.app.parts.dialects if found.name == "together")
    await together.start()
    assert (stray.state, kept.state) == ("ended", "running")


async def test_sandboxes_of_builds_are_no_sandboxes_of_the_api(place) -> None:
    """A build's sandbox is not listed: nobody can use it while it is built in."""
    await send(place, FROM + "RUN sleep 60")
    assert len(place.engine.list()) == 1
    assert (await place.client.get("/v1/sandboxes?statuses[]=running")).json()["data"] == []
