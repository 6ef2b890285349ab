"""Calls that a policy, a person or a breaker refused, tried again in other words: the rule forbids the act."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Final

from msgspec import Struct, field

from loopwarden_detectors.base import REFUSED, WATCHED, WATCHES_DENIALS, Call, Finding
from loopwarden_detectors.identity import call_id_key
from loopwarden_detectors.refusals import RefusalState, count_refusal, finding_of, forgive
from loopwarden_detectors.tool_block import block_of
from loopwarden_models.hashes import stable_key

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState
    from loopwarden_detectors.tool_block import ToolBlock
    from loopwarden_models.events import ApprovalEnd
    from loopwarden_models.policy import Policy

# Policies that are told apart; the one that refused longest ago leaves. judgement
MAX_POLICIES: Final = 4

# Rejections whose call has not been reported yet; more than may be pending at once are stale.
_MAX_REJECTED: Final = 8

# Below it lie the numbers of rejections, each of which is a round of its own.
_NO_ROUND: Final = -2

# Nothing on the wire bounds the name of an error class; the memo keeps it.
_CLASS_CHARS: Final = 256
_MEMO: Final = 1_024


class DeniedState(Struct, array_like=True, gc=False):
    """Refusals of each policy, and the keys of calls whose rejection by a person was counted already."""

    policies: list[RefusalState] = field(default_factory=list)
    rejected: list[int] = field(default_factory=list)


class Denied:
    """`n` = calls in the segment that the same policy refused, whatever their arguments.

    The policy of a `denied` call is its `error.class`, else its tool; of a `blocked` call its tool, which has one
    breaker; what people reject (`approval_end`) is of one policy. Ten productive calls in a row forget one refusal of
    each, an approval forgets all. A round counts once, and so do the approvals that were pending side by side.

    Levels: observe 1, nudge 2, kill 5 (`DeniedConfig`, with sources). Progress since the first turns the kill into a
    nudge, until as many came without any.
    Cost: 0.1 µs; 0.3 µs for every call after a refusal, until it is forgiven.
    """

    name: ClassVar[str] = "denied"
    pattern: ClassVar[str] = "guardrail_loop"
    signs: ClassVar[int] = REFUSED | WATCHED

    def observe(self, run: RunState, call: Call, policy: Policy) -> Finding | None:
        """Judge one call. See the class."""
        state = run.denied
        outcome = call.outcome
        if outcome not in ("denied", "blocked"):
            if state is not None:
                _forgive(run, state, call, policy)
            return None
        step = call.step
        if outcome == "denied" and state is not None and state.rejected:
            id_key = call_id_key(step.call_id)
            if id_key in state.rejected:
                state.rejected.remove(id_key)
                return None  # the rejection of this very call was counted
        error_class = step.error.error_class if step.error is not None and outcome == "denied" else None
        by = f"class {error_class[:_CLASS_CHARS]}" if error_class else f"tool {call.tool}"
        refusals = _refusals_of(run, _policy_key(f"{outcome} {by}"))
        if not count_refusal(refusals, run, call.round, step.seq, call.offset):
            return None
        block = block_of(run, call.tool) if outcome == "blocked" else None
        why, cause = ("", None) if block is None else (_why(block), block.cause)
        note = f"{call.tool} was {outcome}{why}; calls refused by the same rule: " + "{count}"
        names = self.name, self.pattern
        return finding_of(run, policy, policy.denied, refusals, names, (call.tool,), note, cause)

    def observe_rejection(self, run: RunState, step: ApprovalEnd, policy: Policy, offset: int) -> Finding | None:
        """Judge a person's decision on a call, after `lifecycle.end_approval`."""
        if step.decision != "rejected":
            return None
        refusals = _refusals_of(run, _PERSON)
        state = run.denied
        if state is not None and step.call_id is not None:
            state.rejected = [*state.rejected, call_id_key(step.call_id)][-_MAX_REJECTED:]
        if run.waits:
            return None  # one of several that were asked for together: the last one counts
        if not count_refusal(refusals, run, _NO_ROUND - step.seq, step.seq, offset):
            return None
        note = "a person rejected a call; rejections so far: {count}"
        return finding_of(run, policy, policy.denied, refusals, (self.name, self.pattern), (), note)


def _why(block: ToolBlock) -> str:
    """Return the reason of a block, in words that a person can look up."""
    return f" because of {block.pattern} ({block.detector} counted {block.count})" if block.pattern else ""


def forget_denials(run: RunState) -> None:
    """Forget what was refused: a person approved something."""
    run.denied = None
    run.watched &= ~WATCHES_DENIALS


def _forgive(run: RunState, state: DeniedState, call: Call, policy: Policy) -> None:
    after = policy.denied.forgive_after
    left = [known for known in state.policies if not forgive(known, call, after)]
    if not left:
        forget_denials(run)
    elif len(left) != len(state.policies):
        state.policies = left


def _refusals_of(run: RunState, key: int) -> RefusalState:
    state = run.denied
    if state is None:
        state = run.denied = DeniedState()
        run.watched |= WATCHES_DENIALS
    policies = state.policies
    for known in policies:
        if known.key == key:
            return known
    if len(policies) >= MAX_POLICIES:
        policies.remove(min(policies, key=lambda known: known.last_call))
    refusals = RefusalState(key)
    policies.append(refusals)
    return refusals


@lru_cache(_MEMO)
def _policy_key(text: str) -> int:
    return stable_key(text) or 1


_PERSON: Final = _policy_key("rejected by a person")
