"""Calls that a person has to approve: which, what is asked, and what became of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Final

from msgspec import Struct
from msgspec.json import encode as encode_json

from loopwarden.answers import Answers
from loopwarden.broker_clock import BrokerClock
from loopwarden.clock import Clock
from loopwarden.decisions import Action, Decision, RunKey
from loopwarden.refusals import Refusal
from loopwarden.tool_calls import Call
from loopwarden_models.errors import ConfigError
from loopwarden_models.events import ToolError
from loopwarden_models.questions import action_hash, action_question_id

# A run that asks on without waiting for an answer must not fill a person's list.
MAX_OPEN_QUESTIONS = 32
# Of one action: more than a person approves one by one.
_MAX_TURNS = 10_000


class Approvals(Struct, frozen=True, kw_only=True):
    """Which calls need a person, for all runs of a guard.

    Attributes:
        tools: Names of tools each call of which is asked for.
        ask: Given tool and arguments, returns what the person is told, or `None` if the call needs nobody. Called in
            the agent's thread before the call; where it fails the person is asked.
        timeout_s: A question that nobody answers for so long has expired, and its call is refused. In seconds.
    """

    tools: Collection[str] = ()
    ask: Callable[[str, object], str | None] | None = None
    timeout_s: float = 3_600.0

    def __post_init__(self) -> None:
        """Refuse what would refuse every call at once.

        Raises:
            ConfigError: `timeout_s` is not above zero, or `tools` is one text instead of a list of them.
        """
        if self.timeout_s <= 0:
            raise ConfigError(f"approvals: timeout_s = {self.timeout_s} must be above zero")
        if isinstance(self.tools, str):
            raise ConfigError(f"approvals: tools = {self.tools!r} is one text: write [{self.tools!r}]")


DEFAULTS: Final = Approvals()


class Question(Struct):
    """A question of this run.

    Attributes:
        question_id: Under which it is answered.
        action: Hash of tool and arguments.
        call: As it will be reported.
        text: What the person is told.
        timeout_ms: How long it waits.
        deadline_ms: End of the wait on the monotonic clock.
        is_over: Nobody is waited for any more: its time was taken off the limits.
    """

    question_id: str
    action: str
    call: Call
    text: str | None
    timeout_ms: int
    deadline_ms: float
    is_over: bool = False


class Outcome(Struct, frozen=True):
    """How a question ended: `approved`, `rejected`, `instructed` or `expired`; `words` of the person, `by` whom."""

    decision: str
    words: str | None = None
    by: str = ""


class RunApprovals:
    """The questions of one run. Thread-safe.

    A question has the same id in the next incarnation: what was answered while the run was down is found. An approval
    is for one call of one action: other arguments, or the same call once more, are another question. An action that a
    person refused is not asked for again.
    """

    def __init__(
        self, key: RunKey, answers: Answers, approvals: Approvals, *, clock: Clock, broker: BrokerClock
    ) -> None:
        self._key = key
        self._answers = answers
        self._approvals = approvals
        self._clock = clock
        self._broker = broker
        self._lock = threading.Lock()
        self._open: dict[str, Question] = {}
        self._taken: set[str] = set()
        self._refused: dict[str, Outcome] = {}

    def is_needed(self, tool: str, args: object, ask: str | None) -> tuple[bool, str | None]:
        """Return whether a call needs a person, and what that person is told. Cost: 0.2 µs."""
        if ask is not None:
            return True, ask
        approvals = self._approvals
        if approvals.ask is not None:
            try:
                text = approvals.ask(tool, args)
            except Exception as error:  # noqa: BLE001 - the one door that must not fail open
                return True, f"the rule that says whether to ask has failed: {error!r}"
            if text is not None:
                return True, text
        return tool in approvals.tools, None

    @property
    def is_waiting(self) -> bool:
        """Whether a question has neither an answer nor run out of time. Cost: 0.1 µs when there is none."""
        return bool(self._open) and any(self.outcome(one) is None for one in self.all_open())

    def refused(self, call: Call) -> Outcome | None:
        """Return what a person said before to the action of a call, if it was no."""
        return self._refused.get(_action_of(call)) if self._refused else None

    def of_call(self, call: Call) -> Question | None:
        """Return the open question under the id of a call; its arguments may have been others."""
        return self._open.get(call.call_id)

    def is_about(self, question: Question, call: Call) -> bool:
        """Return whether a question is about this very action."""
        return question.action == _action_of(call)

    def open(self, call: Call, text: str | None) -> Question | None:
        """Open a question about a call.

        Returns:
            `None` if too many are open, or a former incarnation was told no: then `refused` knows it from now on.
        """
        action = _action_of(call)
        with self._lock:
            if len(self._open) >= MAX_OPEN_QUESTIONS:
                return None
            taken = {one.question_id for one in self._open.values()} | self._taken
            for turn in range(_MAX_TURNS):
                question_id = action_question_id(self._key.tenant, self._key.run_id, action, turn)
                end = self._answers.end_of(question_id)
                if end == "rejected":
                    self._refused[action] = Outcome("rejected")
                    return None
                if end is None and question_id not in taken:
                    break
            timeout_ms = int(self._approvals.timeout_s * 1_000)
            question = Question(question_id, action, call, text, timeout_ms, self._clock.monotonic_ms() + timeout_ms)
            self._open[call.call_id] = question
        return question

    def outcome(self, question: Question) -> Outcome | None:
        """Return how a question ended, `None` while it waits. Cost: 0.5 µs."""
        now_ms = self._clock.monotonic_ms()
        answer = self._answers.get(question.question_id)
        if answer is not None and answer.action_hash == question.action:
            broker_ms = self._broker.at(now_ms)
            if answer.expires_ms is None or broker_ms is None or broker_ms < answer.expires_ms:
                return Outcome(answer.decision, answer.instruction, answer.by)
        return Outcome("expired") if now_ms >= question.deadline_ms else None

    def close(self, question: Question, outcome: Outcome) -> bool:
        """Take a question off; returns False if another thread has. Nothing is asked under its id again."""
        with self._lock:
            if self._open.get(question.call.call_id) is not question:
                return False
            del self._open[question.call.call_id]
            self._taken.add(question.question_id)
            if outcome.decision in {"rejected", "instructed"}:
                self._refused[question.action] = outcome
        return True

    def all_open(self) -> list[Question]:
        """Return the questions that nobody has settled."""
        return list(self._open.values())


def waiting(question: Question) -> Decision:
    """Return the answer for a call that waits for a person."""
    reason = f"{question.call.tool} waits for a person's approval"
    return Decision(Action.PAUSE, reason=reason, question_id=question.question_id)


def refusal(tool: str, outcome: Outcome | None) -> Refusal:
    """Return the refusal of a call that was not approved: what the model reads, and what is reported.

    Args:
        tool: The tool.
        outcome: How its question ended; `None` = it was not asked, too many questions are open.
    """
    settled = "It was not made, and will not be, whatever the wording."
    if outcome is None:
        reason, why = "too_many_questions", "too many calls of this run wait for a person"
        hint = "Wait for the answers that are due, or finish without this call."
    elif outcome.decision == "expired":
        reason, why = "expired", "nobody approved it in time"
        hint = "It was not made. Go on without it, or finish and report what is still to be approved."
    elif outcome.words:
        reason, why = outcome.decision, "a person decided against it"
        hint = f"{settled} The person says: {outcome.words}"
    else:
        reason, why = "rejected", "a person decided against it"
        hint = f"{settled} Take another way, or finish and report it."
    if outcome is not None and outcome.by:
        why = f"{why}: {outcome.by}"
    text = encode_json({"error": "not_approved", "tool": tool, "reason": reason, "hint": hint}).decode()
    error = ToolError(error_class=f"approval:{reason}", message=why)
    return Refusal(Decision(Action.BLOCK, reason=why, message=text), error)


def _action_of(call: Call) -> str:
    # Arguments that nobody knows are equal to nothing: the call stands for itself.
    return action_hash(call.tool, f"call {call.call_id}" if call.args is None else call.args.hash())
