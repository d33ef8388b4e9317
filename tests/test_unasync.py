"""The sync client is the async one, translated."""

import pytest

from scripts.unasync import RULES, Translator

ASYNC = '''
class AsyncSandbox:
    """Made for an ``async with`` block."""

    async def __aenter__(self) -> "AsyncSandbox":
        return self

    async def lines(self) -> AsyncIterator[str]:
        async with self._lock:
            async for line in await self._open(): yield line
        await self.aclose()
'''
SYNC = '''
class Sandbox:
    """Made for a ``with`` block."""

    def __enter__(self) -> "Sandbox":
        return self

    def lines(self) -> Iterator[str]:
        with self._lock:
            for line in self._open(): yield line
        self.close()
'''


def test_translation():
    """Keywords go, names lose their prefix, everything else stays."""
    assert Translator().translate(ASYNC) == SYNC


def test_translation_of_sync_code_changes_nothing():
    """The rules match async code only."""
    assert Translator().translate(SYNC) == SYNC


def test_rule_that_changes_nothing_is_told():
    """The table of rules stays true."""
    translator = Translator((("await ", ""), ("nowhere", "x")))
    translator.translate(ASYNC)
    assert translator.unused == ["nowhere"]


@pytest.mark.parametrize(("pattern", "replacement"), RULES)
def test_rules_are_idempotent(pattern: str, replacement: str):
    """What a rule has written it does not change again."""
    once = Translator(((pattern, replacement),)).translate(ASYNC)
    assert Translator(((pattern, replacement),)).translate(once) == once
