"""The plane of files and processes: envd, port 49983 of a sandbox."""
