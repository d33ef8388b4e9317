"""Isolation back ends that start sandboxes."""
