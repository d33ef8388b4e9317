"""Run by ipykernel before a notebook (``exec_files``), in the notebook's namespace: it leaves no name there."""

# mypy: disable-error-code="attr-defined"


def _prepare() -> None:
    import os
    import time

    from IPython import get_ipython
    from IPython.core import tbtools

    # ipykernel carries what children and C code write in a thread; without a pause, late text is lost.
    get_ipython().events.register("post_run_cell", lambda _: time.sleep(0.03))

    # IPython 9.18 counts the lines of a cell's file, which for ipykernel's cells does not exist, and then falls back
    # on tracebacks that mark the wrong line of chained exceptions.  Answer as for any file that is no Python file.
    count = getattr(tbtools, "count_lines_in_py_file", None)
    if count is not None:
        tbtools.count_lines_in_py_file = lambda name: count(name) if os.path.exists(name) else 0


_prepare()
del _prepare
