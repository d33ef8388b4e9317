# Generated from client/_async/__init__.py by scripts/unasync.py; do not edit.
"""The async client, written by hand; ``_sync`` is generated from it by ``scripts/unasync.py``."""
