"""Generate src/cellfork/dialects/together/openapi.json from the routes of Together's dialect and the forms of its bodies.

python scripts/together_openapi.py            write the file
python scripts/together_openapi.py --check    fail when it is not what would be written
python scripts/together_openapi.py --table    print the routes as a Markdown table
"""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from cellfork import __version__
from cellfork.dialects.together import agent, management, schema

FILE = Path(__file__).resolve().parents[1] / "src" / "cellfork" / "dialects" / "together" / "openapi.json"
REF = "#/components/schemas/{name}"
BODIES: Mapping[str, Any] = {
    "Management.create": schema.CreateSandbox,
    "Management.terminate": schema.TerminateSandbox,
    "Management.create_snapshot": schema.CreateSnapshot,
    "Management.add_alias": schema.CreateAlias,
    "Management.authorize": schema.Authorize,
    "Agent.create_exec": schema.CreateExec,
    "Agent.exec_input": schema.ExecInput,
    "Agent.act_on_file": schema.FileAction,
}
CREATED = {
    "Management.create",
    "Management.create_snapshot",
    "Agent.create_exec",
    "Agent.create_file",
    "Agent.create_directory",
}
EMPTY = {
    "Management.add_alias",
    "Management.remove_alias",
    "Management.authorize",
    "Management.cancel_build",
}
ACCEPTED = {"Management.create_build"}
REFUSED = {"Management.refuse_registry", "Agent.no_task"}
TEXT = {"type": "string"}
FORMS: Mapping[str, Any] = {
    "Management.create_build": {
        "type": "object",
        "required": ["context", "image_name"],
        "properties": {
            "context": {"type": "string", "format": "binary", "description": "The context as tar.gz."},
            "image_name": {**TEXT, "description": "What the image is to be called: `name` or `name:tag`."},
            "dockerfile": {**TEXT, "default": "Dockerfile", "description": "Its path in the context."},
            "build_args": {**TEXT, "default": "{}", "description": "Values for `ARG`, as a JSON object."},
            "nydus_convert": {**TEXT, "description": "Has no effect."},
            "cache_key": {**TEXT, "description": "Has no effect."},
        },
    }
}
"""Bodies that are forms (``multipart/form-data``)."""


def specification() -> dict[str, Any]:
    """Return the whole document."""
    paths: dict[str, dict[str, Any]] = {}
    for method, path, name in management.ROUTES:
        add(paths, method, path, operation(management.Management, name, path, "managementKey"))
    for method, path, name, scope in agent.ROUTES:
        place = f"/agents/{{id}}{path}"
        add(paths, method, place, operation(agent.Agent, name, place, f"{scope}Token"))
    (_, components) = msgspec.json.schema_components(BODIES.values(), ref_template=REF)
    bearer = {"type": "http", "scheme": "bearer"}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "cellfork: Together's API",
            "version": __version__,
            "description": "Together's management API, and the agent of every sandbox, as cellfork serves them.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/together"}],
        "paths": paths,
        "components": {
            "securitySchemes": {"managementKey": bearer, "adminToken": bearer, "readonlyToken": bearer},
            "schemas": components,
        },
    }


def add(paths: dict[str, dict[str, Any]], method: str, path: str, found: dict[str, Any]) -> None:
    """Put an operation where OpenAPI has it: ``{path:path}`` is a parameter like any other there."""
    paths.setdefault(path.replace(":path", ""), {})[method.lower()] = found


def operation(owner: type, name: str, path: str, security: str) -> dict[str, Any]:
    """Return what is told of one route."""
    full = f"{owner.__name__}.{name}"
    summary, _, rest = (getattr(owner, name).__doc__ or "").replace("``", "`").strip().partition(".")
    found: dict[str, Any] = {
        "operationId": f"{full}.{re.sub(r'[^A-Za-z0-9]+', '_', path).strip('_')}",
        "summary": summary,
        "tags": [owner.__name__.lower()],
        "security": [{security: []}],
        "parameters": [
            {"name": word, "in": "path", "required": True, "schema": {"type": "string"}}
            for word in re.findall(r"\{(\w+)", path)
        ],
        "responses": {status_of(full): {"description": "Refused." if full in REFUSED else "Success."}}
        | {
            str(status): {"description": text}
            for status, text in (
                (400, "The request is wrong."),
                (401, "The key or token is missing or wrong."),
            )
        },
    }
    if rest.strip():
        found["description"] = " ".join(rest.split())
    if full in BODIES:
        content = {"application/json": {"schema": {"$ref": REF.format(name=BODIES[full].__name__)}}}
        found["requestBody"] = {"required": full != "Management.terminate", "content": content}
    if full in FORMS:
        found["requestBody"] = {
            "required": True,
            "content": {"multipart/form-data": {"schema": FORMS[full]}},
        }
    return found


def status_of(full: str) -> str:
    """Return the status of a route's success."""
    if full in REFUSED:
        return "404" if full == "Agent.no_task" else "400"
    if full in ACCEPTED:
        return "202"
    return "201" if full in CREATED else "204" if full in EMPTY else "200"


def table() -> str:
    """Return the routes as a Markdown table."""
    rows = [(method, path, "key", name) for method, path, name in management.ROUTES]
    rows += [(method, f"agent {path}", scope, name) for method, path, name, scope in agent.ROUTES]
    rows.append(("GET", "agent /ws/v1/execs/{exec}", "readonly", "WebSocket"))
    lines = ["| route | needs | |", "| --- | --- | --- |"]
    for method, path, needs, name in rows:
        note = (
            "always refused, with what to do instead" if name in {"refuse_registry", "no_task"} else "served"
        )
        lines.append(f"| `{method} {path.replace(':path', '')}` | {needs} | {note} |")
    return "\n".join(lines)


def main() -> int:
    """Write, check or print."""
    if "--table" in sys.argv:
        print(table())
        return 0
    text = json.dumps(specification(), indent=1, ensure_ascii=False) + "\n"
    if "--check" in sys.argv:
        if not FILE.exists() or FILE.read_text(encoding="utf-8") != text:
            print(f"{FILE.name} of Together is out of date: run scripts/together_openapi.py", file=sys.stderr)
            return 1
        return 0
    FILE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
