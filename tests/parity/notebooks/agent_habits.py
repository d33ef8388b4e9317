# Habits of scripts that models send into a notebook.

# %% a backend of their own
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

plt.plot([1, 2, 3])
plt.show()

# %% saved, shown by path
plt.savefig("plot.png")
plt.close()
from IPython.display import Image, display

display(Image(filename="plot.png"))
print("Plot saved")

# %% inline again
%matplotlib inline
plt.plot([3, 2, 1])
plt.show()

# %% an animation of text and figures
from IPython.display import clear_output

for step in range(3):
    clear_output(wait=True)
    plt.figure(figsize=(2, 1))
    plt.plot([0, step])
    plt.title(f"step {step}")
    plt.show()
    print("frame", step)

# %% display and close
fig, ax = plt.subplots(figsize=(2, 1))
ax.plot([1, 2])
display(fig)
plt.close()

# %% an empty figure
plt.figure()

# %% a figure continues in the next cell only by its name
fig, ax = plt.subplots(figsize=(2, 1))
ax.plot([1, 0])
plt.show()

# %% by its name
ax.set_title("later")
plt.gcf() is fig, plt.get_fignums()

# %% and shown again
fig

# %% fig.show
fig, ax = plt.subplots(figsize=(2, 1))
fig.show()

# %% a table as HTML
import pandas as pd
from IPython.display import HTML

frame = pd.DataFrame({"a": [1.5, None], "b": ["x", "y"]})
HTML(frame.to_html(index=False))

# %% markdown table, all columns
pd.set_option("display.max_columns", None)
print(frame.to_csv(), frame.to_json(), frame.to_dict("records"))
frame.style.bar(subset=["a"])

# %% plot from pandas as the last expression
frame["a"].plot()

# %% pylab
%pylab inline

# %% its names
linspace(0, 1, 3), type(plot).__name__

# %% a main guard
def main():
    print("main runs")
    return 0


if __name__ == "__main__":
    main()

# %% sys.exit at the end of main
import sys

if __name__ == "__main__":
    sys.exit(main())

# %% argparse without arguments
import argparse

parser = argparse.ArgumentParser(prog="tool")
parser.add_argument("--n", type=int, default=3)
parser.parse_args([]).n

# %% argparse with the kernel's arguments
parser.parse_args(["--m"])

# %% input in a try
try:
    age = input("Age? ")
except Exception as error:
    print("no input:", type(error).__name__, error)

# %% a class hierarchy with properties and operators
class Vector:
    def __init__(self, *xs):
        self.xs = xs

    def __add__(self, other):
        return Vector(*(a + b for a, b in zip(self.xs, other.xs, strict=True)))

    def __repr__(self):
        return f"Vector{self.xs}"

    @property
    def norm(self):
        return sum(x * x for x in self.xs) ** 0.5


Vector(1, 2) + Vector(3, 4), Vector(3, 4).norm

# %% its error
Vector(1) + Vector(1, 2)

# %% text in a table of boxes
print("┌" + "─" * 10 + "┐\n│ Größe: 5 │\n└" + "─" * 10 + "┘")
print("\tTab\x07bell\x00nul\x1b[1mbold\x1b[0m")

# %% long single line
print("x" * 20000)

# %% several prints and a value, with comments after it
print("one")
# a comment
42  # the value
# another comment

# %% a value in an if and in a loop is not shown
if True:
    "not shown"
for i in range(2):
    i

# %% a string statement is shown
"""A docstring
over two lines."""

# %% a lambda assigned, a conditional expression, a comparison
f = lambda x: x**2
f(3) if f(2) == 4 else None

# %% a tuple by a trailing comma
1,

# %% starred
*range(3),

# %% star without comma
*range(3)

# %% await where nothing is to be awaited
await 5

# %% yield outside
yield 1

# %% break outside
break

# %% two statements, the second fails
x = 1; y = x / 0; print("never")

# %% decorators and closures
def logged(function):
    def wrapper(*args, **kwargs):
        print("calling", function.__name__)
        return function(*args, **kwargs)

    return wrapper


@logged
def area(r):
    if r < 0:
        raise ValueError(f"negative radius: {r!r}")
    return 3 * r * r


area(2)

# %% through a decorator
area(-1)

# %% context manager that swallows
import contextlib

with contextlib.suppress(ZeroDivisionError):
    1 / 0
print("swallowed")

# %% progress in one line
import time

for i in range(0, 101, 25):
    print(f"\rprogress {i:3d}%", end="", flush=True)
    time.sleep(0.001)

# %% a thread that is still printing
import threading


def talk():
    for i in range(3):
        print("background", i)


background = threading.Thread(target=talk)
background.start()
background.join()
"joined"

# %% a display from a thread
thread = threading.Thread(target=lambda: display("from a thread"))
thread.start()
thread.join()

# %% stderr of warnings inside functions and modules
import warnings


def old():
    warnings.warn("old() is deprecated", DeprecationWarning, stacklevel=2)


old()
warnings.filterwarnings("ignore")
old()

# %% overwriting builtins
list = [1, 2]
list("abc")

# %% and freeing them
del list
list("abc")

# %% globals and locals
def scope():
    local = 1
    return sorted(locals()), "frame" in globals()


scope()

# %% recursion with an error at the bottom
def walk(tree, depth=0):
    if depth > 3:
        raise KeyError(depth)
    return walk(tree[0], depth + 1)


walk([[[[[[]]]]]])
