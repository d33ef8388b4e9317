# A monthly sales review, the way an analyst writes it.

# %% [markdown]
# ## Orders of the first half year

# %% imports and data
import numpy as np
import pandas as pd

rng = np.random.default_rng(7)
n = 240
orders = pd.DataFrame(
    {
        "order": np.arange(1000, 1000 + n),
        "day": pd.date_range("2024-01-01", periods=n, freq="18h"),
        "region": rng.choice(["North", "South", "East", "West"], n),
        "product": rng.choice(["desk", "chair", "lamp"], n, p=[0.2, 0.5, 0.3]),
        "units": rng.integers(1, 9, n),
        "price": rng.gamma(4.0, 12.5, n).round(2),
    }
)
orders.head()

# %% a column is a Series
orders["price"].head(8)

# %% shape, types, memory
print(orders.shape)
print(orders.dtypes)
orders.info()

# %% describe
orders.describe()

# %% describe objects too
orders.describe(include="all").T

# %% revenue by region
orders["revenue"] = orders["units"] * orders["price"]
by_region = orders.groupby("region")["revenue"].agg(["count", "sum", "mean"]).round(2)
by_region.sort_values("sum", ascending=False)

# %% two keys, a hierarchical index
table = orders.groupby(["region", "product"])[["units", "revenue"]].sum()
print(table.to_string())
table.loc["North"]

# %% pivot with margins
orders.pivot_table(index="region", columns="product", values="units", aggfunc="sum", margins=True)

# %% missing values
holes = orders.copy()
holes.loc[holes.index % 17 == 0, "price"] = np.nan
holes.loc[holes.index % 29 == 0, "region"] = None
print(holes.isna().sum())
filled = holes.fillna({"price": holes["price"].median(), "region": "unknown"})
filled["region"].value_counts()

# %% merge with a second table
managers = pd.DataFrame({"region": ["North", "South", "Centre"], "manager": ["Ana", "Bo", "Cy"]})
merged = by_region.reset_index().merge(managers, how="outer", on="region", indicator=True)
merged

# %% index and categories
display(merged.columns, pd.Index([1, 2, 3], name="key"))
orders["product"].astype("category").cat.categories

# %% time series
daily = orders.set_index("day")["revenue"].resample("MS").sum()
print(daily.to_string())
daily.index

# %% a style
by_region.style.format("{:.1f}").highlight_max(color="lightgreen").set_caption("Revenue")

# %% display several in a cell
display(by_region.head(2))
print("--- between ---")
display(by_region.tail(2))
by_region.shape

# %% wide and long frames are elided
pd.DataFrame(np.arange(3000).reshape(100, 30), columns=[f"column_{i}" for i in range(30)])

# %% options change the display
with pd.option_context("display.max_rows", 4, "display.precision", 1):
    display(orders[["region", "price"]])
pd.set_option("display.float_format", "{:,.1f}".format)
orders[["price"]].mean()

# %% scalars, missing scalars, intervals
display(pd.NA, pd.NaT, pd.Timestamp("2024-02-29"), pd.Timedelta("1D2h"), pd.Interval(0, 1))
orders["price"].max()

# %% a deprecated or doubtful operation warns on stderr
subset = np.array([1.0, 0.0])
pd.Series(np.log(subset))

# %% empty frame, object cells
display(pd.DataFrame())
pd.DataFrame({"mixed": [1, "two", [3, 4], {"five": 5}, None], "dates": pd.to_datetime(["2024-01-01"] * 5)})

# %% a wrong column
orders["prise"].sum()

# %% a wrong merge
by_region.merge(managers, on="nothing")

# %% csv there and back
orders.head(3).to_csv("orders.csv", index=False)
print(open("orders.csv").read())
pd.read_csv("orders.csv", parse_dates=["day"]).dtypes
