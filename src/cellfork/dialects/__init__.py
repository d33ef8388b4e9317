"""Dialects: each translates one family of HTTP APIs to and from the nouns of the engine."""
