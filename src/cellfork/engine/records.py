"""Records: what an engine must know after a restart, kept on disk while it happens.

A record is a JSON object with a kind (``sandbox``, ``snapshot``, …) and an id.  They are few and small, and are read
only at the start, so one table holds them all.

What was awaited survives the death of the process (``kill -9``), and so does everything that was put before it.  It does
not have to survive the loss of power (``synchronous=NORMAL``): no sandbox does.
"""

import asyncio
import contextlib
import json
import os
import queue
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cellfork.model.errors import Conflict, UnavailableError

Record = Mapping[str, Any]

SCHEMA = 1
"""Version of the table, in SQLite's ``user_version``."""
BUSY_SECONDS = 5.0
"""How long somebody else, such as a person with a shell, may hold the file."""
MOST_AT_ONCE = 256
"""Changes that share one transaction where many wait."""


class Records(Protocol):
    """Keeps records.  All methods belong to one event loop."""

    @property
    def keep(self) -> bool:
        """Whether anything is kept at all."""
        ...

    def put(self, kind: str, id: str, record: Record) -> Awaitable[None]:
        """Keep ``record`` as it is now, in place of an earlier one; whoever awaits knows that it is on disk.

        Changes are made in the order of the calls, awaited or not.  The awaitable raises :class:`UnavailableError`.
        """
        ...

    def delete(self, kind: str, id: str) -> Awaitable[None]:
        """Keep a record no longer, if there is one; otherwise as :meth:`put`."""
        ...

    def settled(self) -> Awaitable[None]:
        """Wait until every change so far is on disk, or could not be brought there."""
        ...

    async def load(self, kind: str) -> dict[str, dict[str, Any]]:
        """Return the records of a kind by id, in the order in which they were put first."""
        ...

    async def aclose(self) -> None:
        """Write what waits, and give everything back.  Idempotent."""
        ...


class Done:
    """An awaitable that is done."""

    def __await__(self) -> Generator[None, None, None]:
        """Return at once."""
        return
        yield


DONE = Done()


class NoRecords:
    """Keeps nothing: embedded sandboxes end with their program."""

    keep = False

    def put(self, kind: str, id: str, record: Record) -> Awaitable[None]:
        """Do nothing."""
        return DONE

    def delete(self, kind: str, id: str) -> Awaitable[None]:
        """Do nothing."""
        return DONE

    def settled(self) -> Awaitable[None]:
        """Wait for nothing."""
        return DONE

    async def load(self, kind: str) -> dict[str, dict[str, Any]]:
        """Return nothing."""
        return {}

    async def aclose(self) -> None:
        """Do nothing."""


@dataclass(slots=True)
class _Change:
    """Something to be done in the writer's thread, and who waits for it."""

    work: Callable[[sqlite3.Connection], Any]
    done: "asyncio.Future[Any]"
    loop: asyncio.AbstractEventLoop
    writes: bool = True


class SqliteRecords:
    """Records in a SQLite file that only this user can read.

    One thread writes, so that no disk is ever waited for in the event loop.  Raises :class:`Conflict` where a newer
    cellfork has written the file, :class:`UnavailableError` where it cannot be opened.
    """

    keep = True

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._changes: queue.SimpleQueue[_Change | None] = queue.SimpleQueue()
        self._last: asyncio.Future[Any] | None = None
        """The change that is made after all others."""
        self._closed = False
        try:
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            with contextlib.closing(self._connect()) as database:
                _prepare(database)
        except (OSError, sqlite3.Error) as error:
            raise UnavailableError(f"the records in {self._path} cannot be opened: {error}") from error
        self._thread = threading.Thread(target=self._serve, name="cellfork-records", daemon=True)
        self._thread.start()

    def put(self, kind: str, id: str, record: Record) -> "asyncio.Future[None]":
        """Keep a record."""
        text = json.dumps(record, separators=(",", ":"), allow_nan=False)
        statement = (
            "INSERT INTO records (kind, id, value) VALUES (?, ?, ?) "
            "ON CONFLICT (kind, id) DO UPDATE SET value = excluded.value"
        )
        return self._do(lambda database: database.execute(statement, (kind, id, text)).close())

    def delete(self, kind: str, id: str) -> "asyncio.Future[None]":
        """Keep a record no longer."""
        statement = "DELETE FROM records WHERE kind = ? AND id = ?"
        return self._do(lambda database: database.execute(statement, (kind, id)).close())

    def settled(self) -> Awaitable[None]:
        """Wait for the writer, where it has something to do."""
        return DONE if self._last is None or self._last.done() else _end_of(self._last)

    async def load(self, kind: str) -> dict[str, dict[str, Any]]:
        """Return the records of a kind by id; :class:`UnavailableError` where the file is damaged."""
        statement = "SELECT id, value FROM records WHERE kind = ? ORDER BY number"

        def read(database: sqlite3.Connection) -> dict[str, dict[str, Any]]:
            rows = database.execute(statement, (kind,)).fetchall()
            return {id: json.loads(value) for id, value in rows}

        found: dict[str, dict[str, Any]] = await self._do(read, writes=False)
        return found

    async def aclose(self) -> None:
        """Write what waits and close the file."""
        if not self._closed:
            self._closed = True
            self._changes.put(None)
        while self._thread.is_alive():  # noqa: ASYNC110 - joining it would take a thread more
            await asyncio.sleep(0.002)

    def _do(self, work: Callable[[sqlite3.Connection], Any], *, writes: bool = True) -> "asyncio.Future[Any]":
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        done.add_done_callback(_look_at)
        if self._closed:
            done.set_exception(UnavailableError("the records are closed"))
        else:
            self._last = done
            self._changes.put(_Change(work, done, loop, writes))
        return done

    # --------------------------------------------------------------------------- in the writer's thread

    def _serve(self) -> None:
        try:
            database = self._connect()
        except sqlite3.Error as error:
            while (change := self._changes.get()) is not None:
                _tell([(change, None)], error)
            return
        with contextlib.closing(database):
            while (change := self._changes.get()) is not None:
                waiting, last = self._gather(change)
                _carry_out(database, waiting)
                if last:
                    return

    def _gather(self, first: _Change) -> tuple[list[_Change], bool]:
        """Return what waits, beginning with ``first``, and whether it was the last."""
        waiting = [first]
        while len(waiting) < MOST_AT_ONCE:
            try:
                change = self._changes.get_nowait()
            except queue.Empty:
                break
            if change is None:
                return waiting, True
            waiting.append(change)
        return waiting, False

    def _connect(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None)
        try:
            database.execute("PRAGMA synchronous = NORMAL").close()
        except BaseException:
            database.close()
            raise
        return database


def _prepare(database: sqlite3.Connection) -> None:
    """Make the table where there is none yet.  Raises :class:`Conflict`."""
    database.execute("PRAGMA journal_mode = WAL").close()
    ((version,),) = database.execute("PRAGMA user_version").fetchall()
    if version > SCHEMA:
        raise Conflict(f"the records were written by a newer cellfork (version {version} of their table)")
    if version == SCHEMA:
        return
    with _transaction(database):
        database.execute(
            "CREATE TABLE records (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, id TEXT NOT NULL, "
            "value TEXT NOT NULL, UNIQUE (kind, id))"
        ).close()
        database.execute(f"PRAGMA user_version = {SCHEMA}").close()


@contextlib.contextmanager
def _transaction(database: sqlite3.Connection) -> Generator[None, None, None]:
    database.execute("BEGIN IMMEDIATE").close()
    try:
        yield
    except BaseException:
        database.execute("ROLLBACK").close()
        raise
    database.execute("COMMIT").close()


def _carry_out(database: sqlite3.Connection, changes: list[_Change]) -> None:
    """Make some changes in one transaction, or none of them; then tell those who wait."""
    outcomes: list[tuple[_Change, Any]] = []
    try:
        if any(change.writes for change in changes):
            with _transaction(database):
                outcomes += [(change, change.work(database)) for change in changes]
        else:
            outcomes += [(change, change.work(database)) for change in changes]
    except (sqlite3.Error, ValueError) as error:
        _tell([(change, None) for change in changes], error)
    else:
        _tell(outcomes, None)


def _tell(outcomes: list[tuple[_Change, Any]], error: Exception | None) -> None:
    for change, outcome in outcomes:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it whoever waited
            change.loop.call_soon_threadsafe(_settle, change.done, outcome, error)


def _settle(done: "asyncio.Future[Any]", outcome: Any, error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(outcome)
    else:
        done.set_exception(UnavailableError(f"the records could not be kept: {error}"))


async def _end_of(change: "asyncio.Future[Any]") -> None:
    await asyncio.wait([change])


def _look_at(done: "asyncio.Future[Any]") -> None:
    """Look at an outcome that perhaps nobody waits for."""
    if not done.cancelled():
        done.exception()
