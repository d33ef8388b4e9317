# Libraries that look where they are and show something else in a notebook.

# %% progress bar of the environment
from tqdm.auto import tqdm

tqdm.__module__

# %% run it
import time

for i in tqdm(range(4), desc="steps"):
    time.sleep(0.001)

# %% plain progress bar
from tqdm import tqdm as plain

for i in plain(range(3), bar_format="{desc}{n}/{total}", desc="plain "):
    pass

# %% write beside it
plain.write("a line of text")

# %% nested and manual
with tqdm(total=10, leave=False) as bar:
    bar.update(10)
print("done")

# %% rich: print
from rich import print as rprint
from rich.console import Console
from rich.table import Table

rprint("[bold red]alert[/] plain", {"a": 1})

# %% rich: table
table = Table(title="Scores")
table.add_column("name")
table.add_column("points", justify="right")
table.add_row("Ana", "10")
table.add_row("Bo", "7")
Console(width=40).print(table)

# %% rich: renderable as the last expression
table

# %% rich: console facts
console = Console()
console.is_jupyter, console.is_terminal, console.width

# %% rich: tree, markdown, syntax
from rich.markdown import Markdown
from rich.syntax import Syntax

console.print(Markdown("# Title\n\n* one\n* two"))
Syntax("x = 1", "python")

# %% rich: pretty install
from rich import pretty

pretty.install()
{"a": [1, 2, 3], "b": "text"}

# %% widgets: text fallback
import ipywidgets as widgets

slider = widgets.IntSlider(value=3, max=10, description="n")
slider

# %% widgets: display several
display(widgets.Label("label"), widgets.HBox([widgets.Button(description="go")]))

# %% widgets: value and callbacks
slider.observe(lambda change: print("changed", change["old"], change["new"]), "value")
slider.value = 7

# %% widgets: interact
@widgets.interact(x=(0, 5))
def show(x=2):
    print("x is", x)

# %% widgets: output
output = widgets.Output()
with output:
    print("inside")
print("outside")

# %% pprint and textwrap
import pprint
import textwrap

pprint.pprint({"list": list(range(30)), "nested": {"k": ("a",) * 8}})
print(textwrap.fill("lorem ipsum dolor sit amet " * 6, 40))

# %% decimal, fractions, dates
import datetime
import decimal
import fractions

decimal.getcontext().prec = 6
display(decimal.Decimal(1) / 7, fractions.Fraction(3, 9), datetime.date(2024, 1, 31))
datetime.datetime(2024, 1, 31, 12, tzinfo=datetime.timezone.utc)

# %% settings last
decimal.Decimal(1) / 7

# %% pathlib, re, uuid
import pathlib
import re
import uuid

re.match(r"(\w)(\d)", "a1"), pathlib.PurePosixPath("/a/b"), uuid.UUID(int=5), range(3), slice(1, 2)

# %% jinja, yaml-like text
import jinja2

jinja2.Template("Hello {{ name }}!").render(name="World")

# %% pickling what cells define
import pickle


class Item:
    def __init__(self, x):
        self.x = x


pickle.loads(pickle.dumps(Item(5))).x, Item.__module__

# %% inspect what cells define
import inspect

print(inspect.getsource(Item))
inspect.signature(show)
