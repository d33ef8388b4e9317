# What a language model sends, cell by cell, when it is asked to look at a file it has never seen.

# %% look around
import os
print(os.listdir('.'))

# %% make the sample
csv = """id,age,income,city
1,34,52000,Berlin
2,,61000,Paris
3,29,n/a,Berlin
4,51,87000,Rome
5,42,39000,
6,38,45500,Paris
"""
with open('people.csv', 'w') as f:
    f.write(csv)
!wc -l people.csv
!head -n 3 people.csv

# %% first try, wrong
df = pd.read_csv('people.csv')

# %% second try
import pandas as pd
df = pd.read_csv('people.csv')
print(df.head())
print(df.dtypes)
print("\nMissing:\n", df.isnull().sum())

# %% mean of a column that is text
df['income'].mean()

# %% repaired
df['income'] = pd.to_numeric(df['income'], errors='coerce')
df['age'] = df['age'].fillna(df['age'].median())
df

# %% group and plot
import matplotlib.pyplot as plt
summary = df.dropna().groupby('city')['income'].mean().sort_values()
summary.plot(kind='barh', title='Mean income', color='steelblue')
plt.tight_layout()
plt.savefig('income.png')
plt.show()
print("Saved to income.png")

# %% pandas plots of several kinds
fig, axes = plt.subplots(1, 2, figsize=(8, 3))
df.plot.scatter(x='age', y='income', ax=axes[0])
df['age'].plot.hist(ax=axes[1], bins=5)
plt.show()

# %% answer as JSON
import json
print(json.dumps({'mean_age': float(df.age.mean()), 'cities': sorted(df.city.dropna().unique())}, indent=2))

# %% a dictionary as the result
{'rows': len(df), 'max': df['income'].max(), 'by_city': summary.to_dict()}

# %% verify the file
assert os.path.exists('income.png'), "chart missing"
print(f"{os.path.getsize('income.png') > 1000 = }")

# %% defines a function with a docstring and tests it
def outliers(series, k=1.5):
    """Return values outside the whiskers."""
    q1, q3 = series.quantile([.25, .75])
    iqr = q3 - q1
    return series[(series < q1 - k * iqr) | (series > q3 + k * iqr)]

outliers(df['income'])

# %% regular use of an f-string table
for row in df.itertuples():
    print(f"{row.id:>3} {row.age:6.1f} {str(row.city):<10}|")

# %% mistakes with types again
df['age'] + df['city']

# %% final
df.describe().round(1).to_dict('index')['mean']
