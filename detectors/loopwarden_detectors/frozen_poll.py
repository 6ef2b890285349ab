"""A poller whose answer does not change: somebody waits for what may never come, and asks on and on."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final
from zlib import crc32

from msgspec import UNSET, Struct

from loopwarden_detectors.base import NUDGE, OBSERVE, PATIENT, REPEATED, WATCHED, WATCHES_POLLS, Call, Finding, grade
from loopwarden_detectors.exact_repeat import is_slow
from loopwarden_detectors.rings import OTHER_TOOL, POLLS, WAITS
from loopwarden_detectors.streak_finding import finding_of
from loopwarden_models.effects import GUARD_ANSWERS, POLL, READ, UNKNOWN

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState, TreeState
    from loopwarden_models.policy import Policy

MAX_POLLS: Final = 4
# judgement, as the handbook has it: work takes longer now and then, three times as long is stuck.
_TIMES_EXPECTED: Final = 3
_LOW: Final = 0xFFFF_FFFF


class PollState(Struct, array_like=True, gc=False):
    """One polled call: the key of its last raw answer, how often that came in a row, and since when.

    `tool` is the number of the tool, `round` the last one that counted, `last_call` the run's number of the last poll.
    `last_ms`: its event time. `is_half`: it kept to the declared interval, and half of it is counted.
    """

    call_key: int
    tool: int
    raw_key: int
    count: int
    round: int
    last_call: int
    first_seq: int
    first_ms: int
    first_offset: int
    last_ms: int = 0
    is_half: bool = False


class FrozenPoll:
    """`n` = polls in a row with equal arguments and equal raw answer, waits and other pollers aside.

    Raw: an answer in which only a time stamp moves is not frozen. Once a declared poller is (at `observe`), asking it
    in other words and being told the same goes on with the count. The count begins anew where the world moved, or may
    have: at a write, a new answer of a read, any changed answer of a poller, an undeclared call that answered something
    new, and work of another run of the tree (`end_waits`). A round counts once. Declared pollers are looked at, and
    undeclared tools that behave like one: asked the same after waits, or far apart.

    Where a policy declares how long the awaited work takes, a poll is left alone for three times as long, and nudged
    after it, and after six times ended as any other; where it declares an interval, polls that keep to it count half.

    Levels: observe 5, nudge 10, kill 30 (`FrozenPollConfig`, with sources).
    State: at most four calls, from the second equal answer on.
    Cost: 0.2 µs a call while something is polled, 1 µs a poll.
    """

    name: ClassVar[str] = "frozen_poll"
    pattern: ClassVar[str] = "frozen_poll"
    signs: ClassVar[int] = PATIENT | REPEATED | WATCHED

    def observe(self, run: RunState, call: Call, policy: Policy) -> Finding | None:
        """Judge one call. See the class."""
        polls = run.frozen_poll
        if call.effect != POLL:
            if call.is_wait:
                return None
            if call.effect != UNKNOWN or not call.pair_age or not _is_patient(run, call, policy):
                if polls is not None and _may_move(call):
                    _forget(run)
                return None
        raw_key = _raw_key(call)
        is_guarded = call.outcome in GUARD_ANSWERS
        if not (raw_key or is_guarded) or not call.call_key:
            return None
        state = _find(run, call, raw_key, policy.frozen_poll.observe) if polls is not None else None
        if state is None:
            if is_guarded:
                return None
            if polls is not None and _has_changed(run, call):
                _forget(run)
                return None
            state = _begin(run, call, raw_key)
            if state is None:
                return None
        elif state.raw_key != raw_key and not is_guarded:
            _forget(run)
            return None
        elif call.round == state.round:
            return None
        else:
            _count(state, run.now_ms, policy.frozen_poll.interval_ms)
            state.round = call.round
        state.last_call = run.calls
        state.last_ms = run.now_ms
        return self._finding(run, call, state, policy) if state.count >= policy.frozen_poll.observe else None

    def _finding(self, run: RunState, call: Call, state: PollState, policy: Policy) -> Finding | None:
        config = policy.frozen_poll
        count = state.count
        level, threshold = grade(count, config.observe, config.nudge, kill=config.kill)
        if config.expected_ms is not None:
            patience_ms = _TIMES_EXPECTED * config.expected_ms
            waited_ms = run.now_ms - state.first_ms
            if waited_ms < patience_ms:
                level, threshold = OBSERVE, config.observe
            elif level < NUDGE or waited_ms < 2 * patience_ms:
                level, threshold = NUDGE, config.observe
        return finding_of(
            self,
            run,
            policy,
            state,
            level=level,
            count=count,
            threshold=threshold,
            loop_key=state.call_key,
            note=lambda: f"{call.tool} was asked {count} times in a row and answered the same, to the letter",
            tool=call.tool,
        )


def _count(state: PollState, now_ms: int, interval_ms: int | None) -> None:
    """Count one poll, or half of it: it kept to the interval that was asked for."""
    if interval_ms is not None and now_ms - state.last_ms >= interval_ms:
        state.is_half = not state.is_half
        if state.is_half:
            return
    state.count += 1


def _is_patient(run: RunState, call: Call, policy: Policy) -> bool:
    """Return whether an undeclared call, made before with this answer, looks like a poll.

    It does after a wait, or after a pause as long as only polling explains. Every call of a slow run comes after a
    pause, so the pause is compared with the run's own.
    """
    if call.call_age != call.pair_age:
        return False
    return any(kind & WAITS for kind in run.ring.kinds(call.in_round + 2)) or is_slow(run, policy.exact_repeat)


def _may_move(call: Call) -> bool:
    """Return whether what a call did, no poll and no wait, may have changed what is awaited."""
    if call.outcome != "ok":
        return False
    if call.effect == READ:
        return call.is_novel
    # A write, or an undeclared call that answered what it did not answer last time.
    return call.effect != UNKNOWN or not call.pair_age or call.pair_age != call.call_age


def _find(run: RunState, call: Call, raw_key: int, frozen_at: int) -> PollState | None:
    """Return the state of this call, or of a frozen one of the same tool that is now asked in other words."""
    other = None
    for state in run.frozen_poll or ():
        if state.call_key == call.call_key:
            return state
        if state.count >= frozen_at and state.raw_key == raw_key:
            other = state
    if other is None or call.effect != POLL or other.tool != run.tool_number(call.tool) or other.tool == OTHER_TOOL:
        return None
    return other


def _has_changed(run: RunState, call: Call) -> bool:
    """Return whether a call without a state was answered otherwise than before, or than its tool was in other words."""
    if call.call_age:
        return call.call_age != call.pair_age
    tool = run.tool_number(call.tool)
    return any(state.tool == tool for state in run.frozen_poll or ())


def _begin(run: RunState, call: Call, raw_key: int) -> PollState | None:
    """Return the state of a call that had the same answer before, if only waits and pollers came since."""
    age = call.pair_age
    if not age or age <= call.in_round:
        return None
    ring = run.ring
    if any(not kind & (WAITS | POLLS) for kind in ring.kinds(age)[: -1 - call.in_round]):
        return None
    seq, offset, ms, _ = ring.call_at(age, seq=call.step.seq, offset=call.offset)
    if run.progress_seq > seq:
        return None
    polls = run.frozen_poll
    if polls is None:
        polls = run.frozen_poll = []
        run.watched |= WATCHES_POLLS
    elif len(polls) >= MAX_POLLS:
        polls.remove(min(polls, key=lambda known: known.last_call))
    # The ring keeps what the rules compare; where that is not the raw answer, the one before is not known any more.
    count, first_ms = 2, run.started_ms + ms
    if call.step.result_norm_hash is not None:
        count, seq, first_ms, offset = 1, call.step.seq, run.now_ms, call.offset
    state = PollState(
        call.call_key, run.tool_number(call.tool), raw_key, count, call.round, run.calls, seq, first_ms, offset
    )
    polls.append(state)
    return state


def end_waits(tree: TreeState, run: RunState, call: Call | None) -> None:
    """Let a call of one run end what its tree's other runs have counted: what they wait for may be this run.

    Polls, waits, repetitions and failures end nothing: two runs that wait for each other do not move.

    Args:
        tree: The counts of its other runs are forgotten.
        run: The run that made a call.
        call: The call, `None` if it bore no sign.

    Cost: O(runs), 0.05 µs each.
    """
    if call is not None and (call.pair_age or call.is_wait or call.effect == POLL or call.is_unproductive):
        return
    for other in tree.runs.values():
        if other.frozen_poll is not None and other is not run:
            _forget(other)


def _forget(run: RunState) -> None:
    run.frozen_poll = None
    run.watched &= ~WATCHES_POLLS


def _raw_key(call: Call) -> int:
    """Return the 32-bit key of an answer as it came, 0 if there is none."""
    step = call.step
    if not call.result_key:
        return 0
    if step.result_hash is not None:
        return crc32(step.result_hash.encode()) or 1
    if step.result is not UNSET:
        return crc32(bytes(step.result)) or 1
    return call.result_key & _LOW
