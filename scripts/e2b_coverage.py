"""Print which of E2B's routes cellfork serves, and which of those are tested, as a table in Markdown.

    python scripts/e2b_coverage.py           the table
    python scripts/e2b_coverage.py --write   put the table into docs/dialects/e2b.md
    python scripts/e2b_coverage.py --check   fail when a served route has no test, a route of upstream's is not accounted for, or
                                             the page has another table

What upstream has is written here (its public specification and the requests of its SDKs, as of August and November 2026); what is
served is read from the code; a route is tested where a test is marked ``route("METHOD /path")``, and such a test fails where it
does not call the route.
"""

import contextlib
import io
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from cellfork.dialects.e2b.routes import SERVED
from cellfork.dialects.e2b.unserved import REASONS

ROOT = Path(__file__).resolve().parents[1]
TESTS = ("tests/dialects/e2b",)
PAGE = ROOT / "docs/dialects/e2b.md"
BEGIN, END = "<!-- routes:begin -->\n", "<!-- routes:end -->"
"""Where the page holds the table."""

Route = tuple[str, str]

UPSTREAM = """
POST   /access-tokens
DELETE /access-tokens/{accessTokenID}
GET    /admin/sandboxes/running-counts
POST   /admin/teams/{teamID}/api-keys
DELETE /admin/teams/{teamID}/api-keys/{apiKeyID}
POST   /admin/teams/{teamID}/builds/cancel
POST   /admin/teams/{teamID}/sandboxes/kill
GET    /api-keys
POST   /api-keys
DELETE /api-keys/{apiKeyID}
PATCH  /api-keys/{apiKeyID}
GET    /default-templates
GET    /health
GET    /nodes
GET    /nodes/{nodeID}
POST   /nodes/{nodeID}
GET    /sandboxes
POST   /sandboxes
GET    /sandboxes/metrics
DELETE /sandboxes/{sandboxID}
GET    /sandboxes/{sandboxID}
POST   /sandboxes/{sandboxID}/connect
POST   /sandboxes/{sandboxID}/fork
GET    /sandboxes/{sandboxID}/logs
GET    /sandboxes/{sandboxID}/metrics
PUT    /sandboxes/{sandboxID}/network
POST   /sandboxes/{sandboxID}/pause
POST   /sandboxes/{sandboxID}/refreshes
POST   /sandboxes/{sandboxID}/resume
POST   /sandboxes/{sandboxID}/snapshots
POST   /sandboxes/{sandboxID}/timeout
GET    /secrets
POST   /secrets
DELETE /secrets/{secretID}
GET    /secrets/{secretID}
POST   /secrets/{secretID}
GET    /snapshots
GET    /teams
GET    /teams/{teamID}/metrics
GET    /teams/{teamID}/metrics/max
GET    /templates
POST   /templates
GET    /templates/aliases/{alias}
DELETE /templates/tags
POST   /templates/tags
DELETE /templates/{templateID}
GET    /templates/{templateID}
PATCH  /templates/{templateID}
POST   /templates/{templateID}
POST   /templates/{templateID}/builds/{buildID}
GET    /templates/{templateID}/builds/{buildID}/logs
GET    /templates/{templateID}/builds/{buildID}/status
GET    /templates/{templateID}/files/{hash}
GET    /templates/{templateID}/tags
GET    /templates/{templateID}/tags/count
GET    /templates/{templateID}/tags/exists
GET    /templates/{templateID}/tags/groups
GET    /templates/{templateID}/tags/{tag}/assignments
GET    /v2/sandboxes
POST   /v2/sandboxes
POST   /v2/sandboxes/{sandboxID}/connect
GET    /v2/sandboxes/{sandboxID}/logs
GET    /v2/templates
POST   /v2/templates
PATCH  /v2/templates/{templateID}
POST   /v2/templates/{templateID}/builds/{buildID}
POST   /v3/templates
GET    /volumes
POST   /volumes
DELETE /volumes/{volumeID}
GET    /volumes/{volumeID}
"""
"""The control plane of upstream's."""
ELSEWHERE: Mapping[Route, str] = {("GET", "/health"): "the server's own; see `/openapi.json`"}


def upstream() -> list[Route]:
    """Return the routes of upstream's control plane."""
    return [(method, path) for method, path in (line.split() for line in UPSTREAM.split("\n") if line)]


class Marks:
    """A plugin of pytest that counts the tests of each route."""

    def __init__(self) -> None:
        self.tests: Counter[Route] = Counter()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count the marks of what was collected."""
        for item in session.items:
            for mark in item.iter_markers("route"):
                method, _, path = mark.args[0].partition(" ")
                self.tests[method, path] += 1


def tests_of_routes() -> Counter[Route]:
    """Return how many tests call each route."""
    marks = Marks()
    arguments = ["--collect-only", "-qq", f"--rootdir={ROOT}", *(str(ROOT / path) for path in TESTS)]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        status = pytest.main(arguments, [marks])
    if status != pytest.ExitCode.OK:
        raise SystemExit(f"the tests cannot be collected:\n{said.getvalue()[-2000:]}")
    return marks.tests


def rows(tests: Counter[Route]) -> Iterator[str]:
    """Yield the lines of the table."""
    yield "| route | served | tests |"
    yield "|---|---|---|"
    for route in upstream():
        yield f"| `{' '.join(route)}` | {answer(route)} | {tests[route] or ''} |"


def answer(route: Route) -> str:
    """Return whether a route is served, in words."""
    if route in SERVED:
        return "yes"
    if route in ELSEWHERE:
        return f"yes ({ELSEWHERE[route]})"
    return f"no, answers 400: {REASONS[route]}" if route in REASONS else "no, answers 404"


def summary(tests: Counter[Route]) -> str:
    """Return the table in a sentence."""
    routes = upstream()
    served = [route for route in routes if route in SERVED or route in ELSEWHERE]
    refused = [route for route in routes if route in REASONS]
    tested = sum(tests[route] > 0 for route in routes if route in SERVED)
    return (
        f"Of {len(routes)} routes {len(served)} are served ({tested} of them tested by name),"
        f" {len(refused)} answer with the reason why they are not."
    )


def faults(tests: Counter[Route]) -> Iterator[str]:
    """Yield what the table must not show."""
    known = {*SERVED, *REASONS, *ELSEWHERE}
    yield from (
        f"{' '.join(route)} is upstream's and not accounted for" for route in upstream() if route not in known
    )
    yield from (
        f"{' '.join(route)} is served and not upstream's" for route in known if route not in upstream()
    )
    yield from (f"{' '.join(route)} is served and has no test" for route in SERVED if not tests[route])
    yield from (
        f"{' '.join(route)} is named by a test and not served" for route in tests if route not in SERVED
    )


def page_with(table: str) -> str:
    """Return the page of the documentation with this table in its place."""
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return head + BEGIN + table + END + rest.partition(END)[2]


def main() -> int:
    """Print the table, write it, or check it."""
    tests = tests_of_routes()
    table = "\n".join([summary(tests), "", *rows(tests), ""])
    page = page_with(table)
    if "--check" in sys.argv[1:]:
        found = list(faults(tests))
        if page != PAGE.read_text(encoding="utf-8"):
            found.append(f"{PAGE.relative_to(ROOT)} has another table: python {sys.argv[0]} --write")
        print(*found, sep="\n")
        return 1 if found else 0
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page, encoding="utf-8")
        return 0
    print(table, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
