"""The plane of code: the code interpreter, port 49999 of a sandbox."""
