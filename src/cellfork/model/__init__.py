"""The nouns of cellfork as pure data.  Standard library only, no I/O."""
