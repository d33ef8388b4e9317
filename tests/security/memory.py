"""Looking for words in the memory of a process, without bringing them there by looking."""

import secrets
from pathlib import Path

CHUNK = 1 << 20

SEARCH = '''
def search(first, rest, path='/proc/self'):
    """Return what follows ``first + rest + '-'`` wherever that stands in readable memory; it never stands in this text."""
    found = set()
    with open(path + '/maps') as file:
        spans = [line.split()[:2] for line in file if '[vvar' not in line and '[vsyscall]' not in line]
    with open(path + '/mem', 'rb', buffering=0) as memory:
        for span, mode in spans:
            if mode[0] != 'r':
                continue
            position, last = (int(part, 16) for part in span.split('-'))
            before = b''
            while position < last:
                try:
                    memory.seek(position)
                    piece = memory.read(min(1 << 20, last - position))
                except OSError:
                    break
                if not piece:
                    break
                data = before + piece
                place = data.find(rest)
                while place >= 0:
                    if data[place - 1:place] == first:
                        word = data[place + len(rest) + 1:place + len(rest) + 21]
                        found.add(word.split(b'.')[0].decode('latin-1'))
                    place = data.find(rest, place + 1)
                before, position = data[-100:], position + len(piece)
    return sorted(found)
'''
"""The same text runs inside a sandbox and here."""


class Canaries:
    """Words that nobody else knows: ``stem-kind.``"""

    def __init__(self) -> None:
        self.stem = "Q" + secrets.token_hex(16)

    def __call__(self, kind: str) -> str:
        """Return the canary of a kind."""
        return f"{self.stem}-{kind}."

    def question(self, *, control: bool = True) -> str:
        """Return code that answers with the kinds found in its process, among them one that it makes itself."""
        own = f"own = {self.stem[:5]!r} + {self.stem[5:]!r} + '-control.'\n" if control else ""
        return f"{SEARCH}\n{own}answer = search({self.stem[:1].encode()!r}, {self.stem[1:].encode()!r})"

    def in_process(self, pid: int) -> list[str]:
        """Return the kinds found in another process, from outside."""
        names: dict[str, object] = {}
        exec(compile(SEARCH, "search", "exec"), names)
        return names["search"](self.stem[:1].encode(), self.stem[1:].encode(), f"/proc/{pid}")  # type: ignore[operator]


def zygote_of(init: int) -> int:
    """Return the host's pid of the zygote that forked ``init``."""
    status = Path(f"/proc/{init}/status").read_text()
    return int(status.split("PPid:")[1].split()[0])
