"""Every language keeps the same promises: the kernel suite."""

from cellfork.testing import dialects
from cellfork.testing.kernel_suite import KernelSuite


class TestPython(KernelSuite):
    dialect = dialects.PYTHON


class TestBash(KernelSuite):
    dialect = dialects.BASH


class TestJavaScript(KernelSuite):
    dialect = dialects.JAVASCRIPT


class TestTypeScript(KernelSuite):
    dialect = dialects.TYPESCRIPT


class TestR(KernelSuite):
    dialect = dialects.R


class TestJava(KernelSuite):
    dialect = dialects.JAVA


class TestJupyterPython(KernelSuite):
    """IPython behind the bridge: a kernel that nothing was adjusted for."""

    dialect = dialects.PYTHON
    language = "jupyter:python3"


class TestRWithoutIsolation(KernelSuite):
    dialect = dialects.R
    isolation = "none"
