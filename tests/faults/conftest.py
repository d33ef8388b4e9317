from collections.abc import Iterator

import pytest

from cellfork import Sandbox


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox.create() as sandbox:
        yield sandbox


@pytest.fixture
def neighbour() -> Iterator[Sandbox]:
    """Another sandbox of the same zygote: nothing that happens to the first may touch it."""
    with Sandbox.create() as sandbox:
        sandbox.run_code("mine = 'untouched'")
        yield sandbox
        assert sandbox.run_code("mine", timeout=20).text == "'untouched'"
