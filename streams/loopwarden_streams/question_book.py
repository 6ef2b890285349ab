"""What people are asked and what they answered, as `control.state` says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, get_args

from msgspec import Struct

from loopwarden_models.codec import decode_message
from loopwarden_models.errors import InvalidEvent
from loopwarden_models.questions import AnswerRecord, QuestionRecord
from loopwarden_streams.metric_questions import QuestionStatus

STATUSES: Final[tuple[QuestionStatus, ...]] = get_args(QuestionStatus)

_PARTS: Final = 3


class Entry(Struct):
    """A question with its answer.

    Attributes:
        tenant: Who is asked.
        question_id: Under which it is answered.
        question: The newest record of the detector; `None` if only the answer was read.
        answer: The answer of the highest version.
        append_ms: When the broker got the newest record of the two, in Unix milliseconds.
    """

    tenant: str
    question_id: str
    question: QuestionRecord | None = None
    answer: AnswerRecord | None = None
    append_ms: int = 0

    def status(self, now_ms: int) -> QuestionStatus:
        """Return how it stands at a time in Unix milliseconds; `answered` is what no runtime has taken up yet."""
        question, answer = self.question, self.answer
        for known in STATUSES:
            if question is not None and question.state == known and known != "open":
                return known
        expires_ms = None if question is None else question.expires_at_ms
        if expires_ms is not None and now_ms >= expires_ms:
            return "expired"
        if question is None or answer is None:
            return "open" if question is not None else "expired"
        # An answer to the question of a former incarnation that came too late is none to this one.
        is_old = answer.expires_at_ms is not None and now_ms >= answer.expires_at_ms
        return "open" if is_old or answer.action_hash != question.action_hash else "answered"


class QuestionBook:
    """Takes the records of `control.state` in the order of each partition. Not thread-safe.

    Attributes:
        unreadable: Records of ours that are none of the contract.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], Entry] = {}
        self.unreadable = 0

    def put(self, key: bytes | None, value: bytes | None, append_ms: int) -> Entry | None:
        """Take one record; `value` is `None` for a deletion. Returns the question that it changed, if it did."""
        parts = (key or b"").decode("utf-8", "replace").split("|", _PARTS - 1)
        if len(parts) != _PARTS or parts[1] not in {"question", "approval"} or not parts[2]:
            return None
        tenant, kind, question_id = parts
        if value is None:
            self._forget(tenant, question_id, kind)
            return None
        entry = self._entries.get((tenant, question_id)) or Entry(tenant, question_id)
        try:
            if kind == "question":
                entry.question = decode_message(value, QuestionRecord)
            else:
                answer = decode_message(value, AnswerRecord)
                if entry.answer is not None and answer.version < entry.answer.version:
                    return None
                entry.answer = answer
        except InvalidEvent:
            self.unreadable += 1
            return None
        self._entries[tenant, question_id] = entry
        entry.append_ms = max(entry.append_ms, append_ms)
        return entry

    def __len__(self) -> int:
        return len(self._entries)

    def entries(self, tenant: str = "") -> Iterator[Entry]:
        """Yield the questions of a tenant, or of all, the oldest first."""
        found = [entry for entry in self._entries.values() if tenant in {"", entry.tenant}]
        yield from sorted(found, key=lambda entry: (entry.append_ms, entry.tenant, entry.question_id))

    def find(self, tenant: str, prefix: str) -> list[Entry]:
        """Return the questions of a tenant whose id is, or begins with, `prefix`; one if it is a whole id."""
        whole = self._entries.get((tenant, prefix))
        if whole is not None:
            return [whole]
        return [entry for entry in self.entries(tenant) if entry.question_id.startswith(prefix)]

    def _forget(self, tenant: str, question_id: str, kind: str) -> None:
        entry = self._entries.get((tenant, question_id))
        if entry is None:
            return
        if kind == "question":
            entry.question = None
        else:
            entry.answer = None
        if entry.question is None and entry.answer is None:
            del self._entries[tenant, question_id]
