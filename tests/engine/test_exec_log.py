"""What a command wrote, by bytes."""

from hypothesis import given
from hypothesis import strategies as st

from cellfork.engine.exec_log import OVERHEAD, ExecLog

PIECES = st.lists(st.binary(min_size=1, max_size=40).map(lambda data: bytes(byte & 0x7F for byte in data)))


def log_of(pieces: list[bytes], limit: int) -> ExecLog:
    log = ExecLog(limit)
    for number, data in enumerate(pieces):
        log.add("stdout" if number % 2 else "stderr", data, number)
    return log


@given(PIECES, st.integers(0, 2000))
def test_a_reader_by_bytes_misses_nothing(pieces: list[bytes], offset: int) -> None:
    """Where everything is kept, an offset gives what is behind it, of both streams, and how much there was."""
    whole = b"".join(pieces)
    assert log_of(pieces, 10**6).bytes_from(offset) == (whole[offset:], len(whole))


@given(PIECES, st.integers(0, 2000))
def test_a_reader_by_bytes_is_told_what_was_dropped(pieces: list[bytes], offset: int) -> None:
    """What comes back ends as the whole does; a part that is not there any more is one marker in its place."""
    whole = b"".join(pieces)
    found, written = log_of(pieces, 8 * OVERHEAD).bytes_from(offset)
    assert written == len(whole)
    if found == whole[offset:]:
        return
    head, _, rest = found.partition(b"\n\xe2\x80\xa6")
    _, _, tail = rest.partition(b"\xe2\x80\xa6\n")
    assert whole[offset:].startswith(head)
    assert whole.endswith(tail)
    assert len(head) + len(tail) < len(whole) - min(offset, len(whole))
