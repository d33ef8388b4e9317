"""Why tests of E2B's own suites do not apply to a server of one machine: pattern of ``suite/file::test`` → reason.

A test that fails and matches counts as "does not apply"; one that matches and passes counts as passed.
"""

from collections.abc import Mapping
from types import MappingProxyType

BUILDS = "builds a template from images of a registry; the templates of a server are written in its settings"
NAMES = "opens `https://{port}-{id}.{domain}`: where clients go by two URLs, no such name leads to the server"
INTERNET = "wants to reach 1.1.1.1 from inside, on the public internet, and no proxy to be in between"
ADDRESSES = (
    "allows or denies single addresses, and wants to reach them on the public internet; the one way out of a sandbox "
    "goes by names, so that such a request is refused with 400"
)
HEADERS = "wants a proxy that opens TLS and adds headers, and a public template of upstream's (`httpbin`)"
ROOT = "makes a directory directly under `/`, which is read-only here, but for the places that programs expect (see above)"

NOT_APPLICABLE: Mapping[str, str] = MappingProxyType(
    {
        "base-python/tests/*/template_*::*": BUILDS,
        "base-js/tests/template/*": BUILDS,
        "base-python/*/test_host.py::*": NAMES,
        "base-js/*/host.test.ts::*": NAMES,
        "base-python/*/test_network.py::*allow_public_traffic*": NAMES,
        "base-python/*/test_network.py::test_mask_request_host": NAMES,
        "base-python/*::test_auto_resume_wakes_on_http_request": NAMES,
        "base-js/*/network.test.ts::allowPublicTraffic*": NAMES,
        "base-js/*/network.test.ts::maskRequestHost*": NAMES,
        "base-js/*::auto-resume wakes paused sandbox on http request": NAMES,
        "base-js/*::pause and resume a sandbox with http server": NAMES,
        "base-python/*/test_internet_access.py::*": INTERNET,
        "base-js/*/internetAccess.test.ts::*": INTERNET,
        "base-python/*::test_firewall_transform_injects_headers": HEADERS,
        "base-js/*::firewall transform injects headers*": HEADERS,
        "base-python/*::test_allow_specific_ip_with_deny_all": ADDRESSES,
        "base-python/*::test_allow_takes_precedence_over_deny": ADDRESSES,
        "base-python/*::test_deny_specific_ip": ADDRESSES,
        "base-python/*::test_update_network_*": ADDRESSES,
        "base-js/*/network.test.ts::allow only 1.1.1.1*": ADDRESSES,
        "base-js/*/network.test.ts::allow takes precedence*": ADDRESSES,
        "base-js/*/network.test.ts::deny specific IP*": ADDRESSES,
        "base-js/*/network.test.ts::updateNetwork*": ADDRESSES,
        "base-js/*/files/write.test.ts::write multiple files": ROOT,
    }
)
