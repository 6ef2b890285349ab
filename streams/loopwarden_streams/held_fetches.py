"""Holds fetches for a broker that answers "nothing" at once: a small proxy in a process of its own.

    python -m loopwarden_streams.held_fetches 127.0.0.1:20001 127.0.0.1:20002

Kafka's clients ask a broker to hold a fetch until a record comes, for half a second at most. The embedded broker does
not, so every idle consumer asked it thousands of times a second: 5,000 with aiokafka, 1,300 with kafka-python, two
thirds of a core each. Here a fetch that found nothing is kept, and asked again when one of its topics was written to.

The first address is the proxy's, the second the broker's. Requests of one connection are answered one after the
other, as brokers do. Brokers name their own address in metadata, so it is replaced there; and versions of the two
requests that are looked into are kept to those that this file reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import struct
import sys
import time
from typing import Final

PRODUCE: Final = 0
FETCH: Final = 1
_API_VERSIONS: Final = 18
_END_TXN: Final = 26
# Metadata, FindCoordinator, DescribeCluster.
_NAMES_BROKERS: Final = frozenset({3, 10, 60})

# The last versions in the older encoding, without tagged fields.
_MAX_VERSION: Final = {PRODUCE: 8, FETCH: 11}
_MIN_FETCH: Final = 4
_SESSIONS_FROM: Final = 7

_WIDE_OPEN: Final = 64 * 1024 * 1024


class Reader:
    """Reads Kafka's older encoding from a frame, front to back.

    Attributes:
        at: Where the next byte is.
    """

    def __init__(self, frame: bytes, at: int = 0) -> None:
        """Begin at byte `at` of `frame`."""
        self._frame = frame
        self.at = at

    def number(self, code: str) -> int:
        """Read one number; `code` is that of `struct`."""
        (value,) = struct.unpack_from(f">{code}", self._frame, self.at)
        self.at += struct.calcsize(code)
        return int(value)

    def text(self) -> bytes:
        """Read a string, empty if it is null."""
        return self._take(self.number("h"))

    def short_length(self) -> int:
        """Read a length of the newer encoding: seven bits a byte, the lowest first."""
        value = shift = 0
        while True:
            byte = self.number("B")
            value |= (byte & 0x7F) << shift
            if byte < 0x80:  # noqa: PLR2004 - the highest bit says that more follow
                return value
            shift += 7

    def skip_bytes(self) -> int:
        """Pass over bytes with a length in front, and return how many there were."""
        return len(self._take(self.number("i")))

    def skip(self, size: int) -> None:
        """Pass over `size` bytes."""
        self.at += size

    def _take(self, size: int) -> bytes:
        size = max(0, size)
        self.at += size
        return self._frame[self.at - size : self.at]


def is_nothing(version: int, answer: bytes) -> bool:
    """Return whether the answer to a fetch holds no record, no error and no session: asking again is the same.

    Args:
        version: Of the request, 4 to 11.
        answer: The frame, without its length.
    """
    reader = Reader(answer, at=8)  # correlation id, throttle time
    if version >= _SESSIONS_FROM and (reader.number("h") or reader.number("i")):
        return False
    for _ in range(reader.number("i")):
        reader.text()
        for _ in range(reader.number("i")):
            reader.skip(4)
            if reader.number("h"):
                return False
            reader.skip(16 if version < 5 else 24)  # noqa: PLR2004 - high watermark, last stable, start of the log
            reader.skip(16 * max(0, reader.number("i")))  # aborted transactions
            if version >= 11:  # noqa: PLR2004 - preferred replica
                reader.skip(4)
            if reader.skip_bytes():
                return False
    return True


def fetch_wait(version: int, request: bytes) -> tuple[float, frozenset[bytes]]:
    """Return how long a fetch may be held, in seconds, and the topics it asks for."""
    reader = _after_header(request)
    reader.skip(4)  # replica
    wait_s = reader.number("i") / 1000
    reader.skip(4 + 4 + 1)  # bytes, at least and at most, and isolation
    if version >= _SESSIONS_FROM:
        reader.skip(8)
    topics = set()
    for _ in range(reader.number("i")):
        topics.add(reader.text())
        # Partition, epoch of the leader, offset, start of the log, bytes at most.
        size = 16 + (4 if version >= 9 else 0) + (8 if version >= 5 else 0)  # noqa: PLR2004 - fields came with these
        reader.skip(size * reader.number("i"))
    return wait_s, frozenset(topics)


def produced(version: int, request: bytes) -> tuple[bool, frozenset[bytes]]:
    """Return whether a produce request gets an answer, and the topics it writes to."""
    reader = _after_header(request)
    if version >= 3:  # noqa: PLR2004 - transactions
        reader.text()
    is_answered = reader.number("h") != 0
    reader.skip(4)
    topics = set()
    for _ in range(reader.number("i")):
        topics.add(reader.text())
        for _ in range(reader.number("i")):
            reader.skip(4)
            reader.skip_bytes()
    return is_answered, frozenset(topics)


def _after_header(request: bytes) -> Reader:
    reader = Reader(request, at=8)
    reader.text()  # client id
    return reader


class Proxy:
    """Stands between clients and one broker. Owned by one event loop."""

    def __init__(self, listen: str, broker: str) -> None:
        """Stand at `listen` for `broker`, both `host:port`."""
        self._listen = _address(listen)
        self._broker = _address(broker)
        self._written = asyncio.Event()
        self._writes: dict[bytes, int] = {}
        self._unnamed_writes = 0
        self._own_name = _wire_address(self._listen)
        self._broker_name = _wire_address(self._broker)

    async def serve(self) -> None:
        """Serve until the process ends; prints the address once it is bound."""
        server = await asyncio.start_server(self._client, *self._listen, limit=_WIDE_OPEN)
        async with server:
            print(f"holding fetches on {self._listen[0]}:{self._listen[1]}", flush=True)
            await server.serve_forever()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError, asyncio.IncompleteReadError):
            broker = await asyncio.open_connection(*self._broker, limit=_WIDE_OPEN)
            with contextlib.closing(broker[1]):
                while True:
                    request = await _read_frame(reader)
                    answer = await self._answer(request, *broker)
                    if answer is not None:
                        _write_frame(writer, answer)
                        await writer.drain()

    async def _answer(self, request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes | None:
        """Return the broker's answer to one request, `None` if there is none."""
        key, version = struct.unpack_from(">hh", request)
        if key == FETCH and _MIN_FETCH <= version <= _MAX_VERSION[FETCH]:
            return await self._fetch(version, request, reader, writer)
        is_answered, topics = True, frozenset[bytes]()
        if key == PRODUCE and version <= _MAX_VERSION[PRODUCE]:
            is_answered, topics = produced(version, request)
        _write_frame(writer, request)
        answer = await _read_frame(reader) if is_answered else None
        if key in (PRODUCE, _END_TXN):
            self._announce(topics)
        elif answer is not None and key in _NAMES_BROKERS:
            answer = answer.replace(self._broker_name, self._own_name)
        elif answer is not None and key == _API_VERSIONS:
            answer = limit_versions(version, answer)
        return answer

    async def _fetch(
        self, version: int, request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bytes:
        wait_s, topics = fetch_wait(version, request)
        deadline_s = time.monotonic() + wait_s
        while True:
            # Counted before the broker is asked: what is written while it answers is not missed.
            writes = self._count_writes(topics)
            _write_frame(writer, request)
            answer = await _read_frame(reader)
            if not is_nothing(version, answer):
                return answer
            while self._count_writes(topics) == writes:
                try:
                    await asyncio.wait_for(self._written.wait(), deadline_s - time.monotonic())
                except TimeoutError:
                    return answer

    def _announce(self, topics: frozenset[bytes]) -> None:
        for topic in topics:
            self._writes[topic] = self._writes.get(topic, 0) + 1
        if not topics:
            self._unnamed_writes += 1  # the end of a transaction, or a request that is not read: it may be any topic
        written, self._written = self._written, asyncio.Event()
        written.set()

    def _count_writes(self, topics: frozenset[bytes]) -> int:
        return self._unnamed_writes + sum(self._writes.get(topic, 0) for topic in topics)


def limit_versions(version: int, answer: bytes) -> bytes:
    """Return the answer to an ApiVersions request with the versions lowered to what this file reads."""
    limited = bytearray(answer)
    reader = Reader(answer, at=6)  # correlation id, error
    if version >= 3:  # noqa: PLR2004 - the newer encoding: lengths are one more, and tagged fields follow each entry
        count, at, size = reader.short_length() - 1, reader.at, 7
    else:
        count, at, size = reader.number("i"), reader.at, 6
    for entry in range(at, at + count * size, size):
        key, _, most = struct.unpack_from(">hhh", answer, entry)
        struct.pack_into(">h", limited, entry + 4, min(most, _MAX_VERSION.get(key, most)))
    return bytes(limited)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def _wire_address(address: tuple[str, int]) -> bytes:
    """Return an address as it stands in metadata: the text, and behind it four bytes of port."""
    return address[0].encode() + struct.pack(">i", address[1])


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


def _write_frame(writer: asyncio.StreamWriter, frame: bytes) -> None:
    writer.write(struct.pack(">i", len(frame)))
    writer.write(frame)


def main(listen: str, broker: str) -> int:
    """Run the proxy until the process is ended. Returns 1 if the address is taken or cannot be had."""
    try:
        asyncio.run(Proxy(listen, broker).serve())
    except OSError as error:
        why = f"port {_address(listen)[1]} is already in use" if error.errno == errno.EADDRINUSE else error.strerror
        # Without the address: to see it in the output is to know that somebody listens there.
        print(f"cannot listen: {why}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:3]))
