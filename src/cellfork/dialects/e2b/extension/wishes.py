"""What a creator wishes for beside E2B's options: honoured, or refused with the reason."""

from dataclasses import replace

from msgspec import UNSET

from cellfork.dialects.base import Services
from cellfork.dialects.e2b.extension.operations import checked_policy, checked_timeout
from cellfork.dialects.e2b.extension.schema import Wishes
from cellfork.model.errors import LimitExceeded, Unsupported
from cellfork.model.limits import Limits
from cellfork.model.specs import SandboxSpec


def granted(services: Services, spec: SandboxSpec, wishes: Wishes) -> SandboxSpec:
    """Return ``spec`` with what is wished for.

    Limits may be lower than the template's, never higher: those are what the server's owner gives.  Raises :class:`Unsupported`,
    :class:`LimitExceeded`, :class:`InvalidRequest`.
    """
    if wishes.isolation not in {None, spec.isolation}:
        raise Unsupported(
            f"sandboxes of this server have the isolation {spec.isolation!r}, not {wishes.isolation!r:.80}"
        )
    return replace(
        spec,
        limits=spec.limits if wishes.limits is None else _limits(wishes.limits, spec.limits),
        network=spec.network if wishes.network is None else checked_policy(services, wishes.network),
        timeout=spec.timeout if wishes.timeout is UNSET else checked_timeout(services, wishes.timeout),
    )


def _limits(wanted: dict[str, object], most: Limits) -> Limits:
    limits, highest = Limits.from_dict(wanted), most.to_dict()
    for name, value in limits.to_dict().items():
        bound = highest[name]
        if bound is not None and (value is None or value > bound):
            shown = "no limit" if value is None else f"{value:,}"
            raise LimitExceeded(f"{name} is at most {bound:,} for this template, not {shown}")
    return limits
