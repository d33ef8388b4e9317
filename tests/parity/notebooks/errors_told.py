# How errors are told: by the interpreter, by logging, by traceback modes.

# %% a function with a bug
import sys


def mean(values):
    """Return the mean."""
    total = sum(values)
    return total / len(values)


mean([1, 2])

# %% generator, iterator
def numbers():
    yield 1
    raise LookupError("generator broke")


list(numbers())

# %% lambda and comprehension
[(lambda v: 10 // v)(i) for i in (2, 1, 0)]

# %% eval, exec, compile
eval("1 +")

# %% exec of a string with an error
exec("a = 1\nb = a / 0\n")

# %% unicode
def größe(länge):
    raise ValueError(f"länge={länge} ist zu groß: ☃")


größe("三")

# %% print the traceback ourselves
import traceback

try:
    mean([])
except ZeroDivisionError:
    traceback.print_exc()
print(traceback.format_exception_only(ValueError("x")))

# %% logging
import logging

logging.warning("careful")
logging.getLogger("app").error("failed: %s", 42)
try:
    1 / 0
except ZeroDivisionError:
    logging.exception("with a traceback")

# %% long lines and many frames
def nested(depth):
    if depth == 0:
        raise ValueError("x" * 200)
    return nested(depth - 1)


nested(6)

# %% an error in a display
class Fragile:
    def __repr__(self):
        raise ValueError("repr failed")


Fragile()

# %% a rich repr that fails falls back on text
class HalfFragile:
    def __repr__(self):
        return "plain text works"

    def _repr_html_(self):
        raise ValueError("html failed")


HalfFragile()

# %% input is not there
name = input("Your name: ")

# %% stop iteration, os error, unicode error
next(iter([]))

# %% os error
open("/no/such/dir/file.txt", "w")

# %% unicode decode
b"\xff\xfe".decode("utf-8")

# %% last traceback again
%tb

# %% shorter tracebacks
%xmode Minimal
mean([])

# %% plain tracebacks
%xmode Plain
mean([])

# %% longer ones
%xmode Verbose
mean([])

# %% back
%xmode Context
mean("ab")

# %% finally and else
try:
    print("try")
except Exception:
    print("never")
else:
    print("else")
finally:
    print("finally")

# %% bare raise
raise

# %% raising what is no exception
raise "a string"

# %% not implemented, with a class from here
class Base:
    def run(self):
        raise NotImplementedError


class Child(Base):
    pass


Child().run()

# %% all good at the end
sum(range(10))
