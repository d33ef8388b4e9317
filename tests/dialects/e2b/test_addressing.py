"""Addresses: which port of which sandbox a request is for, and what is no address."""

from typing import Any
from urllib.parse import quote

import pytest

from cellfork.dialects.e2b.addressing import (
    ENVD_PORT,
    Address,
    Addressing,
    BadAddress,
    sign,
    signed_for,
)
from cellfork.dialects.e2b.notes import Notes, as_notes

ID = "i0000abcdef"


def scope(method: str = "GET", path: str = "/", query: str = "", **headers: str) -> dict[str, Any]:
    lines = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": lines}


def routed(id: str = ID, port: str = "49983", **headers: str) -> dict[str, Any]:
    return scope(e2b_sandbox_id=id, e2b_sandbox_port=port, **headers)


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost", "sandbox.example.com", "any.where", ""])
def test_headers_name_a_port_of_a_sandbox(host):
    """The two routing headers are an address, whatever name the server was reached by."""
    asked = routed(host=host)
    assert Addressing("example.com").address_of(asked) == Address(ID, 49983)
    assert Addressing("example.com").owns(asked)


@pytest.mark.parametrize(
    ("host", "found"),
    [
        (f"3000-{ID}.example.com", Address(ID, 3000)),
        (f"3000-{ID}.EXAMPLE.com:8443", Address(ID, 3000)),
        (f"3000-{ID}.example.com.", Address(ID, 3000)),
        (f"3000-{ID}-client1.example.com", Address(ID, 3000)),
        (f"3000-{ID}.localhost:8080", Address(ID, 3000)),
        (f"3000-{ID}.example.org", None),
        (f"3000-{ID}.evil-example.com", None),
        (f"3000-{ID}.deeper.example.com", None),
        (f"{ID}.example.com", None),
        ("api.example.com", None),
        ("my-app.example.com", None),
        ("example.com", None),
        (f"3000-{ID}", None),
        ("-.example.com", None),
    ],
)
def test_a_host_name_is_an_address(host, found):
    """``{port}-{id}.{domain}`` is an address below the server's own domain and below ``localhost``, nowhere else."""
    addressing = Addressing("example.com:8443")
    assert addressing.address_of(scope(host=host)) == found
    assert addressing.owns(scope(host=host)) == (found is not None)


def test_a_domain_below_localhost():
    """A domain that ends in ``.localhost`` is the one that counts, not what it ends in."""
    addressing = Addressing("sandbox.localhost:8080")
    assert addressing.address_of(scope(host=f"1-{ID}.sandbox.localhost:8080")) == Address(ID, 1)


def test_a_page_of_one_sandbox_cannot_name_another():
    """A host name of a sandbox goes before headers, which a page can set."""
    asked = routed("i0000other", "22", host=f"3000-{ID}.example.com")
    assert Addressing("example.com").address_of(asked) == Address(ID, 3000)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (scope(e2b_sandbox_id=ID), "missing header"),
        (scope(e2b_sandbox_port="80"), "missing header"),
        (routed(port="0"), "Invalid sandbox port"),
        (routed(port="65536"), "Invalid sandbox port"),
        (routed(port="99999999999999999999"), "Invalid sandbox port"),
        (routed(port="-1"), "Invalid sandbox port"),
        (routed(port="8 0"), "Invalid sandbox port"),
        (routed(port="²"), "Invalid sandbox port"),
        (routed(port=""), "Invalid sandbox port"),
        (routed(""), "Invalid sandbox ID"),
        (routed("../../etc"), "Invalid sandbox ID"),
        (routed("iABC"), "Invalid sandbox ID"),
        (routed("i" * 500), "Invalid sandbox ID"),
        (routed("ié"), "Invalid sandbox ID"),
        (scope(host=f"70000-{ID}.example.com"), "Invalid sandbox port"),
    ],
)
def test_what_is_no_address(asked, message):
    """Half an address, and what cannot be a port or an id, is told in upstream's words."""
    with pytest.raises(BadAddress, match=f"^{message}$"):
        Addressing("example.com").address_of(asked)


def test_no_address():
    """A request that names no sandbox is the control plane's."""
    asked = scope(path="/sandboxes", host="localhost:8080", x_api_key="k")
    assert Addressing(None).address_of(asked) is None
    assert not Addressing(None).owns(asked)


class FakeSandbox:
    def __init__(self, id: str, token: str | None) -> None:
        self.id = id
        self.notes = as_notes(Notes("default", envd_token=token))


class Foreign(FakeSandbox):
    """A sandbox that another dialect made."""

    def __init__(self) -> None:
        self.id, self.notes = "iother", {}


SANDBOXES: list[Any] = [
    Foreign(),
    FakeSandbox("iopen", None),
    FakeSandbox("ione", "token1"),
    FakeSandbox("itwo", "token2"),
]
SIGNED = "path=%2Fhome%2Fuser%2Fa+b&username=user&signature="


def test_the_signature_is_upstreams():
    """The signature is the one that E2B's SDKs make: version, Base64 without padding, of a SHA-256."""
    assert sign("/a:read:user:token:1700000000") == "v1_UCn9YiXOlfvWihAKDutW9QI8YP12zuWXKsfbmDG4JrA"


@pytest.mark.parametrize(("method", "operation"), [("GET", "read"), ("HEAD", "read"), ("POST", "write")])
def test_a_signed_address_finds_its_sandbox(method, operation):
    """A bare ``/files`` address is that of the sandbox whose token signed it, for the operation that was signed."""
    signature = quote(sign(f"/home/user/a b:{operation}:user:token2"), safe="")
    asked = scope(method, "/files", SIGNED + signature)
    assert signed_for(asked, SANDBOXES) == Address("itwo", ENVD_PORT)
    other = scope("POST" if method != "POST" else "GET", "/files", SIGNED + signature)
    assert signed_for(other, SANDBOXES) is None


def test_an_expiration_is_part_of_the_signature():
    """Another expiration needs another signature."""
    signature = quote(sign("/a:read::token1:1700000000"), safe="")
    query = f"path=/a&signature={signature}&signature_expiration="
    assert signed_for(scope(path="/files", query=query + "1700000000"), SANDBOXES) == Address(
        "ione", ENVD_PORT
    )
    assert signed_for(scope(path="/files", query=query + "1800000000"), SANDBOXES) is None


@pytest.mark.parametrize(
    "query",
    [
        "",
        "path=/a",
        "signature=",
        "signature=v1_x",
        "signature=%ff%fe&path=%00",
        "&".join(["a=b"] * 100),
        "path=/a&signature=" + "é",
    ],
)
def test_what_is_not_signed(query):
    """Without a signature that a token made there is no address, whatever the query is."""
    assert signed_for(scope(path="/files", query=query), SANDBOXES) is None


def test_other_paths_are_not_signed():
    """Only ``/files`` is found by its signature."""
    query = f"path=/a&signature={quote(sign('/a:read::token1'), safe='')}"
    assert signed_for(scope(path="/envs", query=query), SANDBOXES) is None
    assert signed_for(scope("DELETE", "/files", query), SANDBOXES) is None
    assert signed_for(scope(path="/files", query=query), SANDBOXES) == Address("ione", ENVD_PORT)
