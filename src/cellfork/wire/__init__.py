"""Frames and messages between host and guest.  Standard library only, no I/O.  See PROTOCOL.md."""
