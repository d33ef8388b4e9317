"""The bash kernel: one shell for each context, driven by a small process that speaks to init."""
