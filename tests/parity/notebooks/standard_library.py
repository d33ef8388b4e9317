# The standard library as notebooks use it, and what it sees of the place where it runs.

# %% where am I
import os
import sys

print(sys.stdout.encoding.lower(), sys.stdout.isatty(), sys.stderr.isatty(), type(sys.argv))
__name__, "__file__" in globals(), sys.version_info >= (3, 11), sys.ps1 if hasattr(sys, "ps1") else None

# %% names at the start
sorted(name for name in globals() if not name.startswith("_") and name not in {"os", "sys"})

# %% terminal size
import shutil

print(shutil.get_terminal_size())
os.get_terminal_size()

# %% bytes to stdout
n = sys.stdout.buffer.write(b"raw bytes \xc3\xa4\n")
sys.stdout.flush()

# %% printing in many ways
print("a", "b", sep="-", end="!\n", flush=True)
print(*range(3), sep="\n")
print(file=sys.stderr)
print("to stderr", file=sys.stderr)
sys.stderr.writelines(["x\n", "y\n"])

# %% standard input is empty
sys.stdin.readline()

# %% getpass
import getpass

getpass.getpass("Password: ")

# %% warnings that concern this cell
import warnings

warnings.warn("user", UserWarning)
warnings.warn("old", DeprecationWarning)
warnings.warn("coming", FutureWarning)

# %% syntax warnings
1 is 1
"\d"

# %% unittest
import unittest


class Sums(unittest.TestCase):
    def test_good(self):
        self.assertEqual(1 + 1, 2)

    def test_bad(self):
        self.assertEqual(1 + 1, 3)


outcome = unittest.main(argv=["notebook"], exit=False).result
outcome

# %% doctest
import doctest


def twice(x):
    """Double.

    >>> twice(2)
    4
    >>> twice(3)
    7
    """
    return 2 * x


doctest.testmod()

# %% help
help(twice)

# %% help of a builtin type
help(bool.bit_count)

# %% dis
import dis

dis.dis(lambda x: x + 1)

# %% logging with a format of ours
import logging

logging.basicConfig(level=logging.INFO, format="%(levelname)s:%(name)s:%(message)s", stream=sys.stdout, force=True)
logging.info("to stdout")
logging.getLogger("deep.name").debug("not shown")

# %% match, walrus, generators
def kind(value):
    match value:
        case {"type": t, **rest}:
            return t, rest
        case [first, *_] if first > 0:
            return first
        case str() as text:
            return text.upper()
        case _:
            return None


print(kind({"type": "a", "b": 1}), kind([3, 4]), kind("x"), kind(1.0))
[y for x in range(5) if (y := x * x) > 3]

# %% scopes of comprehensions and classes
factor = 3


class Scaled:
    values = [1, 2]
    scaled = [v * factor for v in (1, 2)]

    def __call__(self, x, /, *, by: int = 2) -> int:
        return x * by


Scaled().scaled, Scaled()(4, by=factor), globals()["factor"], eval("factor + 1")

# %% future annotations
from __future__ import annotations


def typed(x: Undefined) -> list[int]:
    return [x]


typed.__annotations__

# %% signals
import signal


def on_alarm(number, frame):
    raise TimeoutError(f"signal {number}")


signal.signal(signal.SIGALRM, on_alarm)
signal.setitimer(signal.ITIMER_REAL, 0.05)
while True:
    pass

# %% deleting with a printing finalizer
import gc


class Noisy:
    def __del__(self):
        print("finalized")


noisy = Noisy()
del noisy
gc.collect() >= 0

# %% an error in a finalizer
class Broken:
    def __del__(self):
        raise ValueError("in __del__")


Broken();

# %% reload, modules
import importlib
import json

importlib.reload(json) is json, json.__name__, sys.modules["__main__"].factor

# %% functools, itertools
import functools
import itertools


@functools.lru_cache
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


print(fib(80), fib.cache_info())
list(itertools.islice(itertools.count(5, 5), 3)), functools.reduce(lambda a, b: a * b, range(1, 20))

# %% thread pool
from concurrent.futures import ThreadPoolExecutor

with ThreadPoolExecutor(3) as pool:
    print(list(pool.map(lambda x: x + 1, range(4))))
    future = pool.submit(lambda: {}["missing"])
future.result()

# %% process pool with a function from here
from concurrent.futures import ProcessPoolExecutor
import multiprocessing

with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
    print(list(pool.map(twice, [1, 2, 3])))

# %% post mortem
%debug

# %% debugger without anybody to ask
breakpoint()

# %% typing of things
import collections
import types

display(types.SimpleNamespace(a=1), collections.deque([1, 2], maxlen=3), list[int], int | None, ..., NotImplemented)
dict(zip("ab", range(2))).items()

# %% containers that contain themselves
loop = [1]
loop.append(loop)
loop

# %% a very deep one
deep = []
for _ in range(300):
    deep = [deep]
deep

# %% huge integers
10**5000

# %% print is ours for a while
import builtins

old = builtins.print
builtins.print = lambda *args, **kwargs: old("replaced:", *args, **kwargs)
print("hello")
builtins.print = old

# %% stdout is ours for a while
import io

keep, sys.stdout = sys.stdout, io.StringIO()
print("caught")
caught, sys.stdout = sys.stdout.getvalue(), keep
caught

# %% locale, time zone
import time

time.tzname[0], os.environ.get("LANG"), sys.getfilesystemencoding(), os.linesep

# %% random is random, seeded is not
import random

random.seed(5)
random.randint(1, 1000), random.sample(range(50), 4), len({random.random() for _ in range(100)})

# %% resource use
import resource
import tracemalloc

tracemalloc.start()
blob = bytearray(1_000_000)
grown = tracemalloc.get_traced_memory()[0] > 900_000
tracemalloc.stop()
grown, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 0
