# Everything that can be displayed.

# %% underscore and Out
21 * 2

# %% use it
_ + 0, Out[1], _1

# %% history
In[1], _i, len(In)

# %% display of many kinds
from IPython.display import (
    HTML,
    JSON,
    SVG,
    Audio,
    Code,
    DisplayHandle,
    IFrame,
    Javascript,
    Latex,
    Markdown,
    Pretty,
    clear_output,
    display,
    update_display,
)

display(HTML("<b>bold</b>"), Markdown("# Title\n*text*"), Latex("$x^2$"))
display(JSON({"a": [1, 2, {"b": None}]}), Javascript("console.log(1)"), Pretty("pretty"))
SVG('<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20"><circle cx="10" cy="10" r="8"/></svg>')

# %% more of them
display(IFrame("https://example.org", width=300, height=100), Code("x = 1", language="python"))
Audio(data=bytes(range(256)) * 4, rate=8000)

# %% several values in a row
display(1, "two", [3], {"four": 4}, None, display_id=None)

# %% raw bundles
display({"text/plain": "plain", "text/html": "<i>html</i>", "application/x-mine": "mine"}, raw=True)

# %% metadata
display(HTML("<p>meta</p>"), metadata={"isolated": True})

# %% update a display
handle = display("first", display_id="status")
print("between")
handle.update("second")
handle

# %% update it from the next cell
update_display("third", display_id="status")

# %% an anonymous handle
handle = display(HTML("<u>0</u>"), display_id=True)
for i in range(1, 4):
    handle.update(HTML(f"<u>{i}</u>"))
type(handle).__name__

# %% clear output
print("gone")
display("gone too")
clear_output()
print("stays")

# %% clear with wait
for i in range(3):
    clear_output(wait=True)
    print("step", i)

# %% clear with wait and nothing after it
print("kept until something new comes")
clear_output(wait=True)

# %% custom class with HTML
class Badge:
    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return f"Badge({self.text!r})"

    def _repr_html_(self):
        return f"<span class='badge'>{self.text}</span>"

    def _repr_markdown_(self):
        return f"**{self.text}**"


display(Badge("shown"))
Badge("result")

# %% mimebundle, include and exclude
class Bundle:
    def __repr__(self):
        return "Bundle()"

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/html": "<b>bundle</b>", "application/vnd.mine+json": {"x": 1}}, {"text/html": {"isolated": False}}


display(Bundle(), exclude=["text/html"])
Bundle()

# %% ipython display
class Own:
    def _ipython_display_(self):
        print("I display myself")
        display(HTML("<hr>"))


Own()

# %% pretty printing
class Tree:
    def __init__(self, *children):
        self.children = children

    def _repr_pretty_(self, p, cycle):
        with p.group(2, "Tree(", ")"):
            for child in self.children:
                p.breakable()
                p.pretty(child)


Tree(Tree(), Tree(Tree(), Tree()))

# %% dataclass, enum, named tuple
from collections import Counter, OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from enum import Enum


@dataclass
class Point:
    x: int
    y: int = 0
    tags: list = field(default_factory=list)


class Colour(Enum):
    RED = 1


display(Point(1), Colour.RED, namedtuple("Pair", "a b")(1, 2), Counter("hello"))
defaultdict(list, {"k": [1]}), OrderedDict(a=1), {3, 1, 2}, frozenset("a")

# %% long and nested values
{f"key {i}": list(range(i, i + 12)) for i in range(8)}

# %% a very long list is elided
list(range(1500))

# %% long strings
"word " * 60

# %% multi-line string, bytes, unicode
print("Größe ☃ 漢字 🎉 \u200b e\u0301")
"zwei\nZeilen ☃ 🎉\t'\"", b"\x00\xffabc"

# %% functions, classes, modules
import math

display(len, math, int, Point, print)
lambda x: x
