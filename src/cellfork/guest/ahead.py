"""Kernels that are started before anybody asks for them, each given out once."""

from collections.abc import Callable, Mapping
from functools import partial

from cellfork.guest.kernels import Kernel


class Ahead:
    """The kernels that wait in a sandbox, by language.

    They run nobody's code.  One that ended, or that could not get ready, is as good as none: whoever asks gets a new
    one, and the reason if that fails as well.
    """

    def __init__(self) -> None:
        self._kernels: dict[str, Kernel] = {}
        self._unsettled: set[Kernel] = set()
        self._told: Callable[[], None] | None = None

    @property
    def pids(self) -> set[int]:
        """Their pids."""
        return {kernel.pid for kernel in self._kernels.values()}

    def add(self, kernels: Mapping[str, Kernel], told: Callable[[], None]) -> None:
        """Keep ``kernels``; ``told`` is called once, when each of them waits for code, or never will."""
        self._kernels |= kernels
        self._unsettled = {kernel for kernel in kernels.values() if not kernel.settled}
        self._told = told
        for kernel in self._unsettled:
            kernel.on_settled = partial(self._settled, kernel)
        self._tell()

    def take(self, language: str) -> Kernel | None:
        """Return the kernel of ``language``, which may still be getting ready; ``None`` where there is none."""
        kernel = self._kernels.pop(language, None)
        if kernel is None:
            return None
        self._settled(kernel)
        if kernel.alive and kernel.problem is None:
            return kernel
        kernel.stop()
        return None

    def exited(self, pid: int, status: int) -> bool:
        """Take note that a process was reaped; return whether it was one of these."""
        for language, kernel in self._kernels.items():
            if kernel.pid == pid:
                del self._kernels[language]
                kernel.exited(status)
                self._settled(kernel)
                return True
        return False

    def _settled(self, kernel: Kernel) -> None:
        kernel.on_settled = None
        self._unsettled.discard(kernel)
        self._tell()

    def _tell(self) -> None:
        told = self._told
        if told is not None and not self._unsettled:
            self._told = None
            told()
