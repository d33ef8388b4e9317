"""Routes of upstream's that exist and are not served: each says why, and what to do instead."""

from collections.abc import Awaitable, Callable, Mapping

from cellfork.dialects.e2b.calls import Call, Reply
from cellfork.dialects.e2b.errors import bad

Handler = Callable[[Call], Awaitable[Reply]]

BUILDS = (
    "this server builds no templates: describe one in its settings ([templates.NAME]: interpreter, preload, languages, limits),"
    " or install what is needed in a sandbox, make a snapshot of it and use the snapshot's id as template"
)
TAGS = (
    "tags of templates cannot be changed: templates are described in this server's settings; snapshots get theirs in their name"
    " (name:tag)"
)
TAG_HISTORY = "this server keeps no history of tags: a template has one build, tagged 'default'"
CHANGES = "templates are described in this server's settings and cannot be changed through the API"
LOGS = "this server keeps no logs of sandboxes: what code and commands write goes to whoever runs them"
VOLUMES = "this server has no volumes: upload files, or start from a snapshot of a sandbox"
SECRETS = "this server keeps no secrets: pass them in envVars, to the sandboxes that need them"
TEAMS = "this server has no teams: what a key may see and do is written in its settings"
KEYS = "keys are made and removed in this server's settings, not through the API"
NODES = "this server is one machine and has no nodes to manage"

_WHY: Mapping[str, tuple[str, ...]] = {
    BUILDS: (
        "POST /v3/templates",
        "POST /v2/templates",
        "POST /templates",
        "POST /templates/{templateID}",
        "GET /templates/{templateID}/files/{hash}",
        "POST /templates/{templateID}/builds/{buildID}",
        "POST /v2/templates/{templateID}/builds/{buildID}",
        "GET /templates/{templateID}/builds/{buildID}/status",
        "GET /templates/{templateID}/builds/{buildID}/logs",
    ),
    CHANGES: ("PATCH /templates/{templateID}", "PATCH /v2/templates/{templateID}"),
    TAGS: ("POST /templates/tags", "DELETE /templates/tags"),
    TAG_HISTORY: (
        "GET /templates/{templateID}/tags/count",
        "GET /templates/{templateID}/tags/exists",
        "GET /templates/{templateID}/tags/groups",
        "GET /templates/{templateID}/tags/{tag}/assignments",
    ),
    LOGS: ("GET /sandboxes/{sandboxID}/logs", "GET /v2/sandboxes/{sandboxID}/logs"),
    VOLUMES: (
        "GET /volumes",
        "POST /volumes",
        "GET /volumes/{volumeID}",
        "DELETE /volumes/{volumeID}",
    ),
    SECRETS: (
        "GET /secrets",
        "POST /secrets",
        "GET /secrets/{secretID}",
        "POST /secrets/{secretID}",
        "DELETE /secrets/{secretID}",
    ),
    TEAMS: ("GET /teams", "GET /teams/{teamID}/metrics", "GET /teams/{teamID}/metrics/max"),
    KEYS: (
        "GET /api-keys",
        "POST /api-keys",
        "PATCH /api-keys/{apiKeyID}",
        "DELETE /api-keys/{apiKeyID}",
        "POST /access-tokens",
        "DELETE /access-tokens/{accessTokenID}",
    ),
    NODES: (
        "GET /nodes",
        "GET /nodes/{nodeID}",
        "POST /nodes/{nodeID}",
        "POST /admin/teams/{teamID}/sandboxes/kill",
        "GET /admin/sandboxes/running-counts",
        "POST /admin/teams/{teamID}/builds/cancel",
        "POST /admin/teams/{teamID}/api-keys",
        "DELETE /admin/teams/{teamID}/api-keys/{apiKeyID}",
    ),
}

REASONS: Mapping[tuple[str, str], str] = {
    (route.partition(" ")[0], route.partition(" ")[2]): why
    for why, routes in _WHY.items()
    for route in routes
}
"""Method and pattern → why it is not served."""


def refuser(why: str) -> Handler:
    """Return a handler that says why."""

    async def refuse(call: Call) -> Reply:
        raise bad(why)

    return refuse
