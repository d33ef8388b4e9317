"""The domain: sandboxes, contexts, executions, execs, files, watches.  Asyncio; no HTTP, no isolation details."""
