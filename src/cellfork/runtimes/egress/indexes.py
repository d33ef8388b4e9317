"""Which package indexes this machine is configured to use, by pip and by npm, and how a sandbox is told.

Only hosts and ports are allowed, exactly those.  A user and password in a URL never enter a sandbox; for an index in plain
HTTP the proxy adds them to requests that read, for one in HTTPS it cannot.

Sources: pip's "Configuration" page (order of files: global, user, site, ``PIP_CONFIG_FILE``; then the environment), npm's
"npmrc" page.
"""

import configparser
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, unquote, urlsplit

from cellfork.model.errors import StartupFailed
from cellfork.model.hosts import BadHost
from cellfork.runtimes.egress.targets import parse_target

DEFAULT_PIP = "https://pypi.org/simple"
DEFAULT_PIP_FILES = "https://files.pythonhosted.org/"
DEFAULT_NPM = "https://registry.npmjs.org/"
MAX_FILE = 1 << 20
MAX_CERTIFICATES = 4 << 20
VISIBLE = ("/etc/ssl/certs", "/etc/pki/tls/certs", "/etc/pki/ca-trust/extracted", "/usr")
"""Places of the host that a sandbox sees under the same name."""
CERTIFICATES = "/run/sandbox/certificates.pem"
"""Where a sandbox finds the certificates that were handed in."""

_PORTS: Mapping[str, int] = {"http": 80, "https": 443}
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]{1,20000}-----END CERTIFICATE-----")
_TRUE = frozenset({"1", "true", "yes", "on", "y", "t"})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host and port of an index; ``login`` is ``user:password`` where the URL has them and is plain HTTP."""

    scheme: Literal["http", "https"]
    host: str
    port: int
    login: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Indexes:
    """The package indexes: where they are, the variables that tell pip and npm inside, certificates to hand in (PEM)."""

    endpoints: tuple[Endpoint, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    certificates: bytes = b""


NO_INDEXES = Indexes()


def read_indexes(
    environment: Mapping[str, str] | None = None, *, root: str = "/", prefix: str | None = None
) -> Indexes:
    """Return what this machine is configured to use.

    ``root`` and ``prefix`` say where the files of the system and of the interpreter are.  Raises :class:`StartupFailed`
    for a configuration that cannot be read: nothing is guessed.
    """
    environment = os.environ if environment is None else environment
    collected = _Collected()
    _add_pip(collected, environment, root, prefix or sys.prefix)
    _add_npm(collected, environment, root)
    return Indexes(
        tuple(dict.fromkeys(collected.endpoints)), collected.variables, b"\n".join(collected.certificates)
    )


class _Collected:
    """What was found so far."""

    def __init__(self) -> None:
        self.endpoints: list[Endpoint] = []
        self.variables: dict[str, str] = {}
        self.certificates: list[bytes] = []

    def add(self, url: str) -> str | None:
        """Allow the host of an index and return its URL as a sandbox may see it; ``None`` for one that is not HTTP."""
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise StartupFailed(
                f"a package index of this machine's configuration is malformed: {error}"
            ) from error
        if parts.scheme not in _PORTS:
            return None
        endpoint = _endpoint(parts)
        self.endpoints.append(endpoint)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()

    def add_certificates(self, path: str) -> str:
        """Return where a sandbox finds the certificates of ``path``; they are handed in where it does not see that."""
        if any(Path(os.path.realpath(path)).is_relative_to(place) for place in VISIBLE):
            return path
        found = _CERTIFICATE.findall(_read(path, MAX_CERTIFICATES))
        if not found:
            raise StartupFailed(f"the configured certificates in {path} are none")
        self.certificates += found
        return CERTIFICATES


def _add_pip(collected: _Collected, environment: Mapping[str, str], root: str, prefix: str) -> None:
    options = pip_options(environment, root, prefix)
    if options.get("no-index", "").lower() in _TRUE:
        return
    index = options.get("index-url") or DEFAULT_PIP
    found = collected.add(index)
    if found and found.rstrip("/") == DEFAULT_PIP:
        collected.add(DEFAULT_PIP_FILES)
    shown: dict[str, list[str]] = {"PIP_INDEX_URL": [found] if found and "index-url" in options else []}
    for option in ("extra-index-url", "find-links"):
        urls = [collected.add(url) for url in options.get(option, "").split()]
        shown["PIP_" + option.upper().replace("-", "_")] = [url for url in urls if url]
    shown["PIP_TRUSTED_HOST"] = options.get("trusted-host", "").split()
    collected.variables.update({name: " ".join(values) for name, values in shown.items() if values})
    certificates = (
        options.get("cert") or environment.get("REQUESTS_CA_BUNDLE") or environment.get("CURL_CA_BUNDLE")
    )
    if certificates and os.path.isfile(certificates):
        collected.variables["PIP_CERT"] = collected.add_certificates(certificates)
    elif options.get("cert"):
        raise StartupFailed(
            f"pip is configured to use the certificates in {certificates}, which is not a file"
        )


def _add_npm(collected: _Collected, environment: Mapping[str, str], root: str) -> None:
    options = npm_options(environment, root)
    registry = options.get("registry") or DEFAULT_NPM
    found = collected.add(registry)
    if found and "registry" in options:
        collected.variables["npm_config_registry"] = found
    certificates = options.get("cafile") or environment.get("NODE_EXTRA_CA_CERTS")
    if certificates and os.path.isfile(certificates):
        collected.variables["npm_config_cafile"] = collected.add_certificates(certificates)


def pip_options(environment: Mapping[str, str], root: str, prefix: str) -> dict[str, str]:
    """Return pip's options for ``install`` by their long names, files first, then the environment."""
    options: dict[str, str] = {}
    for path in _pip_files(environment, root, prefix):
        options |= _pip_file(path)
    for name, value in environment.items():
        if name.startswith("PIP_") and value:
            options[name.removeprefix("PIP_").lower().replace("_", "-")] = value
    return options


def npm_options(environment: Mapping[str, str], root: str) -> dict[str, str]:
    """Return npm's options from the files for the machine and the user, then from the environment."""
    given = {
        name[len("npm_config_") :].lower(): value
        for name, value in environment.items()
        if name.lower().startswith("npm_config_") and value
    }
    places = [f"{root}usr/etc/npmrc", f"{root}usr/local/etc/npmrc", f"{root}etc/npmrc"]
    files = [given["globalconfig"]] if "globalconfig" in given else places
    files.append(given.get("userconfig") or f"{environment.get('HOME', '')}/.npmrc")
    options: dict[str, str] = {}
    for path in files:
        if os.path.isfile(path):
            options |= dict(_npm_lines(_read(path).decode("utf-8", "replace"), environment))
    return options | given


def _pip_files(environment: Mapping[str, str], root: str, prefix: str) -> Iterator[str]:
    chosen = environment.get("PIP_CONFIG_FILE")
    if chosen == os.devnull:
        return
    home = environment.get("HOME", "")
    for directory in reversed((environment.get("XDG_CONFIG_DIRS") or f"{root}etc/xdg").split(":")):
        yield f"{directory}/pip/pip.conf"
    yield f"{root}etc/pip.conf"
    yield f"{home}/.pip/pip.conf"
    yield f"{environment.get('XDG_CONFIG_HOME') or home + '/.config'}/pip/pip.conf"
    yield f"{prefix}/pip.conf"
    if chosen:
        yield chosen


def _pip_file(path: str) -> dict[str, str]:
    if not os.path.isfile(path):
        return {}
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(_read(path).decode("utf-8", "replace"))
    except configparser.Error as error:
        raise StartupFailed(f"pip's configuration {path} cannot be read: {error}") from error
    options: dict[str, str] = {}
    for section in ("global", "install"):
        if parser.has_section(section):
            options |= {name.replace("_", "-"): value for name, value in parser.items(section)}
    return options


def _npm_lines(text: str, environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.lstrip().startswith(("#", ";")):
            plain = value.strip().strip("\"'")
            yield name.strip(), re.sub(r"\$\{(\w+)\}", lambda match: environment.get(match[1], ""), plain)


def _endpoint(parts: SplitResult) -> Endpoint:
    scheme: Literal["http", "https"] = "https" if parts.scheme == "https" else "http"
    try:
        target = parse_target(parts.netloc.rpartition("@")[2], _PORTS[scheme])
    except BadHost as error:
        raise StartupFailed(
            f"a package index of this machine's configuration has a malformed host: {error}"
        ) from error
    login = None
    if parts.username is not None and scheme == "http":
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return Endpoint(scheme, target.host, target.port, login)


def _read(path: str, most: int = MAX_FILE) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise StartupFailed(
            f"{path}, which configures the package indexes, cannot be read: {error}"
        ) from error
    if len(data) > most:
        raise StartupFailed(f"{path}, which configures the package indexes, is larger than {most} bytes")
    return data
