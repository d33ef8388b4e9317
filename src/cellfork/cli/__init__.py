"""The command line: ``cellfork run``, ``cellfork doctor``, ``cellfork bench``."""
