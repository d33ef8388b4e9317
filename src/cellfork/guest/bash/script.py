r"""What the shell is told: functions that it gets once, and the lines that run a cell with them.

A cell is sourced at the top level, so that what it declares is global, with descriptors of its own as input and
output.  ``$?`` of one cell is seen by the next.  Code and values travel through files, never on a command line.

A cell may give any name a new meaning, so our own lines rely on as little as they can: ``\name`` escapes aliases,
``builtin`` escapes functions, keywords can be neither.  Should even that be gone, the last line finds that the end
was not told, and says so by a failing expansion, which needs no command at all.

Source: "Simple Command Expansion", "Shell Parameter Expansion" and "Bourne Shell Builtins" of the Bash manual.
"""

import shlex
from typing import NamedTuple

FIRST = 250
ROOM = 8


class Numbers(NamedTuple):
    """The shell's own descriptors, out of the way of those that scripts use."""

    start: int
    cell: int
    values: int
    answers: int
    input: int
    output: int
    errors: int

    @classmethod
    def below(cls, limit: int) -> "Numbers":
        """Return numbers that a process may have whose limit of open files is ``limit``."""
        first = min(FIRST, limit - ROOM)
        return cls(*range(first, first + 7))


_FUNCTIONS = r"""
set +o history +H +m; shopt -u checkwinsize; unset HISTFILE PROMPT_COMMAND MAILCHECK; PS1= PS2=
declare -A __cellfork_saved=(); __cellfork_done=
__cellfork_begin() {
  builtin local - __cellfork_n __cellfork_v __cellfork_a; builtin set +efuvx
  while [[ $3 ]] && IFS= builtin read -r -d '' -u @VALUES@ __cellfork_n \
      && IFS= builtin read -r -d '' -u @VALUES@ __cellfork_v; do
    __cellfork_a="$__cellfork_n[@]"
    __cellfork_saved[$__cellfork_n]=${!__cellfork_a@A}
    case ${!__cellfork_n@a}${!__cellfork_a@a} in
      *r*) builtin unset -v "__cellfork_saved[$__cellfork_n]"
           builtin printf '%s readonly %s\n' "$1" "$__cellfork_n" >&@ANSWERS@
           (( $2 )); builtin return $? ;;
      *[aAilucn]*) [[ $__cellfork_n == @(RANDOM|SRANDOM|SECONDS|LINENO|HISTCMD|BASHPID|EPOCH*) ]] \
                     || builtin unset -v "$__cellfork_n" ;;
    esac
    builtin declare -gx -- "$__cellfork_n=$__cellfork_v"
  done
  builtin printf '%s begun 0\n' "$1" >&@ANSWERS@
  builtin return "$2"
}
__cellfork_end() {
  builtin local - "__cellfork_s=$?" __cellfork_n __cellfork_v; builtin set +efuvx
  [[ $1 == "$__cellfork_done" ]] && builtin return 0
  for __cellfork_n in "${!__cellfork_saved[@]}"; do
    __cellfork_v=${__cellfork_saved[$__cellfork_n]}
    [[ ${!__cellfork_n@a} == *r* ]] && continue
    if [[ $__cellfork_n != @(RANDOM|SRANDOM|SECONDS|LINENO|HISTCMD|BASHPID|EPOCH*) ]]; then
      builtin unset -v "$__cellfork_n"
    fi
    case $__cellfork_v in
      '') ;;
      'declare -'*) builtin eval "declare -g${__cellfork_v#declare -}" ;;
      *) builtin eval "$__cellfork_v" ;;
    esac
  done
  __cellfork_saved=()
  if builtin printf '%s end %s\n' "$1" "$__cellfork_s" >&@ANSWERS@; then
    builtin printf -v __cellfork_done %s "$1"
  fi
}
readonly -f __cellfork_begin __cellfork_end
exec @START@<&-
"""


def prepare(numbers: Numbers, *, posix: str | None = None) -> bytes:
    """Return what the shell reads when it starts.

    ``posix`` is the value of POSIXLY_CORRECT that it is to have: one that started with it would read something else.
    """
    text = _FUNCTIONS
    for name in ("start", "values", "answers"):
        text = text.replace(f"@{name.upper()}@", str(getattr(numbers, name)))
    if posix is not None:
        text += f"export POSIXLY_CORRECT={shlex.quote(posix)}\n"
    return text.encode("utf-8", "surrogateescape")


def run(token: str, numbers: Numbers, last: int, *, values: bool) -> bytes:
    r"""Return the lines that evaluate the cell in the file and report it as ``token``.

    ``last`` is the status of the cell before; ``values`` says that there are variables to read.  The function
    returns that status as the left side of ``&&`` or ``||``, where neither ``set -e`` nor a trap minds it.
    """
    then = "||" if last else "&&"
    redirected = f"<&{numbers.input} >&{numbers.output} 2>&{numbers.errors}"
    begin = f"\\__cellfork_begin {token} {last} {'x' if values else ''}"
    source = f"\\builtin . /proc/self/fd/{numbers.cell} {redirected}"
    return f"{begin} {then} {source}\n".encode() + end(token, 0, numbers)


def end(token: str, asked: int, numbers: Numbers) -> bytes:
    """Return the lines that report a cell's end; ``asked`` counts how often they were sent again before.

    They are sent again after an interrupt, which may have dropped them.  They hold no quotes, so that what is left
    of one that was dropped amid reading cannot swallow the next.
    """
    lost = f"{{ ${{__cellfork_lost:?{token} lost {asked}}}; }} 2>&{numbers.answers}"
    return f"\\__cellfork_end {token}\n[[ $__cellfork_done = {token} ]] || {lost}\n".encode()
