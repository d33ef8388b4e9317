"""Volumes as clients ask for them: what the server's owner allows, and named ones that come and go."""

import asyncio
import os
from pathlib import Path

import pytest

from cellfork.dialects.opensandbox.volumes import Volumes
from cellfork.engine.engine import Engine
from cellfork.guest.maker import USER_ID
from tests.dialects.opensandbox.conftest import Place
from tests.server.conftest import OTHER_KEY

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can map the ids of a volume")


def host(path: Path | str, **more) -> dict:
    return {"name": "v", "mountPath": "/workspace", "host": {"path": str(path)}, **more}


def named(claim: str, **more) -> dict:
    pvc = {
        "claimName": claim,
        **{key: more.pop(key) for key in [*more] if key.endswith(("Exists", "Termination"))},
    }
    return {"name": "v", "mountPath": "/workspace", "pvc": pvc, **more}


async def gone(path: Path) -> None:
    async with asyncio.timeout(10):
        while path.exists():
            await asyncio.sleep(0.01)


async def test_a_directory_of_the_host(place) -> None:
    """An allowed directory, and what is below it, is mounted; ``subPath`` leads further down; read-only is read-only."""
    (place.host / "a/b").mkdir(parents=True)
    (place.host / "a/b/file").write_text("seen")
    for volume in (
        host(place.host / "a/b"),
        host(place.host, subPath="a/b"),
        host(place.host / "a", subPath="b/", readOnly=True),
    ):
        id = (await place.create(volumes=[volume]))["id"]
        assert await place.shell(id, "cat /workspace/file") == "seen"
    assert "Read-only" in await place.shell(id, "touch /workspace/new")


@pytest.mark.parametrize(
    ("volume", "code"),
    [
        (lambda place: host("/etc"), "VOLUME::HOST_PATH_NOT_ALLOWED"),
        (lambda place: host(f"{place.host}-other"), "VOLUME::HOST_PATH_NOT_ALLOWED"),
        (lambda place: host(place.host.parent), "VOLUME::HOST_PATH_NOT_ALLOWED"),
        (lambda place: host(f"{place.host}/../x"), "VOLUME::INVALID_HOST_PATH"),
        (lambda place: host("relative"), "VOLUME::INVALID_HOST_PATH"),
        (lambda place: host(f"/{place.host}"), "VOLUME::INVALID_HOST_PATH"),
        (lambda place: host("C:\\x"), "VOLUME::INVALID_HOST_PATH"),
        (lambda place: host(place.host, subPath="../x"), "VOLUME::INVALID_SUB_PATH"),
        (lambda place: host(place.host, subPath="/etc"), "VOLUME::INVALID_SUB_PATH"),
        (lambda place: host(place.host, subPath="a//b"), "VOLUME::INVALID_SUB_PATH"),
        (lambda place: host(place.host, subPath="a\0b"), "VOLUME::INVALID_SUB_PATH"),
        (lambda place: host(place.host / "link"), "SANDBOX::INVALID_PARAMETER"),
        (lambda place: host(place.host, subPath="link"), "SANDBOX::INVALID_PARAMETER"),
        (lambda place: host(place.host, mountPath="/usr"), "SANDBOX::INVALID_PARAMETER"),
        (lambda place: host(place.host, mountPath="x"), "SANDBOX::INVALID_PARAMETER"),
        (lambda place: host(place.host, name="No Name"), "SANDBOX::INVALID_PARAMETER"),
        (lambda place: {"name": "v", "mountPath": "/workspace"}, "VOLUME::INVALID_BACKEND"),
        (lambda place: host(place.host, pvc={"claimName": "x"}), "VOLUME::INVALID_BACKEND"),
        (
            lambda place: {"name": "v", "mountPath": "/x", "ossfs": {"bucket": "b"}},
            "VOLUME::UNSUPPORTED_BACKEND",
        ),
        (lambda place: named("no", createIfNotExists=False), "VOLUME::PVC_NOT_FOUND"),
        (lambda place: named("../x"), "SANDBOX::INVALID_PARAMETER"),
        (lambda place: named("Upper"), "SANDBOX::INVALID_PARAMETER"),
        (lambda place: named("a\n"), "SANDBOX::INVALID_PARAMETER"),
    ],
)
async def test_what_is_not_allowed_is_refused(place, volume, code) -> None:
    """It is 400 with upstream's code; nothing runs and nothing was made."""
    (place.host / "link").symlink_to("/etc")
    answer = await place.ask(volumes=[volume(place)])
    assert (answer.status_code, answer.json()["code"]) == (400, code), answer.text
    assert place.engine.list() == []
    assert not place.volumes.exists()


async def test_two_volumes_with_one_name(place) -> None:
    """A name is one volume's; so is a place."""
    for second, code in (
        (host(place.host, mountPath="/data"), "VOLUME::DUPLICATE_NAME"),
        (host(place.host, name="w"), "SANDBOX::INVALID_PARAMETER"),
    ):
        answer = await place.ask(volumes=[host(place.host), second])
        assert (answer.status_code, answer.json()["code"]) == (400, code)


async def test_named_volumes_stay(place) -> None:
    """One is made where it is not there, belongs to the sandboxes' user, and keeps what is in it; each tenant has its own."""
    one = (await place.create(volumes=[named("kept")]))["id"]
    await place.shell(one, "echo 1 > /workspace/file")
    await place.client.delete(f"/v1/sandboxes/{one}")
    (home,) = place.volumes.iterdir()
    assert ((home / "kept").stat().st_uid, home.stat().st_mode & 0o777) == (USER_ID, 0o700)
    two = (await place.create(volumes=[named("kept", createIfNotExists=False)]))["id"]
    assert await place.shell(two, "cat /workspace/file") == "1"
    other = await place.new_client(OTHER_KEY)
    theirs = Place(place.url, place.engine, place.log, other, place.stack, place.host, place.volumes)
    answer = await theirs.ask(volumes=[named("kept", createIfNotExists=False)])
    assert answer.json()["code"] == "VOLUME::PVC_NOT_FOUND"
    third = (await theirs.create(volumes=[named("kept")]))["id"]
    assert "No such file" in await theirs.shell(third, "cat /workspace/file")


async def test_a_volume_that_goes_with_its_sandbox(place) -> None:
    """It goes when its sandbox ends; one that was there before stays, and so does one that another sandbox uses."""
    first = (await place.create(volumes=[named("mine", deleteOnSandboxTermination=True)]))["id"]
    (place_of,) = place.volumes.glob("*/mine")
    await place.shell(
        first, "mkdir -p /workspace/a/b && echo x > /workspace/a/b/c && ln -s /etc /workspace/link"
    )
    second = (await place.create(volumes=[named("mine", deleteOnSandboxTermination=True)]))["id"]
    await place.client.delete(f"/v1/sandboxes/{second}")
    assert (place_of / "a/b/c").exists()
    await place.client.delete(f"/v1/sandboxes/{first}")
    await gone(place_of)
    assert [*place_of.parent.iterdir()] == []
    third = (await place.create(volumes=[named("shared", deleteOnSandboxTermination=True)]))["id"]
    fourth = (await place.create(volumes=[named("shared")]))["id"]
    await place.client.delete(f"/v1/sandboxes/{third}")
    assert await place.shell(fourth, "echo still > /workspace/x; cat /workspace/x") == "still"


async def test_what_could_not_be_created_leaves_no_volume(place) -> None:
    """Where the sandbox is refused, what was made for it is gone; for its entrypoint as well."""
    for more in (
        {"entrypoint": ["/no/such"]},
        {"volumes": [named("made", deleteOnSandboxTermination=True, mountPath="/usr")]},
    ):
        answer = await place.ask(**{"volumes": [named("made", deleteOnSandboxTermination=True)], **more})
        assert answer.status_code == 400
        for path in place.volumes.glob("*/made"):
            await gone(path)


async def test_the_next_server_deletes_what_nobody_could(tmp_path) -> None:
    """Volumes of sandboxes that ended while no server ran go when one starts; marks that name a living one stay."""
    home = tmp_path / "_default"
    for name, mark in (("gone", "i0000dead"), ("kept", None)):
        (home / name).mkdir(parents=True)
        if mark is not None:
            (home / f".{name}.sandbox").write_text(mark)
    engine = Engine({})
    await Volumes(engine, (), str(tmp_path)).start()
    assert [path.name for path in home.iterdir()] == ["kept"]
    await engine.aclose()


async def test_a_server_without_volumes_says_so(tmp_path) -> None:
    """Where the owner named no directory, nothing is mounted from anywhere."""
    from cellfork.dialects.opensandbox import schema
    from cellfork.dialects.opensandbox.errors import Refused

    volumes = Volumes(Engine({}), (), None)
    for wanted in (
        schema.Volume("v", "/workspace", host=schema.Host("/")),
        schema.Volume("v", "/workspace", pvc=schema.Claim("x")),
    ):
        with pytest.raises(Refused, match=r"setting|directory"):
            await volumes.find([wanted], "")
