"""The zygote's store of id ranges and prepared namespaces."""

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from cellfork.guest.zygote import INDEXES, SPARE_NAMESPACES, Namespaces


def answer(maker: socket.socket) -> None:
    """Be the maker: answer each index with two descriptors."""
    null = os.open("/dev/null", os.O_RDONLY)
    while message := maker.recv(64):
        socket.send_fds(maker, [message], [null, null])
    os.close(null)
    maker.close()


@pytest.fixture
def namespaces() -> Iterator[Namespaces]:
    zygote, maker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    thread = threading.Thread(target=answer, args=(maker,))
    thread.start()
    store = Namespaces(zygote.detach())
    yield store
    while store._asked:
        take(store)
    store.close()
    thread.join()


def take(store: Namespaces) -> int:
    index, *fds = store.take()
    for fd in fds:
        os.close(fd)
    return index


def test_no_index_is_given_out_twice(namespaces: Namespaces):
    """As many sandboxes as there are id ranges have one each; one more is refused, until one of them ends."""
    taken = []
    for pid in range(INDEXES):
        taken.append(take(namespaces))
        namespaces.used_by(pid, taken[-1])
        namespaces.replenish()
    assert sorted(taken) == list(range(1, INDEXES + 1))
    with pytest.raises(OSError, match="at most"):
        take(namespaces)
    namespaces.freed_by(500)
    assert take(namespaces) == taken[500]


def test_some_are_asked_for_ahead(namespaces: Namespaces):
    """A request finds namespaces that were asked for before it came."""
    assert namespaces._asked == list(range(1, SPARE_NAMESPACES + 1))
    namespaces.used_by(1, take(namespaces))
    namespaces.replenish()
    assert len(namespaces._asked) == SPARE_NAMESPACES
