"""Certificates for a server's own wildcard domain, from an authority that is made for them and forgotten.

The authority signs one certificate, then its key is deleted, so whoever trusts the authority trusts
exactly that certificate.  And it is limited to the names that were asked for, whatever else it might have signed.

The ``openssl`` command does the cryptography: it is on nearly every machine that serves TLS, where a package for it would
be the largest dependency of the server.  Sources: RFC 5280 §4.2.1.10, x509v3_config(5).
"""

import os
import re
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cellfork.model.errors import InvalidRequest, Unsupported

DAYS = 825
"""How long a certificate holds; several clients refuse longer ones."""
MOST_DOMAINS = 16
SECONDS = 60.0

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})+")
_PORT = re.compile(r"[0-9]{1,5}")
_MISSING = "the openssl command is not installed; on Debian and Ubuntu: apt install openssl"

_CONFIG = """
[authority]
basicConstraints = critical, CA:TRUE, pathlen:0
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
nameConstraints = critical, {permitted}
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
authorityKeyIdentifier = keyid
subjectAltName = {names}
[req]
distinguished_name = nobody
[nobody]
"""


@dataclass(frozen=True, slots=True)
class Certificate:
    """The files of a certificate: what clients trust, what the server shows, and its key."""

    authority: Path
    certificate: Path
    key: Path


def make_certificate(domains: Sequence[str], directory: Path) -> Certificate:
    """Make a certificate for each domain, all names right below it, and this machine; return its files in ``directory``.

    What was there of an earlier one is replaced.  Only the owner may read the key.  Raises :class:`InvalidRequest` for what is
    no domain and where files cannot be written, :class:`Unsupported` without ``openssl``.
    """
    names = check_domains(domains)
    openssl = shutil.which("openssl")
    if openssl is None:
        raise Unsupported(_MISSING)
    made = Certificate(directory / "ca.pem", directory / "cert.pem", directory / "key.pem")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="cellfork-cert-") as scratch:
            _make(openssl, Path(scratch), names, made)
    except OSError as error:
        raise InvalidRequest(f"the certificate cannot be written: {error}") from error
    return made


def check_domains(domains: Sequence[str]) -> list[str]:
    """Return the domains without ports and ``*.``, each once.  Raises :class:`InvalidRequest`."""
    names = list(dict.fromkeys(_domain(domain) for domain in domains))
    if not 1 <= len(names) <= MOST_DOMAINS:
        raise InvalidRequest(f"name from 1 to {MOST_DOMAINS} domains")
    return names


def _domain(text: str) -> str:
    name, colon, port = text.strip().lower().partition(":")
    name = name.removeprefix("*.").removesuffix(".")
    if (colon and not _PORT.fullmatch(port)) or len(name) > 240 or not _DOMAIN.fullmatch(name):
        raise InvalidRequest(
            f"{text[:80]!r} is no domain of two or more parts, such as sandbox.localhost (clients refuse wildcards "
            "right below a single name)"
        )
    return name


def _make(openssl: str, scratch: Path, names: Sequence[str], made: Certificate) -> None:
    """Make the authority in a directory that only we can read, sign with it, put what is to stay in its place."""
    permitted = [f"permitted;DNS:{name}" for name in (*names, "localhost")]
    permitted += ["permitted;IP:127.0.0.0/255.0.0.0", f"permitted;IP:::1/{':'.join(8 * ['ffff'])}"]
    shown = [f"DNS:{each}" for name in names for each in (name, f"*.{name}")]
    shown += ["DNS:localhost", "IP:127.0.0.1", "IP:::1"]
    config = scratch / "openssl.cnf"
    config.write_text(
        _CONFIG.format(permitted=", ".join(permitted), names=", ".join(shown)), encoding="ascii"
    )
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-config", str(config)]

    def run(*arguments: str) -> None:
        _run([openssl, *arguments], scratch)

    title = f"/CN=cellfork local authority {secrets.token_hex(4)}"
    run("req", "-x509", *new_key, "-keyout", "ca.key", "-out", "ca.pem", "-days", str(DAYS),
        "-subj", title, "-extensions", "authority")  # fmt: skip
    run("req", *new_key, "-keyout", "key.pem", "-out", "request.pem", "-subj", f"/CN={names[0][:64]}")
    run("x509", "-req", "-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca.key", "-out", "cert.pem",
        "-set_serial", f"0x{secrets.token_hex(16)}", "-days", str(DAYS), "-sha256",
        "-extfile", str(config), "-extensions", "server")  # fmt: skip
    _put(scratch / "ca.pem", made.authority, 0o644)
    _put(scratch / "cert.pem", made.certificate, 0o644)
    _put(scratch / "key.pem", made.key, 0o600)


def _run(command: list[str], scratch: Path) -> None:
    environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(scratch), "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command,
            cwd=scratch,
            env=environment,
            capture_output=True,
            timeout=SECONDS,
            check=False,
            text=True,
        )
    except subprocess.TimeoutExpired as error:
        raise Unsupported("openssl did not end") from error
    if done.returncode:
        raise Unsupported(f"openssl could not make the certificate: {done.stderr.strip()[-400:]}")


def _put(source: Path, target: Path, mode: int) -> None:
    """Write a file that is readable as ``mode`` says from its first byte on, in place of an old one."""
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(source.read_bytes())
        beside.chmod(mode)  # whatever the umask took away
        beside.replace(target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
