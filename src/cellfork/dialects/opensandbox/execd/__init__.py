"""execd: the API of one sandbox, for code, commands, files and metrics."""
