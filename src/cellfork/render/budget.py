"""Several texts in a bounded number of tokens: everybody gets a share, every cut says what it dropped."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

CountTokens = Callable[[str], int]

_SMALLEST_SHARE = 8
"""Tokens below which a section is left out rather than cut."""

_USEFUL_SHARE = 32
"""Tokens that each of many results should get at least: rather fewer results than crumbs of all."""

_SCALES = (1.0, 0.95, 0.9, 0.8, 0.65, 0.5, 0.3, 0.15, 0.0)
"""Counters need not be additive: where the parts come out longer than their sum, try again with less."""


def estimate_tokens(text: str) -> int:
    """Return a rough number of tokens: four bytes of UTF-8 each, rounded up."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // 4)


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the whole: what it is called when it is left out, its text, how to shorten it.

    ``head`` is the part of what stays that comes from the front.  A text with a ``substitute`` is
    never cut but replaced by it; one that is ``whole`` is there or not.  A ``shorter`` text stands in for one that
    does not fit, and is cut where it does not fit either.
    """

    name: str
    text: str
    head: float = 0.5
    substitute: str | None = None
    whole: bool = False
    shorter: str | None = None


@dataclass(frozen=True, slots=True)
class Fitted:
    """The text, and the indexes of the sections that are in it uncut."""

    text: str
    complete: frozenset[int]


def fit(sections: Sequence[Section], headline: str, budget: int, count: CountTokens) -> Fitted:
    """Return the sections, then ``headline``, in at most ``budget`` tokens.

    ``headline`` (an error's name and message) goes first when room is given out: it is cut only where
    it would not fit with nothing but a short note on what was left out.
    """
    whole = _join([*(s.text for s in sections), headline])
    if count(whole) <= budget:
        return Fitted(whole, frozenset(range(len(sections))))
    room = budget - (count(headline) if headline else 0)
    demands = [count(section.text) + 1 for section in sections]
    for scale in _SCALES:
        fitted = _compose(sections, demands, headline, int(room * scale), count)
        if count(fitted.text) <= budget:
            return fitted
    return Fitted(_last_resort(sections, headline, budget, count), frozenset())


def cut(text: str, fits: Callable[[str], bool], head: float = 0.5) -> str | None:
    """Return the longest head and tail of ``text`` that fit with a line between them that says what was dropped.

    ``None`` where not even that line and a few characters fit.
    """
    if fits(text):
        return text
    kept = 1024
    while kept < len(text) and fits(_shortened(text, kept, head)):
        kept *= 2
    low, high, best = 0, min(kept, len(text) - 1), None
    while low < high:
        middle = (low + high + 1) // 2
        candidate = _shortened(text, middle, head)
        if fits(candidate):
            low, best = middle, candidate
        else:
            high = middle - 1
    return best


def _shortened(text: str, kept: int, head: float) -> str:
    """``text`` with ``kept`` characters or a few less, whole lines where that costs little."""
    front, back = text[: round(kept * head)], text[len(text) - (kept - round(kept * head)) :]
    if kept == round(kept * head):
        back = ""
    newline = front.rfind("\n")
    if newline > len(front) * 0.75:
        front = front[:newline]
    newline = back.find("\n")
    if 0 <= newline < len(back) * 0.25:
        back = back[newline + 1 :]
    dropped = text[len(front) : len(text) - len(back)]
    lines = dropped.count("\n")
    note = f"[… {len(dropped):,} characters{f' ({lines:,} lines)' if lines else ''} dropped …]"
    return "\n".join(part for part in (front, note, back) if part)


def _join(parts: Sequence[str]) -> str:
    return "\n".join(part for part in parts if part)


def _compose(
    sections: Sequence[Section], demanded: Sequence[int], headline: str, room: int, count: CountTokens
) -> Fitted:
    """Give each section its share of ``room`` and put the pieces together."""
    demands = list(demanded)
    texts: list[str | None] = [section.text for section in sections]
    _leave_out_the_middle(sections, texts, demands, room)
    shares = _shares(demands, room)
    _shorten(sections, texts, demands, shares, room, count)
    _substitute(sections, texts, demands, shares, room, count)
    for index, section in enumerate(sections):
        text = texts[index]
        if text is not None and demands[index] > shares[index]:
            may_cut = not section.whole and section.substitute is None
            texts[index] = _within(text, section.head, shares[index] - 1, count) if may_cut else None
    complete = frozenset(i for i, section in enumerate(sections) if texts[i] == section.text)
    left_out = [section for section, text in zip(sections, texts, strict=True) if text is None]
    return Fitted(_join([*(text for text in texts if text), _left_out(left_out), headline]), complete)


def _within(text: str, head: float, limit: int, count: CountTokens) -> str | None:
    """The text cut to ``limit`` tokens; ``None`` where that is too little to say anything."""
    if limit < _SMALLEST_SHARE:
        return None
    return cut(text, lambda shortened: count(shortened) <= limit, head)


def _leave_out_the_middle(
    sections: Sequence[Section], texts: list[str | None], demands: list[int], room: int
) -> None:
    """Where there are more results than room for a useful piece of each, leave out those in the middle."""
    costs = [min(demand, _USEFUL_SHARE) for demand in demands]
    results = [index for index, section in enumerate(sections) if section.name == "result"]
    rest = room - (sum(costs) - sum(costs[index] for index in results))
    wanted = sum(costs[index] for index in results)
    while results and wanted > rest:
        index = results.pop(len(results) // 2)
        wanted -= costs[index]
        texts[index] = None
        demands[index] = 0


def _shorten(
    sections: Sequence[Section],
    texts: list[str | None],
    demands: list[int],
    shares: list[int],
    room: int,
    count: CountTokens,
) -> None:
    """Take the shorter text of each section that has one and does not fit into its share."""
    for index, section in enumerate(sections):
        if section.shorter is not None and texts[index] is not None and demands[index] > shares[index]:
            texts[index] = section.shorter
            demands[index] = count(section.shorter) + 1
            shares[:] = _shares(demands, room)


def _substitute(
    sections: Sequence[Section],
    texts: list[str | None],
    demands: list[int],
    shares: list[int],
    room: int,
    count: CountTokens,
) -> None:
    """Replace, largest first, each text that has a substitute and does not fit into its share."""
    waiting = [
        (-demands[i], i) for i, s in enumerate(sections) if s.substitute is not None and texts[i] is not None
    ]
    heapq.heapify(waiting)
    while waiting:
        _, index = heapq.heappop(waiting)
        if demands[index] <= shares[index]:
            continue
        substitute = sections[index].substitute or ""
        texts[index] = substitute
        demands[index] = count(substitute) + 1
        shares[:] = _shares(demands, room)


def _shares(demands: Sequence[int], room: int) -> list[int]:
    """Divide ``room``: small demands in full, the large ones get equal parts of the rest."""
    shares = [0] * len(demands)
    rest, waiting = max(0, room), len(demands)
    for index in sorted(range(len(demands)), key=lambda i: (demands[i], i)):
        shares[index] = min(demands[index], rest // waiting)
        rest -= shares[index]
        waiting -= 1
    return shares


def _left_out(sections: Sequence[Section]) -> str:
    """One line that names what is not there at all."""
    if not sections:
        return ""
    groups: dict[str, list[int]] = {}
    for section in sections:
        groups.setdefault(section.name, []).append(len(section.text))
    described = [
        f"{name if len(sizes) == 1 else f'{len(sizes):,} {name}s'} ({sum(sizes):,} characters)"
        for name, sizes in groups.items()
    ]
    return f"[left out: {', '.join(described)}]"


def _last_resort(sections: Sequence[Section], headline: str, budget: int, count: CountTokens) -> str:
    """The headline, or as much of it as fits, and a note in as few words as possible."""
    note = "[output left out]" if sections else ""
    if count(_join([note, headline])) <= budget:
        return _join([note, headline])
    shortened = cut(headline, lambda text: count(_join([note, text])) <= budget, 0.7)
    if shortened is not None:
        return _join([note, shortened])
    return next((text for text in ("[output left out]", "[…]") if count(text) <= budget), "")
