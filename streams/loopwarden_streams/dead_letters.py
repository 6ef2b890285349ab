"""Records that cannot be read: kept with the reason and where they came from, and counted against a limit.

A consumer that quietly files away everything it gets looks healthy and sees nothing. So the share of refused records
is watched per partition: above the limit the stream is called broken, which is an alarm, and only the positions are
kept of what is refused beyond it. The idea of a limited dead-letter queue is that of Sentry's arroyo.
"""

from __future__ import annotations

import time
from collections import Counter, deque

from faust.types import TP

from loopwarden_models.errors import InvalidEvent
from loopwarden_streams.batch_writer import Out
from loopwarden_streams.transport import Record

# A larger record is kept by its head: the whole of it stays in the source topic, at the offset in the headers.
MAX_KEPT_BYTES = 262_144

WINDOW_S = 60.0
# While a stream is broken, so many records a minute of each tenant are kept all the same, and so many of all: a tenant
# that sends garbage must not take away the letters of the others, nor may one that makes up tenants. judgement
SPARED_OF_TENANT = 20
SPARED = 1_000

# Below this many records in the window a share means nothing.
MIN_RECORDS = 100

Refused = list[tuple[Record, InvalidEvent]]


def dead_letter(tp: TP, record: Record, error: InvalidEvent) -> Out:
    """Return the dead letter of `record` of `tp`: its bytes, and in the headers what is wrong and where it was."""
    value = record.value
    headers = [
        ("reason", error.reason.encode()),
        ("field", error.field.encode()),
        ("detail", error.detail.encode("utf-8", "replace")[:1024]),
        ("topic", tp.topic.encode()),
        ("partition", str(tp.partition).encode()),
        ("offset", str(record.offset).encode()),
        ("timestamp_ms", str(-1 if record.timestamp is None else record.timestamp).encode()),
        ("bytes", str(0 if value is None else len(value)).encode()),
    ]
    if value is None:
        # A record needs a value on a topic that is not compacted; the reason says that there was none.
        value = b""
    elif len(value) > MAX_KEPT_BYTES:
        value = value[:MAX_KEPT_BYTES]
        headers.append(("truncated_to", str(MAX_KEPT_BYTES).encode()))
    return Out(record.key, value, headers)


def summary_letter(tp: TP, records: list[tuple[Record, InvalidEvent]]) -> Out:
    """Return one letter that names the positions of many refused records of `tp`, without their bytes."""
    first, last = records[0][0], records[-1][0]
    reasons = sorted({error.reason for _, error in records})
    offsets = ",".join(str(record.offset) for record, _ in records)
    return Out(
        None,
        offsets.encode(),
        [
            ("reason", b"broken_stream"),
            ("detail", f"{len(records)} records refused: {', '.join(reasons)}".encode()),
            ("topic", tp.topic.encode()),
            ("partition", str(tp.partition).encode()),
            ("offset", str(first.offset).encode()),
            ("last_offset", str(last.offset).encode()),
        ],
    )


class BrokenShare:
    """Share of refused records of one partition over the last minute of processing.

    Not thread-safe. Cost: O(1) amortised per batch.
    """

    def __init__(self, max_ratio: float) -> None:
        """Call the stream broken above `max_ratio`, in (0, 1]."""
        self._max_ratio = max_ratio
        self._batches: deque[tuple[float, int, int]] = deque()
        self._records = 0
        self._refused = 0
        self._spared: Counter[bytes] = Counter()
        self._spared_until = 0.0

    def count(self, records: int, refused: int, *, now: float | None = None) -> bool:
        """Count one batch and return whether the stream is broken now.

        Args:
            records: Records of the batch.
            refused: How many of them were refused.
            now: `time.monotonic()`, for tests.
        """
        now = time.monotonic() if now is None else now
        self._batches.append((now, records, refused))
        self._records += records
        self._refused += refused
        while self._batches[0][0] < now - WINDOW_S:
            _, old_records, old_refused = self._batches.popleft()
            self._records -= old_records
            self._refused -= old_refused
        return self._records >= MIN_RECORDS and self._refused > self._max_ratio * self._records

    def spares(self, key: bytes | None, *, now: float | None = None) -> bool:
        """Return whether a refused record is kept although the stream is broken, and count it if it is.

        Args:
            key: Of the record; its tenant is what comes before the first `|`.
            now: `time.monotonic()`, for tests.
        """
        now = time.monotonic() if now is None else now
        if now >= self._spared_until:
            self._spared.clear()
            self._spared_until = now + WINDOW_S
        tenant = (key or b"").partition(b"|")[0]
        if self._spared[tenant] >= SPARED_OF_TENANT or self._spared.total() >= SPARED:
            return False
        self._spared[tenant] += 1
        return True
