"""What people answered, and how questions ended, as `control.state` says: written by the control thread."""

from __future__ import annotations

from msgspec import Struct

from loopwarden_models.questions import ANSWER_DECISIONS, AnswerRecord, QuestionRecord


class Answer(Struct, frozen=True):
    """What a person decided.

    Attributes:
        decision: `approved`, `rejected` or `instructed`.
        action_hash: The action that it is for.
        expires_ms: Until when it may be taken up, by the broker's clock; `None` = no end.
        instruction: Words for the model, where they are allowed.
        by: Who, and why.
    """

    decision: str
    action_hash: str | None
    expires_ms: int | None
    instruction: str | None
    by: str


class Answers:
    """The answers of one tenant. One thread writes; any reads, without a lock: each look is one operation on a dict."""

    def __init__(self) -> None:
        self._answers: dict[str, Answer] = {}
        self._versions: dict[str, list[int]] = {}
        self._ends: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, question_id: str) -> Answer | None:
        """Return the answer to a question, if a person gave one."""
        return self._answers.get(question_id)

    def end_of(self, question_id: str) -> str | None:
        """Return how a question ended, `None` while it is open or was never asked."""
        return self._ends.get(question_id)

    def put_question(self, question_id: str, record: QuestionRecord | None) -> None:
        """Take what the detector says of a question; `None` deletes it. Its writer's order is that of the topic."""
        if record is None or record.state == "open":
            self._ends.pop(question_id, None)
        else:
            self._ends[question_id] = record.state

    def put_answer(self, question_id: str, record: AnswerRecord | None, *, may_speak: bool) -> bool:
        """Take an answer; `None` deletes it. Of two the higher version counts.

        Args:
            question_id: From the key.
            record: As read.
            may_speak: Whether its words may reach a model.

        Returns:
            False for a decision that this version does not know: the question stays open.
        """
        if record is None:
            self._answers.pop(question_id, None)
            self._versions.pop(question_id, None)
            return True
        if record.decision not in ANSWER_DECISIONS:
            return False
        known = self._versions.get(question_id)
        if known is not None and record.version < known:
            return True
        self._versions[question_id] = record.version
        reason = record.reason
        self._answers[question_id] = Answer(
            record.decision,
            record.action_hash,
            record.expires_at_ms,
            record.instruction if may_speak else None,
            (reason.note or "") if reason is not None else "",
        )
        return True
