"""The way in: one step event of a tree, and what has to be said and done about it.

The same function judges in the worker, in `loopwarden replay` and in a test. Equal events give equal decisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from zlib import crc32

from loopwarden_detectors import lifecycle
from loopwarden_detectors.base import ANY_SIGN, BUSY, ERRORS, REPEATED, STREAK, WENT_WRONG, Call, CallDetector, Finding
from loopwarden_detectors.budget import Budget
from loopwarden_detectors.changing_repeat import ChangingRepeat
from loopwarden_detectors.cycle import Cycle
from loopwarden_detectors.exact_repeat import ExactRepeat
from loopwarden_detectors.identity import effect_of, is_wait, keys_of, pair_key
from loopwarden_detectors.ladder import Decision, climb
from loopwarden_detectors.rate import MIN_PER_MIN, Rate
from loopwarden_detectors.rings import GUARDED, KEPT_CALLS, MARK, POLLS, UNDECLARED, WAITS, add_new_key, mark_of
from loopwarden_detectors.run_state import MAX_CALL_ID_BYTES, RunState, TreeState
from loopwarden_detectors.same_error import SameError
from loopwarden_models.effects import FAILED, GUARD_ANSWERS, NOT_RUN, POLL, UNKNOWN, WRITE
from loopwarden_models.events import (
    MAX_INT,
    AnyStep,
    ApprovalEnd,
    ApprovalWait,
    ModelEnd,
    Progress,
    RunEnd,
    RunStart,
    ToolEnd,
    ToolStart,
    UserInput,
)
from loopwarden_models.policy import Policy

# In order of the catalogue: of two findings of one level the earlier one gives the order.
CALL_DETECTORS: Final[tuple[CallDetector, ...]] = (ExactRepeat(), ChangingRepeat(), Cycle(), SameError(), Rate())
BUDGET: Final = Budget()
DETECTORS: Final = (*(detector.name for detector in CALL_DETECTORS), BUDGET.name)

# By the signs of a call: the rules that look at it.
_ASKED = tuple(
    tuple(detector.observe for detector in CALL_DETECTORS if detector.signs & signs) for signs in range(ANY_SIGN + 1)
)
_OBSERVE_TREE = BUDGET.observe

NOTHING: Final[Sequence[Decision]] = ()

_KINDS: Final = {POLL: POLLS, UNKNOWN: UNDECLARED}
_BUSY_BYTES: Final = MIN_PER_MIN * MARK

# Calls of one round: what is announced beyond does not make one round of all that follows. judgement
MAX_ROUND: Final = 128

_VIOLATION: Final = Decision(verdict=None, is_violation=True)


def observe(
    tree: TreeState,
    step: AnyStep,
    policy: Policy,
    *,
    offset: int = -1,
    latest_ms: int | None = None,
    act: bool = True,
) -> Sequence[Decision]:
    """Judge one step event.

    Args:
        tree: State of the event's tree, changed in place. Unchanged if the event is a duplicate or is refused.
        step: The event; its tenant and root are those of `tree`.
        policy: In force for the tenant.
        offset: Source offset, kept as evidence; -1 if there is none. `tree.steps_offset` is the caller's to set.
        latest_ms: Upper bound of the event's time in Unix milliseconds, usually when the broker got it plus a
            tolerance. A clock that runs ahead is cut to it.
        act: See `ladder.climb`.

    Returns:
        Decisions to publish, in order. Empty for nearly every event of a healthy run.

    Raises:
        InvalidEvent: A hash is not hexadecimal, or content that must be hashed has no canonical form.

    Cost: about 4.5 µs for a finished call of a healthy run, 1 µs for other events, 8 µs more for each verdict
    (benchmarks/detectors.py).
    """
    if type(step) is ToolEnd:
        # Before anything changes: a call whose keys cannot be made is refused as a whole.
        keys = keys_of(step)
        run = lifecycle.admit(tree, step, latest_ms)
        if run is None:
            return NOTHING
        return _end_call(tree, run, step, keys, policy, offset, act)
    run = lifecycle.admit(tree, step, latest_ms)
    return NOTHING if run is None else _observe_other(tree, run, step, policy, act)


def tick(tree: TreeState, now_ms: int, policy: Policy, *, act: bool = True) -> Sequence[Decision]:
    """Judge what needs no event: wall clock. A level, not an edge: true again at the next tick if it is lost.

    Args:
        tree: Its clock stays that of its events: a tick is no event.
        now_ms: Time of the tick on the partition's clock, in Unix milliseconds.
        policy: In force for the tenant.
        act: See `ladder.climb`.

    Cost: 0.3 µs for a tree without a wall-clock limit.
    """
    limits = tree.limits or policy.budget.limits
    if now_ms <= tree.now_ms or tree.is_over:
        return NOTHING
    decisions: list[Decision] = []
    for run in tree.runs.values():
        own = run.own
        if limits.max_duration_ms is None and (own is None or own.limits.max_duration_ms is None):
            continue
        if not run.is_over:
            findings = _OBSERVE_TREE(tree, run, policy, now_ms)
            if findings:
                decisions += climb(tree, run, findings, policy, seq=max(run.seq, 0), act=act, now_ms=now_ms)
    return decisions


def _end_call(
    tree: TreeState, run: RunState, step: ToolEnd, keys: tuple[int, int], policy: Policy, offset: int, act: bool
) -> Sequence[Decision]:
    call_id = step.call_id
    id_key = 0
    start_ms = None
    if call_id is not None:
        id_key = crc32(call_id.encode())
        if run.open_calls is not None:
            start_ms = lifecycle.close_call(run, id_key)
        if not add_new_key(run.call_ids, id_key.to_bytes(4, "little"), max_bytes=MAX_CALL_ID_BYTES):
            return NOTHING
        if run.waits is not None:
            lifecycle.end_wait(tree, run, id_key)
    elif run.open_calls is not None:
        start_ms = lifecycle.close_call(run, id_key)
    if start_ms is None:
        tree.attempts += 1
        if run.own is not None:
            run.own.attempts += 1
    if step.cost_usd is not None:
        _count_cost(tree, run, step.cost_usd)
    run.calls += 1
    if run.approved is not None and lifecycle.take_approval(run, id_key):
        run.forget_call(keys[0])
    # A call whose start was seen was looked at then.
    is_violation = run.stop is not None and start_ms is None and _goes_on(tree, run, step)
    call = _remember_call(run, step, keys, policy, offset)
    findings: list[Finding] | None = None
    if call is not None:
        for look in _ASKED[call.signs]:
            finding = look(run, call, policy)
            if finding is not None:
                findings = [finding] if findings is None else [*findings, finding]
    of_tree = _OBSERVE_TREE(tree, run, policy, tree.now_ms)
    if findings is None and not of_tree and not is_violation:
        return NOTHING
    if of_tree:
        findings = [*(findings or ()), *of_tree]
    decisions = climb(tree, run, findings or (), policy, seq=step.seq, act=act)
    return [*decisions, _VIOLATION] if is_violation else decisions


def _remember_call(run: RunState, step: ToolEnd, keys: tuple[int, int], policy: Policy, offset: int) -> Call | None:
    """Put the call into the run's shared memory; return what the detectors compare if one of them is to look at it."""
    key, result = keys
    effect = effect_of(step, policy)
    outcome = step.outcome or "ok"
    wait = is_wait(step, effect)
    kind = WAITS if wait and effect != POLL else _KINDS.get(effect, 0)
    signs = 0
    if outcome != "ok":
        if outcome in FAILED:
            signs = WENT_WRONG
        else:
            # The guard or the framework answered, or something that this version does not know: an attempt, no result.
            result = 0
            kind |= GUARDED if outcome in GUARD_ANSWERS else 0
    pair = pair_key(key, result)
    mark = mark_of(pair, key)
    ring = run.ring
    newest = ring.find_call(mark)
    pair_age = call_age = 0
    if newest >= 0:
        signs |= REPEATED
        held = len(ring)
        call_age = held - newest
        if pair:
            place, has_changed = ring.find_answer(newest, mark)
            pair_age = held - place if place >= 0 else 0
            if has_changed and not wait:
                run.progress_seq = step.seq
    is_new_write = False
    # A write whose answer is not reported is as old as the call.
    if effect == WRITE and outcome == "ok" and not 0 < (pair_age if pair else call_age) <= KEPT_CALLS:
        is_new_write = True
        run.progress_seq = step.seq
    in_round = 0
    if run.round_left:
        run.round_left -= 1
        in_round = run.round_size
    if not in_round:
        run.round += 1
    run.round_size = in_round + 1
    ring.append(mark, step.seq, offset, run.now_ms - run.started_ms, kind | run.tool_number(step.tool), in_round)
    if run.exact_repeat is not None or run.changing_repeat is not None:
        signs |= STREAK
    if run.same_error:
        signs |= ERRORS
    if run.rate is not None or len(ring.marks) >= _BUSY_BYTES:
        signs |= BUSY
    if not signs:
        return None
    return Call(
        step,
        signs,
        step.tool,
        effect,
        outcome,
        key,
        result,
        pair,
        mark,
        run.round,
        in_round,
        call_age,
        pair_age,
        is_new_write,
        wait,
        offset,
    )


def _observe_other(tree: TreeState, run: RunState, step: AnyStep, policy: Policy, act: bool) -> Sequence[Decision]:
    is_violation = False
    if type(step) is ModelEnd:
        _count_model_call(tree, run, step)
        is_violation = run.stop is not None and lifecycle.goes_on(tree, run, _began_ms(step))
    elif type(step) is ToolStart:
        if lifecycle.open_call(run, step):
            tree.attempts += 1
            if run.own is not None:
                run.own.attempts += 1
        is_violation = run.stop is not None and lifecycle.goes_on(tree, run, step.ts_ms)
    elif type(step) is RunStart:
        lifecycle.start_run(tree, run, step, policy)
    elif type(step) is RunEnd:
        lifecycle.end_run(tree, run)
    elif type(step) is UserInput:
        run.start_segment()
    elif type(step) is Progress:
        run.progress_seq = step.seq
    elif type(step) is ApprovalWait:
        lifecycle.start_approval(tree, run, step)
    elif type(step) is ApprovalEnd:
        lifecycle.end_approval(tree, run, step)
    findings = _OBSERVE_TREE(tree, run, policy, tree.now_ms)
    if not findings and not is_violation:
        return NOTHING
    decisions = climb(tree, run, findings, policy, seq=step.seq, act=act)
    return [*decisions, _VIOLATION] if is_violation else decisions


def _goes_on(tree: TreeState, run: RunState, step: ToolEnd) -> bool:
    if (step.outcome or "ok") in NOT_RUN:
        return False
    began_ms = _began_ms(step)
    if began_ms is None and run.round_left > 0 and run.round_size > 0:
        return False  # it began with the others of its batch, one of which was looked at
    return lifecycle.goes_on(tree, run, began_ms)


def _began_ms(step: ToolEnd | ModelEnd) -> int | None:
    """Return when the step began by the source's clock, `None` if it does not say."""
    return None if step.duration_ms is None else step.ts_ms - int(step.duration_ms)


def _count_cost(tree: TreeState, run: RunState, cost_usd: float) -> None:
    tree.cost_usd += cost_usd
    if run.own is not None:
        run.own.cost_usd += cost_usd


def _count_model_call(tree: TreeState, run: RunState, step: ModelEnd) -> None:
    announced = step.tool_calls
    run.round_left = 0 if announced is None else min(announced, MAX_ROUND)
    run.round_size = 0
    tree.model_calls += 1
    own = run.own
    if own is not None:
        own.model_calls += 1
    usage = step.usage
    if usage is not None:
        tokens = (usage.input_tokens or 0) + (usage.output_tokens or 0)
        # Nothing sane comes near it, but the sum has to fit into a snapshot whatever a runtime reports.
        tree.tokens = min(tree.tokens + tokens, MAX_INT)
        if own is not None:
            own.tokens = min(own.tokens + tokens, MAX_INT)
    if step.cost_usd is not None:
        _count_cost(tree, run, step.cost_usd)
