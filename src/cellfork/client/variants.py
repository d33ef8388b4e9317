"""Methods that mean one thing on an object and another on its class, as E2B's ``kill`` does."""

from collections.abc import Callable
from typing import Any


class ByIdToo:
    """A method of objects whose class has one too: ``sandbox.kill()``, ``Sandbox.kill(sandbox_id)``."""

    def __init__(self, of_class: Callable[..., Any]) -> None:
        self._of_class = of_class
        self._of_object: Callable[..., Any] | None = None
        self.__doc__: str | None = None

    def __call__(self, of_object: Callable[..., Any]) -> "ByIdToo":
        """Take the method of objects (as a decorator does)."""
        self._of_object = of_object
        self.__doc__ = of_object.__doc__
        return self

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self._of_class.__get__(owner)
        return self._of_object.__get__(instance, owner) if self._of_object is not None else None
