"""Network policies and host names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfork.model.errors import InvalidRequest
from cellfork.model.hosts import BadHost, HostRule, canonical_name
from cellfork.model.network import MAX_HOSTS, NetworkPolicy


def test_the_default_is_no_network():
    """Nothing said means nothing reachable."""
    for value in (None, "none", NetworkPolicy()):
        assert NetworkPolicy.of(value).mode == "none"


def test_a_policy_has_friendly_forms():
    """A word, a list of hosts and a mapping mean the same policies as their long forms."""
    assert NetworkPolicy.of("public").mode == "public"
    policy = NetworkPolicy("allow", ("example.org",))
    assert NetworkPolicy.of(policy) is policy
    assert NetworkPolicy.of(["example.org"]) == policy == NetworkPolicy.of({"allow": ["example.org"]})
    assert NetworkPolicy.of({"b.example", "a.example"}).hosts == ("a.example", "b.example")
    assert NetworkPolicy.of({"allow": ["packages"], "upload": "1M"}).upload_bytes == 1 << 20


@pytest.mark.parametrize(
    "value",
    [
        "",
        "all",
        "allow",
        "packages",
        "example.org",
        [],
        (),
        set(),
        {},
        {"allow": []},
        {"allow": "example.org"},
        {"allow": ["a.example"], "deny": []},
        {"allow_out": ["a.example"]},
        {"allow": ["a.example"], "upload": 0},
        ["*"],
        ["*.com"],
        ["*.*.example.com"],
        ["a.*.example.com"],
        ["https://example.com"],
        ["example.com/simple"],
        ["user@example.com"],
        ["example.com:0"],
        ["example.com:65536"],
        ["example.com:http"],
        ["example.com:"],
        ["example.com:+80"],
        ["exa mple.com"],
        ["example.com\0.evil.example"],
        ["example.com\n"],
        ["example..com"],
        ["-a.example"],
        ["under_score.example"],
        ["10.0.0.1"],
        ["8.8.8.8"],
        ["127.1"],
        ["0x7f000001"],
        ["2130706433"],
        ["[::1]"],
        ["::1"],
        ["a." * 127 + "example"],
        [""],
        ["."],
        [b"example.com"],
        [None],
        b"public",
        7,
        [f"host{number}.example" for number in range(MAX_HOSTS + 1)],
    ],
    ids=lambda value: repr(value)[:40],
)
def test_an_empty_or_malformed_policy_is_refused(value):
    """R3: whatever is not clear is an error, and never an open door."""
    with pytest.raises(InvalidRequest):
        NetworkPolicy.of(value)


def test_hosts_belong_to_allow():
    """A list beside another mode is a mistake, not something to ignore."""
    for mode, hosts in (
        ("", ()),
        ("all", ()),
        ("none", ("a.example",)),
        ("public", ("a.example",)),
        ("allow", ()),
    ):
        with pytest.raises(InvalidRequest):
            NetworkPolicy(mode, hosts)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Example.COM", "example.com"),
        ("example.com.", "example.com"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("a-b.c1.example", "a-b.c1.example"),
    ],
)
def test_names_have_one_form(text, name):
    """Case, a trailing dot and IDNA do not make another host."""
    assert canonical_name(text) == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "a..b",
        "a.b..",
        "faß.example",
        "ｅxample.com",
        "a。b",
        "xn--\x80.example",
        "a\u200db.example",
        "\u212a.example",
    ],
)
def test_names_with_two_meanings_are_refused(text):
    """What IDNA maps to something else, or another program might, is no name."""
    with pytest.raises(BadHost):
        canonical_name(text)


@pytest.mark.parametrize(
    ("entry", "name", "port", "matches"),
    [
        ("example.com", "example.com", 443, True),
        ("example.com", "example.com", 80, True),
        ("example.com", "example.com", 8443, False),
        ("example.com", "www.example.com", 443, False),
        ("example.com", "evil-example.com", 443, False),
        ("example.com", "example.com.evil.example", 443, False),
        ("*.example.com", "www.example.com", 443, True),
        ("*.example.com", "a.b.c.example.com", 443, True),
        ("*.example.com", "example.com", 443, False),
        ("*.example.com", "evilexample.com", 443, False),
        ("example.com:8443", "example.com", 8443, True),
        ("example.com:8443", "example.com", 443, False),
        ("*.example.com:22", "git.example.com", 22, True),
    ],
)
def test_rules_match_whole_labels(entry, name, port, matches):
    """A wildcard means names below at any depth and never the name itself; a port stands for itself alone."""
    assert HostRule.parse(entry).matches(name, port) is matches


@given(st.text(max_size=80))
def test_any_text_is_a_name_or_an_error(text):
    """The canonicaliser raises nothing but its own error, and what it returns is its own canonical form."""
    try:
        name = canonical_name(text)
    except BadHost:
        return
    assert canonical_name(name) == name
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-.")
