# Every kind of chart that a report tends to need.

# %% imports
import datetime

import matplotlib
import matplotlib.dates as mdates
import matplotlib.pyplot as plt
import numpy as np

np.random.seed(3)
matplotlib.get_backend()

# %% line plot, value of the last expression shown too
x = np.linspace(0, 10, 100)
plt.plot(x, np.sin(x), label="sin")
plt.plot(x, np.cos(x), "--", label="cos")
plt.legend()

# %% semicolon hides the value, the figure stays
plt.scatter(np.random.rand(50), np.random.rand(50), c=np.random.rand(50), s=80, alpha=0.5)
plt.colorbar()
plt.title("scatter");

# %% bars and labels
fig, ax = plt.subplots(figsize=(6, 3))
bars = ax.bar(["a", "b", "c"], [3, 7, 5], color=["tab:blue", "tab:orange", "tab:green"])
ax.bar_label(bars)
ax.set(xlabel="group", ylabel="count", title="Bars")
plt.show()

# %% show in mid-cell keeps the order of text and figures
print("before")
plt.hist(np.random.randn(500), bins=20)
plt.show()
print("between")
plt.boxplot([np.random.randn(50), np.random.randn(50) + 1])
plt.show()
print("after")

# %% pie
plt.pie([40, 30, 20, 10], labels=["w", "x", "y", "z"], autopct="%1.0f%%", explode=[0.1, 0, 0, 0])
plt.axis("equal")
plt.show()

# %% subplots
fig, axes = plt.subplots(2, 2, figsize=(7, 5), sharex=True)
for i, axis in enumerate(axes.flat, 1):
    axis.plot(x, x**i)
    axis.set_title(f"power {i}")
fig.tight_layout()

# %% two scales
fig, left = plt.subplots()
left.plot(x, np.exp(x / 3), color="tab:red")
left.set_ylabel("exp", color="tab:red")
right = left.twinx()
right.plot(x, np.sin(x), color="tab:blue")
right.set_ylabel("sin", color="tab:blue")
plt.show()

# %% image and contour
grid = np.outer(np.hanning(30), np.hanning(40))
fig, (one, two) = plt.subplots(1, 2, figsize=(8, 3))
shown = one.imshow(grid, cmap="viridis", origin="lower")
fig.colorbar(shown, ax=one)
two.contourf(grid, levels=6)
plt.show()

# %% error bars, log scale
fig, ax = plt.subplots()
ax.errorbar([1, 10, 100], [3.0, 30.0, 250.0], yerr=[0.5, 6.0, 40.0], fmt="o", capsize=4)
ax.set_xscale("log")
ax.set_yscale("log")
ax.grid(True, which="both", alpha=0.3)

# %% three dimensions
fig = plt.figure()
ax = fig.add_subplot(projection="3d")
X, Y = np.meshgrid(np.linspace(-2, 2, 25), np.linspace(-2, 2, 25))
ax.plot_surface(X, Y, np.exp(-(X**2) - Y**2), cmap="coolwarm")
plt.show()

# %% dates on an axis
days = [datetime.date(2024, 1, 1) + datetime.timedelta(days=7 * i) for i in range(20)]
fig, ax = plt.subplots()
ax.plot(days, np.cumsum(np.random.randn(20)), marker=".")
ax.xaxis.set_major_formatter(mdates.DateFormatter("%d %b"))
fig.autofmt_xdate()
plt.show()

# %% polar, violin, step, stack
fig = plt.figure(figsize=(8, 6))
fig.add_subplot(221, projection="polar").plot(x, x / 10)
fig.add_subplot(222).violinplot([np.random.randn(80), np.random.randn(80) * 2])
fig.add_subplot(223).step(range(10), np.random.randint(0, 5, 10))
fig.add_subplot(224).stackplot(range(5), [1, 2, 3, 4, 5], [2, 2, 2, 2, 2])
plt.show()

# %% several figures in one cell
for number in range(3):
    plt.figure(figsize=(3, 2))
    plt.plot([0, number])
    plt.title(f"figure {number}")

# %% savefig and look at the file
fig, ax = plt.subplots()
ax.fill_between(x, np.sin(x), alpha=0.4)
fig.savefig("wave.png", dpi=50)
plt.close(fig)
from PIL import Image

print(Image.open("wave.png").size)
open("wave.png", "rb").read(8)

# %% the figure as the last expression is shown once more
fig, ax = plt.subplots(figsize=(3, 2))
ax.plot([1, 2])
fig

# %% display a figure that was closed
plt.close("all")
display(fig)
ax

# %% vector graphics on request
%config InlineBackend.figure_formats = ['svg']
plt.rcParams["svg.hashsalt"] = "fixed"
plt.figure(figsize=(2, 2))
plt.plot([1, 3, 2])
plt.show()

# %% back to PNG, twice the resolution
%config InlineBackend.figure_formats = ['retina']
plt.figure(figsize=(2, 2))
plt.plot([1, 3, 2])
plt.show()

# %% an error after a figure was begun
%config InlineBackend.figure_formats = ['png']
plt.figure(figsize=(2, 2))
plt.plot([1, 2, 3], [1, 2])

# %% a style and a warning about a missing glyph
%matplotlib inline
with plt.style.context("ggplot"):
    fig, ax = plt.subplots(figsize=(3, 2))
    ax.barh(["one", "two"], [1, 2])
    ax.set_title("漢")
    plt.show()
