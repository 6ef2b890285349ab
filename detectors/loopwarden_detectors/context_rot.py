"""What becomes of a run whose context is full: compactions that free nothing, work that begins anew, a lost goal."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from msgspec import Struct

from loopwarden_detectors.base import NONE, OBSERVE, WATCHED, WATCHES_CONTEXT, Call, Finding, grade
from loopwarden_detectors.goal_drift import DriftState, count_drift, start_goal
from loopwarden_detectors.identity import FULL
from loopwarden_detectors.ladder_state import is_news
from loopwarden_detectors.rings import HALF, NO_KEY, POLLS, WAITS
from loopwarden_models.effects import POLL, READ
from loopwarden_models.events import AnyStep, Compaction, ModelEnd, RunStart
from loopwarden_models.hashes import stable_key

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState, TreeState
    from loopwarden_models.patterns import Level
    from loopwarden_models.policy import Policy

# Each sign is an identity of its own: what is done about one does not answer for another.
WASTED_KEY: Final = stable_key("context_rot:wasted")
REPEATED_KEY: Final = stable_key("context_rot:repeated")
LOST_KEY: Final = stable_key("context_rot:lost")
DRIFT_KEY: Final = stable_key("context_rot:drift")

_NO_CALL: Final = b""
# Waits and polls between the last call and a compaction. judgement
_LOOK_BACK: Final = 4


class ContextState(Struct, array_like=True, gc=False):
    """The newest compaction of a run, and what was counted over those before it.

    `tokens_before`: 0 if not known. `calls`: how many the run had made. `last_call`: half of the key of the last of
    them, until the first one after it was compared. `wasted`, `repeated`, `lost`: the three signs, in compactions.
    `is_wasted`: the newest one is. `has_moved`: something new came since. `reads`: reads after it that are still
    looked at; `known_reads`: how many brought what was known. `seq`: its own, and `first_…` of the first that counts.
    """

    tokens_before: int
    calls: int
    last_call: bytes
    wasted: int
    repeated: int
    lost: int
    is_wasted: bool
    has_moved: bool
    reads: int
    known_reads: int
    seq: int
    first_seq: int
    first_ms: int
    first_offset: int


class ContextRot:
    """Three signs, in compactions of a run's context, and a fourth in its texts; each with a count of its own.

    *Wasted*: more than 80 % of the tokens are left, or an answer of the model reads 80 % again within five calls that
    brought nothing new; in a row, which ends where a compaction helped, or where the run worked on for more calls than
    that and found something new. *Repeated*: the first call after it is the last one before it, with the same answer.
    *Lost*: of the next six reads three or more bring what was known. The last two need declared or reported evidence
    and that nothing new came since: a run that reads its notes again and works on is healthy, and its counts end.

    *Drift*: the texts have less and less to do with the goal (`goal_drift`). It is observed and no more, and only where
    a policy sets `drift_steps`: it costs more than all rules together, and healthy runs drift as well.

    Levels: observe 1, nudge 2; wasted also kill 3 (`ContextRotConfig`, with sources).
    State: from the first compaction on.
    Cost: 0.1 µs an answer, 0.3 µs a call while the first calls after a compaction are looked at, 2 µs a compaction.
        Drift, where it is on: 15 to 200 µs an answer.
    """

    name: ClassVar[str] = "context_rot"
    pattern: ClassVar[str] = "context_rot"
    kinds: ClassVar[tuple[type[AnyStep], ...]] = (Compaction, ModelEnd, RunStart)

    def observe(self, tree: TreeState, run: RunState, step: AnyStep, policy: Policy, offset: int) -> Finding | None:  # noqa: ARG002
        """Judge a compaction, or how full the context is again. See the class."""
        state = run.context_rot
        config = policy.context_rot
        if type(step) is Compaction:
            return _compact(run, state, step, policy, offset)
        if type(step) is RunStart:
            if step.goal is not None and config.drift_steps is not None:
                run.goal_drift = start_goal(step.goal)
            return None
        if type(step) is not ModelEnd:
            return None
        finding = None if run.goal_drift is None else _drifted(run, run.goal_drift, step, policy, offset)
        return _refilled(run, state, step, policy) or finding


class ContextRotCalls:
    """The calls after a compaction, for `ContextRot`."""

    name: ClassVar[str] = ContextRot.name
    pattern: ClassVar[str] = ContextRot.pattern
    signs: ClassVar[int] = WATCHED

    def observe(self, run: RunState, call: Call, policy: Policy) -> Finding | None:
        """Judge one call. See `ContextRot`."""
        if not run.watched & WATCHES_CONTEXT:
            return None
        state = run.context_rot
        if state is None or call.is_wait or call.effect == POLL:
            return None
        if _is_new(call):
            state.has_moved = True
            state.repeated = state.lost = 0
            run.watched &= ~WATCHES_CONTEXT
            return None
        finding = None
        last_call, state.last_call = state.last_call, _NO_CALL
        if last_call == call.mark[HALF:] and 0 < call.pair_age == call.call_age:
            state.repeated += 1
            finding = _repeated(run, state, policy)
        if call.effect == READ and state.reads:
            state.reads -= 1
            state.known_reads += call.pair_age > 0
            if not state.reads and state.known_reads >= policy.context_rot.lost_reads:
                state.lost += 1
                finding = _lost(run, state, policy) or finding
        return finding


def _refilled(run: RunState, state: ContextState | None, step: ModelEnd, policy: Policy) -> Finding | None:
    if state is None or state.is_wasted or not state.tokens_before:
        return None
    config = policy.context_rot
    usage = step.usage
    if usage is None or usage.input_tokens is None or run.calls - state.calls > config.wasted_calls:
        return None
    if usage.input_tokens * 100 < state.tokens_before * config.wasted_percent or _has_moved(run, state):
        return None
    state.is_wasted = True
    state.wasted += 1
    return _wasted(run, state, policy, state.seq)


def _drifted(run: RunState, drift: DriftState, step: ModelEnd, policy: Policy, offset: int) -> Finding | None:
    config = policy.context_rot
    wanted = config.drift_steps
    if wanted is None or not count_drift(run, drift, step, offset, config.drift_percent) or drift.steps < wanted:
        return None
    if not is_news(run, policy, ContextRot.name, DRIFT_KEY, OBSERVE, drift.steps):
        return None
    return Finding(
        detector=ContextRot.name,
        pattern=ContextRot.pattern,
        level=OBSERVE,
        loop_key=DRIFT_KEY,
        count=drift.steps,
        threshold=wanted,
        first_seq=drift.first_seq,
        first_ms=drift.first_ms,
        first_offset=drift.first_offset,
        note=f"for {drift.steps} answers the texts have had less to do with the goal than the first ones had",
    )


def _compact(
    run: RunState, state: ContextState | None, step: Compaction, policy: Policy, offset: int
) -> Finding | None:
    """Begin with a compaction what is counted after it, and judge it together with what came before it."""
    config = policy.context_rot
    finding = None
    veto_after_seq = step.seq
    if state is None:
        state = run.context_rot = ContextState(0, 0, _NO_CALL, 0, 0, 0, False, False, 0, 0, 0, 0, 0, -1)
    else:
        veto_after_seq = state.seq
        has_moved = _has_moved(run, state)
        if has_moved:
            state.repeated = state.lost = 0
        elif state.reads and state.known_reads >= config.lost_reads:
            state.lost += 1
            finding = _lost(run, state, policy)
        if not state.is_wasted or (has_moved and run.calls - state.calls > config.wasted_calls):
            state.wasted = 0
    if not (state.wasted or state.repeated or state.lost):
        state.first_seq, state.first_ms, state.first_offset = step.seq, run.now_ms, offset
    before, after = step.tokens_before or 0, step.tokens_after
    state.tokens_before = before
    state.calls, state.seq = run.calls, step.seq
    state.last_call = _last_call(run)
    state.has_moved = False
    state.reads, state.known_reads = config.lost_window, 0
    run.watched |= WATCHES_CONTEXT
    state.is_wasted = after is not None and before > 0 and after * 100 > before * config.wasted_percent
    if state.is_wasted:
        state.wasted += 1
        finding = _wasted(run, state, policy, veto_after_seq) or finding
    return finding


def _last_call(run: RunState) -> bytes:
    """Return half of the key of the last call that was no wait and no poll, if it was one of the last few."""
    for back in range(_LOOK_BACK):
        mark, kind = run.ring.before(back)
        if not mark or not kind & (WAITS | POLLS):
            return b"" if mark[HALF:] == NO_KEY else mark[HALF:]
    return _NO_CALL


def _has_moved(run: RunState, state: ContextState) -> bool:
    """Return whether the run found or wrote something new since the compaction, or says that it moved on."""
    return (
        state.has_moved or run.write_call > state.calls or run.novel_call > state.calls or run.progress_seq > state.seq
    )


def _is_new(call: Call) -> bool:
    """Return whether a call brought, or may have brought, what the run did not know. Unknown answers may be new."""
    return call.outcome == "ok" and call.emptiness == FULL and not (call.has_pair and call.pair_age)


def _wasted(run: RunState, state: ContextState, policy: Policy, veto_after_seq: int) -> Finding | None:
    config = policy.context_rot
    graded = grade(state.wasted, config.observe, config.nudge, kill=config.kill)
    note = f"{state.wasted} compactions in a row freed next to nothing, or what they freed was full again at once"
    return _finding(run, state, policy, WASTED_KEY, state.wasted, graded, note, veto_after_seq)


def _repeated(run: RunState, state: ContextState, policy: Policy) -> Finding | None:
    config = policy.context_rot
    graded = grade(state.repeated, config.observe, config.nudge)
    note = f"after {state.repeated} compactions the first call was the last one before it, with the same answer"
    return _finding(run, state, policy, REPEATED_KEY, state.repeated, graded, note)


def _lost(run: RunState, state: ContextState, policy: Policy) -> Finding | None:
    config = policy.context_rot
    graded = grade(state.lost, config.observe, config.nudge)
    note = f"after {state.lost} compactions only what was known was read again"
    return _finding(run, state, policy, LOST_KEY, state.lost, graded, note)


def _finding(
    run: RunState,
    state: ContextState,
    policy: Policy,
    loop_key: int,
    count: int,
    graded: tuple[Level, int],
    note: str,
    veto_after_seq: int = -1,
) -> Finding | None:
    level, threshold = graded
    if level == NONE or not is_news(run, policy, ContextRot.name, loop_key, level, count, veto_after_seq):
        return None
    return Finding(
        detector=ContextRot.name,
        pattern=ContextRot.pattern,
        level=level,
        loop_key=loop_key,
        count=count,
        threshold=threshold,
        first_seq=state.first_seq,
        first_ms=state.first_ms,
        first_offset=state.first_offset,
        veto_after_seq=veto_after_seq,
        note=note,
    )
