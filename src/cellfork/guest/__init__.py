"""What runs inside a sandbox: zygote, init, kernels, execs, files.  Standard library only."""
