"""Run the cells of the corpus of ``to_llm`` in a real sandbox and write what they gave to tests/render/golden.

    python scripts/goldens.py                    all cells
    python scripts/goldens.py timed_out json     those whose name contains one of these words
    CELLFORK_GOLDEN=write pytest tests/render/test_llm.py -k golden     then: the texts

An execution is recorded as JSON and rendered by the tests; nothing is run there.  Recording again changes what
depends on versions and on time (images, addresses, durations): record what is new, and read the difference.
Cases without ``code`` in them are not from here: they are written by hand, after what kernels of other languages send.
"""

import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cellfork import Execution, Limits, Sandbox

GOLDEN = Path(__file__).resolve().parents[1] / "tests" / "render" / "golden"
FIGURE = "import matplotlib.pyplot as plt\nplt.rcParams['figure.figsize'] = 2, 1.5\nplt.rcParams['figure.dpi'] = 40\n"


@dataclass
class Cell:
    """Code to run, how to render it, and the limits of its sandbox."""

    code: str
    options: dict[str, Any] = field(default_factory=dict)
    timeout: float = 30
    limits: Limits = field(default_factory=Limits)


CELLS = {
    # -------------------------------------------------------------------------------------- figures, charts
    "run_chart_attached": Cell(
        FIGURE + "plt.plot([1, 2, 4, 8], label='growth')\nplt.yscale('log')\nplt.xlabel('Time (s)')\n"
        "plt.ylabel('Cells [1/ml]')\nplt.title('Growth')\nplt.show()",
        {"images": "attachments"},
    ),
    "run_chart_named_only": Cell(
        FIGURE
        + "fig, (a, b) = plt.subplots(1, 2)\nfig.suptitle('Two views')\na.plot([1, 2])\nb.bar(['x', 'y'], [3, 4])\n"
        "b.set_title('bars')\nfig",
        {"images": "none"},
    ),
    "run_chart_too_large": Cell(
        FIGURE + "import numpy as np\nplt.rcParams['figure.figsize'] = 5, 4\n"
        "x = np.random.default_rng(1).normal(size=(2, 400))\nplt.scatter(*x, c=x[0])\nprint('drawn')",
        {"max_tokens": 300},
    ),
    "run_plotly_bars": Cell(
        "import plotly.express as px\npx.bar(x=['Oslo', 'Rome'], y=[763, 799], title='Rain', labels={'x': 'City', 'y': 'Rain (mm)'})"
    ),
    "run_plotly_heat_map": Cell(
        "import plotly.graph_objects as go\ngo.Figure(go.Heatmap(z=[[1, 2], [3, 4]]), layout={'title': 'Heat', 'template': 'none'})",
        {"max_tokens": 200},
    ),
    "run_altair_line": Cell(
        "import altair as alt, pandas as pd\nd = pd.DataFrame({'day': pd.date_range('2024-01-01', periods=3), 'price': [3.5, 4, 2.25]})\n"
        "alt.Chart(d, title='Price').mark_line().encode(x='day', y='price')"
    ),
    "run_altair_unknown": Cell(
        "import altair as alt, pandas as pd\nalt.Chart(pd.DataFrame({'a': [1, 2]})).mark_bar().encode(x=alt.X('a', bin=True), y='count()')",
        {"max_tokens": 200},
    ),
    "run_many_points": Cell(
        "import plotly.graph_objects as go, numpy as np\ngo.Figure(go.Scattergl(y=np.arange(800) % 7, name='saw'))",
        {"max_tokens": 150},
    ),
    "run_three_images": Cell(
        FIGURE
        + "for n in range(3):\n    plt.figure()\n    plt.plot([0, n])\n    plt.title(f'figure {n}')\n    plt.show()\n    print('figure', n)",
        {"images": "attachments"},
    ),
    "run_plot_stdout_stderr_error": Cell(
        FIGURE + "import sys\nprint('before')\nplt.plot([3, 1, 2])\nplt.title('kept')\nplt.show()\n"
        "print('careful', file=sys.stderr)\n1 / 0",
        {"images": "attachments"},
    ),
    # ----------------------------------------------------------------------------------------- rich results
    "run_display_updates": Cell(
        "shown = display('starting', display_id='s')\nfor n in range(3):\n    shown.update({'step': n})\ndisplay('end')"
    ),
    "run_clear_output": Cell(
        "from IPython.display import clear_output, display\nfor n in range(4):\n    clear_output(wait=True)\n    print('step', n)\n"
        "    display(n)"
    ),
    "run_html_only": Cell(
        "import pandas as pd\nfrom IPython.display import HTML\nHTML(pd.DataFrame({'city': ['Oslo'], 'rain': [763]}).to_html(index=False))"
    ),
    "run_styled_frame": Cell(
        "import pandas as pd\npd.DataFrame({'rain': [763]}).style.set_uuid('1').format('{:.1f} mm')"
    ),
    "run_frame_and_error": Cell(
        "import pandas as pd\nf = pd.DataFrame({'a': [1, 2]})\ndisplay(f)\nf['b']", {"max_tokens": 300}
    ),
    "run_latex": Cell("from IPython.display import Math\nMath(r'\\int_0^1 x^2 dx')"),
    "run_json": Cell(
        "from IPython.display import JSON\nJSON({'rows': [{'city': 'Oslo', 'rain': float('nan')}]})"
    ),
    "run_list": Cell("[{'a': 1}, None, True, float('inf')]"),
    "run_markdown": Cell("from IPython.display import Markdown\nMarkdown('# Report\\n\\n* one\\n* two')"),
    "run_svg_only": Cell(
        'from IPython.display import SVG\nSVG(\'<svg xmlns="http://www.w3.org/2000/svg" width="20" height="10"><rect width="20" height="10"/></svg>\')',
        {"images": "attachments"},
    ),
    "run_javascript": Cell("from IPython.display import Javascript\nJavascript('console.log(1)')"),
    "run_geojson": Cell(
        "display({'application/geo+json': {'type': 'Point', 'coordinates': [10.75, 59.91]}}, raw=True)"
    ),
    "run_vega_lite_mime": Cell(
        "display({'application/vnd.vegalite.v5+json': {'mark': 'arc', 'data': {'values': [{'k': 'a', 'v': 1}, {'k': 'b', 'v': 3}]},"
        " 'encoding': {'theta': {'field': 'v', 'type': 'quantitative'}, 'color': {'field': 'k', 'type': 'nominal'}}}}, raw=True)"
    ),
    "run_widget": Cell("import ipywidgets\nipywidgets.IntSlider(value=3)"),
    "run_array": Cell("import numpy as np\nnp.arange(6).reshape(2, 3)"),
    "run_forty_displays": Cell(
        "for n in range(40):\n    display(f'result {n} ' + 'x' * 60)", {"max_tokens": 250}
    ),
    "run_binary_type": Cell("display({'application/x-own': b'\\x00\\x01' * 50}, raw=True)"),
    # ------------------------------------------------------------------------------------------------ text
    "run_ansi": Cell(
        "print('\\x1b[31mred\\x1b[0m and \\x1b]8;;http://example.com\\x1b\\\\a link\\x1b]8;;\\x1b\\\\\\x1b[2K')"
    ),
    "run_huge_line": Cell("print('x' * 20_000)\nprint('the end')", {"max_tokens": 100}),
    "run_wide_unicode": Cell("print('東京 ' * 300)\nprint('👩‍👩‍👧 done')", {"max_tokens": 120}),
    "run_progress_bar": Cell(
        "import sys, time\nfor n in range(0, 101, 20):\n    print(f'\\r{n:3} % ' + '#' * (n // 10), end='', flush=True)\nprint()"
    ),
    "run_tqdm": Cell(
        "from tqdm import tqdm\nfor _ in tqdm(range(3), bar_format='{l_bar}{bar}| {n_fmt}/{total_fmt}', ncols=40): pass\n'ready'"
    ),
    "run_empty_lines": Cell("print()\nprint('   ')\nNone"),
    "run_only_stderr": Cell("import warnings\nwarnings.warn('old way', DeprecationWarning, stacklevel=1)"),
    "run_string_none": Cell("'None'"),
    "run_print_none": Cell("print(None)"),
    "run_ten_thousand_lines": Cell(
        "for n in range(2_000): print('line', n)\nraise ValueError('at the end')", {"max_tokens": 100}
    ),
    "run_truncated": Cell(
        "for n in range(20_000): print('line', n)", {"max_tokens": 400}, limits=Limits(output="64K")
    ),
    # ---------------------------------------------------------------------------------------------- errors
    "run_syntax_error": Cell("total = 1\nif total = 1:\n    pass"),
    "run_key_error_user_frames": Cell(
        "import pandas as pd\ndef load():\n    return pd.DataFrame({'a': [1]})\nload()['revenue']",
        {"user_frames_only": True},
    ),
    "run_key_error_small_budget": Cell(
        "import pandas as pd\npd.DataFrame({'a': [1]})['revenue']", {"max_tokens": 100}
    ),
    "run_chained_errors": Cell(
        "try:\n    int('x')\nexcept ValueError as e:\n    raise RuntimeError('no number') from e"
    ),
    "run_exception_group": Cell("raise ExceptionGroup('two failed', [ValueError('a'), OSError(2, 'b')])"),
    "run_recursion": Cell("def f(n): return f(n + 1)\nf(0)", {"max_tokens": 500}),
    "run_long_message": Cell(
        "raise ValueError('no such column; known: ' + ', '.join(f'column_{n}' for n in range(300)))",
        {"max_tokens": 200},
    ),
    "run_exit": Cell("import sys\nprint('leaving')\nsys.exit(3)"),
    "run_magic_failure": Cell("!ls /nowhere\n%%timeit_no\n"),
    "run_shell_command": Cell("!echo out; echo err >&2; false\n_exit_code"),
    # --------------------------------------------------------------------------------------------- endings
    "run_timed_out": Cell("import time\nprint('working', flush=True)\ntime.sleep(60)", timeout=1),
    "run_memory": Cell(
        "print('allocating', flush=True)\nblocks = [b'x' * 2**20 for _ in range(10_000)]",
        limits=Limits(memory="192M"),
    ),
    "run_lost": Cell("import os\nprint('half', flush=True)\nos._exit(7)"),
}


def record(cell: Cell) -> dict[str, Any]:
    """Run a cell in a sandbox of its own and return the case."""
    with Sandbox.create(limits=cell.limits) as sandbox:
        execution = sandbox.run_code(cell.code, timeout=cell.timeout)
    return {"code": cell.code, **as_case(execution), **({"options": cell.options} if cell.options else {})}


def as_case(execution: Execution) -> dict[str, Any]:
    """Return what the tests read, without what is not there."""
    case = {
        "status": execution.status,
        "results": [result.to_dict() for result in execution.results],
        "stdout": ["".join(execution.logs.stdout)],
        "stderr": ["".join(execution.logs.stderr)],
        "error": execution.error and execution.error.to_dict(),
    }
    return {key: value for key, value in case.items() if value and value != [""]}


def neutral(text: str) -> str:
    """Return the text of a case without the places and addresses of this machine."""
    for prefix, place in ((sys.prefix, "/opt/venv"), (sys.base_prefix, "/usr/local")):
        text = text.replace(prefix, place)
    return re.sub(r"0x[0-9a-f]{8,}", "0x7f0000000000", text)


def main() -> None:
    """Record the cells that were asked for."""
    words = sys.argv[1:]
    for name, cell in CELLS.items():
        if words and not any(word in name for word in words):
            continue
        text = neutral(json.dumps(record(cell), indent=1, ensure_ascii=False))
        (GOLDEN / f"{name}.json").write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
        print(name)


if __name__ == "__main__":
    main()
