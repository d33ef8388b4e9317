"""The cases, by part of the SDK."""
