"""What is fuzzed: each target takes any bytes and fails only where a rule is broken.

A target builds what it needs from the bytes, gives it to a part of the host that meets what a guest wrote, and
checks what that part promises.  ``python -m tests.fuzz`` runs them under a coverage-guided fuzzer, the tests of
this directory for a moment each.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tests.fuzz import adoptions, networks, outputs, seeds, sessions, wires, zygotes

One = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class Target:
    """One thing to fuzz: ``run`` takes an input, ``seeds`` returns inputs to begin with.

    ``share`` is its part of all inputs of a long run, in thousandths: what is slower gets fewer.
    """

    name: str
    run: One
    seeds: Callable[[], list[bytes]]
    share: int


TARGETS = (
    Target("frames", wires.frames, seeds.streams, 120),
    Target("header", wires.header, seeds.headers, 110),
    Target("messages", wires.messages, seeds.headers, 120),
    Target("bundles", wires.bundles, seeds.bundles, 120),
    Target("values", wires.values, seeds.jsons, 100),
    Target("sessions", sessions.run, seeds.decisions, 60),
    Target("connection", sessions.connection, seeds.streams, 40),
    Target("zygote", zygotes.run, seeds.zygote_messages, 50),
    Target("kept", adoptions.run, adoptions.seeds, 40),
    Target("terminal", outputs.terminal, seeds.texts, 60),
    Target("llm", outputs.llm, seeds.texts, 30),
    Target("heads", networks.heads, lambda: list(networks.HEAD_SEEDS), 40),
    Target("hello", networks.hello, networks.hello_seeds, 60),
    Target("hosts", networks.hosts, lambda: list(networks.HOST_SEEDS), 50),
)
