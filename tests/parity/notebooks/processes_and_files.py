# Shell commands, child processes and files.

# %% shell command
!echo hello from the shell
!printf 'two\nlines\n'

# %% its output as a value
lines = !printf 'a\nb\nc\n'
print(type(lines).__name__, list(lines), lines.s)
lines

# %% variables in shell commands
name = "it's"
values = [1, 2]
!echo "{len(values)} $name_of_nobody"
!echo {name[:2].upper()} [{values[0]}] $values
!echo "$name"

# %% exit code, stderr
!ls /no/such/file
print(_exit_code)

# %% bash cell
%%bash
for i in 1 2 3; do echo "line $i"; done
echo "to stderr" >&2

# %% bash cell that fails
%%bash
echo before
false
exit 3

# %% python and sh cells
%%sh
x=5
echo $((x * 2))

# %% script magic
%%script cat
fed through
standard input

# %% output of a bash cell in a variable
%%bash --out captured
echo kept

# %% show it
print(repr(captured))

# %% working directory
import os

here = os.getcwd()
os.makedirs("data/deep", exist_ok=True)
%cd data/deep
print(os.path.relpath(os.getcwd(), here))
!basename "$PWD"

# %% and back
%cd -q ../..
os.getcwd() == here

# %% environment
%env GREETING=good day
print(os.environ["GREETING"])
!echo "$GREETING"
value = %env GREETING
value

# %% writefile
%%writefile data/script.py
import sys

print("script got", sys.argv[1:])
answer = 42

# %% append
%%writefile -a data/script.py
print("appended", __name__)

# %% run it in three ways
%run data/script.py one two
print(answer)
import subprocess
import sys

done = subprocess.run([sys.executable, "data/script.py", "three"], capture_output=True, text=True)
print(done.returncode, done.stdout)

# %% a child that inherits the output
subprocess.run(["echo", "inherited stdout"]);

# %% a child that writes to stderr and fails
done = subprocess.run("echo oops >&2; exit 7", shell=True)

# %% check=True raises
subprocess.run(["sh", "-c", "exit 9"], check=True)

# %% check_output with stderr joined
print(subprocess.check_output("echo out; echo err >&2", shell=True, stderr=subprocess.STDOUT, text=True))

# %% no such program
subprocess.run(["no-such-program-anywhere"])

# %% timeout
subprocess.run(["sleep", "5"], timeout=0.1)

# %% os.system returns the status
status = os.system("echo from os.system; exit 2")

# %% popen, pipes
print(status, done.returncode)
with subprocess.Popen(["tr", "a-z", "A-Z"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
    out, _ = child.communicate("shout")
print(out, child.returncode)

# %% C code writes, too
import ctypes

libc = ctypes.CDLL(None)
libc.printf(b"printed by C: %d\n", 7)
libc.fflush(None);

# %% raw descriptors
os.write(1, b"fd one\n")
os.write(2, b"fd two\n");

# %% files
from pathlib import Path

notes = Path("data") / "notes.txt"
notes.write_text("äöü\n" * 2, encoding="utf-8")
with notes.open("a") as file:
    print("third", file=file)
print(notes.read_text(), notes.stat().st_size)
sorted(str(path) for path in Path("data").rglob("*") if path.is_file())

# %% json, csv, zip, sqlite
import csv
import json
import sqlite3
import zipfile

json.dump({"a": [1, None, "x"]}, open("data/a.json", "w"))
with open("data/a.csv", "w", newline="") as file:
    csv.writer(file).writerows([["x", "y"], [1, 2]])
with zipfile.ZipFile("data/all.zip", "w") as archive:
    archive.write("data/a.json")
    print(archive.namelist())
database = sqlite3.connect("data/a.db")
database.execute("create table t (x)")
database.executemany("insert into t values (?)", [(1,), (2,)])
print(database.execute("select sum(x) from t").fetchone())
database.close()
json.load(open("data/a.json"))

# %% a module of our own
Path("helpers.py").write_text("def double(x):\n    return x * 2\n\n\ndef broken():\n    raise RuntimeError('in a module')\n")
import helpers

helpers.double(21)

# %% an error in it
helpers.broken()

# %% workers
import multiprocessing


def square(x):
    return x * x


with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(square, range(5)))

# %% threads that print
import threading


def say(word):
    print("thread says", word)


for word in ("one", "two"):
    thread = threading.Thread(target=say, args=(word,))
    thread.start()
    thread.join()

# %% a thread that fails
thread = threading.Thread(target=lambda: 1 / 0, name="worker")
thread.start()
thread.join()

# %% no permission, not found, is a directory
for path in ("/proc/1/mem", "missing.txt", "data"):
    try:
        open(path, "r+")
    except OSError as error:
        print(type(error).__name__, error.errno == 0)
open("missing.txt")

# %% temporary files
import tempfile

with tempfile.TemporaryDirectory() as directory:
    Path(directory, "x").write_text("1")
    print(os.listdir(directory))
print(os.path.exists(directory))

# %% clean up
!rm -r data && ls -1
