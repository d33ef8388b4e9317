# Magics, help and markup cells.

# %% imports
import math
from dataclasses import dataclass

from IPython.display import HTML, display


@dataclass
class Point:
    """A place."""

    x: int
    y: int = 0


class Badge:
    def _repr_html_(self):
        return "<b>badge</b>"


Point(1), Badge.__name__

# %% magics with values
result = %timeit -q -o -n 1 -r 1 sum(range(100))
type(result).__name__

# %% time
%time sum(range(10))

# %% time of a cell
%%time
total = sum(range(1000))
print(total)
total

# %% timeit of a cell
%%timeit -n 2 -r 1
math.sqrt(2)

# %% capture
%%capture out
print("captured")
display(HTML("<b>captured</b>"))
1 + 1

# %% and show
print(out.stdout, len(out.outputs))
out.show()

# %% help
math.hypot?

# %% help of an object of ours
Point?

# %% source
Badge??

# %% search
math.is*?

# %% pinfo by magic
%pinfo len

# %% pdoc
%pdoc len

# %% cell magics for markup
%%html
<h3>markup</h3>

# %% markdown
%%markdown
*emphasis*

# %% javascript
%%javascript
console.log("x")

# %% latex
%%latex
$a^2$

# %% svg
%%svg
<svg xmlns="http://www.w3.org/2000/svg" width="10" height="10"/>

# %% who
%who_ls str

# %% whos of a few
one, pi = 1, "three"
%whos int str

# %% directories
%pushd /usr
%popd
%dhist

# %% shell capture
%sx printf 'x\ny\n'

# %% load
open("snippet.py", "w").write("loaded = 1\n")
%load snippet.py

# %% pycat, psource
%pycat snippet.py

# %% macros
%macro twice_math 1
type(twice_math).__name__

# %% save and rerun
%save -f saved.py 1
print(open("saved.py").read().splitlines()[0])

# %% config
%config InteractiveShell.ast_node_interactivity

# %% autoreload
%load_ext autoreload
%autoreload 2

# %% an extension that is not there
%load_ext no_such_extension

# %% pip
%pip --version

# %% prun, quietly
stats = %prun -q -r sum(range(10))
type(stats).__name__

# %% automagic
pwd_before = %pwd
pwd_before == __import__("os").getcwd()

# %% bookmark
%bookmark here
%bookmark -l

# %% alias
%alias greet echo greetings
%greet to all

# %% pprint off and on
%pprint
{i: str(i) * 3 for i in range(12)}

# %% and on
%pprint
{i: str(i) * 3 for i in range(12)}

# %% python in a cell magic
%%python3
print("another interpreter")

# %% perl, if it is there
%%script --no-raise-error sh -c "exit 4"

# %% %%time of a failing cell
%%time
1 / 0

# %% capture of a failing cell
%%capture
print("lost")
1 / 0

# %% %timeit of a failing statement
%timeit -n 1 -r 1 undefined_in_timeit

# %% line magic in the middle of code
if True:
    %config InteractiveShell.autocall
    files = !echo one two
files

# %% run with an error
open("broken.py", "w").write("def f():\n    return 1 / 0\n\n\nf()\n")
%run broken.py

# %% quickref, magic listings
%lsmagic?

# %% reset_selective
reset_me = 1
%reset_selective -f reset_me
reset_me
