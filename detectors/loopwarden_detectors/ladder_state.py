"""What the ladder remembers of one loop identity of a run, and which rung is due."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from loopwarden_detectors.base import BREAK, NUDGE, PAUSE, Finding
from loopwarden_detectors.stops import is_stopped
from loopwarden_models.patterns import Level

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState, TreeState
    from loopwarden_models.policy import Policy

# Identities that are remembered: the longest unseen leave first, those that were never nudged before the others.
MAX_LOOPS = 10

# What became of a command: nothing heard yet, applied, or it could not be delivered.
UNHEARD, APPLIED, UNDELIVERED = 0, 1, 2

# Orders to stop for one identity. An order that failed or expired is followed by one with a new id; a runtime that
# could not carry out three will not carry out a fourth, and the alarm about it has long been raised. judgement
MAX_STOPS_PER_LOOP = 3

# Blocks of a tool for one identity: what comes back after the third is not a matter of one tool. judgement
MAX_BLOCKS_PER_LOOP = 3


class LoopState(Struct, array_like=True, gc=False):
    """Memory of one loop identity.

    Attributes:
        loop_key: 64-bit identity.
        is_limit: A budget, not a repetition: its level is said once, whatever a person says in between.
        level: Strongest level said in this segment; a verdict is published when it rises.
        asked: Strongest level that the evidence asked for, before the progress veto.
        count: Count at the last verdict; a doubling is said again.
        last_count: Count when it was last seen.
        last_call: Number of the run's call at which it was last seen.
        verdicts: Episode of the newest verdict. `rungs`: number of the newest order.
        nudges: Nudges issued. `stops`: orders to pause or to end the run.
        nudge_key: Key of the newest nudge's command id, 0 if none. `nudge_count`: the loop's count at it.
        nudge_ms: Event time of it.
        answer: What became of it: 0 nothing heard, 1 applied, 2 could not be delivered.
        returns: How often the loop came back since the nudge was applied.
        blocks: How often its tools were blocked. `blocked_until_ms`: event time at which the newest block ends.
    """

    loop_key: int
    is_limit: bool = False
    level: int = 0
    asked: int = 0
    count: int = 0
    last_count: int = 0
    last_call: int = 0
    verdicts: int = 0
    rungs: int = 0
    nudges: int = 0
    stops: int = 0
    nudge_key: int = 0
    nudge_count: int = 0
    nudge_ms: int = 0
    answer: int = UNHEARD
    returns: int = 0
    blocks: int = 0
    blocked_until_ms: int = 0

    def start_segment(self) -> None:
        """Forget what was said, so that it is said again; what was ordered stays known."""
        self.level = self.asked = self.count = self.last_count = 0


def find_loop(memory: RunState | TreeState, loop_key: int) -> LoopState | None:
    """Return what a run, or a tree, remembers of a loop identity. Cost: O(`MAX_LOOPS`)."""
    for loop in memory.loops or ():
        if loop.loop_key == loop_key:
            return loop
    return None


def level_of(tree: TreeState, run: RunState, finding: Finding) -> Level:
    """Return the level of a finding after what is not known for sure, and after signs of progress."""
    level = finding.level
    if level <= NUDGE:
        return level
    if run.is_low_fidelity or (finding.is_of_tree and any(known.is_low_fidelity for known in tree.runs.values())):
        return NUDGE
    return level if finding.is_hard else after_veto(run, level, finding.veto_after_seq)


def loop_of(memory: RunState | TreeState, finding: Finding, calls: int) -> LoopState:
    """Return what a run, or a tree, remembers of the loop of a finding; from now on, if it is new."""
    loop = find_loop(memory, finding.loop_key)
    if loop is not None:
        return loop
    loops = memory.loops = [] if memory.loops is None else memory.loops
    if len(loops) >= MAX_LOOPS:
        # By what was asked, not by what was ordered: which verdicts are said must not hang on acknowledgements. None of
        # this step: what is said of it would be forgotten, and said of another one under the same id.
        oldest = min(loops, key=lambda known: (known.last_call == calls, known.asked >= NUDGE, known.last_call))
        memory.forgotten = max(memory.forgotten, oldest.verdicts)
        memory.forgotten_rungs = max(memory.forgotten_rungs, oldest.rungs)
        loops.remove(oldest)
    loop = LoopState(
        loop_key=finding.loop_key,
        is_limit=finding.limit is not None,
        last_count=finding.count,
        last_call=calls,
        verdicts=memory.forgotten,
        rungs=memory.forgotten_rungs,
    )
    loops.append(loop)
    return loop


def after_veto(run: RunState, level: Level, veto_after_seq: int) -> Level:
    """Return the level after signs of progress: what is above a nudge becomes one, and is never hidden."""
    if level > NUDGE and 0 <= veto_after_seq < run.progress_seq:
        return NUDGE
    return level


def is_news(
    run: RunState,
    policy: Policy,
    detector: str,
    loop_key: int,
    level: Level,
    count: int,
    veto_after_seq: int = -1,
    *,
    tree: TreeState | None = None,
    is_hard: bool = False,
    needs_nudge: bool = True,
    now_ms: int | None = None,
) -> bool:
    """Note that a loop came back, and return whether anything new is to be said or done about it.

    Most laps of a loop are not news. A rule asks this before it collects its evidence, which costs more than the rule.
    It answers no only where `ladder.climb` would say and order nothing.

    Args:
        run: The run that made the step; what it remembers of the loop is changed in place.
        policy: In force for the tenant.
        detector: The rule that sees the loop.
        loop_key: Its identity.
        level: What the evidence asks for.
        count: As the detector defines it.
        veto_after_seq: See `base.Finding`.
        tree: The run's tree, if it is the tree that is judged and that remembers.
        is_hard: See `base.Finding`.
        needs_nudge: See `base.Finding`.
        now_ms: Time of the judgement, if it is not the newest event of `run`.

    Cost: 0.4 µs.
    """
    mode = policy.mode_of(detector, run.now_ms)
    if mode == "off":
        return False
    loop = find_loop(run if tree is None else tree, loop_key)
    if loop is None:
        return True
    if level >= NUDGE and loop.answer == APPLIED and count != loop.last_count:
        loop.returns += 1
    loop.last_count = count
    loop.last_call = run.calls if tree is None else tree.attempts
    if level > loop.asked:
        return True
    if level < NUDGE:
        return False
    if count >= 2 * loop.count:
        return True
    level = after_veto(run, level, veto_after_seq)
    if level > loop.level:
        return True
    if mode == "shadow" or is_stopped(run, policy):
        return False
    subject = run if tree is None else tree.subject(run)
    if (
        level >= PAUSE
        and mode == "enforce"
        and may_stop(subject, loop, policy, is_hard=is_hard, needs_nudge=needs_nudge, now_ms=now_ms)
    ):
        return True
    if level >= BREAK and mode == "enforce" and may_block(subject, loop, policy, needs_nudge=needs_nudge):
        return True
    return needs_nudge and may_nudge(subject, loop, count, policy)


def may_nudge(run: RunState, loop: LoopState, count: int, policy: Policy) -> bool:
    """Return whether a nudge is left for this loop, and due: at once, or when the count has doubled since the last."""
    ladder = policy.ladder
    if loop.nudges >= ladder.max_nudges_per_loop or run.nudges >= ladder.max_nudges_per_run:
        return False
    return not loop.nudges or count >= 2 * loop.nudge_count


def may_stop(
    run: RunState,
    loop: LoopState,
    policy: Policy,
    *,
    is_hard: bool = False,
    needs_nudge: bool = True,
    now_ms: int | None = None,
) -> bool:
    """Return whether the rung below was taken and failed, or need not be, and orders to stop are left."""
    if loop.stops >= MAX_STOPS_PER_LOOP:
        return False
    return is_hard or not needs_nudge or _has_failed_below(run, loop, policy, now_ms)


def may_block(run: RunState, loop: LoopState, policy: Policy, *, needs_nudge: bool, now_ms: int | None = None) -> bool:
    """Return whether the loop's tools may be blocked: the nudge failed, or none is asked for, and no block is out."""
    now = run.now_ms if now_ms is None else now_ms
    if loop.blocks >= MAX_BLOCKS_PER_LOOP or now < loop.blocked_until_ms:
        return False
    return not needs_nudge or _has_failed_below(run, loop, policy, now_ms)


def _has_failed_below(run: RunState, loop: LoopState, policy: Policy, now_ms: int | None) -> bool:
    ladder = policy.ladder
    if not loop.nudges:
        return ladder.max_nudges_per_loop == 0 or run.nudges >= ladder.max_nudges_per_run
    if loop.answer == APPLIED:
        return loop.returns >= ladder.returns_after_nudge
    since_ms = (run.now_ms if now_ms is None else now_ms) - loop.nudge_ms
    return loop.answer == UNDELIVERED or since_ms >= ladder.ack_timeout_ms
