"""The Python kernel: one IPython shell, prepared once in the zygote, run in forks of it.

Standard library only at import; ``prepare`` imports IPython and what is to be preloaded.
"""
