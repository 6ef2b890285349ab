"""Fixed-size memories of a run: its recent calls, a window of counts, and sets of short keys.

All are plain bytes, or short: at a hundred thousand live runs, one Python object a step would cost gigabytes. They
grow with the run and never beyond their caps.
"""

from __future__ import annotations

from struct import Struct as Layout

from msgspec import Struct, field

# How many calls the ring may hold; filled up, the oldest leave until it holds `KEPT_CALLS` again.
MAX_CALLS = 44
# What detectors may look back on, whenever they look: "the last 40 steps" of a new write.
KEPT_CALLS = 40

# Of one call: half of its result key, half of its call key.
_MARK_LAYOUT = Layout(">II")
MARK = _MARK_LAYOUT.size
HALF = MARK // 2
NO_KEY = bytes(HALF)
_pack_mark = _MARK_LAYOUT.pack

# Of one call: low halves of `seq` and source offset; then milliseconds, kind of call and tool number in one word.
_ROW_LAYOUT = Layout(">IIQ")
ROW = _ROW_LAYOUT.size
_pack_row, _unpack_row = _ROW_LAYOUT.pack, _ROW_LAYOUT.unpack_from
_LOW_BITS = 12
_MAX_MS = (1 << 64 - _LOW_BITS) - 1  # 140,000 years; a clock that says more is not believed
OTHER_TOOL = 31
POLLS, WAITS, UNDECLARED, GUARDED = 1 << 5, 1 << 6, 1 << 7, 1 << 8
SILENT, UNPRODUCTIVE, WRITES = 1 << 9, 1 << 10, 1 << 11
_KIND = POLLS | WAITS | UNDECLARED | GUARDED | SILENT | UNPRODUCTIVE | WRITES

# Low halves of result key, call key and `seq`, then milliseconds, kind and tool in one word: `when & WAITS`, `ms_of`.
Row = tuple[int, int, int, int]

_LOW = 0xFFFF_FFFF
_MAX_MARKS_BYTES = MAX_CALLS * MARK


def mark_of(result_key: int, call_key: int) -> bytes:
    """Return what the ring keeps of the two 64-bit keys of a call, 0 = missing. Cost: 0.1 µs."""
    return _pack_mark(result_key & _LOW, call_key & _LOW)


def ms_of(row: Row) -> int:
    """Return when a call was, in milliseconds since the run started."""
    return row[3] >> _LOW_BITS


class Ring(Struct, array_like=True, gc=False):
    """The newest calls of a run's segment, oldest first, 24 bytes each.

    Keys are kept by their low 32 bits: two different calls with different results are taken for equal once in 2^64
    comparisons, two results of one call once in 2^32; every rule that acts needs several in order. A missing key is 0
    and equals nothing; so does, once in 2^32, a key whose low half is 0.

    Calls of one round stand in the order of their call keys. They finish in any order; sorted, the same batch always
    reads the same, so that neither order hides a cycle or makes one.

    Attributes:
        marks: `MARK` bytes a call: what is compared. Apart from the rest, because it is searched at every event.
        rows: `ROW` bytes a call: where and when it was, its kind and its tool.
    """

    marks: bytearray = field(default_factory=bytearray)
    rows: bytearray = field(default_factory=bytearray)

    def __len__(self) -> int:
        """Return the number of calls held."""
        return len(self.marks) // MARK

    def clear(self) -> None:
        """Forget all calls."""
        self.marks.clear()
        self.rows.clear()

    def append(self, mark: bytes, seq: int, offset: int, ms: int, tool: int, in_round: int = 0) -> None:
        """Add one call.

        Args:
            mark: From `mark_of`.
            seq: The step's `seq`.
            offset: Source offset, -1 if there is none.
            ms: Milliseconds since the run started, at least 0.
            tool: Number of the tool, from `RunState.tool_number`, and what kind of call it was: `POLLS`, `WAITS` or
                `UNDECLARED`, and `GUARDED`, `SILENT`, `UNPRODUCTIVE`, `WRITES`.
            in_round: How many calls of the same round came before it.

        Cost: 0.3 µs; O(`in_round`) within a batch.
        """
        marks, rows = self.marks, self.rows
        row = _pack_row(seq & _LOW, offset & _LOW, (ms if ms < _MAX_MS else _MAX_MS) << _LOW_BITS | tool)  # noqa: FURB136 - min() costs three times as much
        if in_round:
            at = self._place_in_round(mark, in_round)
            marks[at * MARK : at * MARK] = mark
            rows[at * ROW : at * ROW] = row
        else:
            marks += mark
            rows += row
        if len(marks) > _MAX_MARKS_BYTES:
            del marks[: -KEPT_CALLS * MARK]
            del rows[: -KEPT_CALLS * ROW]

    def _place_in_round(self, mark: bytes, in_round: int) -> int:
        half = mark[HALF:]
        at = len(self)
        floor = max(0, at - in_round)
        while at > floor and self.marks[at * MARK - HALF : at * MARK] > half:
            at -= 1
        return at

    def find_call(self, mark: bytes) -> int:
        """Return the place of the newest call with the same call key, -1 if there is none. Cost: 0.15 µs."""
        half = mark[HALF:]
        at = self.marks.rfind(half)
        if at < 0 or half == NO_KEY:
            return -1
        return at // MARK if at % MARK == HALF else self._find(half, HALF)

    def find_answer(self, newest: int, mark: bytes) -> tuple[int, bool]:
        """Compare an answer with those that the same call got before.

        Args:
            newest: Place of the newest call with the same call key, from `find_call`.
            mark: Of the call and its answer now.

        Returns:
            The place of the newest call with the same answer, -1 if there is none; and whether the newest call got
            another one.

        Cost: 0.2 µs.
        """
        half = mark[:HALF]
        known = self.marks[newest * MARK : newest * MARK + HALF]
        if half == NO_KEY:
            return -1, False
        if known == half:
            return newest, False
        return self._find(mark, 0), known != NO_KEY

    def holds_result(self, mark: bytes) -> bool:
        """Return whether a call that is held had the same result, whatever it asked. Cost: 0.15 µs."""
        half = mark[:HALF]
        return half != NO_KEY and self._find(half, 0) >= 0

    def is_newest_new(self) -> bool:
        """Return whether the newest call has an answer that no call before it has. Cost: 0.2 µs."""
        half = self.marks[-MARK:-HALF]
        return len(half) == HALF and half != NO_KEY and self.marks.find(half) >= len(self.marks) - MARK

    def kinds(self, last: int) -> list[int]:
        """Return the kinds of the newest `last` calls, oldest first; fewer if not so many are held.

        Cost: 0.1 µs a call.
        """
        rows = self.rows
        first = max(0, len(rows) - last * ROW)
        return [_unpack_row(rows, at)[2] & _KIND for at in range(first, len(rows), ROW)]

    def marked_kinds(self) -> list[tuple[bytes, int]]:
        """Return mark and kind of every call that is held, oldest first. Cost: 0.2 µs a call."""
        marks, rows = bytes(self.marks), self.rows
        return [(marks[at * MARK : (at + 1) * MARK], _unpack_row(rows, at * ROW)[2] & _KIND) for at in range(len(self))]

    def newest_rows(self, last: int) -> list[Row]:
        """Return the newest `last` calls, oldest first; fewer if not so many are held. Cost: 0.15 µs a call."""
        pairs = _MARK_LAYOUT.iter_unpack(self.marks[-last * MARK :])
        whens = _ROW_LAYOUT.iter_unpack(self.rows[-last * ROW :])
        return [(result, call, seq, when) for (result, call), (seq, _, when) in zip(pairs, whens, strict=True)]

    def find_call_before(self, back: int) -> int:
        """Return the place of the newest call equal to the one `back` places before the newest, older than it, or -1.

        Cost: O(44), 3 µs.
        """
        at = len(self) - 1 - back
        if at < 0:
            return -1
        half = bytes(self.marks[at * MARK + HALF : (at + 1) * MARK])
        if half == NO_KEY:
            return -1
        return next((n for n in range(at - 1, -1, -1) if self.marks[n * MARK + HALF : (n + 1) * MARK] == half), -1)

    def before(self, back: int) -> tuple[bytes, int]:
        """Return mark and kind of the call `back` places before the newest; no mark and 0 if it is not held.

        Cost: 0.3 µs.
        """
        at = len(self) - 1 - back
        if at < 0:
            return b"", 0
        return bytes(self.marks[at * MARK : (at + 1) * MARK]), _unpack_row(self.rows, at * ROW)[2] & _KIND

    def forget_call(self, call_key: int) -> None:
        """Take the results of a call out of all comparisons: a person approved it. Cost: O(64)."""
        half = (call_key & _LOW).to_bytes(HALF, "big")
        for at in range(0, len(self.marks), MARK):
            if self.marks[at + HALF : at + MARK] == half:
                self.marks[at : at + HALF] = bytes(HALF)

    def call_halves(self, last: int) -> set[int]:
        """Return the 32-bit halves of the call keys of the newest `last` calls."""
        tail = self.marks[-last * MARK :]
        return {int.from_bytes(tail[at : at + HALF], "big") for at in range(HALF, len(tail), MARK)}

    def call_at(self, back: int, *, seq: int, offset: int) -> tuple[int, int, int, int]:
        """Return `(seq, offset, ms, tool)` of the call `back` places before the newest.

        Args:
            back: 0 is the newest.
            seq: Newest `seq` of the run: the upper half of an older one follows from it.
            offset: Newest source offset, -1 if there is none.

        Raises:
            IndexError: The ring does not reach back that far.
        """
        at = len(self.rows) - (back + 1) * ROW
        if at < 0:
            raise IndexError(f"the ring holds {len(self)} calls, {back} back is outside")
        low_seq, low_offset, when = _unpack_row(self.rows, at)
        first_offset = offset - (offset - low_offset & _LOW) if offset >= 0 else -1
        # Below zero: the call is of the incarnation before, whose `seq` was higher.
        first_seq = max(seq - (seq - low_seq & _LOW), 0)
        return first_seq, max(first_offset, -1), when >> _LOW_BITS, when & OTHER_TOOL

    def is_patience(self, last: int) -> bool:
        """Return whether the newest `last` calls are polls and waits alone, or waits and one undeclared call.

        Real agents poll with tools that nobody declared: look, sleep, look. Five laps of that are a healthy wait.
        """
        kinds = self._whens()[-last:]
        others = [at for at, when in enumerate(kinds) if not when & (POLLS | WAITS)]
        if not others:
            return True
        if not all(kinds[at] & UNDECLARED for at in others) or not any(when & WAITS for when in kinds):
            return False
        tail = self.marks[-last * MARK :]
        return len({bytes(tail[at * MARK + HALF : (at + 1) * MARK]) for at in others}) == 1

    def newest_gap_ms(self) -> int:
        """Return the time between the two newest calls, 0 if there are not two."""
        return self.span_ms(2) or 0

    def span_ms(self, last: int) -> int | None:
        """Return the time since the oldest of the newest `last` calls, `None` if there are not so many."""
        rows = self.rows
        first = len(rows) - last * ROW
        if first < 0:
            return None
        newest: int = _unpack_row(rows, len(rows) - ROW)[2] >> _LOW_BITS
        oldest: int = _unpack_row(rows, first)[2] >> _LOW_BITS
        return max(0, newest - oldest)

    def times(self) -> list[int]:
        """Return the times of all calls in milliseconds since the run started, oldest first."""
        return sorted(when >> _LOW_BITS for when in self._whens())

    def tools(self) -> list[int]:
        """Return the tool numbers of all calls, oldest first."""
        return [when & OTHER_TOOL for when in self._whens()]

    def _whens(self) -> list[int]:
        return [when for _, _, when in _ROW_LAYOUT.iter_unpack(self.rows)]

    def _find(self, half: bytes, place_in_mark: int) -> int:
        marks = self.marks
        at = marks.rfind(half)
        while at >= 0 and at % MARK != place_in_mark:
            at = marks.rfind(half, 0, at + HALF - 1)
        return at // MARK


BUCKET_MS = 5_000
BUCKETS = 12
WINDOW_MS = BUCKET_MS * BUCKETS


def new_window() -> list[int]:
    """Return an empty count window: `BUCKETS` counts, the running total, and the newest bucket's number."""
    return [0] * (BUCKETS + 2)


def count_in_window(window: list[int], ms: int) -> int:
    """Count one event at `ms` and return how many the window holds now.

    A ring of partial sums with one total (resilience4j's `SlidingTimeWindowMetrics`): what is evicted is
    subtracted, so reading is O(1). The window covers between 55 and 60 seconds, in steps of a bucket.

    Args:
        window: From `new_window`, changed in place.
        ms: Milliseconds, at least 0, not decreasing from call to call.

    Returns:
        Events in the window that ends at `ms`, at least 1.

    Cost: O(1), 0.2 µs; O(`BUCKETS`) after a gap.
    """
    #  bucket   0     1     2   …  11
    #         |--3--|--0--|--5--|…|--2--|   total = sum; the newest bucket replaces the one 60 s older
    bucket = ms // BUCKET_MS
    newest = window[BUCKETS + 1]
    if bucket > newest:
        if bucket - newest >= BUCKETS:
            for slot in range(BUCKETS + 1):
                window[slot] = 0
        else:
            for passed in range(newest + 1, bucket + 1):
                slot = passed % BUCKETS
                window[BUCKETS] -= window[slot]
                window[slot] = 0
        window[BUCKETS + 1] = bucket
    window[bucket % BUCKETS] += 1
    total = window[BUCKETS] + 1
    window[BUCKETS] = total
    return total


def holds_key(keys: bytearray, key: bytes) -> bool:
    """Return whether the fixed-width `key` is one of `keys` (joined, same width). Cost: 0.15 µs for 512 bytes."""
    width = len(key)
    at = keys.rfind(key)
    while at >= 0:
        if at % width == 0:
            return True
        at = keys.rfind(key, 0, at + width - 1)
    return False


def add_new_key(keys: bytearray, key: bytes, *, max_bytes: int) -> bool:
    """Append `key` unless it is there, and return whether it was not; full, the older half leaves.

    Cost: 0.25 µs for 512 bytes.
    """
    if keys.rfind(key) >= 0 and holds_key(keys, key):
        return False
    if len(keys) >= max_bytes:
        del keys[: max_bytes // 2]
    keys += key
    return True
