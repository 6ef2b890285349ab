"""What people are asked: whether a call may be made, and what is to become of a run that was paused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from loopwarden_models.commands import Reason
from loopwarden_models.questions import QUESTION_STATES, QuestionKind, QuestionState

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState, TreeState
    from loopwarden_detectors.stops import StopState
    from loopwarden_models.events import ApprovalEnd, ApprovalWait


class Question(Struct, frozen=True, kw_only=True, gc=False):
    """A question that is open from now on, or how one ended. Version and place are put on where it is published.

    Attributes:
        question_id: Its id; that of a pause is the id of the command.
        at_ms: When it was asked, or ended, in Unix milliseconds.
        timeout_ms: How long it waits; none = for ever.
    """

    tenant: str
    question_id: str
    kind: QuestionKind
    state: QuestionState
    run_id: str
    root_run_id: str
    incarnation: str
    agent: str
    at_ms: int
    timeout_ms: int | None = None
    tool: str | None = None
    action_hash: str | None = None
    call_id: str | None = None
    reason: Reason | None = None


def of_pause(
    tree: TreeState, run: RunState, run_id: str, command_id: str, reason: Reason, now_ms: int, timeout_ms: int | None
) -> Question:
    """Return the question that goes with an order to pause: is the run to go on, or to end?"""
    return Question(
        tenant=tree.tenant,
        question_id=command_id,
        kind="pause",
        state="open",
        run_id=run_id,
        root_run_id=tree.root_run_id,
        incarnation=run.incarnation,
        agent=run.agent,
        at_ms=now_ms,
        timeout_ms=timeout_ms,
        tool=reason.tool,
        reason=reason,
    )


def end_of_pause(tree: TreeState, run: RunState, run_id: str, stop: StopState, state: QuestionState) -> Question:
    """Return how the question of a pause ended."""
    return Question(
        tenant=tree.tenant,
        question_id=stop.command_id,
        kind="pause",
        state=state,
        run_id=run_id,
        root_run_id=tree.root_run_id,
        incarnation=run.incarnation,
        agent=run.agent,
        at_ms=run.now_ms,
        reason=Reason(pattern=stop.pattern, detector=stop.detector, count=stop.count),
    )


def of_action(tree: TreeState, run: RunState, step: ApprovalWait | ApprovalEnd) -> Question | None:
    """Return what a step asks of people, or says of an earlier question; `None` if it has no id to answer under."""
    if not step.question_id:
        return None
    decision = getattr(step, "decision", "open")
    state: QuestionState = "expired"
    for known in QUESTION_STATES:
        if decision == known:
            state = known
    return Question(
        tenant=tree.tenant,
        question_id=step.question_id,
        kind="action",
        state=state,
        run_id=step.run_id,
        root_run_id=tree.root_run_id,
        incarnation=run.incarnation,
        agent=run.agent,
        at_ms=run.now_ms,
        timeout_ms=getattr(step, "timeout_ms", None),
        tool=getattr(step, "tool", None),
        action_hash=getattr(step, "action_hash", None),
        call_id=step.call_id,
    )
