"""The way in: one step event of a tree, and what has to be said and done about it.

The same function judges in the worker, in `loopwarden replay` and in a test. Equal events give equal decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final
from zlib import crc32

from msgspec import UNSET

from loopwarden_detectors import goal_drift, landing, lifecycle
from loopwarden_detectors.base import (
    ANY_SIGN,
    Call,
    CallDetector,
    Finding,
    StepDetector,
    TickDetector,
)
from loopwarden_detectors.budget import Budget, count_answer, count_cost
from loopwarden_detectors.call_memory import remember_call
from loopwarden_detectors.changing_repeat import ChangingRepeat
from loopwarden_detectors.context_rot import ContextRot, ContextRotCalls
from loopwarden_detectors.cycle import Cycle
from loopwarden_detectors.denied import Denied
from loopwarden_detectors.exact_repeat import ExactRepeat
from loopwarden_detectors.frozen_poll import FrozenPoll, end_waits
from loopwarden_detectors.identity import keys_of
from loopwarden_detectors.interleaved_repeat import InterleavedRepeat
from loopwarden_detectors.ladder import Decision, climb
from loopwarden_detectors.meaning import Meaning
from loopwarden_detectors.near_text import NearText
from loopwarden_detectors.no_progress import NoProgress
from loopwarden_detectors.no_write import NoWrite
from loopwarden_detectors.param_walk import ParamWalk
from loopwarden_detectors.ping_pong import PingPong
from loopwarden_detectors.questions import end_of_pause, of_action
from loopwarden_detectors.rate import Rate
from loopwarden_detectors.reflection import Reflection
from loopwarden_detectors.resweep import Resweep
from loopwarden_detectors.retry_storm import RetryStorm
from loopwarden_detectors.rings import add_new_key
from loopwarden_detectors.run_state import MAX_CALL_ID_BYTES, RunState, TreeState
from loopwarden_detectors.same_error import SameError
from loopwarden_detectors.same_error_raw import SameErrorRaw
from loopwarden_detectors.same_output import SameOutput
from loopwarden_detectors.self_append import SelfAppend
from loopwarden_detectors.semantic_repeat import SemanticRepeat
from loopwarden_detectors.silent_run import SilentRun
from loopwarden_detectors.sleep_only import SleepOnly
from loopwarden_detectors.stops import StopState
from loopwarden_detectors.text_chant import TextChant
from loopwarden_detectors.unknown_tool import UnknownTool
from loopwarden_models.effects import NOT_RUN
from loopwarden_models.events import (
    MAX_INT,
    STEP_TYPES,
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
CALL_DETECTORS: Final[tuple[CallDetector, ...]] = (
    ExactRepeat(),
    ChangingRepeat(),
    FrozenPoll(),
    Cycle(),
    InterleavedRepeat(),
    SameError(),
    SameErrorRaw(),
    SameOutput(),
    UnknownTool(),
    Denied(),
    RetryStorm(),
    Resweep(),
    SelfAppend(),
    ParamWalk(),
    ContextRotCalls(),
    NoProgress(),
    NoWrite(),
    Rate(),
    SleepOnly(),
)
_REFLECTION: Final = Reflection()
_SILENT_RUN: Final = SilentRun()
STEP_DETECTORS: Final[tuple[StepDetector, ...]] = (
    TextChant(),
    NearText(),
    _REFLECTION,
    ContextRot(),
    PingPong(),
    _SILENT_RUN,
)
TICK_DETECTORS: Final[tuple[TickDetector, ...]] = (_REFLECTION, _SILENT_RUN)
BUDGET: Final = Budget()
# Asked where there is a model of texts.
SEMANTIC: Final = SemanticRepeat()
# A person's rejection is no call: the rule about refusals is asked for it besides.
_OBSERVE_REJECTION = Denied().observe_rejection
DETECTORS: Final = tuple(
    dict.fromkeys(
        (
            *(rule.name for rule in CALL_DETECTORS),
            *(rule.name for rule in STEP_DETECTORS),
            SEMANTIC.name,
            BUDGET.name,
            *(rule.name for rule in TICK_DETECTORS),
        )
    )
)

# By the signs of a call: the rules that look at it.
_ASKED = tuple(
    tuple(detector.observe for detector in CALL_DETECTORS if detector.signs & signs) for signs in range(ANY_SIGN + 1)
)
# By the type of another step: the same.
_ASKED_AT: dict[type[AnyStep], tuple[Callable[..., Finding | None], ...]] = {
    kind: tuple(detector.observe for detector in STEP_DETECTORS if kind in detector.kinds) for kind in STEP_TYPES
}
_TICKED = tuple(detector.tick for detector in TICK_DETECTORS)
_OBSERVE_TREE = BUDGET.observe

NOTHING: Final[Sequence[Decision]] = ()

# Calls of one round: what is announced beyond does not make one round of all that follows. judgement
MAX_ROUND: Final = 128

# How much later than the truth a begin may look that is reckoned from a duration: between the gate and what an agent
# measures lie queues, and between that and its report lies its own work. A kill that lands in such a gap looked broken,
# under load 3 of 1,500 times (benchmarks/chaos.py), and was answered by a wider one. judgement
RECKONED_MS: Final = 1_000

_VIOLATION: Final = Decision(verdict=None, is_violation=True)


def observe(
    tree: TreeState,
    step: AnyStep,
    policy: Policy,
    *,
    offset: int = -1,
    latest_ms: int | None = None,
    act: bool = True,
    meaning: Meaning | None = None,
) -> Sequence[Decision]:
    """Judge one step event.

    Args:
        tree: State of the event's tree, changed in place. Unchanged if the event is a duplicate or is refused.
        step: The event; its tenant and root are those of `tree`.
        policy: With its layers; what is in force for the run and its tool is taken from it.
        offset: Source offset, kept as evidence; -1 if there is none. `tree.steps_offset` is the caller's to set.
        latest_ms: Upper bound of the event's time in Unix milliseconds, usually when the broker got it plus a
            tolerance. A clock that runs ahead is cut to it.
        act: See `ladder.climb`.
        meaning: A model of texts, if there is one.

    Returns:
        Decisions to publish, in order. Empty for nearly every event of a healthy run.

    Raises:
        InvalidEvent: A hash is not hexadecimal, or content that must be hashed has no canonical form.

    Cost: about 6 µs for a finished call of a healthy run, 1.5 µs for other events, 8 µs more for each verdict
    (benchmarks/detectors.py).
    """
    if type(step) is ToolEnd:
        # Before anything changes: a call whose keys cannot be made is refused as a whole.
        keys = keys_of(step)
        run = lifecycle.admit(tree, step, latest_ms)
        if run is None:
            return NOTHING
        if policy.is_layered:
            policy = policy.of(tree.tenant, run.agent, tree.root_run_id).for_tool(step.tool)
        return _end_call(tree, run, step, keys, policy, offset, act, meaning)
    run = lifecycle.admit(tree, step, latest_ms)
    if run is None:
        return NOTHING
    if policy.is_layered:
        policy = policy.of(tree.tenant, run.agent, tree.root_run_id)
    return _observe_other(tree, run, step, policy, offset, act, meaning)


def tick(
    tree: TreeState, now_ms: int, policy: Policy, *, act: bool = True, is_current: bool = True
) -> Sequence[Decision]:
    """Judge what needs no event: wall clock, and silence. A level, not an edge: true again at the next tick if lost.

    Args:
        tree: Its clock stays that of its events: a tick is no event.
        now_ms: Time of the tick on the partition's clock, in Unix milliseconds.
        policy: In force for the tenant.
        act: See `ladder.climb`.
        is_current: Nothing lies in the source that was not read. Else a run that seems silent may only be unread, and
            only limits of time are looked at.

    Cost: 1.2 µs for a tree of one run without a wall-clock limit.
    """
    if now_ms <= tree.now_ms or tree.is_over:
        return NOTHING
    decisions: list[Decision] = []
    for run in tree.runs.values():
        own = run.own
        rules = policy.of(tree.tenant, run.agent, tree.root_run_id) if policy.is_layered else policy
        if run.is_over:
            continue
        limits = tree.limits or rules.budget.limits
        findings: Sequence[Finding] = ()
        if limits.max_duration_ms is not None or (own is not None and own.limits.max_duration_ms is not None):
            findings = _OBSERVE_TREE(tree, run, rules, now_ms)
        for look in _TICKED if is_current else ():
            finding = look(tree, run, rules, now_ms)
            if finding is not None:
                findings = [*findings, finding]
        if findings:
            decisions += climb(tree, run, findings, rules, seq=max(run.seq, 0), act=act, now_ms=now_ms)
    return decisions


def _end_call(
    tree: TreeState,
    run: RunState,
    step: ToolEnd,
    keys: tuple[int, int],
    policy: Policy,
    offset: int,
    act: bool,
    meaning: Meaning | None,
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
        count_cost(tree, run, step.cost_usd)
    run.calls += 1
    tree.calls += 1
    put_out = step.result_bytes
    if put_out is None:
        put_out = 0 if step.result is UNSET else len(step.result)
    tree.output_bytes = min(tree.output_bytes + put_out, MAX_INT)
    if run.approved is not None and lifecycle.take_approval(run, id_key):
        run.forget_call(keys[0])
    # A call whose start was seen was looked at then.
    stop = run.stop
    is_violation = stop is not None and start_ms is None and _goes_on(tree, run, step)
    call = remember_call(run, step, keys, policy, offset)
    findings = None if call is None else _look_at(run, call, policy)
    if meaning is not None:
        findings = _heard(findings, SEMANTIC.hear_call(run, step, keys[1], policy, offset, meaning))
    if len(tree.runs) > 1:
        end_waits(tree, run, call)
    of_tree = _OBSERVE_TREE(tree, run, policy, tree.now_ms)
    if findings is None and not of_tree and not is_violation:
        return NOTHING if stop is None or run.stop is stop else _resumed(tree, run, step, stop)
    if of_tree:
        findings = [*(findings or ()), *of_tree]
    lifted = NOTHING if stop is None or run.stop is stop else _resumed(tree, run, step, stop)
    decisions = [*lifted, *climb(tree, run, findings or (), policy, seq=step.seq, act=act)]
    return [*decisions, *_violated(tree, run, step, policy, act)] if is_violation else decisions


def _look_at(run: RunState, call: Call, policy: Policy) -> list[Finding] | None:
    findings: list[Finding] | None = None
    for look in _ASKED[call.signs]:
        finding = look(run, call, policy)
        if finding is not None:
            findings = [finding] if findings is None else [*findings, finding]
    return findings


def _heard(findings: list[Finding] | None, heard: Finding | None) -> list[Finding] | None:
    return findings if heard is None else [*(findings or ()), heard]


def _look_at_other(
    tree: TreeState, run: RunState, step: AnyStep, policy: Policy, offset: int, meaning: Meaning | None
) -> Sequence[Finding]:
    findings: list[Finding] | None = None
    if meaning is not None:
        # Before the others: they note where this answer of the model stands, and it asks where the one before stood.
        findings = _heard(None, SEMANTIC.hear_text(run, step, policy, offset, meaning))
        if run.goal_drift is not None and type(step) is ModelEnd:
            goal_drift.hear_text(run.goal_drift, step, meaning)
    for look in _ASKED_AT[type(step)]:
        finding = look(tree, run, step, policy, offset)
        if finding is not None:
            findings = _heard(findings, finding)
    if meaning is not None and run.goal_drift is not None and type(step) is RunStart and step.goal is not None:
        goal_drift.hear_goal(run.goal_drift, step.goal, meaning)
    return findings or ()


def _observe_other(
    tree: TreeState,
    run: RunState,
    step: AnyStep,
    policy: Policy,
    offset: int,
    act: bool,
    meaning: Meaning | None,
) -> Sequence[Decision]:
    is_violation = False
    rejection = None
    extra: Sequence[Decision] = NOTHING
    stop = run.stop
    if type(step) is ModelEnd:
        announced = step.tool_calls
        run.round_left = 0 if announced is None else min(announced, MAX_ROUND)
        run.round_size = 0
        count_answer(tree, run, step)
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
        extra = lifecycle.end_run(tree, run, step)
    elif type(step) is UserInput:
        lifecycle.hear_person(tree, run)
    elif type(step) is Progress:
        run.progress_seq = step.seq
    elif type(step) is ApprovalWait or type(step) is ApprovalEnd:
        rejection, extra = _hear_of_approval(tree, run, step, policy, offset)
    if stop is not None and run.stop is None:
        extra = _resumed(tree, run, step, stop)
    findings = _OBSERVE_TREE(tree, run, policy, tree.now_ms)
    if rejection is not None:
        findings = [rejection, *findings]
    seen = _look_at_other(tree, run, step, policy, offset, meaning)
    if seen:
        findings = [*findings, *seen]
    if not findings and not is_violation:
        return extra or NOTHING
    decisions = climb(tree, run, findings, policy, seq=step.seq, act=act)
    return [*decisions, *(_violated(tree, run, step, policy, act) if is_violation else extra)]


def _hear_of_approval(
    tree: TreeState, run: RunState, step: ApprovalWait | ApprovalEnd, policy: Policy, offset: int
) -> tuple[Finding | None, Sequence[Decision]]:
    rejection = None
    if type(step) is ApprovalWait:
        lifecycle.start_approval(tree, run, step)
    elif type(step) is ApprovalEnd:
        lifecycle.end_approval(tree, run, step)
        rejection = _OBSERVE_REJECTION(run, step, policy, offset)
    question = of_action(tree, run, step)
    return rejection, NOTHING if question is None else [Decision(verdict=None, question=question)]


def _resumed(tree: TreeState, run: RunState, step: AnyStep, stop: StopState) -> list[Decision]:
    return [Decision(verdict=None, question=end_of_pause(tree, run, step.run_id, stop, "approved"))]


def _violated(tree: TreeState, run: RunState, step: AnyStep, policy: Policy, act: bool) -> list[Decision]:
    return [_VIOLATION, *landing.answer_violation(tree, step.run_id, run, policy, run.now_ms, act=act)]


def _goes_on(tree: TreeState, run: RunState, step: ToolEnd) -> bool:
    if (step.outcome or "ok") in NOT_RUN:
        return False
    began_ms = _began_ms(step)
    if began_ms is None and run.round_left > 0 and run.round_size > 0:
        return False  # it began with the others of its batch, one of which was looked at
    return lifecycle.goes_on(tree, run, began_ms)


def _began_ms(step: ToolEnd | ModelEnd) -> int | None:
    """Return when the step began at the earliest by the source's clock, `None` if it does not say."""
    return None if step.duration_ms is None else step.ts_ms - int(step.duration_ms) - RECKONED_MS
