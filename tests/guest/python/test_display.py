"""Bundles: what a display carries, how it is bounded, updates and clearing."""

import json
import math

import pytest

from cellfork.model.results import CHART_MIME, DATA_MIME
from cellfork.wire.bundles import decode_bundle
from tests.guest.python.harness import KiB, MiB, Session

PNG = b"\x89PNG\r\n\x1a\n"


def test_every_repr_method_counts(session: Session):
    """Each ``_repr_*_`` method gives its MIME type, binary content as bytes."""
    code = """
class Rich:
    def __repr__(self): return 'text'
    def _repr_html_(self): return '<b>x</b>'
    def _repr_markdown_(self): return '*x*'
    def _repr_svg_(self): return '<svg/>'
    def _repr_png_(self): return b'\\x89PNG'
    def _repr_jpeg_(self): return b'\\xff\\xd8'
    def _repr_pdf_(self): return b'%PDF'
    def _repr_latex_(self): return '$x$'
    def _repr_json_(self): return {'a': 1}
    def _repr_javascript_(self): return 'x()'
    def _repr_e2b_data_(self): return {'c': [1]}
    def _repr_e2b_chart_(self): return {'type': 'line'}
Rich()
"""
    assert session.run(code).ok().result == {
        "text/plain": "text",
        "text/html": "<b>x</b>",
        "text/markdown": "*x*",
        "image/svg+xml": "<svg/>",
        "image/png": b"\x89PNG",
        "image/jpeg": b"\xff\xd8",
        "application/pdf": b"%PDF",
        "text/latex": "$x$",
        "application/json": {"a": 1},
        "application/javascript": "x()",
        DATA_MIME: {"c": [1]},
        CHART_MIME: {"type": "line"},
    }


def test_mimebundle_with_metadata(session: Session):
    """``_repr_mimebundle_`` gives any MIME types, with metadata; base64 of an image becomes bytes."""
    code = """
class M:
    def _repr_mimebundle_(self, include=None, exclude=None):
        return {'text/plain': 'p', 'application/x-own+json': {'k': [1]}, 'image/png': 'iVBORw0KGgo='}, {'image/png': {'width': 3}}
M()
"""
    ran = session.run(code).ok()
    assert ran.result == {"text/plain": "p", "application/x-own+json": {"k": [1]}, "image/png": PNG}
    assert ran.frames[0].header["metadata"] == {"image/png": {"width": 3}}


def test_display_ids(session: Session):
    """``display_id`` and ``update_display`` address one display."""
    ran = session.run(
        "h = display('a', display_id='d1')\nh.update('b')\nupdate_display_ = h.display_id\nfrom IPython.display import update_display\nupdate_display('c', display_id='d1')"
    ).ok()
    told = [(f.header["op"], f.header["display_id"], ran.bundle(f)["text/plain"]) for f in ran.frames[:-1]]
    assert told == [("display", "d1", "'a'"), ("update", "d1", "'b'"), ("update", "d1", "'c'")]
    assert session.run("h.update('later')").order == [("update", "'later'")]


def test_clear_output(session: Session):
    """``clear_output`` sends ``clear`` in its place, with ``wait`` or without."""
    ran = session.run(
        "from IPython.display import clear_output\nprint('a')\nclear_output(wait=True)\nprint('b')\nclear_output()"
    )
    assert ran.order == [("stdout", "a\n"), ("clear", None), ("stdout", "b\n"), ("clear", None)]
    assert [f.header["wait"] for f in ran.frames if f.header["op"] == "clear"] == [True, False]


def test_ipython_display_objects(session: Session):
    """IPython's display objects, and the cell magics that make them, give their MIME types."""
    session.run("from IPython.display import *")
    for code, mime in [
        ("HTML('<p>')", "text/html"),
        ("Markdown('*')", "text/markdown"),
        ("Latex('$x$')", "text/latex"),
        ("Javascript('1')", "application/javascript"),
        ("SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>')", "image/svg+xml"),
        ("JSON({'a': 1})", "application/json"),
        ("Image(data=b'\\x89PNG\\r\\n\\x1a\\n', format='png')", "image/png"),
        ("%%html\n<p>", "text/html"),
        ("%%javascript\n1", "application/javascript"),
        ("%%latex\n$x$", "text/latex"),
        ("%%markdown\n*", "text/markdown"),
        ("%%svg\n<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml"),
    ]:
        assert mime in session.run(code).ok().displays[0], code


def test_raw_display(session: Session):
    """``display(raw=True)`` sends a bundle as it is, without a text."""
    ran = session.run("display({'text/latex': '$x$'}, raw=True)").ok()
    assert ran.displays == [{"text/latex": "$x$"}]


def test_data_frame(session: Session):
    """A data frame carries text, HTML and its columns as JSON values."""
    code = """
import pandas as pd, numpy as np
pd.DataFrame({'i': [1, 2], 'f': [1.5, np.nan], 's': ['a', None], 't': pd.to_datetime(['2024-01-02', None]), 'o': [{'k': np.int64(1)}, pd.NA], 3: [True, False],
              'd': pd.to_timedelta(['1D', '2D'])})
"""
    result = session.run(code).ok().result
    assert result is not None and "<table" in result["text/html"]
    data = result[DATA_MIME]
    assert data["i"] == [1, 2] and data["3"] == [True, False] and data["o"] == [{"k": 1}, None]
    assert data["t"] == ["2024-01-02T00:00:00", None]
    assert data["f"][0] == 1.5 and data["f"][1] != data["f"][1]
    assert data["s"][0] == "a" and data["d"][0] == "1 days 00:00:00"


def test_large_data_frame(session: Session):
    """Of a large frame the first rows travel, and the metadata say so."""
    ran = session.run("import pandas as pd\npd.DataFrame({'a': range(1_000_000), 'b': 0})").ok()
    data = (ran.result or {})[DATA_MIME]
    assert len(data["a"]) == 50_000 == len(data["b"])
    assert ran.frames[0].header["metadata"][DATA_MIME] == {"rows": 1_000_000, "rows_kept": 50_000}


@pytest.mark.parametrize(
    "code",
    [
        "pd.DataFrame()",
        "pd.DataFrame({'a': []})",
        "pd.DataFrame([[1, 2]], columns=['a', 'a'])",
        "pd.DataFrame([[1]], columns=pd.MultiIndex.from_tuples([('a', 'b')]))",
        "pd.DataFrame({'a': [1]}).style",
        "pd.Series([1])",
    ],
)
def test_odd_data_frames(session: Session, code: str):
    """Empty frames, repeated and nested column names, stylers and series do not fail."""
    assert "text/plain" in (session.run(f"import pandas as pd\n{code}").ok().result or {})


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("[1, 'a', None, 2.5, True]", [1, "a", None, 2.5, True]),
        ("{'a': {'b': (1, 2)}}", {"a": {"b": [1, 2]}}),
        ("{1: 2, None: 3, True: 4}", {"1": 4, "null": 3}),
        ("import numpy as np\n{'x': np.float32(1.5), 'y': np.arange(3)}", {"x": 1.5, "y": [0, 1, 2]}),
        ("import datetime\n[datetime.date(2024, 1, 2)]", ["2024-01-02"]),
        ("[]", []),
    ],
)
def test_json_of_lists_and_dicts(session: Session, code: str, value: object):
    """Lists and dicts of plain values are JSON as well."""
    assert (session.run(code).ok().result or {})["application/json"] == value


@pytest.mark.parametrize(
    "code",
    [
        "[object()]",
        "list(range(20_000))",
        "x = []; x.append(x); x",
        "{(1, 2): 3}",
        "[[[]] * 300] * 300",
        "(1, 2)",
    ],
)
def test_no_json(session: Session, code: str):
    """What holds other objects, is large, or holds itself has no JSON, and still displays."""
    result = session.run(code).ok().result or {}
    assert "application/json" not in result and result["text/plain"]


def test_figures(session: Session):
    """A figure left open is shown at the end of the cell as PNG with its chart, and closed."""
    ran = session.run(
        "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3], [4, 5, 6])\nplt.title('T')\nprint('after')"
    ).ok()
    assert [op for op, _ in ran.order] == ["stdout", "display"]
    bundle = ran.displays[0]
    assert bundle["image/png"].startswith(PNG) and bundle["text/plain"].startswith("<Figure size")
    chart = bundle[CHART_MIME]
    assert chart["type"] == "line" and chart["title"] == "T"
    assert chart["elements"][0]["points"] == [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]
    assert session.run("plt.get_fignums()").text == "[]"
    assert session.run("1").ok().order == [("display", "1")]


def test_show_in_the_middle(session: Session):
    """``plt.show()`` displays at once; each figure once."""
    ran = session.run(
        "import matplotlib.pyplot as plt\nfor i in range(2):\n    plt.plot([i]); plt.show(); print(i)"
    ).ok()
    assert [op for op, _ in ran.order] == ["display", "stdout", "display", "stdout"]


def test_a_figure_as_the_value(session: Session):
    """A figure that is the value of the cell is the main result, and shown at the end as in Jupyter."""
    ran = session.run(
        "import matplotlib.pyplot as plt\nfig, ax = plt.subplots(); ax.bar(['a'], [1]); plt.close(fig)\nfig"
    ).ok()
    assert len(ran.displays) == 1
    assert ran.result and ran.result[CHART_MIME]["type"] == "bar"


def test_inline_settings(session: Session):
    """``%matplotlib inline`` and ``%config InlineBackend`` work; the chart stays."""
    session.run("%matplotlib inline\n%config InlineBackend.figure_formats = ['svg', 'png']").ok()
    bundle = session.run("import matplotlib.pyplot as plt\nplt.plot([1]);").ok().displays[0]
    assert {"image/svg+xml", "image/png", CHART_MIME} <= set(bundle)
    assert "no display here" in session.run("get_ipython().enable_gui('qt')").error["value"]


def test_pil_images(session: Session):
    """PIL images are PNG as a value and in ``display``; ``show()`` displays instead of starting a viewer."""
    code = "from PIL import Image\nimage = Image.new('RGB', (3, 2), 'red')\n"
    result = session.run(code + "image").ok().result or {}
    assert result["image/png"].startswith(PNG)
    ran = session.run("print('a'); image.show(); print('b')").ok()
    assert [op for op, _ in ran.order] == ["stdout", "display", "stdout"]
    assert ran.displays[0]["image/png"].startswith(PNG)


def test_result_cap_drops_and_says_so(session: Session):
    """What passes the cap of a result is replaced by a note with type and size."""
    code = (
        "display({'text/plain': 'small', 'text/html': 'x' * 200_000, 'image/png': b'y' * 500_000}, raw=True)"
    )
    ran = session.run(code, result=100 * KiB).ok()
    bundle = ran.displays[0]
    assert set(bundle) == {"text/plain"}
    assert (
        bundle["text/plain"].startswith("small\n[")
        and "image/png of 488.3 KiB dropped" in bundle["text/plain"]
    )
    assert ran.frames[0].header["metadata"]["cellfork"]["dropped"] == {
        "image/png": 500_000,
        "text/html": 200_000,
    }


def test_long_text_is_cut_in_its_middle(session: Session):
    """A long text keeps its beginning and its end around a note."""
    text = session.run("'a' * 1_000_000 + 'z'", result=10 * KiB).ok().text or ""
    assert len(text) < 11 * KiB
    assert text.startswith("'aaa") and text.endswith("az'") and "1000003" not in text and "976.6 KiB" in text


def test_a_huge_result(session: Session):
    """A result of 500 MB is cut to the cap; the kernel lives."""
    ran = session.run("'x' * 500_000_000", result=1 * MiB).ok()
    assert len(ran.text or "") < 1.1 * MiB
    assert session.run("1").text == "1"


def test_hostile_bundles(session: Session):
    """MIME types that are no text, values that are no JSON, deep nesting and thousands of types do no harm."""
    deep = "x = []\nfor _ in range(100_000): x = [x]\n"
    ran = session.run(
        deep
        + "display({'text/plain': 't', 'application/json': x, 'a/b': object(), 3: 'x', 'n' * 1000: 'x'}, raw=True)"
    )
    assert ran.ok().displays[0]["text/plain"].splitlines()[0] == "t"
    ran = session.run("display({f'x/{i}': 'y' for i in range(5000)}, raw=True)").ok()
    assert 0 < len(ran.displays[0]) <= 64
    assert session.run(
        "display({'text/plain': 'a'}, metadata={'k': object(), 'big': 'x' * 10**6}, raw=True)"
    ).ok().displays == [{"text/plain": "a"}]
    assert session.run("get_ipython().display_pub.publish('no dict')").error["name"] == "TypeError"
    assert session.run("'\\ud800'").text == "'\\ud800'"


def test_nan_in_json(session: Session):
    """NaN and infinities travel in JSON values as Python writes them."""
    value = (session.run("[float('nan'), float('inf')]").ok().result or {})["application/json"]
    assert json.dumps(value) == "[NaN, Infinity]"


def test_user_formatters_win(session: Session):
    """Formatters that the user registers are used, also for scalars."""
    session.run(
        "get_ipython().display_formatter.formatters['text/html'].for_type(int, lambda n: f'<i>{n}</i>')"
    ).ok()
    assert session.run("3").result == {"text/plain": "3", "text/html": "<i>3</i>"}
    session.run(
        "get_ipython().display_formatter.formatters['text/plain'].for_type(str, lambda s, p, cycle: p.text('S'))"
    )
    assert session.run("'x'").text == "S"
    session.run("%precision 2")
    assert session.run("3.14159").text == "3.14"


FRAMES: dict[str, tuple[str, dict[str, object]]] = {
    "duplicate columns": ("pd.DataFrame([[1, 2, 3]], columns=['a', 'a', 'a.1'])", {"a": [1], "a.1": [2], "a.1.1": [3]}),
    "columns that are no text": (
        "pd.DataFrame([[1, 2, 3]], columns=[1, '1', pd.Timestamp('2024-01-01')])",
        {"1": [1], "1.1": [2], "2024-01-01 00:00:00": [3]},
    ),
    "levels of columns": (
        "pd.DataFrame([[1]], columns=pd.MultiIndex.from_tuples([('a', 'b')]))", {"('a', 'b')": [1]},
    ),
    "times with zones": (
        "pd.DataFrame({'t': pd.to_datetime(['2024-01-01T12:00', None]).tz_localize('Europe/Berlin')})",
        {"t": ["2024-01-01T12:00:00+01:00", None]},
    ),
    "spans of time": (
        "pd.DataFrame({'d': pd.to_timedelta(['90min', None]), 'p': pd.period_range('2024-01', periods=2, freq='M')})",
        {"d": ["0 days 01:30:00", None], "p": ["2024-01", "2024-02"]},
    ),
    "categories": ("pd.DataFrame({'c': pd.Categorical(['x', None, 'x'])})", {"c": ["x", None, "x"]}),
    "nullable integers": ("pd.DataFrame({'i': pd.array([1, None], dtype='Int64')})", {"i": [1, None]}),
    "exact numbers": (
        "import decimal, fractions\npd.DataFrame({'d': [decimal.Decimal('0.10'), fractions.Fraction(1, 3)]})",
        {"d": ["0.10", "1/3"]},
    ),
    "complex, bytes": ("pd.DataFrame({'z': [1 + 2j], 'b': [b'\\xff']})", {"z": ["(1+2j)"], "b": ["b'\\xff'"]}),
    "numpy scalars": (
        "import numpy as np\npd.DataFrame({'o': [np.int64(1), np.float32(0.5), np.bool_(True), np.datetime64('2024-01-01')]}, dtype=object)",
        {"o": [1, 0.5, True, "2024-01-01"]},
    ),
    "nested values": (
        "import numpy as np\npd.DataFrame({'n': [{'k': [np.int64(1), pd.NaT, pd.NA]}, (1, 2), np.arange(3), {3}]})",
        {"n": [{"k": [1, None, None]}, [1, 2], [0, 1, 2], "{3}"]},
    ),
    "frames in frames": (
        "pd.DataFrame({'f': [pd.DataFrame({'a': [1], 'b': ['x']}), pd.Series([1, 2])]})",
        {"f": [{"a": [1], "b": ["x"]}, [1, 2]]},
    ),
    "large integers": ("pd.DataFrame({'i': [2**64, -2**70]})", {"i": [2**64, -(2**70)]}),
    "an object whose text raises": (
        (  # what pandas itself makes of it fails
            "class E:\n    def __repr__(self): 1/0\n    __str__ = __repr__\n"
        "import io, contextlib\nf = pd.DataFrame({'o': [1]}, dtype=object)\nf.iloc[0, 0] = E()\n"
        "display({'text/plain': 'x', 'application/vnd.cellfork.data+json': "
        "get_ipython().display_formatter.formatters['application/vnd.cellfork.data+json'](f)}, raw=True)"
        ),
        {"o": ["<E>"]},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("code", "data"), FRAMES.values(), ids=FRAMES)
def test_data_of_frames(session: Session, code: str, data: dict[str, object]):
    """Whatever is in a data frame has a JSON value of its own, in a column of its own; nothing is left out silently."""
    (bundle,) = session.run(f"import pandas as pd\n{code}").ok().displays
    assert bundle[DATA_MIME] == data


def test_infinities_in_frames(session: Session):
    """NaN and infinities arrive as what they are."""
    code = "import pandas as pd\npd.DataFrame({'f': [float('nan'), float('inf'), float('-inf')]})"
    nan, *infinities = (session.run(code).ok().result or {})[DATA_MIME]["f"]
    assert math.isnan(nan)
    assert infinities == [float("inf"), float("-inf")]


@pytest.mark.parametrize(
    ("code", "index"),
    [
        ("pd.DataFrame({'a': [1, 2]}, index=['x', 'y'])", {"names": [None], "values": [["x", "y"]]}),
        (
            "pd.DataFrame({'k': [1, 1], 'v': [2, 3]}).groupby('k').sum()",
            {"names": ["k"], "values": [[1]]},
        ),
        (
            "pd.DataFrame({'a': [1]}, index=pd.MultiIndex.from_tuples([(1, pd.Timestamp('2024-01-01'))], names=['n', 't']))",
            {"names": ["n", "t"], "values": [[1], ["2024-01-01T00:00:00"]]},
        ),
        ("pd.DataFrame({'a': range(5)})[3:]", {"names": [None], "values": [[3, 4]]}),
        ("pd.DataFrame({'a': range(5000)}, index=[str(i) for i in range(5000)])", {"names": [None]}),
    ],
)
def test_labels_of_rows(session: Session, code: str, index: dict[str, object]):
    """Labels of rows that are not just numbers from 0 are told in the metadata: their names and, where few, themselves."""
    ran = session.run(f"import pandas as pd\n{code}").ok()
    assert ran.frames[0].header["metadata"][DATA_MIME]["index"] == index


@pytest.mark.parametrize(
    ("code", "shape"),
    [
        ("pd.DataFrame({'s': ['x' * 1_000_000] * 20})", {"rows": 20, "rows_kept": 8}),
        ("pd.DataFrame([range(100_003)] * 2)", {"rows": 2, "rows_kept": 1, "columns": 100_003, "columns_kept": 100_000}),
    ],
)  # fmt: skip
def test_frames_that_are_heavy_or_wide(session: Session, code: str, shape: dict[str, int]):
    """A frame above the bounds arrives in part, and its metadata tell its true shape."""
    ran = session.run(f"import pandas as pd\n{code}").ok()
    data = (ran.result or {})[DATA_MIME]
    assert ran.frames[0].header["metadata"][DATA_MIME] == shape
    assert len(next(iter(data.values()))) == shape["rows_kept"]
    assert len(data) == shape.get("columns_kept", 1)


OTHER_FRAMES = """
class Series:
    def __init__(self, values): self.values = values
    def head(self, n): return Series(self.values[:n])
    def slice(self, start, n): return Series(self.values[start:start + n])
    def to_list(self): return self.values
    to_pylist = to_list
class DataFrame:
    __module__ = 'polars.dataframe.frame'
    shape = (2, 2)
    columns = ['a', 'b']
    def to_series(self, i): return Series([[1, 2], ['x', None]][i])
class Table:
    __module__ = 'pyarrow.lib'
    shape = (2, 2)
    column_names = ['a', 'a']
    columns = [1, 2]
    def column(self, i): return Series([[1, 2], ['x', None]][i])
"""


@pytest.mark.parametrize(
    ("code", "data"),
    [("DataFrame()", {"a": [1, 2], "b": ["x", None]}), ("Table()", {"a": [1, 2], "a.1": ["x", None]})],
)
def test_frames_of_other_libraries(session: Session, code: str, data: dict[str, object]):
    """Frames of polars and tables of pyarrow have data as well, by what these libraries call it."""
    assert (session.run(OTHER_FRAMES + code).ok().result or {})[DATA_MIME] == data


def test_keys_that_would_be_the_same(session: Session):
    """A dict whose keys are the same as text has no JSON: one of its values would be lost."""
    assert "application/json" not in (session.run("{1: 'a', '1': 'b'}").ok().result or {})


MIMES = {
    "text/plain": "t", "text/html": "<b>", "text/markdown": "*", "text/latex": "$x$", "image/svg+xml": "<svg/>",
    "image/png": PNG, "image/jpeg": b"\xff\xd8\xff\xe0", "image/gif": b"GIF89a", "image/webp": b"RIFFWEBP",
    "application/pdf": b"%PDF-1.7", "application/json": {"a": [1, None]}, "application/javascript": "x()",
    "application/vnd.vegalite.v4+json": {"mark": "bar"}, "application/vnd.vegalite.v5+json": {"mark": "bar"},
    "application/vnd.vegalite.v6+json": {"mark": "bar"}, "application/vnd.plotly.v1+json": {"data": [], "layout": {}},
    "application/geo+json": {"type": "Point", "coordinates": [1, 2]},
    "application/vnd.jupyter.widget-view+json": {"model_id": "m", "version_major": 2, "version_minor": 0},
    "application/vnd.bokehjs_exec.v0+json": "", "audio/wav": b"RIFF", "video/mp4": b"\0\0\0\x18ftyp",
    "application/x-mine": "mine", "application/x-mine+json": [1], "application/x-bytes": b"\0\xff",
}  # fmt: skip


@pytest.mark.parametrize("mime", MIMES)
def test_every_type_arrives_unchanged(session: Session, mime: str):
    """Content of any type arrives as it was displayed: text as text, JSON as JSON, bytes as bytes, base64 or not."""
    value = MIMES[mime]
    encoded = f"__import__('base64').b64encode({value!r}).decode()" if isinstance(value, bytes) else None
    code = f"from IPython.display import display\ndisplay({{{mime!r}: {value!r}}}, raw=True)"
    assert session.run(code).ok().displays[0][mime] == value
    if encoded is not None and mime != "application/x-bytes":
        code = f"from IPython.display import display\ndisplay({{{mime!r}: {encoded}}}, raw=True)"
        assert session.run(code).ok().displays[0][mime] == value


MAINS: dict[str, tuple[str, list[tuple[str | None, bool]]]] = {
    "a value": ("1", [("1", True)]),
    "a semicolon": ("1;", []),
    "a semicolon in a comment": ("1  # ;", [("1", True)]),
    "a semicolon in text": ("';'", [("';'", True)]),
    "an assignment": ("x = 1", []),
    "None": ("None", []),
    "a display as the last": ("from IPython.display import display\ndisplay(1)", [("1", False)]),
    "a display, then a value": ("from IPython.display import display\ndisplay(1)\n2", [("1", False), ("2", True)]),
    "a display within the value": (
        "from IPython.display import display\ndef f():\n    display(1)\n    return 2\nf()", [("1", False), ("2", True)],
    ),
    "a handle": (
        "from IPython.display import display\ndisplay(1, display_id='d')", [("1", False), ("<DisplayHandle display_id=d>", True)],
    ),
    "a value that displays itself": (
        "class A:\n    def _ipython_display_(self):\n        from IPython.display import display\n        display('own')\nA()",
        [("'own'", False)],
    ),
    "a display in a repr": (
        "from IPython.display import display\nclass A:\n    def __repr__(self):\n        display(1)\n        return 'A'\nA()",
        [("1", False), ("A", True)],
    ),
    "the last value": ("1\n2", [("2", True)]),
    "an awaited value": ("import asyncio\nasync def f(): return 3\nawait f()", [("3", True)]),
    "a value in a loop": ("for i in range(2):\n    i", []),
    "a value of a conditional": ("if True:\n    1", []),
    "displayed by hand": ("import sys\nsys.displayhook(7)", [("7", True)]),
}  # fmt: skip


@pytest.mark.parametrize(("code", "shown"), MAINS.values(), ids=MAINS)
def test_which_result_is_the_main_one(session: Session, code: str, shown: list[tuple[str | None, bool]]):
    """The main result is the value of the last expression, if it has one and shows it; a display never is."""
    frames = [f for f in session.run(code).ok().frames if f.header["op"] == "display"]
    ran = [(decode_bundle(f.header["parts"], f.body).get("text/plain"), f.header["main"]) for f in frames]
    assert ran == shown


def test_earlier_values(session: Session):
    """``_``, ``Out[n]`` and ``_n`` are main results like any other value."""
    session.run("41 + 1").ok()
    assert [session.run(code).ok().text for code in ("_", "Out[1]", "_1", "__")] == ["42"] * 4


def test_updates(session: Session):
    """An update names its display: of this cell, of an earlier one, or one that nobody made."""
    session.run("from IPython.display import display, update_display\nh = display(1, display_id='d');").ok()
    ran = session.run("h.update(2); update_display(3, display_id='unknown')").ok()
    updates = [f for f in ran.frames if f.header["op"] == "update"]
    assert [(f.header["display_id"], decode_bundle(f.header["parts"], f.body)["text/plain"]) for f in updates] == [
        ("d", "2"), ("unknown", "3"),
    ]  # fmt: skip
