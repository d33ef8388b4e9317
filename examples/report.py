# A sales report: what an agent might write when it is asked about a CSV file.
#
# Each "%%" starts a cell; the cells run one after the other in one context, as in a notebook:
#
#     cellfork run examples/report.py --file examples/data/sales.csv --save build/report

# %% Read the data and say what is there
import sys

import matplotlib.pyplot as plt
import pandas as pd

sales = pd.read_csv("sales.csv", parse_dates=["month"])
print(f"{len(sales)} rows, {sales['month'].min():%B %Y} to {sales['month'].max():%B %Y}")

gaps = sales[["units", "revenue"]].isna().sum()
print(f"missing: {gaps['units']} unit counts, {gaps['revenue']} revenues", file=sys.stderr)

sales["revenue"] = sales["revenue"].fillna(sales["units"] * sales["unit_price"])
sales.groupby("region").agg(units=("units", "sum"), revenue=("revenue", "sum")).round(0)

# %% Draw two charts
by_month = sales.pivot_table(index="month", columns="region", values="revenue", aggfunc="sum")
figure, axes = plt.subplots(figsize=(8, 4))
for region in by_month:
    axes.plot(by_month.index, by_month[region], label=region)
axes.set(title="Revenue by month", xlabel="Month", ylabel="Revenue (EUR)")
axes.legend()
plt.show()

by_product = sales.groupby("product")["revenue"].sum().sort_values()
figure, axes = plt.subplots(figsize=(8, 4))
axes.bar(by_product.index, by_product.to_numpy())
axes.set(title="Revenue by product", xlabel="Product", ylabel="Revenue (EUR)")
plt.show()

print("best month:", f"{by_month.sum(axis=1).idxmax():%B %Y}")

# %% Ask for a column that does not exist: the error is part of the answer, and the context lives on
sales["revnue"].sum()
