"""How `loopwarden replay` reads files."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests._support.replay_runs import cycle, exact_repeat, jsonl, same_error

from loopwarden_models.errors import ConfigError
from loopwarden_models.policy import DEFAULT_POLICY
from loopwarden_streams.replay_core import Source, SourceRecord, replay_steps
from loopwarden_streams.replay_sources import find_files, read_file, read_stream, total_bytes

SOURCE = Source("steps.jsonl")
MAX_BYTES = 10_000
RECORDED = jsonl([*exact_repeat(times=4), *cycle(laps=4), *same_error(times=4)])
WHOLE = [
    decision.verdict
    for decision in replay_steps(
        [SourceRecord(line, SOURCE, at) for at, line in enumerate(RECORDED.splitlines())], DEFAULT_POLICY
    )
]


class Chopped:
    """A stream that gives its data in pieces of the given sizes, then of the last one."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self._left = io.BytesIO(data)
        self._sizes = iter([*sizes, *[sizes[-1]] * len(data)])

    def read1(self, size: int, /) -> bytes:
        """Return the next piece."""
        return self._left.read(min(size, next(self._sizes)))


def read(data: bytes, sizes: list[int] | None = None, *, max_bytes: int = MAX_BYTES) -> list[SourceRecord]:
    """Return all records of the data."""
    stream = Chopped(data, sizes or [1 << 20])
    return [record for block in read_stream(stream, SOURCE, max_bytes=max_bytes) for record in block]


def places(records: list[SourceRecord]) -> list[tuple[bytes | None, int]]:
    """Return what was read, and where it lay."""
    return [(record.value, record.offset) for record in records]


@given(
    sizes=st.lists(st.integers(1, 600), min_size=1, max_size=30),
    is_gzip=st.booleans(),
    ends_with_newline=st.booleans(),
)
def test_any_chunking_gives_the_same_verdicts(sizes: list[int], is_gzip: bool, ends_with_newline: bool) -> None:
    """Where a block ends is chance: no line is lost, doubled or cut by it."""
    data = RECORDED if ends_with_newline else RECORDED.rstrip(b"\n")

    told = list(replay_steps(read(gzip.compress(data) if is_gzip else data, sizes), DEFAULT_POLICY))

    assert [decision.verdict for decision in told] == WHOLE
    assert len(WHOLE) > 5


@given(text=st.binary(max_size=200), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_lines_are_those_of_the_bytes(text: bytes, sizes: list[int]) -> None:
    """Blank lines are passed over but counted, and nothing but a line feed ends a line."""
    text = b"x" + text  # neither gzip nor a byte order mark
    expected = [(line, at) for at, line in enumerate(text.split(b"\n")) if line.strip()]

    assert places(read(text, sizes)) == expected


@pytest.mark.parametrize("data", [b"", b"\n", b" \r\n\n", gzip.compress(b"")])
def test_nothing_in_it(data: bytes) -> None:
    """An empty file, plain or gzip, holds no record."""
    assert read(data) == []


def test_windows_files() -> None:
    """A byte order mark and carriage returns are not part of the events."""
    records = read(b'\xef\xbb\xbf{"a":1}\r\n\r\n{"b":2}\r\n', [2])

    assert [(json.loads(record.value or b""), record.offset) for record in records] == [({"a": 1}, 0), ({"b": 2}, 2)]


@pytest.mark.parametrize("padding", [b"", b"\0" * 700])
def test_gzip_of_several_members(padding: bytes) -> None:
    """`cat a.gz b.gz` is one file; some tools pad it."""
    data = gzip.compress(b"a\nb") + gzip.compress(b"c\n") + gzip.compress(b"d") + padding

    assert places(read(data, [7])) == [(b"a", 0), (b"bc", 1), (b"d", 2)]


def test_a_gzip_bomb_is_read_in_pieces() -> None:
    """A megabyte that swells to a gigabyte must not be held; its one line is cut where it is refused anyway."""
    bomb = gzip.compress(b"x" * 20_000_000)

    (record,) = read(bomb)

    assert record.value is not None
    assert len(record.value) == MAX_BYTES + 1


def test_an_endless_line_is_cut() -> None:
    """It is refused as too large without being held, and the next line is whole."""
    records = read(b"x" * 100_000 + b"\nnext\n", [999], max_bytes=1_000)

    assert records[0].value is not None
    assert 1_000 < len(records[0].value) < 3_000
    assert places(records[1:]) == [(b"next", 1)]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda data: data[: len(data) // 2], "cut off before its end"),
        (lambda data: data[:-8], "cut off before its end"),
        (lambda data: data[:40] + b"\xff" * 20 + data[60:], "damaged gzip"),
        (lambda data: data + b"garbage", "damaged gzip"),
    ],
)
def test_damaged_gzip_is_said(damage: object, says: str) -> None:
    """The message names the file; what was readable before is judged."""
    assert callable(damage)

    with pytest.raises(ConfigError, match=rf"^'steps\.jsonl' is .*{says}"):
        read(damage(gzip.compress(RECORDED)))


def test_gzip_is_told_by_its_first_bytes(tmp_path: Path) -> None:
    """Names lie: a plain file called .gz and a gzip called .jsonl are read as what they are."""
    (tmp_path / "plain.jsonl.gz").write_bytes(b"a\n")
    (tmp_path / "zipped.jsonl").write_bytes(gzip.compress(b"b\n"))
    read_bytes: list[int] = []

    blocks = [
        block
        for file in find_files([str(tmp_path)])
        for block in read_file(file, max_bytes=MAX_BYTES, advance=read_bytes.append)
    ]

    assert [record.value for block in blocks for record in block] == [b"a", b"b"]
    assert sum(read_bytes) == total_bytes(find_files([str(tmp_path)]))


def test_a_folder_stands_for_its_recordings(tmp_path: Path) -> None:
    """Sorted by name, so that two replays read in one order; other files are left alone."""
    for name in ("b.jsonl", "a.jsonl.gz", "notes.txt", "c.json"):
        (tmp_path / name).touch()
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "d.jsonl").touch()

    assert find_files([str(tmp_path), "-"]) == [str(tmp_path / "a.jsonl.gz"), str(tmp_path / "b.jsonl"), "-"]


def test_paths_that_cannot_be_read(tmp_path: Path) -> None:
    """Said before anything is replayed."""
    with pytest.raises(ConfigError, match="no such file or folder: 'nowhere'"):
        find_files(["nowhere"])
    with pytest.raises(ConfigError, match=r"holds no file named \*\.jsonl or \*\.jsonl\.gz"):
        find_files([str(tmp_path)])
    with pytest.raises(ConfigError, match="only once"):
        find_files(["-", "-"])
    with pytest.raises(ConfigError, match="cannot read"):
        list(read_file(str(tmp_path), max_bytes=1, advance=len))  # type: ignore[arg-type]  # never called


def test_the_size_of_a_stream_is_not_known() -> None:
    """The bar then shows what was read, not a share."""
    assert total_bytes(["-"]) is None
