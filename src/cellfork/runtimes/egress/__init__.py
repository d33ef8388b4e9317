"""The way out of a sandbox: one proxy on the host's side, which decides for every connection.

It runs in the runtime's event loop.  A sandbox reaches it through a listening socket that its init made in the
sandbox's own network namespace and handed over; no byte passes through a process of the sandbox.
"""
