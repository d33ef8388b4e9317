"""What a sandbox may reach, what it was refused, how much it has moved."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cellfork.model.errors import InvalidRequest
from cellfork.model.hosts import PACKAGES, BadHost, HostRule
from cellfork.model.limits import GiB, parse_size

MODES = ("none", "allow", "public")
MAX_HOSTS = 256
KEYS = frozenset({"allow", "upload", "download"})


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """What a sandbox may reach: ``none`` (the default), ``allow`` a list of hosts, or ``public`` (any public host).

    An entry of ``hosts`` is a name (``pypi.org``), all names below one at any depth but not the name itself
    (``*.example.com``), either with a port (``example.com:8443``; without: 80 and 443), or ``packages``: the
    package indexes that this machine's pip and npm are configured to use.  Private addresses are out of reach in
    every mode, but for those indexes.  Raises :class:`InvalidRequest` for a list that is empty, malformed or longer than 256.
    """

    mode: str = "none"
    hosts: tuple[str, ...] = field(default=())
    upload: int | str = 1 * GiB
    """Bytes that the sandbox may send in its whole life."""
    download: int | str = 1 * GiB
    """Bytes that the sandbox may receive in its whole life."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InvalidRequest(f"unknown network mode {self.mode!r:.80}; known: {', '.join(MODES)}")
        object.__setattr__(self, "hosts", _checked(self.hosts))
        if self.hosts and self.mode != "allow":
            raise InvalidRequest("hosts belong to the mode 'allow'")
        if self.mode == "allow" and not self.hosts:
            raise InvalidRequest("the list of allowed hosts is empty; name a host, or use network='none'")
        for name in ("upload", "download"):
            object.__setattr__(self, name, parse_size(getattr(self, name)))

    @classmethod
    def of(cls, value: "NetworkPolicy | str | Iterable[str] | Mapping[str, Any] | None") -> "NetworkPolicy":
        """Return the policy for a policy, ``"none"``, ``"public"``, a list of hosts, ``{"allow": [hosts]}`` or ``None``."""
        if value is None:
            return cls()
        if isinstance(value, NetworkPolicy):
            return value
        if isinstance(value, str):
            return cls._of_word(value)
        if isinstance(value, Mapping):
            return cls._of_mapping(value)
        if not isinstance(value, list | tuple | set | frozenset):
            raise InvalidRequest(
                f"a network policy is a word, a list of hosts or a policy, not {value!r:.60}"
            )
        return cls("allow", tuple(sorted(map(str, value)) if isinstance(value, set | frozenset) else value))

    @property
    def rules(self) -> tuple[HostRule, ...]:
        """The entries as rules, ``packages`` left out."""
        return tuple(HostRule.parse(entry) for entry in self.hosts if entry != PACKAGES)

    @property
    def packages(self) -> bool:
        """Whether the package indexes are allowed."""
        return PACKAGES in self.hosts

    @property
    def upload_bytes(self) -> int:
        """The bound of what may be sent."""
        return parse_size(self.upload)

    @property
    def download_bytes(self) -> int:
        """The bound of what may be received."""
        return parse_size(self.download)

    def describe(self) -> str:
        """Return what is allowed, in a few words."""
        if self.mode != "allow":
            return {"none": "nothing", "public": "any public host"}[self.mode]
        return ", ".join(self.hosts[:8]) + (", …" if len(self.hosts) > 8 else "")

    @classmethod
    def _of_word(cls, word: str) -> "NetworkPolicy":
        if word not in {"none", "public"}:
            raise InvalidRequest(f"network is 'none', 'public' or a list of hosts, such as [{word!r:.80}]")
        return cls(word)

    @classmethod
    def _of_mapping(cls, values: Mapping[str, Any]) -> "NetworkPolicy":
        unknown = sorted(map(str, set(values) - KEYS))
        if unknown or "allow" not in values:
            raise InvalidRequest(
                f"a network policy as a mapping has the keys {', '.join(sorted(KEYS))}"
                + (f", not {unknown[0]!r:.80}" if unknown else "; 'allow' is missing")
            )
        budgets = {name: values[name] for name in ("upload", "download") if name in values}
        return cls("allow", values["allow"], **budgets)


@dataclass(frozen=True, slots=True)
class Denial:
    """Something that a sandbox asked for and did not get: when (Unix time in seconds), which host and port, why."""

    time: float
    host: str
    port: int
    reason: str


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that a sandbox has sent and received, its open connections, and how often it was refused."""

    sent: int = 0
    received: int = 0
    connections: int = 0
    denials: int = 0


def _checked(hosts: object) -> tuple[str, ...]:
    if isinstance(hosts, str | bytes) or not isinstance(hosts, list | tuple):
        raise InvalidRequest(f"hosts are a list of names, not {hosts!r:.60}")
    if len(hosts) > MAX_HOSTS:
        raise InvalidRequest(f"a network policy has at most {MAX_HOSTS} hosts")
    return tuple(dict.fromkeys(_canonical(entry) for entry in hosts))


def _canonical(entry: object) -> str:
    if not isinstance(entry, str):
        raise InvalidRequest(f"a host is a name, not {entry!r:.60}")
    if entry == PACKAGES:
        return entry
    try:
        return str(HostRule.parse(entry))
    except BadHost as error:
        raise InvalidRequest(f"{entry!r:.80} cannot be allowed: {error}") from error
