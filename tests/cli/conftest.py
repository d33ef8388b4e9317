"""Ways to run the command line in this process."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from cellfork.cli.main import main
from tests.cli.fakes import FakeSandbox


@dataclass
class Outcome:
    code: int
    out: str
    err: str


Invoke = Callable[..., Outcome]


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str]) -> Invoke:
    def invoke(*arguments: str) -> Outcome:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        captured = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Outcome(ended.value.code, captured.out, captured.err)

    return invoke


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeSandbox]]:
    monkeypatch.setattr("cellfork.cli.session.AsyncSandbox", FakeSandbox)
    monkeypatch.setattr(FakeSandbox, "made", [])
    monkeypatch.setattr(FakeSandbox, "refusal", None)
    yield FakeSandbox
    assert all(sandbox.killed for sandbox in FakeSandbox.made), "a sandbox was left behind"
