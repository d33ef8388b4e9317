"""Init: pid 1 of a sandbox.  Reaps, starts kernels and execs, does all file operations, for one host at a time.

One thread, one loop.  It runs as the sandbox's user, locked like everything else in it; when it ends, the
kernel ends every process of the sandbox with it.
"""

import fcntl
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from cellfork.guest import egress, languages, linux, locks, sandbox
from cellfork.guest.ahead import Ahead
from cellfork.guest.archives import Archives
from cellfork.guest.artifacts import Ledger
from cellfork.guest.door import Door
from cellfork.guest.files import Files
from cellfork.guest.kernels import Body, Kernel
from cellfork.guest.languages import announces, body_of
from cellfork.guest.link import HostLink
from cellfork.guest.loop import Loop
from cellfork.guest.ports import Ports
from cellfork.guest.processes import Processes
from cellfork.guest.python import kernel as python_kernel
from cellfork.guest.wakeup import Wakeup
from cellfork.guest.watches import Watches
from cellfork.model.errors import (
    CellforkError,
    Conflict,
    InternalError,
    InvalidRequest,
    NotFound,
    StartupFailed,
    Unsupported,
)
from cellfork.model.specs import HOME
from cellfork.wire.descriptors import receive_descriptors
from cellfork.wire.frames import Decoder, Frame
from cellfork.wire.messages import VERSION

NAME = "cellfork-init"
CONNECTION_FD, USER_NS_FD, DOOR_FD = 3, 4, 5
LISTENING = {"op": "listening"}
READ_SIZE = 256 * 1024
TURN = 100_000
"""Nanoseconds: among processes that all want the processor, init, which ends them, comes first."""
TRIES_FOR_ROOM, PAUSE_FOR_ROOM = 40, 0.005
"""How often a kernel is forked anew, after how many seconds, where the sandbox has no room for a process."""
MAY_CHANGE_FILES = ("archive.write", "file.", "process.", "port.connect")
"""How the names of operations begin that may change files without being code of a context."""
PATHS = frozenset({"cwd", "path", "source", "destination"})
"""Fields of requests that hold paths."""

Header = dict[str, Any]
Operation = Callable[[Header, bytes], Header | None]


@dataclass(slots=True)
class Identity:
    """Who a sandbox is to be: the index of its id range, descriptors of its user namespace and, if it has one, its door."""

    index: int
    user_ns: int
    door: int | None = None


def take_connection(fd: int, identity: Identity | None = None) -> socket.socket:
    """Keep ``fd`` as descriptor 3, the user namespace as 4, a door as 5, /dev/null as 0 to 2, and nothing else."""
    kept = [fd]
    if identity is not None:
        kept += [identity.user_ns] if identity.door is None else [identity.user_ns, identity.door]
    # Out of the way first: one may have the number that another one gets.
    spares = [fcntl.fcntl(each, fcntl.F_DUPFD, DOOR_FD + 1) for each in kept]
    for number, spare in enumerate(spares, CONNECTION_FD):
        os.dup2(spare, number, inheritable=False)
    linux.close_from(CONNECTION_FD + len(kept))
    if identity is not None:
        identity.user_ns = USER_NS_FD
        identity.door = None if identity.door is None else DOOR_FD
    null = os.open("/dev/null", os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)
    os.close(null)
    return socket.socket(fileno=CONNECTION_FD)


def main(connection: socket.socket, plan: Header, image: Any, identity: Identity | None) -> NoReturn:
    """Wait to be told what to become, become it, serve the host until the connection ends, then end everything.

    The first kernel is forked before the request comes; it waits as well, and takes the locks for itself.
    """
    signal.signal(signal.SIGINT, lambda *_: None)  # whoever sends it: init is not what is to be interrupted
    door = None
    if identity is not None and identity.door is not None:
        door = Door(identity.door, plan["patience"])
    init = Init(connection, plan, image, identity, door)
    linux.run_in_short_turns(TURN)
    volumes: list[int] = []
    request = sandbox.read_request(CONNECTION_FD, volumes)
    if request is None:
        os._exit(0)
    init.become(plan | request, volumes)
    try:
        init.serve()
    finally:
        init.end()  # an error of init's own, too, is the sandbox's end: nobody would take a report of it now


class Init:
    """Dispatches frames: channel 0 to the operations, every other channel to its kernel."""

    def __init__(
        self,
        connection: socket.socket,
        plan: Header,
        image: Any,
        identity: Identity | None,
        door: Door | None = None,
    ) -> None:
        self._connection = connection
        self._door = door
        self._listener: socket.socket | None = None
        """The sandbox's end of the way out: another host will ask for it."""
        self._highest = 0
        """The highest channel that a context has had."""
        self._owns_pid_namespace = bool(plan["owns_pid_namespace"])
        self._image = image
        self._identity = identity
        self._loop = Loop()
        self._link = HostLink(connection)
        self._decoder = Decoder()
        self._kernels: dict[int, Kernel] = {}
        self._starting: dict[int, object] = {}
        """The request that each kernel is to answer which has not said yet that it is ready, by channel."""
        self._memory: int | None = None
        self._ahead = Ahead()
        settle = partial(settle_kernel, plan, None if identity is None else identity.index)
        self._spare: Kernel | None = Kernel.start(
            self._loop, self._link, image, cwd="/", envs={}, settle=settle
        )

    def become(self, plan: Header, volumes: Sequence[int] = ()) -> None:
        """Make the sandbox's places, let the kernel lock itself, take the locks, and get ready to serve."""
        spare = self._spare
        if spare is None:
            raise StartupFailed("there is no kernel")
        if "listen" in plan:
            listener = egress.listen(plan["listen"])
            self._listener = None if self._door is None else listener.dup()
            egress.hand_over(self._connection, LISTENING, listener)
        if self._identity is not None:
            sandbox.furnish(plan, self._identity.index, volumes)
            spare.settle(plan, self._identity.user_ns)
            locks.lock(plan, self._identity.user_ns)
        else:
            spare.settle(plan, None)
        if plan["warm"]:
            spare.warm_up()
        linux.set_name(NAME)
        self._home = plan["home_path"]
        self._memory = plan.get("memory") or None
        _settle_in(plan)
        self._link.send({"op": "locked"})
        sandbox.fill_home([*plan.get("home", []), *_certificates(plan)])
        self._processes = Processes(self._loop, self._link, base_env=dict(os.environ))
        self._files = Files(self._loop, self._link, home=self._home)
        self._watches = Watches(self._loop, self._link, home=self._home)
        self._ports = Ports(self._loop, self._link)
        self._archives = Archives(self._loop, self._link, **sandbox.places_of(plan))
        self._ledger = Ledger(self._home, HOME)
        self._operations = self._collect_operations()

    def serve(self) -> None:
        """Answer until the host is gone."""
        if self._spare is not None:
            self._spare.on_settled = self._say_ready
        self._watch_children()
        self._loop.watch(self._connection.fileno(), self._read)
        self._loop.run()

    def end(self) -> NoReturn:
        """End every process.  As pid 1 it is enough to exit; elsewhere each one is killed."""
        if not self._owns_pid_namespace:
            kill_descendants()
        os._exit(0)

    def _say_ready(self) -> None:
        """Tell the host that everything is in place and locked, here and in the first kernel.

        From here on init does nothing until it is asked: the host looks at every descriptor that is open.
        """
        self._ledger.prepare()
        self._link.send({"op": "ready", "version": VERSION, "pid": os.getpid()})

    def _collect_operations(self) -> Mapping[str, Operation]:
        own: dict[str, Operation] = {
            "ahead": self._start_ahead,
            "context.start": self._start_context,
            "context.stop": self._stop_context,
            "languages": lambda _header, _body: {"ready": languages.ready()},
            "interrupt": self._interrupt,
            "terminate": self._terminate,
            "ping": lambda _header, _body: {},
            "shutdown": self._shutdown,
        }
        return {
            **own,
            **self._processes.operations(),
            **self._files.operations(),
            **self._watches.operations(),
            **self._ports.operations(),
            **self._archives.operations(),
        }

    def _watch_children(self) -> None:
        self._wakeup = Wakeup()
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._loop.watch(self._wakeup.fileno(), self._reap)
        self._reap_all()

    def _reap(self) -> None:
        self._wakeup.clear()
        self._reap_all()

    def _reap_all(self) -> None:
        for pid, status in linux.reap():
            self._exited(pid, status)

    def _exited(self, pid: int, status: int) -> None:
        for kernel in [*self._kernels.values(), self._spare]:
            if kernel is not None and kernel.pid == pid:
                kernel.exited(status)
                if kernel.channel is not None:
                    self._refuse_start(
                        kernel.channel, "the process ended before it was ready; it may need more memory"
                    )
                if kernel is self._spare and not kernel.settled:
                    self._refuse(0, StartupFailed(f"the first kernel ended before it was locked ({status=})"))
                return
        if not self._ahead.exited(pid, status):
            self._ledger.disturbed |= self._processes.exited(pid, status)

    def _read(self) -> None:
        try:
            data = self._connection.recv(READ_SIZE)
        except ConnectionError:
            data = b""
        if not data:
            self._lose_host()
            return
        for frame in self._decoder.feed(data):
            self._dispatch(frame)

    def _lose_host(self) -> None:
        """The host has ended: end as well, or wait for another one where this sandbox has a door.

        Meanwhile nothing is read of what kernels and commands write: they go on until their pipes are full, and wait then.
        What has ended is reaped, and told afterwards.
        """
        if self._door is None:
            self._loop.stop()
            return
        self._loop.unwatch(self._connection.fileno())
        self._connection.close()
        self._starting.clear()
        for service in (self._files, self._watches, self._ports, self._archives):
            service.forget()
        ended: list[tuple[int, int]] = []
        host = self._door.wait({self._wakeup.fileno(): partial(self._collect, ended)})
        if host is None or host[1].get("version") != VERSION:
            self._loop.stop()
            return
        self._take_host(*host)
        for pid, status in ended:
            self._exited(pid, status)

    def _collect(self, ended: list[tuple[int, int]]) -> None:
        """Reap; keep only what somebody will ask for: there is no end to what else may be born and die here."""
        self._wakeup.clear()
        ours = {kernel.pid for kernel in [*self._kernels.values(), self._spare] if kernel is not None}
        ours |= self._ahead.pids | self._processes.pids
        ended += [(pid, status) for pid, status in linux.reap() if pid in ours]

    def _take_host(self, connection: socket.socket, request: Header) -> None:
        """Serve another host from now on; tell it first what there is."""
        self._connection = connection
        self._decoder = Decoder()
        self._link.attach(connection, request["first"])
        if self._listener is not None:
            egress.hand_over(connection, LISTENING, self._listener.dup())
        for channel in self._kernels:
            self._tell_kept("kernel", self._kernels[channel].report())
        for process in self._processes.report():
            self._tell_kept("process", process)
        highest = {"channel": self._highest, "process": self._processes.highest}
        self._link.send({"op": "adopted", "version": VERSION, **highest})
        self._loop.watch(connection.fileno(), self._read)

    def _tell_kept(self, kind: str, report: Header) -> None:
        """Tell a new host of something; what a request was made of can be larger than a header."""
        self._link.send({"op": "kept", "kind": kind}, json.dumps(report).encode("ascii"))

    def _dispatch(self, frame: Frame) -> None:
        if frame.channel:
            kernel = self._kernels.get(frame.channel)
            if kernel is not None:
                self._ledger.disturbed |= len(self._kernels) > 1 or self._processes.busy
                kernel.receive(frame.header, frame.body)
            return
        number = frame.header.get("id")
        self._ledger.disturbed |= frame.header["op"].startswith(MAY_CHANGE_FILES)
        try:
            result = self._operate(frame)
        except CellforkError as error:
            self._refuse(number, error)
        except Exception as error:  # noqa: BLE001 - one bad request must not end the sandbox; it is reported
            self._refuse(number, InternalError(f"{frame.header['op']}: {type(error).__name__}: {error}"))
        else:
            if result is not None:
                self._link.send({"op": "reply", "id": number, "ok": True, "result": result})

    def _operate(self, frame: Frame) -> Header | None:
        operation = self._operations.get(frame.header["op"])
        if operation is None:
            raise Unsupported(f"unknown operation {frame.header['op']!r}")
        return operation(self._at_home(frame.header), frame.body)

    def _at_home(self, header: Header) -> Header:
        """Where no mount namespace puts the home at its usual place, name the place that it has."""
        if self._home == HOME:
            return header
        return {name: self._home_of(value) if name in PATHS else value for name, value in header.items()}

    def _home_of(self, path: str) -> str:
        inside = path == HOME or path.startswith(HOME + "/")
        return self._home + path.removeprefix(HOME) if inside else path

    def _refuse(self, number: object, error: CellforkError) -> None:
        message = str(error)[:4000]
        self._link.send({"op": "reply", "id": number, "ok": False, "code": error.code, "message": message})

    def _start_ahead(self, header: Header, _body: bytes) -> Header | None:
        """Start kernels that nobody has asked for yet, at home; answer at once, or with ``wait`` when they are ready."""
        bodies = {language: body_of(language, self._memory) for language in header["languages"]}
        kernels = {language: self._start_kernel(self._home, {}, body) for language, body in bodies.items()}
        reply = {"op": "reply", "id": header["id"], "ok": True, "result": {}}
        self._ahead.add(kernels, partial(self._link.send, reply) if header["wait"] else lambda: None)
        return None if header["wait"] else {}

    def _start_context(self, header: Header, _body: bytes) -> Header | None:
        """Start a kernel.  One that says when it is ready is answered for then, however often code was sent meanwhile."""
        channel, body = header["context"], body_of(header["language"], self._memory)
        if channel in self._kernels:
            raise Conflict(f"context {channel} exists")
        if not os.path.isdir(header["cwd"]):
            raise InvalidRequest(f"the working directory {header['cwd']!r} does not exist")
        ahead = None
        if (
            header["cwd"] == self._home and not header["envs"]
        ):  # what a kernel started with cannot be changed later
            ahead = self._ahead.take(header["language"])
        if ahead is not None:
            ahead.claim(channel)
        kernel = ahead or self._take_kernel(channel, body, header["cwd"], header["envs"])
        kernel.label = str(header.get("label", ""))
        self._highest = max(self._highest, channel)
        self._kernels[channel] = kernel
        kernel.ledger = self._ledger
        self._ledger.add_place(channel, header["cwd"])
        if kernel.settled or not announces(body):
            return {}
        self._starting[channel] = header.get("id")
        kernel.on_settled = partial(self._answer_start, channel, kernel)
        return None

    def _answer_start(self, channel: int, kernel: Kernel) -> None:
        """Tell the host that a kernel is ready, or why it is not."""
        if kernel.problem is not None:
            self._refuse_start(channel, kernel.problem)
        elif channel in self._starting:
            reply = {"op": "reply", "id": self._starting.pop(channel), "ok": True, "result": {}}
            self._link.send(reply)

    def _refuse_start(self, channel: int, why: str) -> None:
        if channel in self._starting:
            self._refuse(self._starting.pop(channel), StartupFailed(why))

    def _take_kernel(self, channel: int, body: Body, cwd: str, envs: dict[str, str]) -> Kernel:
        """Return the kernel that was forked ahead, or a new one; it can start working before it is asked to."""
        if body is not python_kernel.run:
            kernel = self._start_kernel(cwd, envs, body)
            kernel.claim(channel)
            return kernel
        spare, self._spare = self._spare, None
        kernel = spare if spare is not None and spare.alive else self._start_kernel(self._home, {}, body)
        kernel.claim(channel, cwd=None if cwd == self._home else cwd, envs=envs)
        return kernel

    def _start_kernel(self, cwd: str, envs: dict[str, str], body: Body) -> Kernel:
        """Fork a kernel.  What was ended a moment ago has its place until it is reaped: wait a little for room."""
        start = partial(Kernel.start, self._loop, self._link, self._image, cwd=cwd, envs=envs, body=body)
        for _ in range(TRIES_FOR_ROOM):
            try:
                return start()
            except BlockingIOError:
                time.sleep(PAUSE_FOR_ROOM)
                self._reap_all()
        return start()

    def _stop_context(self, header: Header, _body: bytes) -> Header:
        self._kernel(header)
        self._refuse_start(header["context"], "the kernel was stopped before it was ready")
        self._kernels.pop(header["context"]).stop()
        self._ledger.drop_place(header["context"])
        return {}

    def _interrupt(self, header: Header, _body: bytes) -> Header:
        self._kernel(header).interrupt()
        return {}

    def _terminate(self, header: Header, _body: bytes) -> Header:
        self._kernel(header).terminate(header["signal"])
        return {}

    def _kernel(self, header: Header) -> Kernel:
        kernel = self._kernels.get(header["context"])
        if kernel is None:
            raise NotFound(f"no context {header['context']}")
        return kernel

    def _shutdown(self, _header: Header, _body: bytes) -> None:
        self._loop.stop()


def settle_kernel(plan: Header, index: int | None, connection: socket.socket) -> None:
    """Wait, in the kernel that was forked ahead, for init to say what it is to be; lock, and become that.

    Its pipes are given to the sandbox's user, who may want to open /dev/stdout.
    """
    _message, fds = receive_descriptors(connection, 1, 1)
    request = sandbox.read_request(connection.fileno())
    if request is None:
        os._exit(0)
    plan = plan | request
    if index is not None:
        owner = sandbox.owner_of(plan, index)
        for fd in (1, 2):
            os.fchown(fd, owner, owner)
        locks.lock(plan, fds[0])
        linux.prctl(linux.PR_SET_DUMPABLE, 1)
    _settle_in(plan)


def _certificates(plan: Header) -> list[list[str]]:
    """Return the entry of the home that holds the certificates which came with the request, if any did."""
    path = plan.get("certificates")
    return [["file", path, plan["body"].decode("ascii")]] if path else []


def _settle_in(plan: Header) -> None:
    os.environ.update(plan["envs"])
    os.environ["HOME"] = os.environ["PWD"] = plan["home_path"]
    os.chdir(plan["home_path"])


def kill_descendants() -> None:
    """Kill every process below this one, again and again until there is none (only where init is not pid 1)."""
    for _ in range(1000):
        children = _children_of(os.getpid())
        if not children:
            return
        for pid in children:
            for target in [*_descendants(pid), pid]:
                try:
                    os.kill(target, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        for pid in children:
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                continue


def _descendants(pid: int) -> list[int]:
    below = _children_of(pid)
    return [deeper for child in below for deeper in [*_descendants(child), child]]


def _children_of(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return []
