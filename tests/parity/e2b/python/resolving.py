"""Every name under the domain of ``E2B_DOMAIN`` leads to this machine, as a wildcard record would make it.

Also a plugin for pytest (``-p resolving``), for tests that ask the network themselves.
"""

import os
import socket
from typing import Any


def resolve_locally(domain: str) -> None:
    """Answer for the names under a domain, which may have a port; leave the other names to the system."""
    suffix = "." + domain.partition(":")[0]
    ask = socket.getaddrinfo

    def answer(name: Any, *args: Any, **options: Any) -> Any:
        text = name.decode() if isinstance(name, bytes) else name
        return ask("127.0.0.1" if text and text.endswith(suffix) else name, *args, **options)

    socket.getaddrinfo = answer


def pytest_configure() -> None:
    """Begin to answer, where there is a domain."""
    if os.environ.get("E2B_DOMAIN"):
        resolve_locally(os.environ["E2B_DOMAIN"])
