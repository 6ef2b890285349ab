"""What people ordered, kept from compaction."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from loopwarden_streams.persons_records import PersonsRecords

RUN = b"acme|run|r-1"
TOOL = b"acme|breaker|search"
NOW_MS = 1_800_000_000_000


def record(key: bytes, state: str, writer: str = "operator", version: tuple[int, int] = (9, 0), **more: Any) -> bytes:
    """Return the value of a record."""
    fields = {"v": 1, "key": key.decode(), "version": version, "state": state, "writer": writer, **more}
    return msgspec.json.encode(fields)


def due(*records: tuple[bytes, bytes | None]) -> list[tuple[bytes, bytes]]:
    """Return what has to be written again after records in this order."""
    persons = PersonsRecords()
    for key, value in records:
        persons.take(key, value)
    found = persons.due(NOW_MS)
    assert persons.due(NOW_MS) == [], "once is enough"
    return found


@pytest.mark.parametrize(
    ("key", "state", "later"),
    [
        (RUN, "killed", "open"),
        (RUN, "paused", "kill_wanted"),
        (TOOL, "forced_open", "closed"),
        (TOOL, "disabled", "open"),
    ],
)
def test_an_order_of_a_person_under_one_of_the_detector_is_written_again(key: bytes, state: str, later: str) -> None:
    """Compaction keeps the last record only; with it the signature, so it is written byte for byte."""
    person = record(key, state, kid="k1", sig="c2ln")
    detector = record(key, later, "detector", (42, 7))

    assert due((key, person), (key, detector)) == [(key, person)]
    assert due((key, person), (key, detector), (key, person)) == []
    assert due((key, detector), (key, person)) == []


def test_what_a_person_gave_back_is_the_detector_s_again() -> None:
    """A release, or a deletion, ends the order."""
    kill, release = (RUN, record(RUN, "killed")), (RUN, record(RUN, "released", version=(10, 0)))
    detector = (RUN, record(RUN, "kill_wanted", "detector", (42, 7)))

    assert due(kill, release, detector) == []
    assert due(kill, (RUN, None), detector) == []
    # Read in the wrong order the older order changes nothing; the key ends with it, so the newer one is said again.
    assert due(release, (RUN, record(RUN, "killed", version=(11, 0))), kill) == [
        (RUN, record(RUN, "killed", version=(11, 0)))
    ]


def test_what_has_expired_is_let_go() -> None:
    """A kill of a queued run that nobody took up within its life binds nobody any more."""
    expired = record(RUN, "kill_wanted", expires_at_ms=NOW_MS - 1)
    detector = (RUN, record(RUN, "open", "detector", (42, 7)))

    assert due((RUN, expired), detector) == []


def test_the_big_switch_is_known() -> None:
    """A worker tells by a gauge that nothing is stopped; the highest version holds, and a deletion is on."""
    key = b"*|enforcement|global"
    persons = PersonsRecords()
    found = [persons.is_enforcing]
    for value in (
        record(key, "observe_only", version=(2, 0)),
        record(key, "enforce", version=(1, 9)),
        b"{",
        record(key, "enforce", version=(3, 0)),
        record(key, "observe_only", version=(4, 0)),
        None,
    ):
        persons.take(key, value)
        found.append(persons.is_enforcing)

    assert found == [True, False, False, False, True, False, True]


def test_what_is_something_else_is_passed_over() -> None:
    """Fences, the switch, kinds of a later version, and what cannot be read."""
    odd = [(None, b"{}"), (b"*|fence|3", b"{}"), (b"run", b"{}"), (RUN, b"{"), (b"\xff|run|\xff", b"{}")]

    assert due(*odd) == []  # type: ignore[arg-type]  # a record may have no key
    persons = PersonsRecords(max_standing=1)
    for number in (1, 2):
        persons.take(f"acme|run|r-{number}".encode(), record(RUN, "killed"))
        persons.take(f"acme|run|r-{number}".encode(), record(RUN, "open", "detector", (42, 7)))
    assert [key for key, _ in persons.due(NOW_MS)] == [b"acme|run|r-2"]
