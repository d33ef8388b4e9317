"""``cellfork cert``: what it prints is what is to be done."""

import json
from pathlib import Path

import pytest

from cellfork.cli.exits import Exit
from cellfork.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["cert", *arguments])
    told = capsys.readouterr()
    return int(ended.value.code or 0), told.out, told.err


def test_it_tells_how_to_serve_and_whom_to_trust(capsys, tmp_path: Path):
    """The output names the flags of the server, the variable of each kind of client, and the files that were made."""
    code, out, _err = run(capsys, "sandbox.test", "--out", str(tmp_path))
    assert code == Exit.OK
    for name in ("ca.pem", "cert.pem", "key.pem"):
        assert str(tmp_path / name) in out
        assert (tmp_path / name).exists()
    for word in (
        "--tls-cert",
        "--tls-key",
        "--domain sandbox.test:8443",
        "SSL_CERT_FILE",
        "NODE_EXTRA_CA_CERTS",
    ):
        assert word in out
    assert "export E2B_DOMAIN=sandbox.test:8443" in out


def test_json(capsys, tmp_path: Path):
    """Programs get the paths."""
    code, out, _err = run(capsys, "sandbox.test", "--out", str(tmp_path), "--json")
    assert code == Exit.OK
    assert json.loads(out) == {name: str(tmp_path / f"{name}.pem") for name in ("ca", "cert", "key")}


def test_what_is_no_domain(capsys, tmp_path: Path):
    """A mistake is told in one line, and nothing is made."""
    code, out, err = run(capsys, "localhost", "--out", str(tmp_path / "new"))
    assert (code, out) == (Exit.USAGE, "")
    assert "'localhost' is no domain" in err
    assert not (tmp_path / "new").exists()
