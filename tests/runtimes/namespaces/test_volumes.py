"""Volumes: what of the host a sandbox sees, as whom, where it may be, and that nobody's links lead elsewhere."""

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellfork.engine.engine import Engine
from cellfork.engine.sandbox import Sandbox
from cellfork.guest import linux
from cellfork.guest.maker import USER_ID
from cellfork.model.errors import InvalidRequest, LimitExceeded, PostureMismatch, Unsupported
from cellfork.model.limits import Limits
from cellfork.model.specs import ExecSpec, SandboxSpec, Template, Volume
from cellfork.runtimes.namespaces import volumes
from cellfork.runtimes.namespaces.runtime import NamespacesRuntime
from cellfork.runtimes.none import NoneRuntime

BARE = Template("bare", preload=(), limits=Limits(memory="256M", disk="32M"))
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can map the ids of a volume")
POINTS = ("/home/user/data", "/home/user/a/b/c", "/root/data", "/tmp/data", "/var/tmp/data", "/workspace", "/mnt/data",
          "/mnt/host-data", "/srv", "/opt/mine", "/top/level")  # fmt: skip


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine({"namespaces": NamespacesRuntime(prefork=1)})
    yield engine
    await engine.aclose()


@pytest.fixture
def host(tmp_path) -> Path:
    """A directory that everybody may write to, with a file in it."""
    place = tmp_path / "host"
    place.mkdir()
    place.chmod(0o777)
    (place / "marker").write_text("seen")
    return place


async def create(engine: Engine, *wanted: Volume, **fields) -> Sandbox:
    return await engine.create(SandboxSpec(template=BARE, limits=BARE.limits, volumes=wanted, **fields))


async def sh(sandbox: Sandbox, command: str) -> str:
    """Return all that a command has written."""
    ran = await sandbox.commands.run(f"({command}) 2>&1; true", ExecSpec(()), 20)
    return ran.stdout


@needs_root
@pytest.mark.parametrize("point", POINTS)
async def test_a_directory_of_the_host(engine, host, point) -> None:
    """It is there for commands, files and code; what is written belongs to one user of the host, whichever sandbox it was."""
    for name in ("one", "two"):
        sandbox = await create(engine, Volume(str(host), point))
        assert await sh(sandbox, f"cat {point}/marker; echo new > {point}/{name}") == "seen"
        assert await sandbox.files.read(f"{point}/{name}") == b"new\n"
        await sandbox.kill()
        assert (host / name).stat().st_uid == (host / name).stat().st_gid == USER_ID
    assert {entry.name for entry in host.iterdir()} == {"marker", "one", "two"}


@needs_root
async def test_the_same_files_from_one_sandbox_to_the_next(engine, host) -> None:
    """What one has written another one changes, also where only its owner may."""
    one = await create(engine, Volume(str(host), "/workspace"))
    await sh(one, "umask 077; mkdir /workspace/mine; echo 1 > /workspace/mine/file")
    two = await create(engine, Volume(str(host), "/home/user/there"))
    assert await sh(two, "echo 2 >> /home/user/there/mine/file; cat /home/user/there/mine/file") == "1\n2\n"
    assert await sh(one, "cat /workspace/mine/file") == "1\n2\n"


@needs_root
@pytest.mark.parametrize("point", ["/home/user/data", "/mnt/host-data"])
async def test_what_is_read_only(engine, host, point) -> None:
    """Nothing in it can be changed, made or removed, and the mount cannot be made writable."""
    sandbox = await create(engine, Volume(str(host), point, read_only=True))
    for command in (f"echo x > {point}/new", f"echo x > {point}/marker", f"rm -f {point}/marker", f"mkdir {point}/d",
                    f"chmod 777 {point}/marker", f"mount -o remount,rw {point}"):  # fmt: skip
        assert await sh(sandbox, f"{command} && echo done") != "done\n", command
    assert await sh(sandbox, f"cat {point}/marker") == "seen"
    assert [entry.name for entry in host.iterdir()] == ["marker"]


@needs_root
async def test_a_volume_gives_no_rights(engine, host) -> None:
    """Files of others keep their modes; a program with a set id gets none; devices are none; the mount says so."""
    secret = host / "secret"
    secret.write_text("x")
    secret.chmod(0o600)
    program = host / "id"
    program.write_bytes(Path("/usr/bin/id").read_bytes())
    program.chmod(0o4755)
    os.mknod(host / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    sandbox = await create(engine, Volume(str(host), "/home/user/v"))
    assert "Permission denied" in await sh(sandbox, "cat /home/user/v/secret")
    assert (await sh(sandbox, "/home/user/v/id -u")).strip() == str(USER_ID)
    assert "denied" in (await sh(sandbox, "cat /home/user/v/null")).lower()
    assert "nosuid,nodev" in await sh(sandbox, "grep /home/user/v /proc/self/mountinfo")
    assert "not permitted" in await sh(sandbox, "chown 0 /home/user/v/secret")


@needs_root
async def test_what_is_missing_is_made(engine, host) -> None:
    """The way below the root is made for the sandboxes' user; nothing is made to be read."""
    sandbox = await create(engine, Volume(str(host), "/workspace", "a/b"))
    await sh(sandbox, "echo deep > /workspace/file")
    assert (host / "a/b/file").read_text() == "deep\n"
    assert (host / "a/b").stat().st_uid == USER_ID
    assert "a" not in await sh(sandbox, "ls /workspace")
    with pytest.raises(InvalidRequest):
        await create(engine, Volume(str(host), "/workspace", "no/where", read_only=True))
    assert not (host / "no").exists()


@needs_root
@pytest.mark.parametrize(
    "below", ["link", "link/deeper", "a/link", "file", "..", "a/../..", "nul\0", "marker/x"]
)
async def test_no_link_is_followed_on_the_way(engine, host, tmp_path, below) -> None:
    """Whoever can write to a volume can make links in it: they lead nobody out of it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (host / "a").mkdir()
    (host / "link").symlink_to(outside)
    (host / "a/link").symlink_to("../../outside")
    (host / "file").write_text("")
    with pytest.raises(InvalidRequest):
        await create(engine, Volume(str(host), "/workspace", below))
    assert engine.list() == []
    assert [*outside.iterdir()] == []


@needs_root
async def test_a_link_inside_means_what_it_says_inside(engine, host) -> None:
    """An absolute link in a volume leads to the sandbox's own files, a relative one not beyond its root."""
    (host / "absolute").symlink_to("/etc/hostname")
    (host / "relative").symlink_to("../../../../../../etc/hostname")
    sandbox = await create(engine, Volume(str(host), "/home/user/v"))
    assert await sh(sandbox, "cat /home/user/v/absolute /home/user/v/relative") == "sandbox\nsandbox\n"


@pytest.mark.parametrize(
    "path",
    ["", "data", "/", "//", "/a//b", "/a/", "/a/..", "/a/./b", "/a\nb", "/" + "x" * 1024, "/home", "/home/user", "/tmp", "/root",
     "/usr", "/usr/local/x", "/etc/x", "/proc/1", "/dev/shm", "/run/x", "/run/sandbox", "/sys", "/bin", "/opt", "/opt/venv/x", "/mnt",
     "/workspace/below", "/mnt/data/below", "/home/other", "/var", "/var/run/x", "/lib64/x"],
)  # fmt: skip
@needs_root
async def test_where_no_volume_may_be(engine, host, path) -> None:
    """What is the template's, the kernel's, or the sandbox's as a whole cannot be covered."""
    with pytest.raises(InvalidRequest):
        await create(engine, Volume(str(host), path))
    assert engine.list() == []


@needs_root
async def test_volumes_are_not_mounted_on_one_another(engine, host) -> None:
    """The same place, and one below another, are refused, also where a link makes them so; there are at most sixteen."""
    for one, other in (
        ("/workspace", "/workspace"),
        ("/home/user/a", "/home/user/a/b"),
        ("/x/y", "/x"),
        ("/tmp/a", "/var/tmp/a"),
    ):
        with pytest.raises(InvalidRequest):
            await create(engine, Volume(str(host), one), Volume(str(host), other))
    many = [Volume(str(host), f"/home/user/v{number}") for number in range(16)]
    sandbox = await create(engine, *many)
    assert len(await sh(sandbox, "cat /home/user/v*/marker")) == 16 * len("seen")
    with pytest.raises(InvalidRequest):
        await create(engine, *many, Volume(str(host), "/home/user/v16"))


@needs_root
async def test_a_sandbox_without_volumes_sees_nothing_of_them(engine, host) -> None:
    """Neither a sandbox that began before, nor one that begins later, of the same tenant and template."""
    before = await create(engine)
    with_volume = await create(engine, Volume(str(host), "/home/user/v"), Volume(str(host), "/deep/down"))
    after = await create(engine)
    assert "seen" in await sh(with_volume, "cat /home/user/v/marker")
    for sandbox in (before, after):
        assert await sh(sandbox, "ls /home/user") == ""
        assert "No such file" in await sh(sandbox, "ls /deep")
        assert str(host) not in await sh(sandbox, "cat /proc/self/mountinfo")


@needs_root
async def test_nothing_is_left(engine, host) -> None:
    """The end of a sandbox is the end of its mounts; no descriptor of them stays here or in init."""
    open_before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        sandbox = await create(engine, Volume(str(host), "/workspace"))
        pid = sandbox.guest.info["pid"]
        links = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
        assert not any(str(host) in link for link in links)
        await sandbox.kill()
    assert len(os.listdir("/proc/self/fd")) <= open_before + 8  # the zygote's own
    assert str(host) not in Path("/proc/self/mountinfo").read_text()
    host.rename(host.with_name("moved"))


@needs_root
@pytest.mark.parametrize("lost", ["read_only", "flags", "mount"])
async def test_the_host_sees_what_was_mounted(engine, host, monkeypatch, lost) -> None:
    """A volume that is not mounted as it was asked for is found before any code runs: writable, with devices, or missing."""
    if lost == "mount":
        real_mounts = volumes.mounts_of

        async def elsewhere(wanted, pid):
            (host / "other").mkdir(exist_ok=True)
            return await real_mounts([Volume(str(host / "other"), each.path) for each in wanted], pid)

        monkeypatch.setattr(volumes, "mounts_of", elsewhere)
    else:
        changed = {"read_only": "_MOUNT_ATTR_RDONLY", "flags": "_MOUNT_ATTR_NODEV"}[lost]
        monkeypatch.setattr(linux, changed, 0)
    with pytest.raises(PostureMismatch) as found:
        await create(engine, Volume(str(host), "/home/user/v", read_only=True))
    assert "/home/user/v" in str(found.value)
    assert engine.list() == []


@needs_root
async def test_snapshots_leave_volumes_out(engine, host) -> None:
    """Neither what is in them is kept, nor does a snapshot that is unpacked change what is in them."""
    (host / "big").write_bytes(b"x" * 1_000_000)
    source = await create(engine, Volume(str(host), "/workspace"), Volume(str(host), "/home/user/v"))
    await sh(source, "echo own > /home/user/own")
    snapshot = await engine.snapshot(source.id)
    assert snapshot.size < 500_000
    plain = await create(engine, snapshot=snapshot.id)
    listed = await sh(plain, "cat /home/user/own; ls /home/user/v/ /workspace/")
    assert listed == "own\n/home/user/v/:\n\n/workspace/:\n"
    await sh(plain, "echo mine > /workspace/marker; echo mine > /home/user/v/marker")
    other = await engine.snapshot(plain.id)
    with pytest.raises(InvalidRequest, match="snapshot"):
        await create(engine, Volume(str(host), "/workspace"), snapshot=other.id)
    over = await create(engine, Volume(str(host), "/home/user/v"), snapshot=other.id)
    assert await sh(over, "cat /workspace/marker /home/user/v/marker /home/user/own") == "mine\nseenown\n"
    assert (host / "marker").read_text() == "seen"
    assert (host / "big").stat().st_size == 1_000_000


@needs_root
async def test_volumes_come_back_after_a_pause(engine, host) -> None:
    """With and without its memory a sandbox has its volumes again when it goes on."""
    sandbox = await create(engine, Volume(str(host), "/workspace"))
    for memory in (True, False):
        await sandbox.pause(memory)
        (host / "meanwhile").write_text(str(memory))
        await sandbox.resume()
        assert await sh(sandbox, "cat /workspace/meanwhile") == str(memory)


@needs_root
async def test_many_at_once(engine, host) -> None:
    """Sandboxes with the same volume start side by side, each with its own ids."""
    started = await asyncio.gather(*(create(engine, Volume(str(host), "/workspace")) for _ in range(8)))
    await asyncio.gather(*(sh(sandbox, f"echo > /workspace/{sandbox.id}") for sandbox in started))
    assert {entry.name for entry in host.iterdir()} == {"marker", *(sandbox.id for sandbox in started)}


@needs_root
async def test_a_tenant_has_few_interpreters_for_paths(engine, host) -> None:
    """Each combination of places in the root is an interpreter; more than a few at once are refused, for that tenant alone.

    One that nobody uses makes room; places on the sandbox's own disk need none.
    """
    kept = [await create(engine, Volume(str(host), f"/place{n}")) for n in range(volumes.MOST_PROVIDED)]
    with pytest.raises(LimitExceeded, match="/home/user"):
        await create(engine, Volume(str(host), "/another"))
    for point, tenant in (("/place0", ""), ("/home/user/v", ""), ("/another", "somebody else")):
        await create(engine, Volume(str(host), point), tenant=tenant)
    await kept[1].kill()
    await create(engine, Volume(str(host), "/another"))


async def test_without_isolation_there_are_none(host) -> None:
    """A runtime that cannot mount refuses; it does not go on without."""
    engine = Engine({"none": NoneRuntime()})
    try:
        with pytest.raises(Unsupported):
            await create(engine, Volume(str(host), "/workspace"), isolation="none")
    finally:
        await engine.aclose()


def test_an_ordinary_user_is_refused(host, monkeypatch) -> None:
    """Where the host is not root, no volume can be mounted, and the refusal says why."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Unsupported, match="root"):
        volumes.check([Volume(str(host), "/workspace")])
    volumes.check([])


@needs_root
def test_a_directory_that_somebody_put_there_is_not_given_away(host) -> None:
    """Only what is new and empty changes its owner."""
    (host / "full").mkdir()
    (host / "full/file").write_text("")
    (host / "empty").mkdir()
    for name in ("full", "empty"):
        with volumes.opened(Volume(str(host), "/workspace", name)):
            pass
        assert (host / name).stat().st_uid == 0
    fd = os.open(host / "full", os.O_RDONLY | os.O_DIRECTORY)
    os.close(volumes._given(fd))
    assert (host / "full").stat().st_uid == 0
