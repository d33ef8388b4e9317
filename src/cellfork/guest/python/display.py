"""IPython's display hook, display publisher and formatter, sending to a :class:`Reporter`."""

import dis
import sys
import warnings
from collections.abc import Mapping
from typing import Any

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.formatters import BaseFormatter, DisplayFormatter
from traitlets import ObjectName, Unicode

from cellfork.guest.python import charts, formats
from cellfork.model.results import CHART_MIME, DATA_MIME

SCALARS = frozenset({int, float, complex, bool, str, bytes})
"""Types whose only format is text, unless somebody registered another."""
PRINT_OPERATIONS = frozenset(
    dis.opmap[name] for name in ("PRINT_EXPR", "CALL_INTRINSIC_1") if name in dis.opmap
)
"""The instruction that hands the value of an expression statement to ``sys.displayhook``."""
ONE_EXPRESSION = frozenset({"last_expr", "last_expr_or_assign"})


class DataFormatter(BaseFormatter):  # type: ignore[misc]
    """Columns of data frames, and what objects return from ``_repr_e2b_data_``."""

    format_type = Unicode(DATA_MIME)
    print_method = ObjectName("_repr_e2b_data_")
    _return_type = (dict, list)


class ChartFormatter(BaseFormatter):  # type: ignore[misc]
    """Charts of figures, and what objects return from ``_repr_e2b_chart_``."""

    format_type = Unicode(CHART_MIME)
    print_method = ObjectName("_repr_e2b_chart_")
    _return_type = (dict, list)

    def pop(self, kind: Any, default: Any = None) -> Any:
        """Keep the printer: choosing figure formats (``%matplotlib inline``) takes it from every formatter."""
        return default


class KernelDisplayFormatter(DisplayFormatter):  # type: ignore[misc]
    """IPython's formatter with these formats added, and a short way for scalars."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._add_formats()
        others = [formatter for mime, formatter in self.formatters.items() if mime != "text/plain"]
        others += [self.mimebundle_formatter, self.ipython_display_formatter]
        self._known = len(self.formatters)
        self._printers: list[Mapping[Any, Any]] = [formatter.type_printers for formatter in others]
        self._deferred: list[Mapping[Any, Any]] = [formatter.deferred_printers for formatter in others]

    def format(
        self, obj: Any, include: Any = None, exclude: Any = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the bundle and the metadata of ``obj``.

        IPython asks each of its formatters in turn; for a scalar, all but one would answer ``None``.
        """
        kind = type(obj)
        if kind not in SCALARS or include or exclude or self._has_printer_for(kind):
            bundle: tuple[dict[str, Any], dict[str, Any]] = super().format(
                obj, include=include, exclude=exclude
            )
            return bundle
        text = self.formatters["text/plain"](obj)
        return ({} if text is None else {"text/plain": text}), {}

    def _has_printer_for(self, kind: type) -> bool:
        if len(self.formatters) != self._known:
            return True
        names = ("builtins", kind.__name__), ("builtins", "object")
        return any(kind in printers or object in printers for printers in self._printers) or any(
            name in printers for printers in self._deferred if printers for name in names
        )

    def _add_formats(self) -> None:
        for cls in (DataFormatter, ChartFormatter):
            formatter = cls(parent=self)
            self.formatters[formatter.format_type] = formatter
        for module, name in formats.FRAMES:
            self.formatters[DATA_MIME].for_type_by_name(module, name, formats.columns_of)
        for module, name, chart_of in charts.CHART_OF_TYPE:
            self.formatters[CHART_MIME].for_type_by_name(module, name, chart_of)
        for kind in (list, dict):
            self.formatters["application/json"].for_type(kind, formats.json_of)


class KernelDisplayPublisher(DisplayPublisher):  # type: ignore[misc]
    """What ``display``, ``update_display`` and ``clear_output`` call."""

    def publish(
        self,
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        source: Any = None,
        *,
        transient: dict[str, Any] | None = None,
        update: bool = False,
        **ignored: Any,
    ) -> None:
        """Send a MIME bundle.  Raises ``TypeError`` where ``data`` or ``metadata`` is not a dict."""
        self._validate_data(data, metadata)
        data = charts.with_chart(data)
        display_id = (transient or {}).get("display_id")
        name = None if display_id is None else str(display_id)
        if update and name is None:
            warnings.warn("update_display needs a display_id", stacklevel=3)
            return
        self.shell.reporter.display(data, metadata, display_id=name, update=update)

    def clear_output(self, wait: bool = False) -> None:
        """Clear the cell's output, at once or when there is new output."""
        self.shell.reporter.clear(wait)


class KernelDisplayHook(DisplayHook):  # type: ignore[misc]
    """Sends the value of an expression statement as the main result."""

    def quiet(self) -> bool:
        """Tell whether the cell ends in a semicolon; IPython tokenizes every cell to find out."""
        history = self.shell.history_manager.input_hist_parsed
        return ";" in (history[-1] if history else "") and bool(super().quiet())

    def start_displayhook(self) -> None:
        """Begin."""
        self._is_active = True

    def write_output_prompt(self) -> None:
        """Write none."""

    def write_format_data(self, format_dict: dict[str, Any], md_dict: dict[str, Any] | None = None) -> None:
        """Send the bundle; together with the end of the cell, where nothing can come in between."""
        caller = sys._getframe(2)
        self.shell.reporter.display(format_dict, md_dict, main=True, defer=self._is_last(caller))

    def _is_last(self, caller: Any) -> bool:
        """Tell whether ``caller`` is the cell's last statement, which does nothing after it has shown its value."""
        shell = self.shell
        return (
            caller.f_code is shell.running_code
            and caller.f_code.co_code[caller.f_lasti] in PRINT_OPERATIONS
            and shell.ast_node_interactivity in ONE_EXPRESSION
            and sum(map(len, shell.events.callbacks.values())) == shell.own_callbacks
        )

    def log_output(self, format_dict: dict[str, Any]) -> None:
        """Keep the text for ``%history -o``, and no images."""
        text = format_dict.get("text/plain")
        if text is not None:
            if self.shell.logger.log_output:
                self.shell.logger.log_write(text, "output")
            self.shell.history_manager.output_hist_reprs[self.prompt_count] = text

    def finish_displayhook(self) -> None:
        """End."""
        self._is_active = False
