"""The part of a run's guard that asks people, and obeys what they say."""

from __future__ import annotations

from loopwarden.approvals import Outcome, Question, refusal, waiting
from loopwarden.decisions import Decision
from loopwarden.refusals import Refusal
from loopwarden.run_control import RunControl
from loopwarden.tool_calls import Call
from loopwarden_models.events import ApprovalEnd, ApprovalWait, UserInput

_TEXT_CHARS = 2_000


class RunQuestions(RunControl):
    """Questions about calls of one run. Thread-safe; waits for nobody: that is `wait_if_paused`."""

    def _consult(self, call: Call, text: str | None, now_ms: float) -> Decision | Refusal | None:
        """Return `PAUSE` while a person is asked, a refusal if that person or nobody agreed, `None` if approved.

        `None` as well if the call is refused for another reason, whatever a person says: then nobody is asked.
        """
        approvals = self._approvals
        if self._is_shut(call.tool, now_ms):
            return None
        before = approvals.refused(call)
        if before is not None:
            return refusal(call.tool, before)
        question = approvals.of_call(call)
        if question is not None and not approvals.is_about(question, call):
            # The arguments have changed: what was asked is not what is to be done.
            self._settle(question, Outcome("expired"))
            question = None
        if question is None:
            question = approvals.open(call, text)
            if question is None:
                return refusal(call.tool, approvals.refused(call))
            self._ask(question)
        outcome = approvals.outcome(question)
        if outcome is None:
            return waiting(question)
        self._stop_waiting(question)
        if outcome.decision == "approved":
            return None
        self._settle(question, outcome)
        return refusal(call.tool, outcome)

    def _is_shut(self, tool: str, now_ms: float) -> bool:
        """Return whether the call would be refused whatever a person says: then nobody is asked."""
        if self._gate.blocked and self._blocked(tool, now_ms) is not None:
            return True
        breaker = self._breakers.in_force.get(tool)
        return breaker is not None and self._broken(tool, breaker, now_ms) is not None

    def _use_approval(self, call: Call) -> str | None:
        """Use up the approval of a call that is made now; return the id of its question."""
        question = self._approvals.of_call(call)
        if question is None:
            return None
        self._settle(question, Outcome("approved"))
        return question.question_id

    def _expire_questions(self) -> None:
        """End what is still asked: the run is over, and nobody waits for the answer any more."""
        for question in self._approvals.all_open():
            self._settle(question, Outcome("expired"))

    def _stop_waiting(self, question: Question) -> None:
        # Before the limits are looked at: the time of the wait counts against none of them.
        if not question.is_over:
            question.is_over = True
            self._end_wait()

    def _ask(self, question: Question) -> None:
        call = question.call
        self._counters.add("questions_asked")
        self._begin_wait()
        text = question.text if question.text is None else question.text[:_TEXT_CHARS]
        fields = {
            "call_id": call.call_id,
            "question_id": question.question_id,
            "tool": call.tool,
            "action_hash": question.action,
            "question": text,
            "timeout_ms": question.timeout_ms,
        }
        self._reporter.emit(ApprovalWait, fields, args=call.args, text_chars=len(text or ""))

    def _settle(self, question: Question, outcome: Outcome) -> None:
        if not self._approvals.close(question, outcome):
            return
        self._stop_waiting(question)
        decision = outcome.decision
        if self._gate.cause is not None:
            decision = "expired"
        elif decision == "instructed":
            decision = "rejected"
        self._counters.add(f"questions_{decision}")
        fields = {
            "call_id": question.call.call_id,
            "decision": decision,
            "question_id": question.question_id,
            "tool": question.call.tool,
            "action_hash": question.action,
        }
        self._reporter.emit(ApprovalEnd, fields)
        if outcome.decision == "instructed" and decision == "rejected":
            self._reporter.emit(UserInput, {})
