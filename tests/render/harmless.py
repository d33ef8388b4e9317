"""What may reach a terminal: text, colours, and what progress bars need."""

import re

COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
"""The one sequence that a terminal may get."""
HARMFUL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
"""What no terminal may get, once colours are taken away."""


def assert_harmless(shown: str, *, progress: bool = True) -> None:
    """Nothing in ``shown`` steers a terminal but colours and, with ``progress``, carriage returns and backspaces."""
    rest = COLOUR.sub("", shown)
    if progress:
        rest = rest.replace("\r", "").replace("\b", "")
    found = HARMFUL.search(rest)
    assert found is None, f"{found[0]!r} of {shown!r}"
