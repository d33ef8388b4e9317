"""Certificates of one's own: what they are for, who may read them, and that clients believe exactly them."""

import asyncio
import shutil
import ssl
import stat
from pathlib import Path

import pytest

from cellfork.model.errors import InvalidRequest, Unsupported
from cellfork.server.certificates import Certificate, check_domains, make_certificate
from tests.server.conftest import Wire, live

DOMAIN = "sandbox.localhost"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate([f"{DOMAIN}:8443"], tmp_path_factory.mktemp("tls") / "new")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_the_owner_reads_the_key(made: Certificate):
    """The private key is 0600, what clients need is readable by all, and nothing else stays: the authority has no key any more."""
    assert (mode(made.key), mode(made.certificate), mode(made.authority)) == (0o600, 0o644, 0o644)
    assert sorted(path.name for path in made.key.parent.iterdir()) == ["ca.pem", "cert.pem", "key.pem"]


@pytest.mark.parametrize(
    ("name", "believed"),
    [
        (DOMAIN, True),
        (f"api.{DOMAIN}", True),
        (f"49999-i0000abc.{DOMAIN}", True),
        ("localhost", True),
        ("127.0.0.1", True),
        (f"a.b.{DOMAIN}", False),
        ("example.com", False),
        ("sandboxXlocalhost", False),
    ],
)
async def test_clients_believe_it_for_its_names(
    made: Certificate, tmp_path: Path, name: str, *, believed: bool
):
    """A client that trusts the authority talks to the server under the domain, every name right below it, and loopback."""
    trusting = ssl.create_default_context(cafile=str(made.authority))
    async with live(tmp_path, tls_cert=made.certificate, tls_key=made.key, domain=DOMAIN) as server:
        assert server.url.startswith("https://")
        connecting = asyncio.open_connection("127.0.0.1", server.port, ssl=trusting, server_hostname=name)
        if not believed:
            with pytest.raises(ssl.SSLCertVerificationError):
                await connecting
            return
        reader, writer = await connecting
        reply = await Wire(reader, writer).ask("GET", "/health", host=f"{name}:{server.port}")
        assert reply.status == (502 if name.startswith("49999-") else 200)  # of a sandbox that is not there
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def test_who_does_not_trust_it_is_not_fooled(made: Certificate, tmp_path: Path):
    """Without the authority a client refuses, with another one of the same making too."""
    other = make_certificate([DOMAIN], tmp_path / "other")
    async with live(tmp_path, tls_cert=made.certificate, tls_key=made.key) as server:
        for context in (
            ssl.create_default_context(),
            ssl.create_default_context(cafile=str(other.authority)),
        ):
            with pytest.raises(ssl.SSLCertVerificationError):
                await asyncio.open_connection("127.0.0.1", server.port, ssl=context, server_hostname=DOMAIN)


def test_again_replaces(tmp_path: Path):
    """A second one takes the place of the first, completely."""
    first = make_certificate([DOMAIN], tmp_path)
    before = [path.read_bytes() for path in (first.authority, first.certificate, first.key)]
    again = make_certificate([DOMAIN, "example.test"], tmp_path)
    after = [path.read_bytes() for path in (again.authority, again.certificate, again.key)]
    assert all(old != new for old, new in zip(before, after, strict=True))
    assert len(list(tmp_path.iterdir())) == 3


def test_domains():
    """Ports, wildcards and capitals are taken off; each domain counts once."""
    assert check_domains(["*.Example.com:8443", "example.com.", "a-b.test"]) == ["example.com", "a-b.test"]


@pytest.mark.parametrize(
    "text",
    [
        "localhost",
        "",
        ".",
        "a..b",
        "-a.b",
        "a_b.c",
        "exa mple.com",
        "a.b\n[x]",
        "a.b,DNS:evil.com",
        "a.b/c",
        "x.y:port",
        "é.com",
        "a." * 200,
    ],
)
def test_what_is_no_domain(text, tmp_path: Path):
    """What is no domain of two parts is refused before anything is written, above all what would be read as more than a name."""
    with pytest.raises(InvalidRequest):
        make_certificate([text], tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_too_many(tmp_path: Path):
    """No domain, and more than sixteen, are refused."""
    for domains in ([], [f"d{number}.test" for number in range(17)]):
        with pytest.raises(InvalidRequest):
            make_certificate(domains, tmp_path)


def test_without_openssl(monkeypatch, tmp_path: Path):
    """Where the command is missing, the error says what to install."""
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(Unsupported, match="apt install openssl"):
        make_certificate([DOMAIN], tmp_path)


def test_where_nothing_can_be_written(tmp_path: Path):
    """A file where the directory should be is a clear error."""
    (tmp_path / "taken").touch()
    with pytest.raises(InvalidRequest, match="cannot be written"):
        make_certificate([DOMAIN], tmp_path / "taken")
