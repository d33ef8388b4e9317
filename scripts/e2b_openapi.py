"""Generate src/cellfork/dialects/e2b/openapi.json from the control plane's routes and the forms of its bodies.

    python scripts/e2b_openapi.py            write the file
    python scripts/e2b_openapi.py --check    fail when it is not what would be written

Paths, bodies and summaries are the code's own; what a route answers and which queries it heeds is written here.  The
extension, which cellfork's own client speaks, is described with them: an operation's name, and the body that it takes.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec

from cellfork import __version__
from cellfork.dialects.e2b import schema
from cellfork.dialects.e2b.extension.operations import Operations
from cellfork.dialects.e2b.pages import MOST
from cellfork.dialects.e2b.routes import REPEATABLE, SERVED
from cellfork.dialects.e2b.unserved import REASONS

FILE = Path(__file__).resolve().parents[1] / "src" / "cellfork" / "dialects" / "e2b" / "openapi.json"
REF = "#/components/schemas/{name}"
EXTENSION_REF = "#/components/schemas/extension.{name}"
EXTENSION = "/cellfork/sandboxes"
INFO = (
    "E2B's REST API as cellfork serves it, at `/` and under `/e2b`. A sandbox itself is reached with the headers"
    " `E2b-Sandbox-Id` and `E2b-Sandbox-Port`: port 49983 is its files and processes (connectrpc), 49999 its code interpreter, any"
    " other one what listens there."
)

Route = tuple[str, str]
TEXT = {"type": "string"}
SECONDS = {"type": "integer", "minimum": 0, "maximum": 10**17}
LIMIT = {"type": "integer", "minimum": 1, "maximum": MOST, "default": MOST}
QUERIES: Mapping[str, tuple[dict[str, Any], str]] = {
    "limit": (LIMIT, "Most entries of a page."),
    "nextToken": (TEXT, "Where the page begins: `x-next-token` of the page before."),
    "order": ({"enum": ["asc", "desc"], "default": "desc"}, "By start; the newest first is the default."),
    "state": (TEXT, "`running`, `paused`, or both, joined by a comma."),
    "metadata": (TEXT, "`key=value`, joined by `&`; each key and value percent-encoded."),
    "startedAfter": ({"type": "string", "format": "date-time"}, "Started then or later."),
    "template": (TEXT, "Made from this template: its id or an alias."),
    "sandboxID": (TEXT, "Made of this sandbox."),
    "name": (TEXT, "With this name, which may carry a tag."),
    "start": (SECONDS, "Unix time in seconds."),
    "end": (SECONDS, "Unix time in seconds."),
    "sandbox_ids": (TEXT, "Up to 100 ids, joined by commas."),
}


class Doc(NamedTuple):
    """What the specification says of one route besides what the code says: its successes, body, queries and refusals."""

    answers: Mapping[int, Any]
    refusals: tuple[int, ...] = ()
    body: Any = None
    needs_body: bool = True
    queries: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    pages: bool = False


PAGES = ("limit", "nextToken")
DOCS: Mapping[Route, Doc] = {
    ("POST", "/sandboxes"): Doc({201: schema.Sandbox}, (404, 422, 429, 503), schema.NewSandbox),
    ("POST", "/v2/sandboxes"): Doc({201: schema.Sandbox}, (404, 422, 429, 503), schema.NewSandbox),
    ("GET", "/sandboxes"): Doc({200: list[schema.ListedSandbox]}, queries=("metadata",)),
    ("GET", "/v2/sandboxes"): Doc(
        {200: list[schema.ListedSandbox]},
        queries=("metadata", "state", "order", "startedAfter", "template", *PAGES),
        pages=True,
    ),
    ("GET", "/sandboxes/metrics"): Doc(
        {200: schema.Metrics}, queries=("sandbox_ids",), needed=("sandbox_ids",)
    ),
    ("GET", "/sandboxes/{sandboxID}"): Doc({200: schema.SandboxDetail}, (404,)),
    ("DELETE", "/sandboxes/{sandboxID}"): Doc({204: None}, (404,)),
    ("GET", "/sandboxes/{sandboxID}/metrics"): Doc(
        {200: list[schema.Metric]}, (404,), queries=("start", "end")
    ),
    ("POST", "/sandboxes/{sandboxID}/connect"): Doc(
        {200: schema.Sandbox, 201: schema.Sandbox}, (404, 409, 503), schema.Connect
    ),
    ("POST", "/v2/sandboxes/{sandboxID}/connect"): Doc(
        {200: schema.Sandbox, 201: schema.Sandbox}, (404, 409, 503), schema.ConnectV2, needs_body=False
    ),
    ("POST", "/sandboxes/{sandboxID}/resume"): Doc(
        {201: schema.Sandbox}, (404, 409, 503), schema.Resume, needs_body=False
    ),
    ("POST", "/sandboxes/{sandboxID}/pause"): Doc(
        {204: None}, (404, 409, 503), schema.Pause, needs_body=False
    ),
    ("POST", "/sandboxes/{sandboxID}/timeout"): Doc({204: None}, (404, 409), schema.Timeout),
    ("POST", "/sandboxes/{sandboxID}/refreshes"): Doc({204: None}, (404,), schema.Refresh, needs_body=False),
    ("PUT", "/sandboxes/{sandboxID}/network"): Doc({204: None}, (404, 409), schema.NetworkUpdate),
    ("POST", "/sandboxes/{sandboxID}/fork"): Doc(
        {201: list[schema.ForkResult]}, (404, 409, 422, 429, 503), schema.Fork, needs_body=False
    ),
    ("POST", "/sandboxes/{sandboxID}/snapshots"): Doc(
        {201: schema.SnapshotInfo}, (404, 409, 422, 503), schema.NewSnapshot, needs_body=False
    ),
    ("GET", "/snapshots"): Doc(
        {200: list[schema.SnapshotInfo]}, queries=("sandboxID", "name", *PAGES), pages=True
    ),
    ("GET", "/templates"): Doc({200: list[schema.Template]}),
    ("GET", "/v2/templates"): Doc({200: list[schema.Template]}, queries=PAGES, pages=True),
    ("GET", "/default-templates"): Doc({200: list[schema.Template]}),
    ("GET", "/templates/{templateID}"): Doc({200: schema.TemplateWithBuilds}, (404,)),
    ("DELETE", "/templates/{templateID}"): Doc({204: None}, (404,)),
    ("GET", "/templates/{templateID}/tags"): Doc({200: list[schema.TemplateTag]}, (404,)),
    ("GET", "/templates/aliases/{alias}"): Doc({200: schema.TemplateAlias}, (404,)),
}
ALWAYS = (400, 401)
"""Refusals that every route may answer with."""
MEANINGS = {
    200: "Success.",
    201: "Made, or woken.",
    204: "Done.",
    400: "The request is wrong, or asks for what this server does not have; the message says which.",
    401: "The key is missing or wrong.",
    404: "There is none, or it belongs to somebody else.",
    409: "Not possible in the present state.",
    422: "The Idempotency-Key was used with another request.",
    429: "There is no place for more sandboxes.",
    503: "Not possible at this moment; the same request may be sent again.",
}


def specification() -> dict[str, Any]:
    """Return the whole document."""
    paths: dict[str, dict[str, Any]] = {}
    for (method, pattern), handler in SERVED.items():
        paths.setdefault(pattern, {})[method.lower()] = operation(
            (method, pattern), (handler.__doc__ or "").strip()
        )
    for (method, pattern), why in REASONS.items():
        paths.setdefault(pattern, {})[method.lower()] = refused((method, pattern), why)
    paths |= extension()
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "cellfork: E2B's API",
            "version": __version__,
            "description": INFO,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}, {"url": "/e2b"}],
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-API-KEY"}},
            "schemas": components(),
        },
    }


def operation(route: Route, text: str) -> dict[str, Any]:
    """Return what the specification says of one route."""
    method, pattern = route
    doc = DOCS[route]
    summary, _, rest = text.replace("``", "`").partition(".")
    found: dict[str, Any] = {
        "operationId": name_of(route),
        "summary": summary.strip(),
        "tags": [SERVED[route].__module__.rpartition(".")[2]],
    }
    if rest.strip():
        found["description"] = " ".join(rest.split())
    parameters = [*path_parameters(pattern), *query_parameters(doc)]
    if method == "POST" and pattern in REPEATABLE:
        text = "The same request under the same key is carried out once."
        form = {"type": "string", "pattern": "^[A-Za-z0-9_.:-]{1,255}$"}
        parameters.append({"name": "Idempotency-Key", "in": "header", "description": text, "schema": form})
    if parameters:
        found["parameters"] = parameters
    if doc.body is not None:
        found["requestBody"] = {"required": doc.needs_body, "content": content(doc.body)}
    found["responses"] = dict(responses(doc))
    return found


def refused(route: Route, why: str) -> dict[str, Any]:
    """Return what the specification says of a route of upstream's that only tells why it is not served."""
    parameters = list(path_parameters(route[1]))
    words = [word.strip("{}") for word in route[1].split("/") if word]
    return {
        "operationId": ".".join(["not_served", route[0].lower(), *words]),
        "summary": "Not served",
        "description": f"Always refused: {why}.",
        "deprecated": True,
        "tags": ["not served"],
        **({"parameters": parameters} if parameters else {}),
        "responses": dict(responses(Doc({}))),
    }


def name_of(route: Route) -> str:
    """Return the name of a route's operation: its handler's, with the version where there are two."""
    handler: Any = SERVED[route]
    module = handler.__module__.rpartition(".")[2]
    same = [other for other, its in SERVED.items() if its is handler]
    return f"{module}.{handler.__name__}" + (f".{same.index(route) + 1}" if len(same) > 1 else "")


def path_parameters(pattern: str) -> Iterator[dict[str, Any]]:
    """Yield the parameters in a path."""
    for segment in pattern.split("/"):
        if segment.startswith("{"):
            form = {"type": "string", "minLength": 1, "maxLength": 128}
            yield {"name": segment[1:-1], "in": "path", "required": True, "schema": form}


def query_parameters(doc: Doc) -> Iterator[dict[str, Any]]:
    """Yield the parameters in a query."""
    for name in doc.queries:
        form, text = QUERIES[name]
        yield {
            "name": name,
            "in": "query",
            "required": name in doc.needed,
            "description": text,
            "schema": form,
        }


def responses(doc: Doc) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the answers of a route by status; ``default`` is every other refusal."""
    for status, form in doc.answers.items():
        answer: dict[str, Any] = {"description": MEANINGS[status]}
        if form is not None:
            answer["content"] = content(form)
        if doc.pages:
            answer["headers"] = {"x-next-token": {"description": "The next page, if any.", "schema": TEXT}}
        yield str(status), answer
    for status in sorted({*ALWAYS, *doc.refusals}):
        yield str(status), {"description": MEANINGS[status], "content": content(schema.Error)}
    yield "default", {"description": "Any other refusal.", "content": content(schema.Error)}


def content(form: Any) -> dict[str, Any]:
    """Return a JSON body."""
    (found,), _ = msgspec.json.schema_components([form], ref_template=REF)
    return {"application/json": {"schema": found}}


def components() -> dict[str, Any]:
    """Return the forms of all bodies by name."""
    forms = [form for doc in DOCS.values() for form in (doc.body, *doc.answers.values()) if form is not None]
    _, found = msgspec.json.schema_components([*forms, schema.Error], ref_template=REF)
    _, own = msgspec.json.schema_components(
        [each.body for each in operations().values()], ref_template=EXTENSION_REF
    )
    found |= {f"extension.{name}": form for name, form in own.items()}
    found["extension.Error"] = {
        "type": "object",
        "required": ["code", "message", "error"],
        "properties": {
            "code": {"type": "integer"},
            "message": TEXT,
            "error": {**TEXT, "description": "The kind of the error, of a closed set."},
            "details": {"type": "object"},
        },
    }
    return dict(sorted(found.items()))


# --------------------------------------------------------------------------------------------- extension


def operations() -> Mapping[str, Any]:
    """Return the operations of the extension by name."""
    nothing: Any = SimpleNamespace(engine=SimpleNamespace(settings=SimpleNamespace(clock=None)))
    return Operations(nothing).by_name


def extension() -> dict[str, dict[str, Any]]:
    """Return the paths of the extension."""
    one = f"{EXTENSION}/{{sandboxID}}"
    octets: dict[str, Any] = {"application/octet-stream": {"schema": {}}}
    path = {"name": "path", "in": "query", "required": True, "schema": TEXT}
    window = [
        {"name": name, "in": "query", "schema": {"type": "integer", "minimum": 0, "maximum": 2**53}}
        for name in ("offset", "length")
    ]
    mode = {"name": "mode", "in": "query", "schema": {"type": "string", "pattern": "^[0-7]{1,4}$"}}
    append = {"name": "append", "in": "query", "schema": {"enum": ["0", "1"]}}
    found = {
        EXTENSION: {"get": described("list", "List the sandboxes of the caller")},
        one: {"get": described("get", "Tell of a sandbox, after its end as well", one)},
        f"{one}/files": {
            "get": described(
                "files.read", "Read a file, or a part of it", one, (path, *window), content=octets
            ),
            "put": described("files.write", "Write a file", one, (path, mode, append), body=octets),
        },
        f"{one}/uploads/{{handle}}": {
            "put": described("uploads.write", "Add bytes to an upload", f"{one}/{{handle}}", body=octets)
        },
    }
    for name, each in operations().items():
        (form,), _ = msgspec.json.schema_components([each.body], ref_template=EXTENSION_REF)
        body = {"application/json": {"schema": form}}
        summary = (each.body.__doc__ or "").partition(".")[0].replace("``", "`")
        found[f"{one}/{name}"] = {"post": described(name, f"`{name}`: {summary}", one, body=body)}
    return found


def described(
    name: str,
    summary: str,
    pattern: str = "",
    queries: tuple[dict[str, Any], ...] = (),
    *,
    body: Any = None,
    content: Any = None,
) -> dict[str, Any]:
    """Return what the specification says of one operation of the extension."""
    parameters = [*path_parameters(pattern), *queries]
    failed = {"application/json": {"schema": {"$ref": EXTENSION_REF.format(name="Error")}}}
    answer = content or {"application/json": {"schema": {"type": "object"}}}
    return {
        "operationId": f"extension.{name}",
        "summary": summary,
        "tags": ["extension"],
        **({"parameters": parameters} if parameters else {}),
        **({"requestBody": {"content": body}} if body else {}),
        "responses": {
            "200": {"description": MEANINGS[200], "content": answer},
            "401": {"description": MEANINGS[401], "content": failed},
            "default": {"description": "Any other refusal.", "content": failed},
        },
    }


def main() -> int:
    """Write or check the file."""
    text = json.dumps(specification(), indent=1, ensure_ascii=False) + "\n"
    if "--check" not in sys.argv[1:]:
        FILE.write_text(text, "utf-8")
        return 0
    if FILE.is_file() and FILE.read_text("utf-8") == text:
        return 0
    print(f"{FILE.name} is not what the code says; run: python scripts/e2b_openapi.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
