"""The environment that lets programs inside a sandbox find their way out."""

from cellfork.model.network import NetworkPolicy
from cellfork.runtimes.egress.indexes import Indexes

LOCAL = "localhost,127.0.0.1,::1"


def variables(policy: NetworkPolicy, url: str, indexes: Indexes) -> dict[str, str]:
    """Return the variables for a proxy at ``url``, which holds the sandbox's user and password.

    pip and npm are told by variables of their own, which come before ``NO_PROXY``: an index may be on this machine's loopback.
    """
    upper = {"HTTP_PROXY": url, "HTTPS_PROXY": url, "NO_PROXY": LOCAL}
    hint = "" if policy.mode == "public" or policy.packages else HINT.format(allowed=policy.describe())
    return {
        **upper,
        **{name.lower(): value for name, value in upper.items()},
        "PIP_PROXY": url,
        "PIP_RETRIES": "2",
        "npm_config_proxy": url,
        "npm_config_https_proxy": url,
        "npm_config_noproxy": "none.invalid",
        "npm_config_fetch_retries": "1",
        "npm_config_fetch_retry_mintimeout": "500",
        "CELLFORK_NETWORK": policy.mode,
        "CELLFORK_PIP_HINT": hint,
        **indexes.variables,
    }


HINT = (
    "cellfork: this sandbox's network policy may not include the package index (allowed: {allowed}); "
    'add "packages" to it: Sandbox.create(network=[..., "packages"])'
)
