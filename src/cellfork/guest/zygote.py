"""The zygote: imports the template's modules once, then forks a sandbox for every request.

It has one thread, holds no secret, never reads what a sandbox writes, and opens nothing between preparing
and forking.  The host speaks to it in messages of JSON with descriptors attached; the zygote dies with its
owner: at the end of the connection, or when the owner's pidfd becomes readable.

One that is kept has a door (``door.py``) in place of the pidfd: when its host ends it forks no more, and waits for another
one; where none comes in time it ends, and with it every process in its pid namespace.
"""

import gc
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from cellfork.guest import linux, provenance, sandbox
from cellfork.guest.boot import Step
from cellfork.guest.door import Door
from cellfork.guest.memory import OneHeap
from cellfork.guest.wakeup import Wakeup
from cellfork.model.errors import StartupFailed
from cellfork.wire.descriptors import receive_descriptors
from cellfork.wire.messages import VERSION

MAX_MESSAGE = 1 << 20
MAX_FDS = 16
INDEXES = 1023
SPARE_NAMESPACES = 8
NAME = "cellfork-zygote"
LOCK = "seccomp"
"""The step of the preparation in which a failure is the host's, not the template's."""
WAITING_NAME = "cellfork-ahead"

Message = dict[str, Any]


def main(control_fd: int, owner_fd: int, maker_fd: int = -1) -> NoReturn:
    """Prepare, report ``ready``, serve for ever.

    ``owner_fd`` is the owner's pidfd, or the socket of a door where the settings have a ``patience``.
    """
    sys.argv[:] = [""]
    control = socket.socket(fileno=control_fd)
    settings: Message = json.loads(control.recv(MAX_MESSAGE))
    heap = OneHeap()
    step = Step()
    try:
        image, report = _prepare(settings, heap, step)
    except Exception as error:  # noqa: BLE001 - whatever a preload raises must reach the host as a message
        number = error.errno if isinstance(error, OSError) and step.name == LOCK else None
        message = f"{type(error).__name__}: {error}"
        _send(control, {"op": "failed", "step": step.name, "errno": number, "message": message})
        os._exit(1)
    door = Door(owner_fd, settings["patience"]) if settings.get("patience") else None
    _send(control, {"op": "ready", **report})
    makers = Namespaces(maker_fd) if maker_fd >= 0 else None
    zygote = Zygote(control, owner_fd, makers, settings, image, heap)
    zygote.report, zygote.door = report, door
    zygote.serve()


class Namespaces:
    """Pairs of prepared user and network namespaces, asked for ahead of need.

    ``over`` says that their maker has ended: sandboxes that live go on, and no other can be started here.
    """

    def __init__(self, maker_fd: int) -> None:
        self.over = False
        self._maker = socket.socket(fileno=maker_fd)
        self._in_use: dict[int, int] = {}
        self._asked: list[int] = []
        self._next = 0
        for _ in range(SPARE_NAMESPACES):
            self._ask()

    def take(self) -> tuple[int, int, int]:
        """Return the index of an id range and the descriptors of its user and network namespaces."""
        try:
            if not self._asked:
                self._ask()
            _message, fds = receive_descriptors(self._maker, 64, 2)
        except ConnectionError:
            fds = []
        if len(fds) != 2:
            self.over = True
            for fd in fds:
                os.close(fd)
            raise OSError(0, "no namespaces could be made")
        index = self._asked.pop(0)
        return index, fds[0], fds[1]

    def replenish(self) -> None:
        """Ask for another pair (done after a fork, off the way of the request)."""
        while len(self._asked) < SPARE_NAMESPACES and len(self._in_use) + len(self._asked) < INDEXES:
            try:
                self._ask()
            except ConnectionError:
                return  # what was made already can still be taken

    def used_by(self, pid: int, index: int) -> None:
        """Keep ``index`` from being given out while ``pid`` lives."""
        self._in_use[pid] = index

    def freed_by(self, pid: int) -> None:
        """Let the index of ``pid`` be given out again."""
        self._in_use.pop(pid, None)

    def close(self) -> None:
        """Give the descriptor back; the maker ends then."""
        self._maker.close()

    def _ask(self) -> None:
        taken = {*self._in_use.values(), *self._asked}
        if len(taken) >= INDEXES:
            raise OSError(0, f"a zygote serves at most {INDEXES} sandboxes at a time")
        self._next = self._next % INDEXES + 1
        while self._next in taken:
            self._next = self._next % INDEXES + 1
        self._maker.send(str(self._next).encode())
        self._asked.append(self._next)


class Zygote:
    """Serves fork requests and reports the ends of sandboxes."""

    def __init__(
        self,
        control: socket.socket,
        owner_fd: int,
        makers: Namespaces | None,
        settings: Message,
        image: Any,
        heap: OneHeap,
    ) -> None:
        self.report: Message = {}
        """What it said of itself when it was ready."""
        self.door: Door | None = None
        self._control: socket.socket | None = control
        self._deadline = 0.0
        """When it ends where it has no host."""
        self._owner_fd = owner_fd
        self._makers = makers
        self._settings = settings
        self._image = image
        self._heap = heap
        self._own_pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC) if makers else -1
        self._children: dict[int, str] = {}
        self._fit = True
        self._wakeup = Wakeup()
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> NoReturn:
        """Fork on request until the owner is gone, and nobody takes its place."""
        while True:
            ready = self._wait()
            if self._wakeup.fileno() in ready:
                self._wakeup.clear()
                self._reap()
            if self._control is None and self._owner_fd in ready:
                self._take_host()
            elif self._control is not None and self._control.fileno() in ready:
                self._handle(self._control)
            elif self._owner_fd in ready or (self._control is None and time.monotonic() >= self._deadline):
                os._exit(0)

    def _wait(self) -> set[int]:
        """Wait for something to do.  Nobody is let in as long as there is a host."""
        poll = select.poll()
        poll.register(self._wakeup, select.POLLIN)
        if self._control is not None:
            poll.register(self._control, select.POLLIN)
        if self._control is None or self.door is None:
            poll.register(self._owner_fd, select.POLLIN)
        left = None if self._control is not None else max(0.0, self._deadline - time.monotonic()) * 1000
        return {fd for fd, _ in poll.poll(left)}

    def _lose_host(self) -> None:
        """Wait for another host, where one can come.  Forks that belong to nobody see the end of theirs for themselves."""
        if self.door is None:
            os._exit(0)
        if self._control is not None:
            self._control.close()
            self._control = None
            self._deadline = time.monotonic() + self.door.patience

    def _take_host(self) -> None:
        """Serve another host from now on; tell it first what this is, and which sandboxes there are."""
        if self.door is None:
            os._exit(0)
        self._control = self.door.admit()
        told = {"fit": self._fit, "forks": len(self._children), "version": VERSION}
        self._say({"op": "adopted", **self.report, **told})
        for pid, name in [*self._children.items()]:
            self._say_forked(name, pid)

    def _handle(self, control: socket.socket) -> None:
        try:
            data, fds = receive_descriptors(control, MAX_MESSAGE, MAX_FDS)
        except ConnectionError:
            data, fds = b"", []
        if not data:
            self._lose_host()
            return
        request: Message = json.loads(data)
        try:
            self._check_threads()
            pid = self._fork(fds)
        except OSError as error:
            self._refuse(request["sandbox"], error)
        else:
            self._say_forked(request["sandbox"], pid)
            self._children[pid] = request["sandbox"]
        finally:
            for fd in fds:
                os.close(fd)
        if self._makers:
            self._makers.replenish()

    def _check_threads(self) -> None:
        """Raise ``OSError`` where this process has got a second thread: a fork would lose it, and what it holds."""
        threads = os.stat("/proc/self/task").st_nlink - 2  # without opening it
        self._fit = threads == 1
        if not self._fit:
            raise OSError(
                0, f"the zygote has {threads} threads: one of its modules started some after the start"
            )

    def _refuse(self, name: str, error: OSError) -> None:
        fit = self._fit and not (self._makers and self._makers.over)
        self._say({"op": "refused", "sandbox": name, "message": str(error), "fit": fit})

    def _say_forked(self, name: str, pid: int) -> None:
        pidfd = os.pidfd_open(pid)
        try:
            self._say({"op": "forked", "sandbox": name, "pid": pid}, pidfd)
        finally:
            os.close(pidfd)

    def _say(self, message: Message, *fds: int) -> None:
        """Tell the host; where it has ended, the end of its connection is what is acted on."""
        if self._control is None:
            return
        try:
            socket.send_fds(self._control, [json.dumps(message).encode()], fds)
        except ConnectionError:
            self._lose_host()

    def _fork(self, fds: Sequence[int]) -> int:
        if self._makers is None:
            return os.fork() or self._run_sandbox(fds, None)
        index, user_fd, net_fd = self._makers.take()
        try:
            linux.unshare(linux.CLONE_NEWPID)
            try:
                pid = os.fork() or self._run_sandbox(fds, (index, user_fd, net_fd))
            finally:
                linux.setns(self._own_pid_namespace, linux.CLONE_NEWPID)
        finally:
            os.close(user_fd)
            os.close(net_fd)
        self._makers.used_by(pid, index)
        return pid

    def _reap(self) -> None:
        for pid, status in linux.reap():
            if self._makers:
                self._makers.freed_by(pid)
            name = self._children.pop(pid, None)
            if name is not None:
                self._say({"op": "exited", "sandbox": name, "status": status})

    def _run_sandbox(self, fds: Sequence[int], namespaces: tuple[int, int, int] | None) -> NoReturn:
        (self._connection_fd,) = fds
        try:
            self._become_sandbox(self._connection_fd, namespaces)
        except BaseException as error:  # noqa: BLE001 - a fork must never return into the zygote's loop
            _report_failure(self._connection_fd, error)
        os._exit(70)

    def _become_sandbox(self, connection_fd: int, namespaces: tuple[int, int, int] | None) -> None:
        from cellfork.guest import init  # imported by _prepare already

        self._heap.leave()
        sandbox.reset_process()
        linux.set_name(WAITING_NAME)
        plan = self._settings["plan"]
        identity = None
        if namespaces is not None:
            index, user_ns, net_ns = namespaces
            door = sandbox.enter_cgroups(connection_fd)
            sandbox.enter_namespaces(plan, net_ns)
            identity = init.Identity(index, user_ns, door)
        connection = init.take_connection(connection_fd, identity)
        self._connection_fd = connection.fileno()
        init.main(connection, plan, self._image, identity)


def _prepare(settings: Message, heap: OneHeap, step: Step) -> tuple[Any, Message]:
    """Import everything that sandboxes share, load the base filter, and leave one thread and a tidy heap."""
    from cellfork.guest import init  # noqa: F401 - so that a fork finds it in memory
    from cellfork.guest.python import kernel

    step("prepare")
    heap.enter()
    gc.disable()
    linux.set_name(NAME)
    image = kernel.prepare(settings["preload"])
    foreign = provenance.writable() if settings["plan"]["owns_pid_namespace"] else []
    if foreign:
        raise StartupFailed(f"the image may hold read-only code alone, not {', '.join(foreign[:10])}")
    report = {"python": sys.version.split()[0], "image": provenance.digest(settings["preload"])}
    step(LOCK)
    linux.stop_page_merging()
    if settings["seccomp_base"]:
        linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
        linux.load_seccomp(bytes.fromhex(settings["seccomp_base"]))
    linux.prctl(linux.PR_SET_DUMPABLE, 0)
    gc.collect()
    gc.freeze()
    gc.enable()
    return image, {"collapsed": heap.collapse(), **report}


def _report_failure(connection_fd: int, error: BaseException) -> None:
    from cellfork.wire.frames import encode

    message = f"{type(error).__name__}: {error}"[:2000]
    header = {"op": "reply", "id": 0, "ok": False, "code": "startup_failed", "message": message}
    try:
        os.write(connection_fd, encode(header))
    except OSError:
        os._exit(71)


def _send(control: socket.socket, message: Message) -> None:
    control.send(json.dumps(message).encode())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
