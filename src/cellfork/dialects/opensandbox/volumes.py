"""Volumes: directories that the server's owner allows, and named ones that the server keeps, each tenant its own.

A named volume is a directory.  One that was made for a sandbox that asked for that goes with it, where no other one uses it;
a mark beside it says whose it is, so that the next server knows as well.
"""

import asyncio
import hashlib
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cellfork.dialects.opensandbox import schema
from cellfork.dialects.opensandbox.errors import Refused
from cellfork.engine.background import Background
from cellfork.engine.engine import Engine
from cellfork.engine.sandbox import Sandbox
from cellfork.guest.maker import USER_ID
from cellfork.model.specs import Volume

DUPLICATE: Final = "VOLUME::DUPLICATE_NAME"
BACKEND: Final = "VOLUME::INVALID_BACKEND"
UNSUPPORTED: Final = "VOLUME::UNSUPPORTED_BACKEND"
HOST_PATH: Final = "VOLUME::INVALID_HOST_PATH"
NOT_ALLOWED: Final = "VOLUME::HOST_PATH_NOT_ALLOWED"
SUB_PATH: Final = "VOLUME::INVALID_SUB_PATH"
NO_CLAIM: Final = "VOLUME::PVC_NOT_FOUND"
_PLAIN = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


class Volumes:
    """The volumes of a server: ``allowed`` directories of the host, named ones below ``directory`` (``None``: there are none)."""

    def __init__(self, engine: Engine, allowed: Sequence[str], directory: str | None) -> None:
        self._engine = engine
        self._allowed = [path.rstrip("/") or "/" for path in allowed]
        self._directory = None if directory is None else Path(directory)
        self._background = Background()
        self._closed = False

    async def find(self, wanted: Sequence[schema.Volume], tenant: str) -> tuple[list[Volume], list[str]]:
        """Return what to mount, and the named volumes that were made and are to go with the sandbox.

        Raises :class:`Refused`.
        """
        names = [volume.name for volume in wanted]
        if len({*names}) < len(names):
            raise Refused(400, DUPLICATE, "each volume has a name of its own")
        found, made = [], []
        for volume in wanted:
            below = _below(volume.sub_path)
            if volume.ossfs is not None:
                raise Refused(400, UNSUPPORTED, "ossfs is not available; there are host and pvc")
            if (volume.host is None) == (volume.pvc is None):
                raise Refused(400, BACKEND, f"volume {volume.name!r} needs exactly one backend: host or pvc")
            if volume.host is not None:
                root, way = self._host(volume.host.path)
            elif volume.pvc is not None:
                is_new = await asyncio.to_thread(self._claim, volume.pvc, tenant)
                if is_new and volume.pvc.delete_on_sandbox_termination:
                    made.append(volume.pvc.claim_name)
                root, way = str(self._home(tenant)), volume.pvc.claim_name
            way = "/".join(filter(None, (way, below)))
            found.append(Volume(root, volume.mount_path.rstrip("/") or "/", way, volume.read_only))
        return found, made

    async def own(self, sandbox: Sandbox, names: Sequence[str]) -> None:
        """Let named volumes go with a sandbox."""
        for name in names:
            await asyncio.to_thread(self._mark(sandbox.spec.tenant, name).write_text, sandbox.id)
        self.watch(sandbox, names)

    def watch(self, sandbox: Sandbox, names: Sequence[str]) -> None:
        """Delete named volumes when a sandbox ends."""
        if names:
            tenant = sandbox.spec.tenant
            sandbox.on_end(lambda: self._ended(sandbox, tenant, names))

    async def discard(self, tenant: str, names: Sequence[str]) -> None:
        """Delete named volumes that were made for a sandbox which could not be created."""
        for name in names:
            await asyncio.to_thread(self._remove, self._home(tenant) / name)

    async def start(self) -> None:
        """Delete what belongs to sandboxes that have ended without this server."""
        if self._directory is not None:
            living = {sandbox.id for sandbox in self._engine.list()}
            await asyncio.to_thread(self._sweep, living)

    async def aclose(self) -> None:
        """Delete nothing more, for sandboxes may go on without this server; wait until what is being deleted is gone."""
        self._closed = True
        await self._background.join()

    def _host(self, path: str) -> tuple[str, str]:
        if not path.startswith("/") or os.path.normpath(path) != path or path.startswith("//"):
            raise Refused(400, HOST_PATH, f"{path[:200]!r} is no absolute path in its shortest form")
        for allowed in sorted(self._allowed, key=len, reverse=True):
            if path == allowed or path.startswith(allowed.rstrip("/") + "/"):
                return allowed, path.removeprefix(allowed).strip("/")
        known = ", ".join(map(repr, self._allowed[:8])) or "none"
        raise Refused(
            400,
            NOT_ALLOWED,
            f"{path[:200]!r} is not below a directory that this server's setting `host_volumes` allows: {known}",
        )

    def _claim(self, claim: schema.Claim, tenant: str) -> bool:
        """See that a named volume is there; return whether it was made now."""
        if self._directory is None:
            raise Refused(
                400, UNSUPPORTED, "this server keeps no named volumes: it has no directory for them"
            )
        home = self._home(tenant)
        place = home / claim.claim_name
        if place.is_dir() and not place.is_symlink():
            return False
        if not claim.create_if_not_exists:
            raise Refused(400, NO_CLAIM, f"there is no volume {claim.claim_name[:80]!r}")
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        place.mkdir(mode=0o755, exist_ok=True)
        if os.geteuid() == 0:
            os.chown(place, USER_ID, USER_ID)
        return True

    def _home(self, tenant: str) -> Path:
        """Return the directory of a tenant's volumes; its name is the tenant's, where that can be the name of one."""
        name = tenant if _PLAIN.fullmatch(tenant) else "_" + hashlib.sha256(tenant.encode()).hexdigest()[:32]
        return (self._directory or Path("/nonexistent")) / ("_default" if not tenant else name)

    def _mark(self, tenant: str, name: str) -> Path:
        return self._home(tenant) / f".{name}.sandbox"

    def _ended(self, sandbox: Sandbox, tenant: str, names: Sequence[str]) -> None:
        if not self._closed:
            self._background.spawn(self._delete(sandbox, tenant, names))

    async def _delete(self, sandbox: Sandbox, tenant: str, names: Sequence[str]) -> None:
        await sandbox.kill()  # until nothing in it can write any more
        for name in names:
            place = self._home(tenant) / name
            if not self._is_used(place):
                await asyncio.to_thread(self._remove, place)

    def _is_used(self, place: Path) -> bool:
        root, name = str(place.parent), place.name
        return any(
            volume.root == root and volume.below.partition("/")[0] == name
            for sandbox in self._engine.list()
            for volume in sandbox.spec.volumes
        )

    def _remove(self, place: Path) -> None:
        shutil.rmtree(place, ignore_errors=True)  # follows no link, whoever changes it meanwhile
        (place.parent / f".{place.name}.sandbox").unlink(missing_ok=True)

    def _sweep(self, living: set[str]) -> None:
        for mark in self._directory.glob("*/.*.sandbox") if self._directory is not None else ():
            if mark.read_text().strip() not in living:
                self._remove(mark.parent / mark.name[1 : -len(".sandbox")])


def _below(path: str | None) -> str:
    if not path:
        return ""
    parts = path.rstrip("/").split("/")
    if any(part in {"", ".", ".."} or "\0" in part for part in parts):
        raise Refused(400, SUB_PATH, f"subPath {path[:200]!r} is not a relative path in its shortest form")
    return "/".join(parts)
