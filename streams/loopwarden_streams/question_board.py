"""What a worker does about questions: counts those that wait, tells of them, and knows which records may go.

Every worker reads them all; of a tenant one counts and tells, whoever owns the partition of steps that stands for it.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Final, NamedTuple

from loopwarden_models.hashes import derived_id
from loopwarden_models.ids import control_partition
from loopwarden_models.questions import answer_key, question_key
from loopwarden_streams.metric_questions import QuestionStatus
from loopwarden_streams.metrics import Metrics
from loopwarden_streams.question_book import Entry, QuestionBook

# What ended longer ago is history to a worker that starts, or that takes a tenant over: it was told of by another.
RECENT_MS: Final = 600_000
MAX_DELETED: Final = 1_000
WAITING: Final = frozenset({"open", "answered"})


class Event(NamedTuple):
    """Something happened to a question. The id is the same whoever tells of it, so that a receiver can tell a copy."""

    event_id: str
    status: QuestionStatus
    entry: Entry


class QuestionBoard:
    """Fed with every record of `control.state`. Owned by one event loop."""

    def __init__(
        self, metrics: Metrics, *, partitions: int, ttl_ms: int, tell: Callable[[Event, int], object] | None = None
    ) -> None:
        """Count into `metrics`, and hand what happens to `tell` with the time (Unix ms).

        Args:
            metrics: Of the worker.
            partitions: Of steps.
            ttl_ms: How long a record is kept after its end.
            tell: Must return at once.
        """
        self._metrics = metrics
        self._partitions = partitions
        self._ttl_ms = ttl_ms
        self._tell = tell
        self._told: dict[str, str] = {}
        self.book = QuestionBook()

    def take(self, key: bytes | None, value: bytes | None, append_ms: int) -> None:
        """Take one record of the topic, whatever it is about."""
        self.book.put(key, value, append_ms)

    def look(self, owned: Container[int], now_ms: int) -> None:
        """Count, and tell what is new since the last look. Cost: 3 µs a question of the last day.

        Args:
            owned: Partitions of steps that this worker owns.
            now_ms: Unix milliseconds.
        """
        waiting: dict[str, int] = {}
        oldest_ms = 0
        kept: dict[str, str] = {}
        for entry in self.book.entries():
            if entry.question is None or control_partition(entry.tenant, self._partitions) not in owned:
                continue
            status = entry.status(now_ms)
            name = f"{entry.tenant}|{entry.question_id}"
            if status == "open":
                waiting[entry.tenant] = waiting.get(entry.tenant, 0) + 1
                opened_ms = entry.question.opened_at_ms
                oldest_ms = max(oldest_ms, now_ms - (entry.append_ms if opened_ms is None else opened_ms))
            event_id = _event_id(entry, status)
            before = self._told.get(name)
            kept[name] = event_id
            if before == event_id:
                continue
            if before is None and status not in WAITING and now_ms - entry.append_ms > RECENT_MS:
                continue
            self._metrics.count_question(status)
            if self._tell is not None:
                self._tell(Event(event_id, status, entry), now_ms)
        self._told = kept
        self._metrics.set_open_questions(waiting, oldest_ms / 1000)

    def due(self, now_ms: int) -> list[str]:
        """Return the keys of records that may go, at most `MAX_DELETED`.

        An answer goes before its question: an approval without the word that it was used could be used again.
        """
        keys: list[str] = []
        for entry in self.book.entries():
            if len(keys) >= MAX_DELETED:
                break
            if now_ms < _ends_ms(entry) + self._ttl_ms:
                continue
            if entry.answer is not None:
                keys.append(answer_key(entry.tenant, entry.question_id))
            if entry.question is not None:
                keys.append(question_key(entry.tenant, entry.question_id))
        return keys


def _ends_ms(entry: Entry) -> float:
    question, answer = entry.question, entry.answer
    ends = [float(entry.append_ms)]
    if question is not None and question.state == "open":
        # Without an end it waits for as long as it takes.
        ends.append(float("inf") if question.expires_at_ms is None else question.expires_at_ms)
    if answer is not None and answer.expires_at_ms is not None:
        ends.append(answer.expires_at_ms)
    return max(ends)


def _event_id(entry: Entry, status: QuestionStatus) -> str:
    question, answer = entry.question, entry.answer
    turn = 0 if question is None else question.opened_at_ms or 0
    version = list(answer.version) if status == "answered" and answer is not None else []
    # A question that has ended has no time of its opening any more: its end comes once.
    opened = turn if status in WAITING else 0
    return derived_id("question event", entry.tenant, entry.question_id, status, opened, *version)
