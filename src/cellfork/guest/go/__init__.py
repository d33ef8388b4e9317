"""The Go kernel: an interpreter of Go for each context, driven by a small process that speaks to init."""
