"""Kernels of other languages: any Jupyter kernel, bridged to init by a small process of ours."""
