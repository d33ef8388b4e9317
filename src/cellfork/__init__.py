"""cellfork: a self-hosted code interpreter for AI agents.

Every public name is here.  Importing the package imports none of them: each is loaded at its first use,
so that ``cellfork.guest`` can run inside a sandbox with nothing but the standard library.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cellfork.client import AsyncSandbox, Sandbox
    from cellfork.model.artifacts import Artifact
    from cellfork.model.charts import (
        BarChart,
        BarData,
        BoxAndWhiskerChart,
        BoxAndWhiskerData,
        Chart,
        Chart2D,
        ChartType,
        LineChart,
        PieChart,
        PieData,
        PointChart,
        PointData,
        ScaleType,
        ScatterChart,
        SuperChart,
    )
    from cellfork.model.errors import (
        CellforkError,
        CommandFailed,
        Conflict,
        DirectoryNotEmpty,
        FileError,
        InternalError,
        InvalidRequest,
        IsADirectory,
        IsolationUnavailable,
        LimitExceeded,
        Missing,
        NoSpace,
        NotADirectory,
        NotAFile,
        NotFound,
        OperationTimeout,
        PathExists,
        PathNotFound,
        PathNotPermitted,
        PortClosed,
        PostureMismatch,
        ProtocolViolation,
        SandboxGone,
        SandboxPaused,
        StartupFailed,
        Unauthorized,
        UnavailableError,
        Unsupported,
        UsageError,
    )
    from cellfork.model.events import Accounting
    from cellfork.model.execution import Execution
    from cellfork.model.limits import Limits
    from cellfork.model.network import Denial, NetworkPolicy, Traffic
    from cellfork.model.results import ExecutionError, Logs, OutputMessage, Result
    from cellfork.model.specs import PtySize, Template

__version__ = "0.1.0"

__all__ = [
    "Accounting",
    "Artifact",
    "AsyncSandbox",
    "BarChart",
    "BarData",
    "BoxAndWhiskerChart",
    "BoxAndWhiskerData",
    "CellforkError",
    "Chart",
    "Chart2D",
    "ChartType",
    "CommandFailed",
    "Conflict",
    "Denial",
    "DirectoryNotEmpty",
    "Execution",
    "ExecutionError",
    "FileError",
    "InternalError",
    "InvalidRequest",
    "IsADirectory",
    "IsolationUnavailable",
    "LimitExceeded",
    "Limits",
    "LineChart",
    "Logs",
    "Missing",
    "NetworkPolicy",
    "NoSpace",
    "NotADirectory",
    "NotAFile",
    "NotFound",
    "OperationTimeout",
    "OutputMessage",
    "PathExists",
    "PathNotFound",
    "PathNotPermitted",
    "PieChart",
    "PieData",
    "PointChart",
    "PointData",
    "PortClosed",
    "PostureMismatch",
    "ProtocolViolation",
    "PtySize",
    "Result",
    "Sandbox",
    "SandboxGone",
    "SandboxPaused",
    "ScaleType",
    "ScatterChart",
    "StartupFailed",
    "SuperChart",
    "Template",
    "Traffic",
    "Unauthorized",
    "UnavailableError",
    "Unsupported",
    "UsageError",
    "__version__",
]

_MODULES = {
    "Accounting": "cellfork.model.events",
    "Artifact": "cellfork.model.artifacts",
    "AsyncSandbox": "cellfork.client",
    "BarChart": "cellfork.model.charts",
    "BarData": "cellfork.model.charts",
    "BoxAndWhiskerChart": "cellfork.model.charts",
    "BoxAndWhiskerData": "cellfork.model.charts",
    "Chart": "cellfork.model.charts",
    "Chart2D": "cellfork.model.charts",
    "ChartType": "cellfork.model.charts",
    "Denial": "cellfork.model.network",
    "Execution": "cellfork.model.execution",
    "ExecutionError": "cellfork.model.results",
    "Limits": "cellfork.model.limits",
    "LineChart": "cellfork.model.charts",
    "Logs": "cellfork.model.results",
    "NetworkPolicy": "cellfork.model.network",
    "OutputMessage": "cellfork.model.results",
    "PieChart": "cellfork.model.charts",
    "PieData": "cellfork.model.charts",
    "PointChart": "cellfork.model.charts",
    "PointData": "cellfork.model.charts",
    "PtySize": "cellfork.model.specs",
    "Result": "cellfork.model.results",
    "Sandbox": "cellfork.client",
    "ScaleType": "cellfork.model.charts",
    "ScatterChart": "cellfork.model.charts",
    "SuperChart": "cellfork.model.charts",
    "Template": "cellfork.model.specs",
    "Traffic": "cellfork.model.network",
}
"""Public name → the module it is loaded from; every name that is not here is an error."""


def __getattr__(name: str) -> Any:
    """Load a public name at its first use (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES.get(name, "cellfork.model.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, loaded or not."""
    return __all__
