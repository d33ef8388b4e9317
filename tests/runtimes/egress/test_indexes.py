"""Which package indexes this machine is configured to use: pip's and npm's own ways, to the letter."""

import os
from pathlib import Path

import pytest

from cellfork.model.errors import StartupFailed
from cellfork.runtimes.egress.indexes import CERTIFICATES, Endpoint, Indexes, read_indexes

PEM = "-----BEGIN CERTIFICATE-----\nTWFkZSB1cA==\n-----END CERTIFICATE-----"
KEY = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----"


class Machine:
    """A machine without any configuration, whose files are below ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, **environment: str) -> Indexes:
        known = {"HOME": f"{self.path}/home", **environment}
        return read_indexes(known, root=f"{self.path}/", prefix=f"{self.path}/venv")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    for name in ("etc/xdg/pip", "home/.config/pip", "home/.pip", "venv", "usr/etc"):
        (tmp_path / name).mkdir(parents=True)
    return Machine(tmp_path)


def places(indexes) -> list[str]:
    return [f"{endpoint.scheme}://{endpoint.host}:{endpoint.port}" for endpoint in indexes.endpoints]


DEFAULTS = ["https://pypi.org:443", "https://files.pythonhosted.org:443", "https://registry.npmjs.org:443"]


def test_without_configuration_the_defaults_are_used(machine):
    """pypi.org with its files, and npm's registry; nothing has to be told inside."""
    indexes = machine()
    assert places(indexes) == DEFAULTS
    assert indexes.variables == {}
    assert indexes.certificates == b""


@pytest.mark.parametrize(
    "files",
    [
        ["etc/xdg/pip/pip.conf"],
        ["etc/xdg/pip/pip.conf", "etc/pip.conf"],
        ["etc/pip.conf", "home/.pip/pip.conf"],
        ["home/.pip/pip.conf", "home/.config/pip/pip.conf"],
        ["home/.config/pip/pip.conf", "venv/pip.conf"],
    ],
)
def test_the_last_file_in_pips_order_wins(machine, files):
    """Global, user (old place, new place), site."""
    for number, name in enumerate(files):
        (machine.path / name).write_text(f"[global]\nindex-url = https://index{number}.example/simple\n")
    indexes = machine()
    assert indexes.variables["PIP_INDEX_URL"] == f"https://index{len(files) - 1}.example/simple"
    assert places(indexes)[0] == f"https://index{len(files) - 1}.example:443"
    assert "https://pypi.org:443" not in places(indexes)


def test_the_environment_comes_last(machine):
    """PIP_CONFIG_FILE over the other files, PIP_… over that, npm_config_… over .npmrc."""
    (machine.path / "venv/pip.conf").write_text("[global]\nindex-url = https://site.example/\n")
    chosen = machine.path / "chosen.conf"
    chosen.write_text(
        "[install]\nindex_url = https://chosen.example/\nextra-index-url =\n  https://one.example/\n  http://two.example:8080/x\n"
    )
    indexes = machine(PIP_CONFIG_FILE=str(chosen))
    assert indexes.variables["PIP_INDEX_URL"] == "https://chosen.example/"
    assert indexes.variables["PIP_EXTRA_INDEX_URL"] == "https://one.example/ http://two.example:8080/x"
    assert "http://two.example:8080" in places(indexes)
    indexes = machine(
        PIP_CONFIG_FILE=str(chosen), PIP_INDEX_URL="http://env.example:81/", PIP_TRUSTED_HOST="env.example"
    )
    assert indexes.variables["PIP_INDEX_URL"] == "http://env.example:81/"
    assert indexes.variables["PIP_TRUSTED_HOST"] == "env.example"
    assert places(machine(PIP_CONFIG_FILE=os.devnull)) == DEFAULTS


def test_npm_is_read_as_npm_reads_itself(machine):
    """Machine, user, environment; variables in the file are replaced; comments are none."""
    (machine.path / "usr/etc/npmrc").write_text("registry=https://one.example/\n")
    assert machine().variables["npm_config_registry"] == "https://one.example/"
    (machine.path / "home/.npmrc").write_text(
        "; registry=https://no.example\nregistry = 'https://${WHERE}/npm/'\n"
    )
    assert machine(WHERE="two.example").variables["npm_config_registry"] == "https://two.example/npm/"
    indexes = machine(NPM_CONFIG_REGISTRY="http://10.0.0.7:4873/", WHERE="x")
    assert indexes.variables["npm_config_registry"] == "http://10.0.0.7:4873/"
    assert Endpoint("http", "10.0.0.7", 4873) in indexes.endpoints


def test_passwords_stay_outside(machine):
    """A URL's user and password are cut off; for plain HTTP the proxy keeps them."""
    indexes = machine(
        PIP_INDEX_URL="https://user:secret@a.example/simple?token=secret",
        PIP_EXTRA_INDEX_URL="http://me:p%40ss@10.0.0.1:8080/",
    )
    assert indexes.variables["PIP_INDEX_URL"] == "https://a.example/simple"
    assert indexes.variables["PIP_EXTRA_INDEX_URL"] == "http://10.0.0.1:8080/"
    assert [endpoint.login for endpoint in indexes.endpoints[:2]] == [None, "me:p@ss"]
    assert "secret" not in repr(indexes)
    assert "p@ss" not in repr(indexes)


def test_certificates_are_handed_in_where_a_sandbox_does_not_see_them(machine):
    """Certificates and nothing else of the file; a path that is seen inside stays as it is."""
    bundle = machine.path / "ca.pem"
    bundle.write_text(f"# ours\n{PEM}\n{KEY}\n{PEM}\n")
    indexes = machine(PIP_CERT=str(bundle))
    assert indexes.variables["PIP_CERT"] == CERTIFICATES
    assert indexes.certificates.decode().count("BEGIN CERTIFICATE") == 2
    assert b"PRIVATE" not in indexes.certificates
    assert machine(NPM_CONFIG_CAFILE=str(bundle)).variables["npm_config_cafile"] == CERTIFICATES
    seen = "/etc/ssl/certs/ca-certificates.crt"
    if os.path.isfile(seen):
        indexes = machine(REQUESTS_CA_BUNDLE=seen)
        assert (indexes.variables["PIP_CERT"], indexes.certificates) == (seen, b"")


def test_what_pip_does_not_use_is_not_allowed(machine):
    """No index means no index; local directories are nobody's host."""
    indexes = machine(PIP_NO_INDEX="1", PIP_FIND_LINKS="/opt/wheels")
    assert places(indexes) == ["https://registry.npmjs.org:443"]
    indexes = machine(
        PIP_FIND_LINKS="/opt/wheels https://links.example/x", PIP_INDEX_URL="file:///srv/simple"
    )
    assert places(indexes) == ["https://links.example:443", "https://registry.npmjs.org:443"]
    assert indexes.variables == {"PIP_FIND_LINKS": "https://links.example/x"}


@pytest.mark.parametrize(
    "environment",
    [
        {"PIP_INDEX_URL": "https://bad_host.example/"},
        {"PIP_INDEX_URL": "https://a.example:99999/"},
        {"PIP_INDEX_URL": "https://[::1/"},
        {"PIP_CERT": "/nonexistent/ca.pem"},
        {"NPM_CONFIG_REGISTRY": "http:///"},
    ],
)
def test_what_cannot_be_understood_refuses_the_start(machine, environment):
    """Fail closed, with a typed error."""
    with pytest.raises(StartupFailed):
        machine(**environment)


def test_broken_files_refuse_the_start(machine):
    """A pip.conf that is none, and one that is endless."""
    path = machine.path / "etc/pip.conf"
    for content in ("index-url = x\n", "[global\n", "[global]\n" + "a" * (2 << 20)):
        path.write_text(content)
        with pytest.raises(StartupFailed):
            machine()
    path.write_text("[global]\ncert = /nonexistent/ca.pem\n")
    with pytest.raises(StartupFailed):
        machine()
