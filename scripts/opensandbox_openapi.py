"""Generate src/cellfork/dialects/opensandbox/openapi.json from the routes of OpenSandbox's lifecycle API and the forms of its bodies.

python scripts/opensandbox_openapi.py            write the file, and the table of routes into docs/dialects/opensandbox.md
python scripts/opensandbox_openapi.py --check    fail when they are not what would be written

What is always refused (changes of pools, templates, diagnostics) is in the table and not in the specification.
"""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from cellfork import __version__
from cellfork.dialects.opensandbox import schema
from cellfork.dialects.opensandbox.lifecycle import KEY_HEADER, ROUTES, Lifecycle

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "src/cellfork/dialects/opensandbox/openapi.json"
PAGE = ROOT / "docs/dialects/opensandbox.md"
BEGIN, END = "<!-- routes:begin -->\n", "<!-- routes:end -->"
REF = "#/components/schemas/{name}"
BODIES: Mapping[str, Any] = {
    "create": schema.CreateSandbox,
    "patch_metadata": schema.MetadataPatch,
    "renew": schema.Renew,
    "put_policy": schema.NetworkPolicy,
    "patch_policy": list[schema.Rule],
    "delete_policy": list[schema.Target],
    "snapshot": schema.CreateSnapshot,
    "take_event": dict[str, Any],
}
STATUSES = {"create": "202", "pause": "202", "resume": "202", "snapshot": "202", "delete": "204", "delete_snapshot": "204",
            "take_event": "204"}  # fmt: skip
TEXT, NUMBER = {"type": "string"}, {"type": "integer", "minimum": 1}
TEXTS = {"type": "array", "items": TEXT}
PAGES = {"page": NUMBER, "pageSize": {**NUMBER, "maximum": 200}}
QUERIES: Mapping[str, Mapping[str, Any]] = {
    "list": {"state": TEXTS, "metadata": TEXT, **PAGES},
    "list_snapshots": {"sandboxId": TEXT, "name": TEXT, "state": TEXTS, **PAGES},
    "endpoint": {"use_server_proxy": {"type": "boolean"}, "expires": TEXT},
}
REFUSALS = {
    "400": "The request is wrong, or asks for what is not to be had here.",
    "401": "The key is missing or wrong.",
    "404": "There is no such sandbox, snapshot or pool of this key.",
    "409": "The sandbox is in another state.",
    "413": "The body is too large.",
    "429": "There are as many sandboxes as there may be.",
}
ERROR = {
    "type": "object",
    "required": ["code", "message"],
    "properties": {"code": TEXT, "message": TEXT},
    "additionalProperties": False,
}


def specification() -> dict[str, Any]:
    """Return the specification of what the lifecycle API serves."""
    kinds = [*BODIES.values()]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=REF)
    bodies = dict(zip(BODIES, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for method, path, name in ROUTES:
        if not name.startswith("refuse_"):
            paths.setdefault(f"/v1{path}", {})[method.lower()] = operation(path, name, bodies.get(name))
    key = {"type": "apiKey", "in": "header", "name": KEY_HEADER}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "cellfork: OpenSandbox",
            "version": __version__,
            "description": "OpenSandbox's lifecycle API, as cellfork serves it.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}, {"url": "/opensandbox"}],
        "paths": paths,
        "components": {"securitySchemes": {"key": key}, "schemas": {**components, "Error": ERROR}},
    }


def operation(path: str, name: str, body: Any) -> dict[str, Any]:
    """Return what is told of one route."""
    told = (getattr(Lifecycle, name).__doc__ or "").replace("``", "`").strip()
    summary, _, rest = told.partition(".")
    refusal = {"application/json": {"schema": {"$ref": REF.format(name="Error")}}}
    found: dict[str, Any] = {
        "operationId": name,
        "summary": summary,
        "security": [{"key": []}],
        "parameters": [
            *({"name": word, "in": "path", "required": True, "schema": TEXT} for word in re.findall(r"\{(\w+)", path)),
            *({"name": word, "in": "query", "schema": form} for word, form in QUERIES.get(name, {}).items()),
        ],
        "responses": {
            STATUSES.get(name, "200"): {"description": "Success."},
            **{status: {"description": text, "content": refusal} for status, text in REFUSALS.items()},
        },
    }  # fmt: skip
    if rest.strip():
        found["description"] = " ".join(rest.split())
    if body is not None:
        found["requestBody"] = {
            "required": name != "snapshot",
            "content": {"application/json": {"schema": body}},
        }
    return found


def table() -> str:
    """Return the routes as a Markdown table."""
    lines = ["| route | |", "| --- | --- |"]
    for method, path, name in ROUTES:
        note = "refused, with what to do instead" if name.startswith("refuse_") else "served"
        lines.append(f"| `{method} /v1{path}` | {note} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write or check."""
    text = json.dumps(specification(), indent=1, ensure_ascii=False) + "\n"
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    told = before + BEGIN + table() + END + rest.partition(END)[2]
    if "--check" not in sys.argv:
        FILE.write_text(text, encoding="utf-8")
        PAGE.write_text(told, encoding="utf-8")
        return 0
    stale = [
        file.name
        for file, wanted in ((FILE, text), (PAGE, told))
        if not file.exists() or file.read_text(encoding="utf-8") != wanted
    ]
    if stale:
        print(f"OpenSandbox's {', '.join(stale)}: out of date; run scripts/opensandbox_openapi.py", file=sys.stderr)  # fmt: skip
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
