# The interpreter behind a notebook: history, events, streams.

# %% three cells for the history
a = 1

# %% second
a + 1

# %% third
"third"

# %% history magic
%history -n 1-3

# %% aliases, automagic, magic that does not exist
%no_such_magic

# %% cell magic that does not exist
%%no_such_cell_magic
x

# %% usage error
%cd /no/such/directory

# %% unknown option
%timeit -z 1

# %% a magic of our own
from IPython.core.magic import register_cell_magic, register_line_magic


@register_line_magic
def shout(line):
    return line.upper()


@register_cell_magic
def count(line, cell):
    print(line, len(cell.splitlines()))


%shout quietly

# %% use it
%%count lines
one
two

# %% get_ipython
ip = get_ipython()
type(ip).__name__, ip.__class__.__module__, ip.user_ns is globals(), __name__

# %% events
def after(result):
    print("post_run_cell", result.success, result.result)


ip.events.register("post_run_cell", after)
"registered"

# %% the event fires
1 + 2

# %% unregistered
ip.events.unregister("post_run_cell", after)
ip.run_line_magic("pwd", "") == __import__("os").getcwd()

# %% run_cell inside a cell
nested = ip.run_cell("print('nested'); 5 * 5")
nested.result, nested.success

# %% every expression
from IPython.core.interactiveshell import InteractiveShell

InteractiveShell.ast_node_interactivity = "all"
1
"two"
print("three")
4.0

# %% only the last again
InteractiveShell.ast_node_interactivity = "last_expr"
5
6

# %% none
None

# %% assignment and semicolon
value = 3
value;

# %% comment only
# nothing here

# %% prompts are taken off
>>> 2 + 3
5

# %% stdout is special
import sys

sys.stdout.write("written\n")

# %% no newline at the end
print("no newline", end="")

# %% carriage returns
for i in range(3):
    print(f"\r{i}/2", end="")
print()

# %% colours
print("\x1b[31mred\x1b[0m")

# %% many lines
for i in range(500):
    print(f"line {i}")

# %% stderr and stdout
print("a")
print("b", file=sys.stderr)
print("c")

# %% redirect
import contextlib
import io

with contextlib.redirect_stdout(io.StringIO()) as buffer:
    print("hidden")
buffer.getvalue()

# %% formatter for a type
ip.display_formatter.formatters["text/html"].for_type(complex, lambda z: f"<i>{z}</i>")
1j

# %% delete and reset
del value
value

# %% reset
%reset -f
sorted(name for name in globals() if not name.startswith("_"))
