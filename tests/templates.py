"""What a sandbox of the tests sees of the template, where that lives in a place that is otherwise the sandbox's own."""

import os
import sys
from pathlib import Path

IN_TMP = frozenset(
    Path(path).relative_to("/tmp").parts[0]
    for path in (sys.prefix, sys.base_prefix, os.path.realpath(sys.executable))
    if Path(path).is_relative_to("/tmp")
)
"""Names in /tmp that lead to the interpreter: the tests may run from a clone that was made there."""
