"""The control plane's handlers for sandboxes."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from msgspec.structs import replace

from cellfork.dialects.base import Services
from cellfork.dialects.e2b import network, schema, translate
from cellfork.dialects.e2b.calls import Call, Owned, Reply
from cellfork.dialects.e2b.code.translate import SAVED_IMAGES
from cellfork.dialects.e2b.errors import Refusal, bad, body_of, refusal_of
from cellfork.dialects.e2b.extension.operations import info_of
from cellfork.dialects.e2b.extension.wishes import granted
from cellfork.dialects.e2b.filters import Filter, parse_filter, parse_metadata
from cellfork.dialects.e2b.lifecycle import check_health, end_now, extend, wake
from cellfork.dialects.e2b.notes import as_notes, keep
from cellfork.dialects.e2b.pages import Page, Place
from cellfork.dialects.e2b.snapshots import source_of
from cellfork.engine.sandbox import Sandbox
from cellfork.model.errors import CellforkError, LimitExceeded
from cellfork.model.specs import SandboxSpec

MOST_FORKS: Final = 100
REFRESH: Final = 15
"""Seconds that a refresh gives at least."""


async def create(call: Call) -> Reply:
    """Create a sandbox, first version: its data plane is open to whoever knows the id, unless ``secure``."""
    body = call.parse(schema.NewSandbox)
    return await _create(call, body, secure=bool(body.secure), default=translate.V1_TIMEOUT)


async def create_v2(call: Call) -> Reply:
    """Create a sandbox, second version: its data plane always asks for the token."""
    body = call.parse(schema.NewSandbox)
    return await _create(call, body, secure=True, default=call.services.limits.default_timeout)


async def connect(call: Call) -> Reply:
    """Let a sandbox run for at least as long as told, and wake it where it is paused."""
    return await _connect(call, call.parse(schema.Connect).timeout)


async def connect_v2(call: Call) -> Reply:
    """The same, with defaults; ``memory`` false forgoes the memory that a paused sandbox kept."""
    body = call.parse(schema.ConnectV2, optional=True)
    return await _connect(call, body.timeout, memory=body.memory is not False)


async def resume(call: Call) -> Reply:
    """Wake a paused sandbox; 409 where it runs."""
    owned, body = call.sandbox(), call.parse(schema.Resume, optional=True)
    if owned.sandbox.state == "running":
        raise Refusal(409, f"Sandbox '{owned.sandbox.id}' is already running")
    if body.auto_pause is not None and body.auto_pause != owned.notes.auto_pause:
        raise bad("autoPause cannot be changed when a sandbox is resumed; say it when the sandbox is created")
    seconds = translate.check_timeout(call.services, body.timeout, translate.V1_TIMEOUT)
    await wake(owned.sandbox, seconds)
    return Reply(201, translate.sandbox_answer(call.services, *owned))


async def kill(call: Call) -> Reply:
    """End a sandbox; return when nothing of it is left."""
    await call.sandbox().sandbox.kill()
    return Reply(204)


async def info(call: Call) -> Reply:
    """Tell everything about a sandbox."""
    return Reply(200, translate.detail(call.services, *call.sandbox()))


async def list_running(call: Call) -> Reply:
    """List the running sandboxes, the newest first; the first version has no pages."""
    chosen = Filter(("running",), parse_metadata(call.one("metadata")))
    owned = sorted(filter(chosen.takes, call.sandboxes()), key=_place, reverse=True)
    return Reply(200, [translate.listed(*one) for one in owned])


async def list_all(call: Call) -> Reply:
    """List sandboxes in pages, by state, metadata, template and start."""
    page = Page.asked(call.one("limit"), call.one("nextToken"), call.one("order"))
    chosen = parse_filter(call)
    found = list(filter(chosen.takes, call.sandboxes()))
    owned, token = page.cut(found, _place)
    headers = [(b"x-next-token", token.encode())] if token else []
    if "running" in chosen.states:
        running = sum(one.sandbox.state == "running" for one in found)
        headers.append((b"x-total-running", b"%d" % running))
    return Reply(200, [translate.listed(*one) for one in owned], headers)


async def set_timeout(call: Call) -> Reply:
    """Let a sandbox end so many seconds from now; zero is now, and pauses those that pause at their end."""
    owned, seconds = call.sandbox(), call.parse(schema.Timeout).timeout
    _check_awake(owned.sandbox)
    if seconds <= 0:
        await end_now(owned)
    else:
        owned.sandbox.set_timeout(translate.check_timeout(call.services, seconds, 0))
    return Reply(204)


async def refresh(call: Call) -> Reply:
    """Let a sandbox live for at least so many seconds more."""
    owned, body = call.sandbox(), call.parse(schema.Refresh, optional=True)
    _check_awake(owned.sandbox)
    extend(owned.sandbox, translate.check_timeout(call.services, max(body.duration or 0, REFRESH), 0))
    return Reply(204)


async def pause(call: Call) -> Reply:
    """Pause a sandbox, with its memory or with its files alone."""
    owned, body = call.sandbox(), call.parse(schema.Pause, optional=True)
    sandbox = owned.sandbox
    if sandbox.state == "paused":
        raise Refusal(409, f"Error pausing sandbox - sandbox '{sandbox.id}' is already paused")
    if body.require_healthy_guest:
        await check_health(sandbox)
    await sandbox.pause(memory=body.memory is not False)
    return Reply(204)


async def fork(call: Call) -> Reply:
    """Make copies of a running sandbox, each with tokens of its own."""
    owned, body = call.sandbox(), call.parse(schema.Fork, optional=True)
    count = 1 if body.count is None else body.count
    if count < 1:
        raise bad("Count must be at least 1")
    if count > MOST_FORKS:
        raise bad(f"Count cannot be greater than {MOST_FORKS}")
    seconds = translate.check_timeout(call.services, body.timeout, translate.V1_TIMEOUT)
    if owned.sandbox.state == "paused":
        raise Refusal(409, f"Sandbox '{owned.sandbox.id}' is paused and cannot be forked; resume it first")
    with _places(call, count):
        copies = await call.services.engine.fork(owned.sandbox.id, count, seconds)
    return Reply(201, [await _forked(call.services, owned, copy) for copy in copies])


async def update_network(call: Call) -> Reply:
    """Replace what a sandbox may reach; what is left out is cleared."""
    owned, body = call.sandbox(), call.parse(schema.NetworkUpdate)
    if owned.sandbox.state == "paused":
        raise Refusal(409, f"Sandbox '{owned.sandbox.id}' is paused; resume it first")
    reach = network.reach_of(body, allowed=body.allow_internet_access, internet=call.services.internet)
    network.apply(owned.sandbox, reach.policy)
    kept = {name: value for name, value in owned.notes.network.items() if name not in {"allowOut", "denyOut"}}
    notes = replace(owned.notes, network=kept | network.told(body), warnings=reach.warnings)
    await keep(owned.sandbox, notes)
    return Reply(204)


# ------------------------------------------------------------------------------------------------ steps


async def _create(call: Call, body: schema.NewSandbox, *, secure: bool, default: float) -> Reply:
    services = call.services
    translate.check_new(body, secure=secure)
    timeout = translate.check_timeout(services, body.timeout, default)
    source = source_of(call, body.template_id)
    reach = translate.reach_for(services, body)
    notes = translate.notes_for(body, source, timeout, reach.warnings, secure=secure)
    spec = SandboxSpec(
        template=source.template,
        limits=source.limits,
        network=reach.policy,
        envs={**({} if body.cellfork else SAVED_IMAGES), **(body.env_vars or {})},
        metadata=body.metadata or {},
        timeout=timeout,
        isolation=services.isolation,
        tenant=call.tenant,
        notes=as_notes(notes),
        on_deadline="pause" if notes.auto_pause else "kill",
        pause_memory=notes.auto_pause_memory,
        snapshot=source.snapshot,
    )
    if body.cellfork is not None:
        spec = granted(services, spec, body.cellfork)
    with _places(call):
        sandbox = await services.engine.create(spec)
    answer = translate.sandbox_answer(services, sandbox, notes)
    return Reply(201, answer if body.cellfork is None else replace(answer, cellfork=info_of(sandbox)))


async def _connect(call: Call, seconds: int | None, *, memory: bool = True) -> Reply:
    owned = call.sandbox()
    asleep = owned.sandbox.state == "paused"
    default = call.services.limits.default_timeout
    wanted = translate.check_timeout(call.services, seconds, default, least=1 if asleep else 0)
    if asleep and not memory and translate.pause_mode(owned.sandbox) == "full":
        raise bad(
            "memory=false: a sandbox that was paused with its memory wakes with it; pause it with memory=false instead"
        )
    woken = await wake(owned.sandbox, wanted)
    return Reply(201 if woken else 200, translate.sandbox_answer(call.services, *owned))


async def _forked(services: Services, source: Owned, copy: Sandbox | CellforkError) -> schema.ForkResult:
    if isinstance(copy, CellforkError):
        refusal = refusal_of(copy)
        return schema.ForkResult(error=schema.Error(**body_of(refusal)))
    notes = source.notes.with_new_tokens()
    await keep(copy, notes)
    return schema.ForkResult(sandbox=translate.sandbox_answer(services, copy, notes))


@contextmanager
def _places(call: Call, count: int = 1) -> Iterator[None]:
    """Hold places for new sandboxes.  Raises :class:`Refusal` (429) where there are none."""
    with ExitStack() as held:
        try:
            held.enter_context(call.services.admission.place(call.tenant, count))
        except LimitExceeded as error:
            raise Refusal(429, str(error)) from None
        yield


def _check_awake(sandbox: Sandbox) -> None:
    """Raise :class:`Refusal` (404, as upstream: what is paused has no time) where a sandbox is paused."""
    if sandbox.state == "paused":
        raise Refusal(404, f'Sandbox "{sandbox.id}" is paused and has no deadline; resume it first')


def _place(owned: Owned) -> Place:
    return translate.place_of(owned.sandbox)
