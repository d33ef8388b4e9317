"""Lists of sandboxes: pages, order, filters."""

from collections.abc import Callable
from datetime import datetime
from urllib.parse import parse_qs, quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfork.dialects.e2b.errors import Refusal
from cellfork.dialects.e2b.filters import parse_metadata
from cellfork.dialects.e2b.pages import Page, Place, parse_time, rfc3339

from .conftest import Stage, refusal


@pytest.mark.route("GET /v2/sandboxes")
async def test_the_newest_come_first(stage: Stage) -> None:
    """Descending by start is the default; ``order=asc`` is exactly the reverse."""
    made = []
    for _ in range(3):
        made.append((await stage.create())["sandboxID"])
        await stage.clock.advance(1)
    assert await stage.ids() == await stage.ids("?order=desc") == made[::-1]
    assert await stage.ids("?order=asc") == made


@pytest.mark.parametrize("order", ["", "asc", "desc"])
async def test_pages_hold_everything_once(stage: Stage, order: str) -> None:
    """Following ``x-next-token`` gives every sandbox once, also those that started at the same moment; the last page has no token."""
    for number in range(7):
        await stage.create()
        await stage.clock.advance(number % 2)
    seen, token = [], None
    for _ in range(10):
        query = urlencode(
            {"limit": 2, **({"order": order} if order else {}), **({"nextToken": token} if token else {})}
        )
        answer = await stage.client.get(f"/v2/sandboxes?{query}")
        seen += [entry["sandboxID"] for entry in answer.json()]
        assert answer.headers["x-total-running"] == "7"
        token = answer.headers.get("x-next-token")
        if token is None:
            break
    assert len(seen) == len(set(seen)) == 7
    assert seen == await stage.ids(f"?order={order}" if order else "")


async def test_a_cursor_survives_what_ends_between_two_pages(stage: Stage) -> None:
    """The next page begins where the last one ended, though its last sandbox is gone and a new one came."""
    for _ in range(4):
        await stage.create()
        await stage.clock.advance(1)
    everything = await stage.ids()
    answer = await stage.client.get("/v2/sandboxes?limit=2")
    await stage.client.delete(f"/sandboxes/{everything[1]}")
    await stage.create()
    assert await stage.ids(f"?nextToken={answer.headers['x-next-token']}") == everything[2:]


@pytest.mark.parametrize(
    "query",
    [
        "limit=",
        "limit=0",
        pytest.param("limit=" + "9" * 5000, id="limit=999…"),
        "limit=101",
        "limit=x",
        "limit=-1",
        "limit=٣",
        "order=up",
        "state=sleeping",
        "state=running,x",
        "nextToken=x",
        "nextToken=%20",
        "nextToken=YQ==",
        "nextToken=MjAyNi0xMS0yMVQxNzowMDowMFpfX2E=x",
        "startedAfter=",
        "startedAfter=yesterday",
        "startedAfter=2026-01-01",
        "startedAfter=2026-01-01T00:00:00",
        "metadata=",
        "metadata=a",
        "metadata=a%3Db%3Dc",
        "template=base:v1",
        "template=%20",
    ],
)
async def test_a_query_that_means_nothing_is_refused(stage: Stage, query: str) -> None:
    """400: a typo never gives another list than the one that was asked for."""
    assert refusal(await stage.client.get(f"/v2/sandboxes?{query}"))[0] == 400


async def test_a_cursor_of_the_other_order_is_refused(stage: Stage) -> None:
    """Its place would mean something else."""
    for _ in range(2):
        await stage.create()
    answer = await stage.client.get("/v2/sandboxes?limit=1")
    token = answer.headers["x-next-token"]
    assert refusal(await stage.client.get(f"/v2/sandboxes?order=asc&nextToken={token}"))[0] == 400


def status_of(call: Callable[[], object]) -> int:
    """Return 200, or the status of the refusal that a call raises."""
    try:
        call()
    except Refusal as refused:
        return refused.status
    return 200


def sdk_encoded(metadata: dict[str, str]) -> str:
    """Return the parameter as E2B's SDKs write it: each part quoted, then form-encoded, then the query's own encoding."""
    return quote(urlencode({quote(key): quote(value) for key, value in metadata.items()}))


@pytest.mark.route("GET /v2/sandboxes")
async def test_metadata_as_the_sdks_encode_it(stage: Stage) -> None:
    """The form that was seen on the wire finds the sandbox, and nothing else."""
    told = await stage.create(metadata={"a b": "c/d", "more": "x"})
    await stage.create(metadata={"a b": "other"})
    assert sdk_encoded({"a b": "c/d"}) == "a%252520b%3Dc%252Fd"
    assert await stage.ids("?metadata=a%252520b%3Dc%252Fd") == [told["sandboxID"]]
    assert await stage.ids("?metadata=more%3Dx%26a%252520b%3Dc%252Fd") == [told["sandboxID"]]
    assert await stage.ids("?metadata=more%3Dy") == []


@given(st.dictionaries(st.text(min_size=1, max_size=8), st.text(max_size=8), min_size=1, max_size=3))
def test_any_metadata_survives_the_encoding(metadata: dict[str, str]) -> None:
    """Keys and values of any characters, ``&``, ``=``, ``%`` and ``+`` among them, come back as they were."""
    query = parse_qs(f"metadata={sdk_encoded(metadata)}")
    assert parse_metadata(query["metadata"][0]) == metadata


@given(st.text())
def test_any_text_as_metadata_is_read_or_refused(text: str) -> None:
    """Nothing but a refusal comes of what is malformed."""
    assert status_of(lambda: parse_metadata(text)) in {200, 400}


@pytest.mark.parametrize("plus", ["+", "%2B"])
async def test_sandboxes_that_started_later(stage: Stage, plus: str) -> None:
    """A sandbox's own start finds it, one microsecond later does not; offsets are understood, encoded or not."""
    told = await stage.create()
    detail = (await stage.client.get(f"/sandboxes/{told['sandboxID']}")).json()
    start = datetime.fromisoformat(detail["startedAt"])
    assert await stage.ids(f"?startedAfter={detail['startedAt']}") == [told["sandboxID"]]
    assert await stage.ids(f"?startedAfter={start.isoformat().replace('+', plus)}") == [told["sandboxID"]]
    later = start.replace(microsecond=start.microsecond + 1)
    assert await stage.ids(f"?startedAfter={later.isoformat().replace('+', plus)}") == []


async def test_sandboxes_of_a_template(stage: Stage) -> None:
    """A template is found by its id and its aliases; an unknown one gives an empty list, no error."""
    told = await stage.create(templateID="code-interpreter-v1")
    await stage.create(templateID="Large.One")
    for name in ("default", "base", "code-interpreter-v1"):
        assert await stage.ids(f"?template={name}") == [told["sandboxID"]]
    assert await stage.ids("?template=unknown-template") == []


async def test_sandboxes_of_a_state(stage: Stage) -> None:
    """States are joined by commas or repeated; the running ones are counted where they were asked for, over all pages."""
    running, paused = await stage.create(), await stage.create()
    await stage.client.post(f"/sandboxes/{paused['sandboxID']}/pause")
    assert await stage.ids("?state=running") == [running["sandboxID"]]
    assert await stage.ids("?state=paused") == [paused["sandboxID"]]
    for query in ("?state=running,paused", "?state=running&state=paused", ""):
        assert set(await stage.ids(query)) == {running["sandboxID"], paused["sandboxID"]}
    answer = await stage.client.get("/v2/sandboxes?limit=1")
    assert answer.headers["x-total-running"] == "1"
    answer = await stage.client.get("/v2/sandboxes?state=paused")
    assert "x-total-running" not in answer.headers
    assert answer.json()[0]["state"] == "paused"


@pytest.mark.route("GET /sandboxes")
async def test_the_first_version_lists_what_runs(stage: Stage) -> None:
    """No pages, no paused sandboxes, the newest first, by metadata."""
    first = await stage.create(metadata={"a": "1"})
    await stage.clock.advance(1)
    second = await stage.create(metadata={"a": "2"})
    paused = await stage.create()
    await stage.client.post(f"/sandboxes/{paused['sandboxID']}/pause")
    listed = (await stage.client.get("/sandboxes")).json()
    assert [entry["sandboxID"] for entry in listed] == [second["sandboxID"], first["sandboxID"]]
    listed = (await stage.client.get("/sandboxes?metadata=a%3D1")).json()
    assert [entry["sandboxID"] for entry in listed] == [first["sandboxID"]]


async def test_a_listed_sandbox_carries_no_token(stage: Stage) -> None:
    """Tokens are told to the creator, in details and on connect; never in lists."""
    told = await stage.create(network={"allowPublicTraffic": False})
    text = (await stage.client.get("/v2/sandboxes")).text + (await stage.client.get("/sandboxes")).text
    assert told["envdAccessToken"] not in text
    assert told["trafficAccessToken"] not in text


@given(st.integers(0, 253_402_300_799_999_999))
def test_times_keep_their_microseconds(time: int) -> None:
    """A time that was told and comes back is the same time, to the microsecond."""
    assert parse_time(rfc3339(time)) == time


places = st.builds(Place, st.integers(0, 3), st.text("ab", min_size=1, max_size=2))


@given(st.sets(places, max_size=12), st.integers(1, 4), st.booleans())
def test_pages_cut_any_list_without_loss(items: set[Place], limit: int, ascending: bool) -> None:
    """Whatever the times and ids: following the cursors gives every entry once, in order."""
    seen: list[Place] = []
    token: str | None = None
    while True:
        page = Page.asked(str(limit), token, "asc" if ascending else None)
        entries, token = page.cut(items, lambda place: place)
        assert len(entries) <= limit
        seen += entries
        if token is None:
            break
    expected = sorted(items, key=lambda place: (-place.time, place.id), reverse=ascending)
    assert seen == expected


@given(st.text(max_size=40))
def test_any_cursor_is_read_or_refused(token: str) -> None:
    """What is no cursor is a refusal."""
    assert status_of(lambda: Page.asked(None, token)) in {200, 400}
