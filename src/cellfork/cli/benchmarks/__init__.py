"""The measurements behind SPECIFICATION.md: cellfork next to Jupyter, in the same run, sample by sample."""
