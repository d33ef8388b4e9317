"""What OpenSandbox's SDKs speak: a lifecycle API for sandboxes, and execd in every sandbox."""
