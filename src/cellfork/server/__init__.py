"""The server: one process, one port, every dialect."""
