"""Sandboxes behind a server's URL: what the client uses of the engine, over HTTP.

E2B's own paths carry the life of a sandbox and the code that it runs; the server's extension (``/cellfork/…``) carries the rest.
Everything here lives in the loop of the transport's host.
"""
