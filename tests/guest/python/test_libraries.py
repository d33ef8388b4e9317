"""Libraries that ask where they run choose their notebook form."""

import pytest

from tests.guest.python.harness import Session

PLOTLY = "application/vnd.plotly.v1+json"
WIDGET = "application/vnd.jupyter.widget-view+json"


def test_what_libraries_look_at(session: Session):
    """The shell's class has the name and the module of ipykernel's, and its configuration the section that tqdm wants."""
    assert session.run("type(get_ipython())").text == "ipykernel.zmqshell.ZMQInteractiveShell"
    assert session.run("'IPKernelApp' in get_ipython().config").text == "True"
    assert session.run("import IPython; IPython.get_ipython() is get_ipython()").text == "True"
    assert session.run("import matplotlib; matplotlib.get_backend()").text in {
        "'module://matplotlib_inline.backend_inline'",
        "'inline'",
    }


def test_pandas_knows(session: Session):
    """pandas takes the shell for a notebook's."""
    assert session.run("from pandas.io.formats.console import in_ipython_frontend as f; f()").text == "True"


def test_tqdm(session: Session):
    """tqdm's automatic bar is the notebook's, with a text form; the plain one writes to stderr."""
    pytest.importorskip("ipywidgets")
    ran = session.run(
        "from tqdm.auto import tqdm\nfor _ in tqdm(range(3)): pass\n'notebook' in repr(tqdm.__mro__)"
    ).ok()
    assert ran.text == "True"
    assert "0/3" in ran.displays[0]["text/plain"]
    assert "3/3" in session.run("from tqdm import tqdm\nfor _ in tqdm(range(3)): pass").ok().stderr


def test_ipywidgets(session: Session):
    """Widgets have a text form and do not fail without a front end."""
    pytest.importorskip("ipywidgets")
    ran = session.run("import ipywidgets as w\ns = w.IntSlider(value=3)\ns").ok()
    assert "IntSlider(value=3" in (ran.text or "") and WIDGET in (ran.result or {})
    session.run("s.value = 5; display(w.HBox([s]))\no = w.Output()\nwith o: print('x')").ok()
    session.run("@w.interact(x=(0, 3))\ndef f(x=1): return x").ok()


def test_plotly(session: Session):
    """A plotly figure is its own MIME type, as a value and with ``show()``; no copy of plotly.js comes with it."""
    pytest.importorskip("plotly")
    ran = session.run(
        "import plotly.graph_objects as go, numpy as np\nfig = go.Figure(go.Bar(x=['a'], y=np.array([1.5])))\nfig"
    ).ok()
    assert PLOTLY in ran.displays[0]
    assert sum(len(f.body) for f in ran.frames) < 100_000
    assert PLOTLY in session.run("fig.show()").ok().displays[0]


def test_altair(session: Session):
    """An altair chart gives its HTML."""
    pytest.importorskip("altair")
    result = (
        session.run(
            "import altair as alt, pandas as pd\nalt.Chart(pd.DataFrame({'a': [1], 'b': [2]})).mark_bar().encode(x='a', y='b')"
        )
        .ok()
        .result
        or {}
    )
    assert "vega" in result["text/html"]


def test_rich(session: Session):
    """rich displays HTML and text as in a notebook."""
    ran = session.run("from rich import print as p\np('[bold]x[/bold]')").ok()
    assert any("text/html" in d for d in ran.displays)


def test_seaborn(session: Session):
    """A seaborn plot is shown like any figure."""
    pytest.importorskip("seaborn")
    ran = session.run(
        "import seaborn as sns, pandas as pd\nsns.barplot(data=pd.DataFrame({'a': ['x', 'y'], 'b': [1, 2]}), x='a', y='b');"
    ).ok()
    assert "image/png" in ran.displays[-1]


def test_sympy_like_latex(session: Session):
    """Objects with LaTeX keep it beside their text."""
    assert (session.run("class L:\n    def _repr_latex_(self): return '$x^2$'\nL()").result or {})[
        "text/latex"
    ] == "$x^2$"


def test_scipy(session: Session):
    """scipy computes."""
    assert (
        session.run("from scipy import optimize\nround(optimize.brentq(lambda x: x * x - 2, 0, 2), 6)").text
        == "1.414214"
    )
