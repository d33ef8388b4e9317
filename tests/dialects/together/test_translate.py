"""From paths, tables and events to the wire."""

import subprocess
import sys
from pathlib import Path

import pytest

from cellfork.dialects.together.translate import inside, listening_ports, uuid_of

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/", "/home/user"),
        ("", "/home/user"),
        ("/a/b", "/home/user/a/b"),
        ("a", "/home/user/a"),
        ("//a//b/", "/home/user/a/b"),
        ("/tmp/x", "/tmp/x"),
        ("/tmp/../a", "/home/user/a"),
        ("/a/../../etc/passwd", "/etc/passwd"),
        ("/home/user/x", "/home/user/x"),
        ("/tmpfile", "/home/user/tmpfile"),
    ],
)
def test_places(path, place) -> None:
    """The workspace is the root, but for the directories that a root has."""
    assert inside(path) == place


def test_ports_of_the_kernels_table() -> None:
    """Listening sockets are told, each port once, in order; addresses are readable."""
    table = (
        "  sl  local_address rem_address   st\n"
        "   0: 0100007F:1F90 00000000:0000 0A 0\n"
        "   1: 00000000:0050 00000000:0000 0A 0\n"
        "   2: 0100007F:1F91 0100007F:0001 01 0\n"
        "garbage\n"
    )
    assert listening_ports(table) == [
        {"port": 80, "address": "0.0.0.0"},
        {"port": 8080, "address": "127.0.0.1"},
    ]
    six = "head\n 0: 00000000000000000000000001000000:0BB8 0:0 0A\n"
    assert listening_ports(six) == [{"port": 3000, "address": "0000:0000:0000:0000:0000:0000:0000:0001"}]


def test_ids_are_stable_and_distinct() -> None:
    """The same id has the same UUID, in every process."""
    assert uuid_of("i0000a") == uuid_of("i0000a") != uuid_of("i0000b")


def test_the_specification_is_generated() -> None:
    """openapi.json is what the script makes of the routes and forms as they are."""
    command = [sys.executable, str(ROOT / "scripts" / "together_openapi.py"), "--check"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_the_page_lists_every_route() -> None:
    """The table of docs/dialects/together.md is the one that the script prints."""
    command = [sys.executable, str(ROOT / "scripts" / "together_openapi.py"), "--table"]
    table = subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()
    assert table in (ROOT / "docs" / "dialects" / "together.md").read_text()
