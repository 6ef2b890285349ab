"""Recorded steps from files: JSON Lines, plain or gzip, in blocks, with memory that does not grow with the file."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, Protocol, cast

from loopwarden_models.errors import ConfigError
from loopwarden_streams.replay_core import Source, SourceRecord

STDIN: Final = "-"
SUFFIXES: Final = (".jsonl", ".jsonl.gz")

_BLOCK_BYTES: Final = 262_144
_GZIP_MAGIC: Final = b"\x1f\x8b"
_GZIP_FRAMES: Final = 31  # zlib's window bits for "gzip header and checksum"
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class ByteReader(Protocol):
    """What is asked of an open file: `read1` gives what is there, so that a pipe is judged as it flows."""

    def read1(self, size: int, /) -> bytes:
        """Return 1 to `size` bytes, or none at the end."""
        ...


def find_files(paths: Iterable[str]) -> list[str]:
    """Return the files to read, in order: a folder stands for its `*.jsonl` and `*.jsonl.gz`, sorted by name.

    Raises:
        ConfigError: A path does not exist or is a folder without such files, or standard input is named twice.
    """
    found: list[str] = []
    for path in paths:
        if path == STDIN and path in found:
            raise ConfigError("standard input can be read only once: give '-' once")
        if path != STDIN and Path(path).is_dir():
            inside = sorted(str(each) for each in Path(path).iterdir() if each.name.endswith(SUFFIXES))
            if not inside:
                raise ConfigError(f"folder {path!r} holds no file named {' or '.join('*' + s for s in SUFFIXES)}")
            found += inside
        elif path != STDIN and not Path(path).exists():
            raise ConfigError(f"no such file or folder: {path!r}")
        else:
            found.append(path)
    return found


def total_bytes(files: Iterable[str]) -> int | None:
    """Return the size of all `files` on disk, or `None` if one of them is a stream."""
    total = 0
    for file in files:
        if file == STDIN or not Path(file).is_file():
            return None
        total += Path(file).stat().st_size
    return total


def read_file(file: str, *, max_bytes: int, advance: Callable[[int], None]) -> Iterator[list[SourceRecord]]:
    """Yield the records of one file, block by block. What is gzip is told by its first bytes, not by its name.

    Args:
        file: Path, or `-` for standard input.
        max_bytes: A longer line is cut one byte above it, so that it is refused without being held.
        advance: Called with the number of bytes that were read from the file.

    Raises:
        ConfigError: The file cannot be read, or its gzip data is damaged or cut off.
    """
    try:
        if file == STDIN:
            stdin = cast("ByteReader", sys.stdin.buffer)
            yield from read_stream(stdin, Source(file), max_bytes=max_bytes, advance=advance)
        else:
            with Path(file).open("rb") as stream:
                yield from read_stream(stream, Source(file), max_bytes=max_bytes, advance=advance)
    except OSError as error:
        raise ConfigError(f"cannot read {file!r}: {error.strerror or error}") from None


def read_stream(
    stream: ByteReader, source: Source, *, max_bytes: int, advance: Callable[[int], None] = lambda _: None
) -> Iterator[list[SourceRecord]]:
    """Yield the records of an open file. See `read_file`."""
    blocks = _blocks(stream, advance)
    head = b""
    while len(head) < len(_GZIP_MAGIC) and (block := next(blocks, b"")):
        head += block
    rest = _chain(head, blocks)
    at = 0
    for lines in _lines(_inflate(rest, source) if head.startswith(_GZIP_MAGIC) else rest, max_bytes):
        if not at:
            lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
        yield [
            SourceRecord(line, source, offset) for offset, line in enumerate(lines, at) if line and not line.isspace()
        ]
        at += len(lines)


def _blocks(stream: ByteReader, advance: Callable[[int], None]) -> Iterator[bytes]:
    while block := stream.read1(_BLOCK_BYTES):
        advance(len(block))
        yield block


def _chain(head: bytes, blocks: Iterator[bytes]) -> Iterator[bytes]:
    if head:
        yield head
    yield from blocks


def _lines(blocks: Iterator[bytes], max_bytes: int) -> Iterator[list[bytes]]:
    """Yield the lines that each block completes, at least one, without their ends."""
    tail = b""
    for block in blocks:
        lines = (tail + block).split(b"\n")
        tail = lines.pop()
        if len(tail) > max_bytes:
            tail = tail[: max_bytes + 1]
        if lines:
            yield lines
    if tail:
        yield [tail]


def _inflate(blocks: Iterator[bytes], source: Source) -> Iterator[bytes]:
    """Yield what gzip data holds: one member or several, in pieces of limited size however much they swell."""
    inflater = zlib.decompressobj(wbits=_GZIP_FRAMES)
    try:
        for block in blocks:
            data = block
            while data:
                if inflater.eof:
                    data = data.lstrip(b"\0")  # tapes and block devices pad
                    if not data:
                        break
                    inflater = zlib.decompressobj(wbits=_GZIP_FRAMES)
                yield inflater.decompress(data, _BLOCK_BYTES)
                data = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
        if not inflater.eof:
            yield inflater.flush()
    except zlib.error as error:
        raise ConfigError(f"{source.name!r} is damaged gzip: {error}") from None
    if not inflater.eof:
        raise ConfigError(f"{source.name!r} is gzip that was cut off before its end")
