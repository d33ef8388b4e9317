"""What Together's SDK speaks: a management API for sandboxes and snapshots, and an agent in every sandbox."""
