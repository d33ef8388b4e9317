"""The settings of a server: one table, read from flags, the environment and files.

A flag goes before the environment (``CELLFORK_PORT``), that before ``./cellfork.toml``, that before
``$XDG_CONFIG_HOME/cellfork/config.toml``, that before the default.  A key that no setting has is an error in a
file; the environment may hold variables of cellfork's other parts.
"""
# ruff: noqa: RUF009 - _option returns what dataclasses.field returns

import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

from cellfork.dialects.base import Internet
from cellfork.model.errors import InvalidRequest
from cellfork.model.limits import GiB, Limits, MiB
from cellfork.server import parsing
from cellfork.server.templates import Named, parse_images, parse_templates

LOCAL_FILE = "cellfork.toml"
VOLUMES = "volumes"
"""Where named volumes are, in the state directory."""
FLAG, ENVIRONMENT, DEFAULTS = "flag", "environment", "default"


@dataclass(frozen=True, slots=True)
class Option:
    """One setting: how its value is read, and what its documentation says.

    ``parse`` gets text from flags and the environment, and what TOML knows from files.
    """

    parse: Callable[[Any], Any]
    help: str
    metavar: str = ""
    secret: bool = False
    only_files: bool = False

    @property
    def is_flag(self) -> bool:
        """Whether it is a yes or no."""
        return self.parse is parsing.flag


def _option(
    default: Any, parse: Callable[[Any], Any], help: str, metavar: str = "", **more: bool
) -> Any:  # Any: it stands for the field's value, as dataclasses.field does
    return field(
        default=default,
        repr=not more.get("secret", False),
        metadata={"option": Option(parse, help, metavar, **more)},
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """What a server does.  Durations are seconds, sizes bytes; ``None`` is "no bound" or "not used"."""

    host: str = _option("127.0.0.1", parsing.text, "Address to listen on.", "ADDRESS")
    port: int = _option(8080, parsing.whole(0, 65535), "Port to listen on; 0 lets the system choose.", "PORT")
    api_key: tuple[str, ...] = _option(
        (),
        parsing.words,
        "Keys that may call, separated by commas; NAME:KEY gives the key's owner a name. Without any, one is made at the first start.",
        "KEY,…",
        secret=True,
    )
    api_key_file: Path | None = _option(None, parsing.path, "File with such keys, one a line.", "FILE")
    anonymous: bool = _option(
        default=False,
        parse=parsing.flag,
        help="Let anybody on this machine call without a key; only on a loopback address.",
    )
    state: Path | None = _option(
        None,
        parsing.path,
        "Directory for what outlives the server: its keys and the records of its sandboxes; 'none' keeps nothing.",
        "DIR",
    )
    domain: str | None = _option(
        None,
        parsing.domain,
        "Domain whose names {port}-{id}.DOMAIN reach ports of sandboxes, with its port where that is not the scheme's own.",
        "DOMAIN",
    )
    tls_cert: Path | None = _option(None, parsing.path, "Certificate (PEM) to serve HTTPS with.", "FILE")
    tls_key: Path | None = _option(None, parsing.path, "The certificate's private key (PEM).", "FILE")
    isolation: str = _option(
        "namespaces",
        parsing.choice("namespaces", "none"),
        "How sandboxes are isolated; 'none' runs code unprotected, only on a loopback address.",
        "NAME",
    )
    internet: Internet = _option(
        "none",
        parsing.choice("none", "packages", "public"),
        "What a sandbox gets that asks for internet access: nothing, the package indexes, any public host.",
        "none|packages|public",
    )
    limits: Limits = _option(
        Limits(),
        parsing.limits,
        "Limits of a sandbox whose template names none, such as memory=1G,cpu=2,pids=256,disk=2G.",
        "NAME=VALUE,…",
    )
    templates: tuple[Named, ...] = _option(
        parse_templates({}),
        parse_templates,
        "What sandboxes start from: tables of interpreter, preload, languages, limits and aliases.",
        only_files=True,
    )
    images: tuple[tuple[str, str], ...] = _option(
        (),
        parse_images,
        "Container images that clients ask for, as a table PATTERN = TEMPLATE; those of OpenSandbox's examples are known.",
        only_files=True,
    )
    host_volumes: tuple[Path, ...] = _option(
        (),
        parsing.paths,
        "Directories of this machine that sandboxes may mount, with all that is below them, for clients that name them.",
        "DIR,…",
    )
    volumes: Path | None = _option(
        None,
        parsing.path,
        "Directory in which named volumes are kept, each key's owner's apart; 'none' keeps none.",
        "DIR",
    )
    default_timeout: float = _option(
        300.0, parsing.seconds, "Life of a sandbox whose creator names none.", "DURATION"
    )
    max_timeout: float | None = _option(
        24 * 3600.0, parsing.seconds_or_none, "Longest life that may be asked for at once.", "DURATION"
    )
    max_sandboxes: int | None = _option(
        1000, parsing.whole_or_none(1), "Sandboxes that may live at once.", "N"
    )
    max_sandboxes_per_key: int | None = _option(
        None, parsing.whole_or_none(1), "Sandboxes of one key's owner that may live at once.", "N"
    )
    body_limit: int = _option(
        40 * MiB, parsing.size, "Most of a request's body that is read as a whole.", "SIZE"
    )
    upload_limit: int = _option(
        10 * GiB, parsing.size, "Most of a body that is streamed into a sandbox.", "SIZE"
    )
    max_connections: int = _option(
        4096, parsing.whole(1), "Connections that are open at once; more are answered 503.", "N"
    )
    header_timeout: float = _option(
        10.0, parsing.seconds, "How long a client may take to send a request's headers.", "DURATION"
    )
    body_timeout: float = _option(
        60.0, parsing.seconds, "How long a client may pause within a request's body.", "DURATION"
    )
    write_timeout: float = _option(
        120.0, parsing.seconds, "How long a client may leave an answer unread that waits for it.", "DURATION"
    )
    keep_alive: float = _option(
        640.0, parsing.seconds, "How long a connection without a request is kept.", "DURATION"
    )
    drain: float = _option(
        10.0, parsing.seconds, "How long running requests get when the server is told to end.", "DURATION"
    )
    kill_on_exit: bool = _option(
        default=False,
        parse=parsing.flag,
        help="End the sandboxes with the server, also where their records are kept.",
    )
    cors_origins: tuple[str, ...] = _option(
        (),
        parsing.origins,
        "Origins whose pages may call from a browser, exactly as browsers send them.",
        "ORIGIN,…",
    )
    allowed_hosts: tuple[str, ...] = _option(
        (),
        parsing.hosts,
        "Further names in the Host header that are answered; '*' answers any. On a loopback address only its own names and the domain's are.",
        "NAME,…",
    )
    e2b_debug: bool = _option(
        default=False,
        parse=parsing.flag,
        help="Listen on loopback 3000, 49983 and 49999 too, with one sandbox that is made when it is asked for, for clients with E2B_DEBUG=true.",
    )
    node_token: str = _option(
        "0000",
        parsing.node_token,
        "Four characters of [a-z0-9] in every sandbox id: this machine's.",
        "TOKEN",
    )
    warm: bool = _option(
        default=True,
        parse=parsing.flag,
        help="Start an interpreter of the default template before anybody asks for one.",
    )
    log_level: str = _option(
        "info", parsing.choice("debug", "info", "warning", "error"), "Least level that is logged.", "LEVEL"
    )
    log_format: str = _option(
        "auto",
        parsing.choice("auto", "json", "console"),
        "Form of the log on stderr: one JSON object a line, or for people; auto: for people where stderr is a terminal.",
        "FORMAT",
    )

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return is_loopback(self.host)


OPTIONS: Mapping[str, Option] = {item.name: item.metadata["option"] for item in fields(Settings)}
"""Name of a setting → how it is read."""


class Loaded(NamedTuple):
    """Settings, and for each where its value comes from."""

    settings: Settings
    sources: Mapping[str, str]


def load(
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    files: Sequence[Path] | None = None,
) -> Loaded:
    """Return the settings that hold.  Raises :class:`InvalidRequest`, which names the place of the mistake.

    ``flags`` leaves out what was not given.  ``environ`` and ``files`` (the first one goes before the others)
    are this process's own where they are left out.
    """
    environ = os.environ if environ is None else environ
    layers = [(FLAG, dict(flags or {})), (ENVIRONMENT, _from_environment(environ))]
    layers += [(str(file), _from_file(file)) for file in (config_files(environ) if files is None else files)]
    values, sources = _defaults(environ), dict.fromkeys(OPTIONS, DEFAULTS)
    for source, layer in reversed(layers):
        for name, value in layer.items():
            values[name] = _parsed(name, value, source)
            sources[name] = _told(name, source)
    if sources["volumes"] == DEFAULTS and values["state"] is not None:
        values["volumes"] = values["state"] / VOLUMES
    settings = Settings(**values)
    _check(settings)
    return Loaded(settings, sources)


def config_files(environ: Mapping[str, str]) -> list[Path]:
    """Return the files that are read where they exist, the one that goes first before the others."""
    home = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME") or "/") / ".config")
    return [Path(LOCAL_FILE), Path(home) / "cellfork" / "config.toml"]


def default_state(environ: Mapping[str, str]) -> Path:
    """Return the state directory of a server that was told none."""
    if os.geteuid() == 0 and not environ.get("XDG_STATE_HOME"):
        return Path("/var/lib/cellfork")
    home = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME") or "/") / ".local" / "state")
    return Path(home) / "cellfork"


def is_loopback(host: str) -> bool:
    """Whether an address to listen on can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"CELLFORK_{name.upper()}"


def flag(name: str) -> str:
    """Return the command-line flag of a setting."""
    return f"--{name.replace('_', '-')}"


def _defaults(environ: Mapping[str, str]) -> dict[str, Any]:
    return {**{item.name: item.default for item in fields(Settings)}, "state": default_state(environ)}


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    named = {
        name: environ.get(variable(name), "") for name, option in OPTIONS.items() if not option.only_files
    }
    return {name: value for name, value in named.items() if value}


def _from_file(file: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidRequest(f"{file}: {error}") from error
    unknown = sorted(set(values) - set(OPTIONS))
    if unknown:
        raise InvalidRequest(f"{file}: there is no setting {unknown[0]!r:.80}")
    return values


def _parsed(name: str, value: Any, source: str) -> Any:
    try:
        return OPTIONS[name].parse(value)
    except InvalidRequest as error:
        raise InvalidRequest(f"{_told(name, source)}: {error}") from error


def _told(name: str, source: str) -> str:
    if source == FLAG:
        return f"flag {flag(name)}"
    if source == ENVIRONMENT:
        return f"environment {variable(name)}"
    return f"{source} {name}" if OPTIONS[name].only_files else source


def _check(settings: Settings) -> None:
    """Refuse settings that contradict each other, and those that would let strangers in."""
    if settings.anonymous and not settings.on_loopback:
        raise InvalidRequest("anonymous calls are only allowed on a loopback address such as 127.0.0.1")
    if settings.isolation == "none" and not settings.on_loopback:
        raise InvalidRequest("isolation 'none' is only allowed on a loopback address such as 127.0.0.1")
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise InvalidRequest("tls_cert and tls_key belong together: give both or neither")
    if settings.max_timeout is not None and settings.default_timeout > settings.max_timeout:
        raise InvalidRequest("default_timeout is longer than max_timeout")
    known = {word for named in settings.templates for word in (named.template.name, *named.aliases)}
    for image, template in settings.images:
        if template not in known:
            raise InvalidRequest(
                f"the image {image!r:.80} stands for the template {template!r:.60}, which there is not"
            )
