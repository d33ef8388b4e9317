"""Generated from ../proto by scripts/stubs.py; do not edit."""

DIGEST = "80ebdde11ccfb05a10d14e73c61efcefccb5bb4fc0b04754437b2c176266f120"
"""Of the .proto files."""
