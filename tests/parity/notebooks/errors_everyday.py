# What goes wrong in a notebook every day, and that the next cell works all the same.

# %% name
undefined_name

# %% the classics
{}["key"]

# %% index
[1, 2, 3][10]

# %% type
"1" + 1

# %% value
int("twelve")

# %% attribute, with a suggestion
class Thing:
    colour = "red"


Thing().color

# %% import
import no_such_module

# %% from import
from collections import OrderedDictionary

# %% syntax
print("never printed")
for i in range(3)
    print(i)

# %% unclosed bracket
x = (1, 2

# %% indentation
def f():
print("no")

# %% tabs and dedent
if True:
        a = 1
    b = 2

# %% unterminated string
text = 'abc

# %% return outside
return 5

# %% all good at the end
sum(range(10))
