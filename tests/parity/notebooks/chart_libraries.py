# The same small table through three plotting libraries.

# %% data
import numpy as np
import pandas as pd

rng = np.random.default_rng(11)
tips = pd.DataFrame(
    {
        "bill": rng.normal(20, 5, 60).round(2),
        "day": rng.choice(["Thu", "Fri", "Sat"], 60),
        "smoker": rng.choice(["yes", "no"], 60),
    }
)
tips["tip"] = (tips["bill"] * 0.15 + rng.normal(0, 0.5, 60)).round(2)
tips.groupby("day").tip.mean()

# %% seaborn: distribution
import seaborn as sns

sns.set_theme(style="whitegrid")
sns.histplot(tips, x="bill", hue="smoker", bins=12)

# %% seaborn: a grid of axes
grid = sns.FacetGrid(tips, col="day", height=2.2)
grid.map_dataframe(sns.scatterplot, x="bill", y="tip")
grid

# %% seaborn: heat map, then text
sns.heatmap(tips[["bill", "tip"]].corr(), annot=True, vmin=-1, vmax=1)
print("correlation", round(tips["bill"].corr(tips["tip"]), 4))

# %% seaborn: axes-level functions on given axes
import matplotlib.pyplot as plt

fig, (left, right) = plt.subplots(1, 2, figsize=(8, 3))
sns.boxplot(tips, x="day", y="tip", ax=left, order=["Thu", "Fri", "Sat"])
sns.regplot(tips, x="bill", y="tip", ax=right, ci=None)
plt.tight_layout()
plt.show()

# %% seaborn: wrong column
sns.barplot(tips, x="dya", y="tip")

# %% plotly: express
plt.close("all")
import plotly
import plotly.express as px
import plotly.graph_objects as go
import plotly.io as pio

pio.renderers.default

# %% plotly: a figure as the last expression
px.scatter(tips, x="bill", y="tip", color="day", title="Tips")

# %% plotly: show()
figure = go.Figure(go.Bar(x=["a", "b"], y=[1, 2]))
figure.update_layout(width=400, height=300)
figure.show()

# %% plotly: as JSON, as HTML
print(sorted(figure.to_dict()))
print(len(figure.to_json()) > 100)
figure.data[0]

# %% plotly: an invalid property
go.Bar(x=["a"], colour="red")

# %% altair: a chart
import altair as alt

alt.Chart(tips.head(5)).mark_point().encode(x="bill", y="tip", color="day")

# %% altair: layered, displayed
bars = alt.Chart(tips.head(5)).mark_bar().encode(x="day", y="mean(tip)")
display(bars + bars.mark_text(dy=-5))
print(type(bars).__name__)

# %% altair: invalid
alt.Chart(tips).mark_bar().encode(x=alt.X("day", bin="perhaps")).to_dict()
