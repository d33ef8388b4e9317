"""Volumes: directories of the host, mounted in a sandbox while it starts, before it takes its locks.

The host walks to each directory without following a link, makes a mount of it that is in no tree yet, and hands that over
with the request; the sandbox, which cannot see the host's files, puts it in its place.  Ids are mapped by the sandbox's
own user namespace: on the host's disk everything that a sandbox makes belongs to :data:`~cellfork.guest.maker.USER_ID`,
whichever sandbox it was.

A place in the root of a template has to be there when the zygote starts, for its root cannot be changed any more: sandboxes
with such volumes have a zygote of their own.

Sources: open_tree(2), move_mount(2), mount_setattr(2).
"""

import asyncio
import contextlib
import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

from cellfork.guest import linux
from cellfork.guest.maker import USER_ID
from cellfork.guest.sandbox import MAX_VOLUMES
from cellfork.model.errors import InvalidRequest, IsolationUnavailable, Missing, StartupFailed, Unsupported
from cellfork.model.specs import HOME, ROOT_HOME, Template, Volume
from cellfork.runtimes.namespaces import layout

OWN_PLACES = (HOME, ROOT_HOME, "/tmp")
"""Below them a volume may be anywhere: they are the sandbox's own disk."""
RESERVED = (
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/home",
    "/lib",
    "/proc",
    "/run",
    "/sbin",
    "/sys",
    "/usr",
    "/var/run",
)
"""No volume is there: what is there is the template's, or the kernel's."""
MAX_PATH = 1024
MOST_PROVIDED = 4
"""Combinations of places in the root that a tenant may have at once: each is a zygote, with the memory that takes."""
POLL_SECONDS = 0.001
PATIENCE = 10.0
_READ = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WALK = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Provided(Template):
    """A template whose root has directories for volumes."""

    places: tuple[str, ...] = ()


def provided(template: Template, volumes: Iterable[Volume]) -> Template:
    """Return the template to start from: with a place in its root for each volume that is not on the sandbox's own disk."""
    places = tuple(sorted({point_of(each) for each in volumes if not _is_own(point_of(each))}))
    if not places:
        return template
    return Provided(**{item.name: getattr(template, item.name) for item in fields(Template)}, places=places)


def root_entries(template: Template, entries: Sequence[layout.Entry]) -> list[layout.Entry]:
    """Return the entries of a template's root, with the places of its volumes.  Raises :class:`InvalidRequest`."""
    places = template.places if isinstance(template, Provided) else ()
    for place in places:
        taken = next((entry[1] for entry in entries if entry[0] != "dir" and _touch(entry[1], place)), None)
        if taken is not None:
            raise InvalidRequest(f"a volume cannot be mounted at {place!r}: {taken!r} is the template's")
    return [*entries, *(["dir", place, 0o755] for place in places)]


def check(volumes: Sequence[Volume], *, with_files: bool = False) -> None:
    """Raise :class:`InvalidRequest` for volumes that cannot be mounted together, :class:`Unsupported` without root.

    ``with_files``: the sandbox is to start with those of a snapshot, which must not end up in a volume.
    """
    if not volumes:
        return
    if os.geteuid() != 0:
        raise Unsupported("volumes need a host that runs as root: only root may map their ids")
    if len(volumes) > MAX_VOLUMES:
        raise InvalidRequest(f"a sandbox has at most {MAX_VOLUMES} volumes")
    points = [point_of(volume) for volume in volumes]
    for number, point in enumerate(points):
        other = next((one for one in points[:number] if _touch(one, point)), None)
        if other is not None:
            raise InvalidRequest(f"volumes cannot be mounted on one another: {other!r} and {point!r}")
        if with_files and point.startswith(f"{layout.DISK}/"):
            raise InvalidRequest(
                f"with a snapshot, a volume cannot be mounted at {volumes[number].path!r}: mount it below {HOME!r}"
            )


def point_of(volume: Volume) -> str:
    """Return where a volume is mounted, with the template's own links followed.  Raises :class:`InvalidRequest`."""
    path = volume.path
    if not path.startswith("/") or len(path) > MAX_PATH or not path.isprintable():
        raise InvalidRequest(f"a volume is mounted at an absolute path, not at {path[:80]!r}")
    if os.path.normpath(path) != path or path == "/" or path.startswith("//"):
        raise InvalidRequest(f"the path {path[:80]!r} of a volume is not in its shortest form, or the root")
    for link in layout.WORKPLACES:
        if path == link:
            return f"{layout.DISK}/{link.strip('/').replace('/', '-')}"
        if path.startswith(f"{link}/"):
            raise InvalidRequest(
                f"mount the volume at {link!r} itself, or somewhere else than at {path[:80]!r}"
            )
    if path.startswith("/var/tmp/"):
        path = path.removeprefix("/var")
    if not any(path.startswith(f"{place}/") for place in OWN_PLACES):
        reserved = next((one for one in (*RESERVED, *OWN_PLACES, layout.VENV) if _touch(one, path)), None)
        if reserved is not None:
            raise InvalidRequest(
                f"a volume cannot be mounted at {path[:80]!r}: {reserved!r} is the template's"
            )
    return path


def writable(volumes: Iterable[Volume]) -> list[str]:
    """Return the places that Landlock is to allow writing in."""
    return [point_of(volume) for volume in volumes if not volume.read_only]


async def mounts_of(volumes: Sequence[Volume], pid: int) -> list[int]:
    """Return a descriptor of a mount for each volume; ``pid`` is the sandbox's init, which waits for its request.

    Raises :class:`InvalidRequest` where a directory is not to be had, :class:`StartupFailed` where the sandbox ended,
    :class:`IsolationUnavailable` where the kernel or the file system cannot do it.
    """
    user_ns = await _user_namespace(pid)
    try:
        return await asyncio.to_thread(_open_all, volumes, user_ns)
    finally:
        os.close(user_ns)


async def _user_namespace(pid: int) -> int:
    """Return the user namespace that a fork holds and has not entered yet; it may be on its way there still."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while asyncio.get_running_loop().time() < deadline:
        held = _held_namespace(pid)
        if held is not None:
            return held
        await asyncio.sleep(POLL_SECONDS)
    raise StartupFailed("the sandbox has no user namespace")


def _held_namespace(pid: int) -> int | None:
    """Return a descriptor of the user namespace on which a process has one; ``None`` where it has none now."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except FileNotFoundError as error:
        raise StartupFailed("the sandbox ended while it was started") from error
    for name in names:
        path = f"/proc/{pid}/fd/{name}"
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if os.readlink(path).startswith("user:"):
                return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return None


def _open_all(volumes: Sequence[Volume], user_ns: int) -> list[int]:
    made: list[int] = []
    try:
        for volume in volumes:
            with opened(volume) as directory:
                made.append(_mount(directory, volume, user_ns))
    except BaseException:
        for fd in made:
            os.close(fd)
        raise
    return made


def _mount(directory: int, volume: Volume, user_ns: int) -> int:
    try:
        return linux.detached_mount(directory, user_ns, read_only=volume.read_only)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP}:
            raise StartupFailed(f"a volume could not be mounted: {error}") from error
        why = f"the kernel, or the file system of {volume.root!r}, cannot map the ids of its files ({error})"
        fix = "use Linux 5.12 or newer, and a directory on ext4, xfs, btrfs or (Linux 6.3) tmpfs"
        raise IsolationUnavailable(
            "this volume cannot be mounted", (Missing("idmapped mounts", why, fix),)
        ) from error


@contextlib.contextmanager
def opened(volume: Volume) -> Iterator[int]:
    """Give a descriptor of a volume's directory; what is missing below its root is made, for the sandboxes' user.

    Each step starts from the directory that the last one led to, so whoever moves or links things meanwhile leads it
    nowhere.  Raises :class:`InvalidRequest`.
    """
    try:
        here = os.open(volume.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidRequest(f"the directory of a volume cannot be opened: {error}") from error
    try:
        for name in filter(None, volume.below.split("/")):
            below = _step(here, name, volume)
            os.close(here)
            here = below
        yield here
    finally:
        os.close(here)


def _step(here: int, name: str, volume: Volume) -> int:
    if name in {".", ".."} or "\0" in name:
        raise InvalidRequest(f"{volume.below[:80]!r} is not a way down")
    try:
        return os.open(name, _WALK, dir_fd=here)
    except FileNotFoundError:
        if volume.read_only:
            raise InvalidRequest(f"there is no directory {volume.below[:200]!r} to be read") from None
    except OSError as error:
        raise InvalidRequest(f"{volume.below[:200]!r} is no directory, or leads through a link") from error
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=here)
        return _given(os.open(name, _READ, dir_fd=here))
    except OSError as error:
        raise InvalidRequest(
            f"the directory {volume.below[:200]!r} cannot be made: {error.strerror}"
        ) from error


def _given(directory: int) -> int:
    """Give a new directory to the sandboxes' user; not one that somebody has put in its place, with things in it."""
    try:
        if not os.listdir(directory) and os.fstat(directory).st_uid == os.geteuid():
            os.fchmod(directory, 0o755)
            os.fchown(directory, USER_ID, USER_ID)
    except BaseException:
        os.close(directory)
        raise
    return directory


def source_of(volume: Volume) -> str:
    """Return the path of a volume on the host."""
    return os.path.join(os.path.realpath(volume.root), volume.below).rstrip("/")


def _is_own(point: str) -> bool:
    return any(point.startswith(f"{place}/") for place in (*OWN_PLACES, layout.DISK))


def _touch(one: str, other: str) -> bool:
    """Tell whether two paths are the same, or one is below the other."""
    return one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/")
