"""What E2B's SDKs speak: a control plane, and two planes for every sandbox."""
