# Errors that code raises on purpose, leaves behind, wraps and swallows.

# %% output before the error is kept
import sys

print("first line")
print("on stderr", file=sys.stderr)
assert 1 + 1 == 3, "arithmetic is broken"

# %% assert without a message
assert []

# %% a function with a bug, defined here
def mean(values):
    """Return the mean."""
    total = sum(values)
    return total / len(values)


def report(groups):
    return {name: mean(values) for name, values in groups.items()}


report({"a": [1, 2]})

# %% and called here
report({"a": [1, 2], "b": []})

# %% chained
try:
    int("x")
except ValueError as error:
    raise RuntimeError("could not read the number") from error

# %% during handling of the above
try:
    {}["a"]
except KeyError:
    undefined_in_handler

# %% suppressed context
try:
    1 / 0
except ZeroDivisionError:
    raise ValueError("clean") from None

# %% custom error with its own text
class QuotaError(Exception):
    def __init__(self, used, limit):
        self.used, self.limit = used, limit

    def __str__(self):
        return f"{self.used} of {self.limit} used\nplease wait"


raise QuotaError(11, 10)

# %% with notes
error = ValueError("noted")
error.add_note("row 17 of the file")
raise error

# %% an error whose text raises
class Rude(Exception):
    def __str__(self):
        raise RuntimeError("no text for you")


raise Rude

# %% exception group
raise ExceptionGroup("several", [ValueError("one"), TypeError("two")])

# %% recursion
def down(n):
    return down(n + 1)


down(0)

# %% keyboard interrupt
raise KeyboardInterrupt

# %% system exit
raise SystemExit("leaving")

# %% sys.exit with a number
sys.exit(3)

# %% still there
print("still alive"), report({"a": [3]})

# %% all good at the end
sum(range(10))
