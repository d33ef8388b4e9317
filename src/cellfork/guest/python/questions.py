"""``input()`` and ``getpass()``: a question to the client, or a refusal where nobody answers."""

import builtins
import getpass
import select
import threading
from typing import Any

from cellfork.guest.python.transport import Inbox, Interrupts, Reporter


class Questions:
    """Asks the client for lines of input while an execution runs that allows it."""

    def __init__(self, reporter: Reporter, inbox: Inbox, interrupts: Interrupts) -> None:
        self.allowed = False
        self._reporter = reporter
        self._inbox = inbox
        self._interrupts = interrupts
        self._lock = threading.Lock()

    def install(self) -> None:
        """Take the place of ``input`` and ``getpass.getpass``."""
        builtins.input = self.raw_input
        getpass.getpass = self.getpass

    def raw_input(self, prompt: object = "", /) -> str:
        """Return a line from the client.  Raises IPython's ``StdinNotImplementedError`` where none answers."""
        return self._ask(str(prompt), "raw_input", password=False)

    def getpass(self, prompt: object = "Password: ", stream: Any = None, **ignored: Any) -> str:
        """Return a line that the client does not echo.  Raises as :meth:`raw_input`."""
        return self._ask(str(prompt), "getpass", password=True)

    def _ask(self, prompt: str, caller: str, *, password: bool) -> str:
        execution = self._reporter.execution
        if not self.allowed or execution is None or not self._reporter.outlet.owner:
            from IPython.core.error import StdinNotImplementedError

            raise StdinNotImplementedError(
                f"{caller} was called, but this frontend does not support input requests."
            )
        with self._lock:
            self._reporter.ask(prompt, password)
            return self._answer(execution)

    def _answer(self, execution: str) -> str:
        while True:
            frame = self._inbox.take()
            if frame is None:
                self._wait()
            elif frame.header["op"] == "input" and frame.header.get("execution") == execution:
                return frame.body.decode("utf-8", "replace")

    def _wait(self) -> None:
        """Read once.  A signal may end the waiting, but not the reading."""
        select.select([self._inbox.connection], [], [])
        main = self._interrupts.hold()
        try:
            if not self._inbox.read():
                raise EOFError("the client is gone")
        finally:
            self._interrupts.release(main)
