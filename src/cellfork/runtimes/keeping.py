"""How zygotes are kept: how many are ready, how long one serves, how many may live."""

from dataclasses import dataclass
from typing import Self

from cellfork.model.specs import Template
from cellfork.runtimes.variables import number_of

SPARES_ENVIRONMENT = "CELLFORK_SPARE_ZYGOTES"
FORKS_ENVIRONMENT = "CELLFORK_ZYGOTE_FORKS"
MINUTES_ENVIRONMENT = "CELLFORK_ZYGOTE_MINUTES"
MOST_ENVIRONMENT = "CELLFORK_MAX_ZYGOTES"

FORKS = 10_000
MINUTES = 60
MOST = 32
MOST_FORKS = 1_000_000
MOST_MINUTES = 7 * 24 * 60
MOST_ZYGOTES = 1_000


@dataclass(frozen=True, slots=True)
class Keeping:
    """What a runtime's owner may choose about zygotes.  Durations are seconds."""

    spares: int = 0
    """Zygotes of each template in ``templates`` that wait, prepared, for a tenant who has none yet."""
    templates: tuple[Template, ...] = (Template(),)
    """The templates that spares are kept of."""
    forks: int = FORKS
    """Forks after which a zygote is replaced."""
    age: float = MINUTES * 60.0
    """How long a zygote serves before it is replaced, counted from its first request."""
    idle: float = MINUTES * 60.0
    """How long a zygote without a sandbox is kept."""
    most: int = MOST
    """Zygotes that may live when another one is asked for, those included that are seen out; spares and
    successors come on top."""

    @classmethod
    def from_environment(cls) -> Self:
        """Return what ``CELLFORK_SPARE_ZYGOTES``, ``CELLFORK_ZYGOTE_FORKS``, ``CELLFORK_ZYGOTE_MINUTES`` (age
        and idleness) and ``CELLFORK_MAX_ZYGOTES`` say.  Raises :class:`InvalidRequest`.
        """
        seconds = 60.0 * number_of(MINUTES_ENVIRONMENT, MINUTES, least=1, most=MOST_MINUTES)
        return cls(
            spares=number_of(SPARES_ENVIRONMENT, 0),
            forks=number_of(FORKS_ENVIRONMENT, FORKS, least=1, most=MOST_FORKS),
            age=seconds,
            idle=seconds,
            most=number_of(MOST_ENVIRONMENT, MOST, least=1, most=MOST_ZYGOTES),
        )
