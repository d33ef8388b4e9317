"""What may differ between two faithful runs of a notebook; each function takes one such thing out and says why."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tests.parity.outputs import NOT_SHOWN, Cell, Output

TextRule = Callable[[str], str]
OutputsRule = Callable[[list[Output]], list[Output]]


# ------------------------------------------------------------------------------------------------ in texts


def without_addresses(text: str) -> str:
    """Memory addresses differ from process to process."""
    return re.sub(r"\b0x[0-9a-f]{6,}", "0x…", text)


def without_cell_files(text: str) -> str:
    """ipykernel names a cell's code after a file in /tmp, cellfork as IPython does; both are hashes."""
    text = re.sub(r"/tmp/\S*?ipykernel_\d+/\d+\.py|<ipython-input-\d+-\w+>", "<cell>", text)
    return re.sub(r"\(\d+\.py, line", "(<cell>, line", text)


def without_random_ids(text: str) -> str:
    """UUIDs and hashes that libraries draw for elements of their HTML: plotly, altair, pandas' styles, widgets."""
    text = re.sub(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "‹uuid›", text)
    text = re.sub(r"\baltair-viz-[0-9a-f]{32}\b", "altair-viz-‹id›", text)
    text = re.sub(r"\b[0-9a-f]{32}\b", "‹id›", text)
    return re.sub(r"\bT_[0-9a-f]{5}(?=[_\" ])", "T_‹id›", text)


def without_dates_of_svg(text: str) -> str:
    """matplotlib writes into an SVG when it was made."""
    return re.sub(r"<dc:date>[^<]*</dc:date>", "<dc:date/>", text)


def without_kernel_frames(text: str) -> str:
    """``input`` is the kernel's own function, in another file on each side: its frames are left out."""
    own = r"File \S*/(?:ipykernel|cellfork/guest)/.*?(?:\n\n|\Z)"
    return re.sub(own, "", text, flags=re.DOTALL)


def without_times(text: str) -> str:
    """%time and %timeit tell how long something took, progress bars how fast it went."""
    text = re.sub(r"[\d.]+(?:e[+-]\d+)? (?:ns|[µμu]s|ms|s|seconds)\b", "‹time›", text)
    text = re.sub(r"\bin [\d.]+s\b", "in ‹time›", text)
    text = re.sub(r"\d\d:\d\d<\d\d:\d\d, +[\d.?]+(it/s|s/it)", "‹pace›", text)
    return re.sub(r"\b(\d+it \[)[^\]]*\]", r"\1‹pace›]", text)


def without_depth_of_stack(text: str) -> str:
    """How deep a recursion got depends on how many frames the kernel itself has on the stack."""
    return re.sub(
        r"skipping similar frames: (.*?) \(\d+ times\)", r"skipping similar frames: \1 (… times)", text
    )


def without_terminal_line_ends(text: str) -> str:
    """ipykernel runs ``!command`` in a pseudo terminal, which ends lines with CR LF; cellfork through a pipe."""
    return text.replace("\r\n", "\n")


TEXT_RULES: tuple[TextRule, ...] = (
    without_addresses,
    without_cell_files,
    without_random_ids,
    without_dates_of_svg,
    without_kernel_frames,
    without_times,
    without_depth_of_stack,
    without_terminal_line_ends,
)


# ---------------------------------------------------------------------------------------------- in outputs


def streams_by_segment(outputs: list[Output]) -> list[Output]:
    """Between two displays, all of stdout, then all of stderr.

    ipykernel keeps a buffer for each stream and sends both at displays and five times a second, so what it tells
    about the order of stdout and stderr is chance.  How the text is cut into pieces is nobody's promise.
    """
    joined: list[Output] = []
    texts = {"stdout": "", "stderr": ""}
    for output in [*outputs, None]:
        if output is not None and output.kind in {"stdout", "stderr"}:
            texts[output.kind] += output.text
            continue
        joined += [Output("stdout", texts["stdout"])] if texts["stdout"] else []
        joined += [Output("stderr", texts["stderr"])] if texts["stderr"] else []
        texts = {"stdout": "", "stderr": ""}
        joined += [output] if output is not None else []
    return joined


def error_last(outputs: list[Output]) -> list[Output]:
    """cellfork's terminal event is always the last; ipykernel shows figures of a failed cell after its error."""
    return [o for o in outputs if o.kind != "error"] + [o for o in outputs if o.kind == "error"]


def without_added_json(outputs: list[Output]) -> list[Output]:
    """Lists and dicts carry ``application/json`` in cellfork, on purpose; a JSON display has a marker text."""

    def is_added(output: Output) -> bool:
        text = str(output.data.get("text/plain", "<"))
        return "application/json" in output.data and not text.startswith("<IPython")

    return [
        replace(o, data={k: v for k, v in o.data.items() if k != "application/json"}) if is_added(o) else o
        for o in outputs
    ]


def without_private_metadata(outputs: list[Output]) -> list[Output]:
    """``metadata`` about cellfork's own MIME types (how many rows of a frame were kept) and of ours."""
    return [
        replace(o, metadata={k: v for k, v in o.metadata.items() if "cellfork" not in k}) for o in outputs
    ]


OUTPUT_RULES: tuple[OutputsRule, ...] = (
    error_last,
    streams_by_segment,
    without_added_json,
    without_private_metadata,
)


def normalise(cell: Cell, home: str) -> Cell:
    """Apply every rule; ``home`` is the working directory, which is another one on each side."""
    outputs = list(cell.outputs)
    for rule in OUTPUT_RULES:
        outputs = rule(outputs)
    return replace(cell, outputs=tuple(_with_clean_texts(output, home) for output in outputs))


def _with_clean_texts(output: Output, home: str) -> Output:
    return replace(
        output,
        text=_clean(output.text, home),
        data=_clean(output.data, home),
        metadata=_clean(output.metadata, home),
        value=_clean(output.value, home),
        display_id=None,
    )


def _clean(value: Any, home: str) -> Any:
    if isinstance(value, str):
        value = value.replace(home, "~")
        for rule in TEXT_RULES:
            value = rule(value)
        return value
    if isinstance(value, Mapping):
        return {key: _clean(item, home) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item, home) for item in value]
    return value


# --------------------------------------------------------------------------------------------- differences


def differences(ours: Cell, theirs: Cell) -> Iterator[tuple[str, object, object]]:
    """Yield (aspect, ours, theirs) for everything that two normalised cells do not agree on."""
    if ours.count != theirs.count:
        yield "execution_count", ours.count, theirs.count
    kinds = [o.kind for o in ours.outputs], [o.kind for o in theirs.outputs]
    if kinds[0] != kinds[1]:
        yield "order", [_brief(o) for o in ours.outputs], [_brief(o) for o in theirs.outputs]
        return
    for one, other in zip(ours.outputs, theirs.outputs, strict=True):
        yield from _output_differences(one, other)


def _output_differences(one: Output, other: Output) -> Iterator[tuple[str, object, object]]:
    what = "traceback" if one.kind == "error" else one.kind
    pairs: list[tuple[str, object, object]] = [
        (what, one.text, one.text if other.text == NOT_SHOWN else other.text),
        ("error name", one.name, other.name),
        ("error value", one.value, other.value),
        ("MIME types", sorted(one.data), sorted(other.data)),
        ("metadata", one.metadata, other.metadata),
    ]
    pairs += [(mime, one.data[mime], other.data[mime]) for mime in one.data if mime in other.data]
    yield from ((aspect, ours, theirs) for aspect, ours, theirs in pairs if ours != theirs)


def _brief(output: Output) -> str:
    content = output.text or output.name or str(output.data.get("text/plain"))
    return f"{output.kind}: {content[:300]}"
