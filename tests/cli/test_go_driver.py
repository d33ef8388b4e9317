"""Building the driver of the Go kernel."""

import os
import subprocess

import pytest

from cellfork.cli import go_driver
from cellfork.model.errors import StartupFailed


def test_an_old_toolchain_is_none(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Go that is too old, or no Go at all, is passed over for the next one."""
    monkeypatch.setattr(go_driver, "USUAL_PLACES", "")
    for name, said in (
        ("old", "go version go1.19.8 linux/amd64"),
        ("broken", "hello"),
        ("new", "go version go1.22.1 x"),
    ):
        (tmp_path / name).mkdir()
        program = tmp_path / name / "go"
        program.write_text(f"#!/bin/sh\necho '{said}'\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/old:{tmp_path}/broken")
    assert go_driver.find_toolchain() is None
    monkeypatch.setenv("PATH", f"{tmp_path}/old:{tmp_path}/broken:{tmp_path}/new")
    assert go_driver.find_toolchain() == f"{tmp_path}/new/go"


def test_a_build_that_fails(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the compiler says is told, and nothing is left in the directory."""
    program = tmp_path / "go"
    program.write_text(
        "#!/bin/sh\n[ \"$1\" = version ] && echo go version go1.22 && exit\necho 'no such package' >&2; exit 1\n"
    )
    program.chmod(0o755)
    target = tmp_path / "bin"
    target.mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(StartupFailed, match="go failed: no such package"):
        go_driver.build(target)
    assert list(target.iterdir()) == []


def test_the_driver(tmp_path) -> None:
    """It is built from the sources that come with cellfork, and tells its version of Go."""
    if go_driver.find_toolchain() is None:
        pytest.skip("no Go toolchain here; `cellfork languages --install go` would fetch one")
    built = go_driver.build(tmp_path)
    said = subprocess.run([built, "--version"], capture_output=True, text=True, check=True).stdout
    assert said[0].isdigit()
    assert [file.name for file in tmp_path.iterdir()] == [go_driver.NAME]
