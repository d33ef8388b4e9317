"""A process that prepares one image and forks, for every connection it is handed, an init with a Python kernel.

Run as a program: its argument is a descriptor over which the connections come.  No isolation.
"""

import os
import signal
import socket
import sys
import traceback
from typing import Any

from cellfork.guest.kernels import Kernel
from cellfork.guest.link import HostLink
from cellfork.guest.loop import Loop
from cellfork.guest.python import kernel
from cellfork.guest.wakeup import Wakeup
from cellfork.wire.frames import Decoder

PRELOAD = ["numpy", "pandas", "matplotlib.pyplot", "PIL.Image", "e2b_charts", "no_such_module"]


def main(control_fd: int) -> None:
    control = socket.socket(fileno=control_fd)
    try:
        image = kernel.prepare(PRELOAD)
    except BaseException:
        os.write(2, traceback.format_exc().encode())
        os._exit(1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    control.send(repr({"missing": image.missing, "fds": sorted(os.listdir("/proc/self/fd"))}).encode())
    while True:
        data, fds, _flags, _address = socket.recv_fds(control, 4096, 1)
        if not data:
            os._exit(0)
        if not os.fork():
            control.close()
            serve(socket.socket(fileno=fds[0]), image, data.decode())
        os.close(fds[0])


def serve(connection: socket.socket, image: Any, cwd: str) -> None:
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        Init(connection, image, cwd).run()
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(0)


class Init:
    """As much of init as a kernel needs."""

    def __init__(self, connection: socket.socket, image: Any, cwd: str) -> None:
        self.loop = Loop()
        self.image = image
        self.connection = connection
        self.link = HostLink(connection)
        self.decoder = Decoder()
        self.wakeup = Wakeup()
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.loop.watch(self.wakeup.fileno(), self.reap)
        self.kernel = Kernel.start(self.loop, self.link, image, cwd=cwd, envs={"FROM_START": "it's"})
        self.kernel.claim(1)
        self.loop.watch(connection.fileno(), self.read)

    def run(self) -> None:
        self.loop.run()
        self.kernel.stop()

    def churn(self, count: int) -> dict[str, list[str]]:
        """Start and stop kernels that no context claims; tell the descriptors before and after."""
        before = descriptors()
        for i in range(count):
            spare = Kernel.start(self.loop, self.link, self.image, cwd="/", envs={})
            if i % 2:
                self.loop.run_once(0.01)
            spare.stop()
            spare.stop()
            os.waitpid(spare.pid, 0)
            spare.exited(9)
        return {"before": before, "after": descriptors()}

    def reap(self) -> None:
        self.wakeup.clear()
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid == self.kernel.pid:
                self.kernel.exited(status)

    def read(self) -> None:
        data = self.connection.recv(1 << 18)
        if not data:
            self.loop.stop()
            return
        for frame in self.decoder.feed(data):
            if frame.channel:
                self.kernel.receive(frame.header, frame.body)
            elif frame.header["op"] == "interrupt":
                self.kernel.interrupt()
            elif frame.header["op"] == "terminate":
                self.kernel.terminate(frame.header["signal"])
            elif frame.header["op"] == "churn":
                self.link.send({"op": "churned", **self.churn(frame.header["count"])})
            elif frame.header["op"] == "ping":
                self.link.send({"op": "pong", "pid": self.kernel.pid, "init": os.getpid()})


def descriptors() -> list[str]:
    return sorted(
        os.readlink(f"/proc/self/fd/{fd}").partition(":")[0]
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
