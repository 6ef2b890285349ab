"""What a worker tells of questions: once each, of its own tenants, and what it lets go of."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from loopwarden_models.codec import encode
from loopwarden_models.ids import control_partition
from loopwarden_models.questions import AnswerRecord, QuestionRecord, answer_key, question_key
from loopwarden_streams.metrics import Metrics
from loopwarden_streams.question_board import RECENT_MS, Event, QuestionBoard
from loopwarden_streams.question_book import Entry, QuestionBook

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000
PARTITIONS = 4
ALL = range(PARTITIONS)


def asked(question_id: str = "q1", state: str = "open", *, tenant: str = "acme", **fields: Any) -> QuestionRecord:
    """Return a question that waits for an hour."""
    fields = {"opened_at_ms": NOW_MS, "expires_at_ms": NOW_MS + 3_600_000, "action_hash": "ab", "tool": "pay", **fields}
    return QuestionRecord(
        v=1,
        key=question_key(tenant, question_id),
        version=[42, 1],
        kind="action",
        state=state,
        run_id="r",
        root_run_id="r",
        incarnation="a",
        **fields,
    )


def said(question_id: str = "q1", decision: str = "approved", *, tenant: str = "acme", **fields: Any) -> AnswerRecord:
    """Return an answer to it."""
    fields = {"version": [NOW_MS, 0], "expires_at_ms": NOW_MS + 3_600_000, "action_hash": "ab", **fields}
    return AnswerRecord(v=1, key=answer_key(tenant, question_id), decision=decision, at_ms=NOW_MS, **fields)


class Desk:
    """A board, and what it told."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.told: list[Event] = []
        self.board = QuestionBoard(
            self.metrics, partitions=PARTITIONS, ttl_ms=DAY_MS, tell=lambda event, _: self.told.append(event)
        )

    def take(self, *records: QuestionRecord | AnswerRecord, at_ms: int = NOW_MS) -> None:
        """Read records."""
        for record in records:
            self.board.take(record.key.encode(), encode(record), at_ms)

    def look(self, owned: Any = ALL, at_ms: int = NOW_MS) -> list[str]:
        """Look, and return what was told because of it."""
        before = len(self.told)
        self.board.look(owned, at_ms)
        return [event.status for event in self.told[before:]]

    def metric(self, name: str, **labels: str) -> float | None:
        """Return a value of the registry."""
        return self.metrics.registry.get_sample_value(f"loopwarden_{name}", labels)


def test_each_event_is_told_once() -> None:
    """Asked, answered, taken up; looking again says nothing."""
    desk = Desk()
    desk.take(asked())
    assert [desk.look(), desk.look()] == [["open"], []]
    desk.take(said())
    assert [desk.look(), desk.look()] == [["answered"], []]
    desk.take(asked(state="approved", opened_at_ms=None, expires_at_ms=None))
    assert [desk.look(), desk.look()] == [["approved"], []]
    assert len({event.event_id for event in desk.told}) == 3
    assert desk.metric("question_events_total", status="approved") == 1


def test_two_workers_give_an_event_one_id() -> None:
    """Whoever takes a tenant over tells of what still waits, and the receiver can see that it knows it."""
    first, second = Desk(), Desk()
    for desk in (first, second):
        desk.take(asked())
        assert desk.look(at_ms=NOW_MS + 5) == ["open"]

    assert first.told[0].event_id == second.told[0].event_id


def test_a_tenant_is_told_of_by_one_worker() -> None:
    """The one that owns the partition that stands for the tenant."""
    desk = Desk()
    desk.take(asked())
    own = control_partition("acme", PARTITIONS)

    assert desk.look([number for number in ALL if number != own]) == []
    assert desk.metric("questions_open", tenant="acme") is None
    assert desk.look([own]) == ["open"]
    assert desk.metric("questions_open", tenant="acme") == 1


def test_what_ended_long_ago_is_history() -> None:
    """A worker that starts reads a day of it, and wakes nobody; what has just ended it may tell of again."""
    desk = Desk()
    desk.take(asked("old", "approved"), asked("new", "rejected"), at_ms=NOW_MS)
    desk.take(asked("newest", "rejected"), at_ms=NOW_MS + RECENT_MS)

    assert desk.look(at_ms=NOW_MS + RECENT_MS + 1) == ["rejected"]


def test_time_alone_ends_a_question() -> None:
    """Also if the process that asked is gone, and nobody is left to say so."""
    desk = Desk()
    desk.take(asked())
    desk.look()
    assert desk.look(at_ms=NOW_MS + 3_599_999) == []
    assert desk.metric("question_oldest_seconds") == 3_599.999

    assert desk.look(at_ms=NOW_MS + 3_600_000) == ["expired"]
    assert desk.metric("question_oldest_seconds") == 0
    assert desk.metric("questions_open", tenant="acme") is None


def test_an_answer_for_other_arguments_or_from_before_is_none() -> None:
    """The question goes on waiting, for people as for the run."""
    entry = Entry("acme", "q1", asked(), said(action_hash="cd"), NOW_MS)
    assert entry.status(NOW_MS) == "open"
    entry.answer = said(expires_at_ms=NOW_MS)
    assert entry.status(NOW_MS) == "open"


def test_records_go_a_day_after_their_end_the_answer_first() -> None:
    """An approval without the word that it was used could be used again."""
    desk = Desk()
    desk.take(asked(state="approved", expires_at_ms=None), said(expires_at_ms=NOW_MS + 10))
    assert desk.board.due(NOW_MS + DAY_MS + 9) == []
    keys = desk.board.due(NOW_MS + DAY_MS + 10)
    assert keys == ["acme|approval|q1", "acme|question|q1"]

    for key in keys:
        desk.board.take(key.encode(), None, NOW_MS + DAY_MS + 11)
    assert len(desk.board.book) == 0


def test_a_pause_without_an_end_is_kept() -> None:
    """Policy says that it waits for as long as it takes."""
    desk = Desk()
    desk.take(asked(expires_at_ms=None))

    assert desk.board.due(NOW_MS + 1_000 * DAY_MS) == []


def test_what_cannot_be_read_is_counted_and_passed_over() -> None:
    """The topic holds many kinds, and anything may be written to it."""
    book = QuestionBook()
    assert book.put(b"acme|run|r", b"{}", 0) is None
    assert book.put(None, b"{}", 0) is None
    assert book.put(b"acme|question|q", b"{", 0) is None

    assert (book.unreadable, len(book)) == (1, 0)


@given(order=st.permutations([said(decision="approved", version=[n, 0]) for n in range(4)]))
def test_the_highest_version_of_an_answer_counts(order: list[AnswerRecord]) -> None:
    """Whatever the order in which two people's answers are read."""
    book = QuestionBook()
    for record in order:
        book.put(record.key.encode(), encode(record), NOW_MS)

    (entry,) = book.find("acme", "q")
    assert entry.answer is not None
    assert entry.answer.version == [3, 0]
