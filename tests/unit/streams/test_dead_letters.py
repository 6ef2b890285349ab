"""What is kept of a record that cannot be read, and when a stream is called broken."""

from __future__ import annotations

from aiokafka.record.default_records import DefaultRecord
from faust.types import TP

from loopwarden_models.errors import InvalidEvent
from loopwarden_streams.dead_letters import (
    MAX_KEPT_BYTES,
    SPARED,
    SPARED_OF_TENANT,
    WINDOW_S,
    BrokenShare,
    dead_letter,
    summary_letter,
)
from loopwarden_streams.transport import Record

SOURCE = TP("loopwarden.steps", 3)


def a_record(value: bytes | None = b"{", offset: int = 881) -> Record:
    """Return a record as the client delivers it."""
    record: Record = DefaultRecord(offset, 1_800_000_000_000, 0, b"acme|r-1", value, [])
    return record


def test_a_letter_holds_the_bytes_and_says_what_is_wrong_and_where() -> None:
    """Whoever opens the dead-letter topic must find the record in its source without a search."""
    letter = dead_letter(SOURCE, a_record(), InvalidEvent("wrong_type", "Expected `int`, got `str`", field="seq"))

    assert (letter.key, letter.value) == (b"acme|r-1", b"{")
    headers = dict(letter.headers)
    assert headers["reason"] == b"wrong_type"
    assert headers["field"] == b"seq"
    assert (headers["topic"], headers["partition"], headers["offset"]) == (b"loopwarden.steps", b"3", b"881")


def test_a_huge_record_is_kept_by_its_head() -> None:
    """Five megabytes would not fit the dead-letter topic; the whole of it stays in the source."""
    letter = dead_letter(SOURCE, a_record(value=b"x" * 5_000_000), InvalidEvent("too_large", "too large"))

    assert letter.value is not None
    assert len(letter.value) == MAX_KEPT_BYTES
    assert dict(letter.headers)["bytes"] == b"5000000"


def test_a_tombstone_has_a_letter_too() -> None:
    """A record without a value is bad input like any other, and must not get lost on its way."""
    letter = dead_letter(SOURCE, a_record(value=None), InvalidEvent("tombstone", "a record without a value"))

    assert letter.value == b""


def test_a_few_bad_records_are_no_broken_stream() -> None:
    """A share of three records means nothing."""
    share = BrokenShare(0.5)

    assert not share.count(3, 3, now=0.0)


def test_a_mostly_bad_stream_is_broken_until_it_heals() -> None:
    """A stream that is mostly unreadable is an alarm, and the alarm must end by itself."""
    share = BrokenShare(0.5)

    assert share.count(200, 150, now=0.0)
    assert share.count(10, 0, now=1.0)
    assert not share.count(300, 0, now=2.0)


def test_what_is_older_than_the_window_does_not_count() -> None:
    """An hour-old accident must not make a new record look like one of many."""
    share = BrokenShare(0.5)
    share.count(1_000, 1_000, now=0.0)

    assert not share.count(150, 0, now=WINDOW_S + 1)


def test_the_summary_of_a_broken_stream_names_every_position() -> None:
    """Above the limit the bytes are not kept, but nothing may get lost: the offsets are."""
    error = InvalidEvent("not_json", "truncated")
    letter = summary_letter(SOURCE, [(a_record(offset=offset), error) for offset in (5, 6, 9)])

    assert letter.value == b"5,6,9"
    assert b"3 records refused: not_json" in dict(letter.headers)["detail"]


def test_garbage_of_one_tenant_leaves_the_letters_of_another() -> None:
    """While the stream is broken each has some a minute, whatever the others do."""
    share = BrokenShare(0.5)
    flood = [share.spares(b"acme|r%d" % number, now=0.0) for number in range(500)]

    assert flood.count(True) == SPARED_OF_TENANT
    assert share.spares(b"globex|r1", now=1.0)
    assert not share.spares(b"acme|r1", now=WINDOW_S - 1)
    assert share.spares(b"acme|r1", now=WINDOW_S + 1)


def test_tenants_that_are_made_up_are_bounded_together() -> None:
    """A key is whatever somebody wrote."""
    share = BrokenShare(0.5)

    assert [share.spares(b"t%d|r" % number, now=0.0) for number in range(5_000)].count(True) == SPARED
    assert [share.spares(key, now=0.0) for key in (None, b"", b"acme")] == [False] * 3
