"""Init's part of ports: it opens, hands over, and never waits."""

import errno
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from cellfork.guest import ports as module
from cellfork.guest.link import HostLink
from cellfork.guest.loop import Loop
from cellfork.guest.ports import MOST_PENDING, Ports
from cellfork.model.errors import (
    CellforkError,
    Conflict,
    InvalidRequest,
    LimitExceeded,
    PortClosed,
    from_code,
)
from cellfork.wire.frames import Decoder


class Host:
    """The other end of a connection to init, in the same thread."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.socket, self.theirs = socket.socketpair()
        self.socket.setblocking(False)
        self.ports = Ports(self.loop, HostLink(self.theirs))
        self.decoder = Decoder()
        self.last = 0

    def ask(self, op: str, **fields: Any) -> None:
        self.last += 1
        try:
            self.ports.operations()[op]({"op": op, "id": self.last, **fields}, b"")
        except CellforkError as error:
            self.ports._link.send(
                {"op": "reply", "id": self.last, "ok": False, "code": error.code, "message": str(error)}
            )

    def take(self, seconds: float = 5.0) -> socket.socket:
        """Return what is handed over; raise what init answers instead."""
        for _ in range(int(seconds / 0.05)):
            try:
                data, fds, _flags, _address = socket.recv_fds(self.socket, 4096, 4)
            except BlockingIOError:
                self.loop.run_once(0.05)
                continue
            (frame,) = self.decoder.feed(data)
            if not frame.header["ok"]:
                assert fds == []
                raise from_code(frame.header["code"], frame.header["message"])
            (fd,) = fds
            return socket.socket(fileno=fd)
        raise AssertionError("init did not answer")

    def close(self) -> None:
        self.loop.close()
        self.socket.close()
        self.theirs.close()


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host()
    yield made
    made.ports.forget()
    made.close()


def listening(host: str = "127.0.0.1", family: socket.AddressFamily = socket.AF_INET) -> socket.socket:
    return socket.create_server((host, 0), family=family)


@pytest.mark.parametrize(
    ("address", "family"),
    [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6), ("0.0.0.0", socket.AF_INET)],
)
def test_a_program_is_reached_on_either_loopback(host, address, family):
    """A program that listens on ``127.0.0.1`` or, as Node's servers do for ``localhost``, on ``::1`` alone is found."""
    with listening(address, family) as program:
        host.ask("port.connect", port=program.getsockname()[1])
        with host.take() as ours, program.accept()[0] as theirs:
            theirs.sendall(b"hello")
            ours.setblocking(True)
            assert ours.recv(10) == b"hello"


def test_a_port_that_nobody_has_is_refused(host):
    """Nothing is handed over for a port without a program, however often it is tried."""
    with listening() as program:
        port = program.getsockname()[1]
    for _ in range(3):
        host.ask("port.connect", port=port)
        with pytest.raises(PortClosed, match=f"port {port}"):
            host.take()


def test_a_connection_to_itself_is_none():
    """TCP connects a socket to itself where its own port happens to be the one it wants: nobody is there."""
    with socket.socket() as alone:
        alone.bind(("127.0.0.1", 0))
        alone.connect(alone.getsockname())
        assert not module._leads_to_another(alone)


def test_a_program_that_does_not_accept_does_not_hold_init_up(host, monkeypatch):
    """A full queue is waited for beside other work, and not for ever."""
    monkeypatch.setattr(module, "CONNECT_SECONDS", 0.2)
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as deaf,
        socket.socket() as first,
        listening() as other,
    ):
        first.connect(deaf.getsockname())
        host.ask("port.connect", port=deaf.getsockname()[1])
        host.ask("port.connect", port=other.getsockname()[1])
        host.take().close()  # answered meanwhile
        with pytest.raises(PortClosed, match="did not accept"):
            host.take()
        assert host.ports._pending == {}


def test_connections_that_wait_are_bounded_and_given_up_with_their_host(host):
    """One host cannot make init hold sockets without end, and a host that is gone waits for none."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf, socket.socket() as first:
        first.connect(deaf.getsockname())
        for _ in range(MOST_PENDING):
            host.ask("port.connect", port=deaf.getsockname()[1])
        assert len(host.ports._pending) == MOST_PENDING
        host.ask("port.connect", port=deaf.getsockname()[1])
        with pytest.raises(LimitExceeded):
            host.take()
        host.ports.forget()
        assert host.ports._pending == {}
        host.loop.run_once(0)


def test_a_listener_is_handed_over(host):
    """What is handed over listens, and belongs to the host alone: init keeps no copy."""
    with listening() as free:
        port = free.getsockname()[1]
    host.ask("port.listen", host="127.0.0.1", port=port)
    ours = host.take()
    with socket.create_connection(("127.0.0.1", port)):
        ours.setblocking(True)
        ours.accept()[0].close()
    ours.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_a_port_can_be_taken_again_at_once(host):
    """Connections that have just ended do not keep a port from the next server."""
    with listening() as free:
        port = free.getsockname()[1]
    for _ in range(3):
        host.ask("port.listen", host="127.0.0.1", port=port)
        with host.take() as ours, socket.create_connection(("127.0.0.1", port)) as client:
            ours.setblocking(True)
            ours.accept()[0].close()
            assert client.recv(1) == b""


def test_a_program_keeps_the_port_that_it_has(host):
    """The host gets a port only where no program listens."""
    with listening() as program:
        host.ask("port.listen", host="127.0.0.1", port=program.getsockname()[1])
        with pytest.raises(Conflict, match="in use"):
            host.take()


@pytest.mark.parametrize("port", [0, -1, 65536, True, "80", None, 8000.0])
@pytest.mark.parametrize("op", ["port.connect", "port.listen"])
def test_what_is_no_port_is_refused(host, op, port):
    """A port is a number from 1 to 65535."""
    host.ask(op, host="127.0.0.1", port=port)
    with pytest.raises(InvalidRequest):
        host.take()


@pytest.mark.parametrize("address", ["localhost", "", None, 5, "127.0.0.1\0", "203.0.113.7", "2001:db8::1"])
def test_what_is_no_address_of_the_sandbox_is_refused(host, address):
    """Names are not resolved, and addresses of others cannot be listened on."""
    host.ask("port.listen", host=address, port=40000)
    with pytest.raises(InvalidRequest):
        host.take()


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EMFILE, LimitExceeded),
        (errno.EACCES, InvalidRequest),
        (errno.EADDRINUSE, Conflict),
        (errno.EIO, PortClosed),
    ],
)
def test_errors_have_a_type(number, kind):
    """Whatever the kernel answers becomes an error that a guest may answer with."""
    assert type(module._error_of(number, 1)) is kind
