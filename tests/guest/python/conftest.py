"""A prepared image for all tests, a kernel forked from it for each."""

from tests.guest.python.harness import server, session

__all__ = ["server", "session"]
