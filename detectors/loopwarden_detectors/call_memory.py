"""What a run remembers of its finished calls, and the signs by which the rules are asked to look at one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from zlib import crc32

from msgspec import UNSET

from loopwarden_detectors.base import (
    ALIKE,
    BUSY,
    EMPTY,
    ERRORS,
    LONGER,
    MILESTONE,
    MILESTONE_CALLS,
    PATIENT,
    REFUSED,
    REPEATED,
    SAME_RESULT,
    STREAK,
    WATCHED,
    WENT_WRONG,
    Call,
)
from loopwarden_detectors.identity import EMPTY_ANSWER, FULL, effect_of, emptiness, is_wait
from loopwarden_detectors.rate import MIN_PER_MIN
from loopwarden_detectors.rings import (
    GUARDED,
    HALF,
    KEPT_CALLS,
    MARK,
    MAX_CALLS,
    POLLS,
    SILENT,
    UNDECLARED,
    UNPRODUCTIVE,
    WAITS,
    WRITES,
    mark_of,
)
from loopwarden_detectors.void_calls import ECHO_BYTES, is_echo, is_misunderstood, is_null_command
from loopwarden_detectors.volatile_keys import stable_args_key, stable_result_key
from loopwarden_models.effects import CLOCK, FAILED, GUARD_ANSWERS, NOT_RUN, POLL, READ, UNKNOWN, WRITE

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState
    from loopwarden_models.events import ToolEnd
    from loopwarden_models.policy import Policy

# Arguments that may grow by themselves: `{"c":"…"}` of some length, without the quote and brace that close it.
MIN_ARGS_BYTES: Final = 12
MAX_ARGS_BYTES: Final = 2_000
CLOSING_BYTES: Final = 2

# Pages and offsets grow by a digit now and then; more is another question. judgement
_ALIKE_BYTES: Final = 3

# Steps that a rule may look back on, and calls: as many as the ring holds.
KEPT_STEPS: Final = 32
_STEPS_MASK: Final = (1 << KEPT_STEPS) - 1
_CALLS_MASK: Final = (1 << MAX_CALLS) - 1

# Two calls and the waits between them. judgement
_LOOK_BACK: Final = 6

# A person who cancels a call, or an outcome that this version does not know, says nothing about the agent.
_IN_VAIN: Final = FAILED | NOT_RUN - {"cancelled"}

_TOLD_BY_TIMES: Final = frozenset({POLL, CLOCK})
_BAD_SIGNS: Final = WENT_WRONG | REFUSED | EMPTY
_KINDS: Final = {POLL: POLLS, UNKNOWN: UNDECLARED, WRITE: WRITES}
_BUSY_BYTES: Final = MIN_PER_MIN * MARK


def remember_call(  # noqa: C901, PLR0912, PLR0915 - the way of every call of a fleet: each call more in it is felt
    run: RunState, step: ToolEnd, keys: tuple[int, int], policy: Policy, offset: int
) -> Call | None:
    """Put a call into its run's memory; return what the rules compare, `None` if it bears no sign.

    Args:
        run: Changed in place.
        step: The call.
        keys: From `identity.keys_of`.
        policy: In force.
        offset: Source offset of the step, -1 if there is none.

    Cost: about 2 µs.
    """
    key, result = keys
    effect = effect_of(step, policy)
    outcome = step.outcome or "ok"
    wait = is_wait(step, effect)
    kind = WAITS if wait and effect != POLL else _KINDS.get(effect, 0)
    signs = PATIENT if kind & (WAITS | POLLS) else 0
    answer = FULL
    is_void = False
    if outcome == "ok":
        answer = emptiness(step)
        if answer != FULL:
            signs |= EMPTY
            if answer == EMPTY_ANSWER and _is_silent(step, effect):
                kind |= SILENT
                is_void = effect == UNKNOWN and is_null_command(step)
        elif effect == UNKNOWN and step.result is not UNSET and len(step.result) <= ECHO_BYTES and is_echo(step):
            signs |= EMPTY
            is_void = True
    elif outcome in FAILED:
        signs |= WENT_WRONG
        is_void = is_misunderstood(step, outcome)
    else:
        # The guard or the framework answered, or something that this version does not know: an attempt, no result.
        result = 0
        signs |= REFUSED
        is_void = is_misunderstood(step, outcome)
        kind |= GUARDED if outcome in GUARD_ANSWERS else 0
    is_unproductive = not wait and signs & _BAD_SIGNS != 0 and (is_void or _is_unproductive(run, effect, outcome, kind))
    kind |= UNPRODUCTIVE if is_unproductive else 0
    tool = run.tool_number(step.tool)
    grown_from = args_bytes = args_crc = 0
    if step.args is not UNSET:
        args_bytes = len(step.args)
        before = run.args_bytes if tool == run.last_tool else 0
        if before and abs(args_bytes - before) <= _ALIKE_BYTES:
            signs |= ALIKE
        if MIN_ARGS_BYTES <= args_bytes <= MAX_ARGS_BYTES:
            args = bytes(step.args)
            args_crc = crc32(args[:-CLOSING_BYTES])
            # A checksum of 0 stands for arguments that are not compared.
            if 0 < before < args_bytes and run.args_crc and crc32(args[: before - CLOSING_BYTES]) == run.args_crc:
                signs |= LONGER
                grown_from = before - CLOSING_BYTES
    run.last_tool, run.args_bytes, run.args_crc = tool, args_bytes, args_crc
    mark = mark_of(result, key)
    ring = run.ring
    newest = ring.find_call(mark)
    if newest < 0 and signs & ALIKE and (stable := stable_args_key(step, policy.volatile)):
        key = stable
        mark = mark_of(result, key)
        newest = ring.find_call(mark)
    pair_age = call_age = 0
    is_volatile = False
    if newest >= 0:
        signs |= REPEATED
        held = len(ring)
        call_age = held - newest
        if result:
            place, has_changed = ring.find_answer(newest, mark)
            # Of a poller and of a clock the times count: what moves is not frozen.
            if has_changed and effect not in _TOLD_BY_TIMES:
                stable = stable_result_key(run, step, key, policy.volatile)
                if stable:
                    is_volatile = True
                    result = stable
                    mark = mark_of(result, key)
                    place, has_changed = ring.find_answer(newest, mark)
            pair_age = held - place if place >= 0 else 0
            if has_changed and not wait:
                run.progress_seq = step.seq
    is_novel = is_new_write = False
    if effect == READ:
        if ring.holds_result(mark):
            signs |= SAME_RESULT
        elif result and answer == FULL and outcome == "ok":
            is_novel = True
            run.novel_call = run.calls
    elif effect == UNKNOWN:
        if ring.marks[-MARK:-HALF] == mark[:HALF] and result:
            signs |= SAME_RESULT
    # A write whose answer is not reported is as old as the call.
    elif (
        effect == WRITE
        and outcome == "ok"
        and not wait
        and not 0 < (pair_age if result and key else call_age) <= KEPT_CALLS
    ):
        is_new_write = True
        run.progress_seq = step.seq
        run.write_call = run.calls
    in_round = 0
    if run.round_left:
        run.round_left -= 1
        in_round = run.round_size
    if not in_round:
        run.round += 1
    run.round_size = in_round + 1
    if is_unproductive or run.unproductive:
        is_stuck = is_unproductive and (effect != READ or outcome != "ok")
        _note_step(run, in_round, is_unproductive, is_stuck, is_void, wait)
    ring.append(mark, step.seq, offset, run.now_ms - run.started_ms, kind | tool, in_round)
    if run.exact_repeat is not None or run.changing_repeat is not None:
        signs |= STREAK
    if run.same_error:
        signs |= ERRORS
    if run.watched:
        signs |= WATCHED
    if run.rate is not None or len(ring.marks) >= _BUSY_BYTES:
        signs |= BUSY
    if not run.calls % MILESTONE_CALLS:
        signs |= MILESTONE
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
        result != 0 and key != 0,
        mark,
        run.round,
        in_round,
        call_age,
        pair_age,
        answer,
        is_unproductive,
        is_novel,
        is_volatile,
        is_new_write,
        wait,
        grown_from,
        offset,
    )


def _note_step(run: RunState, in_round: int, is_unproductive: bool, is_stuck: bool, is_void: bool, wait: bool) -> None:
    """Note whether a call was in vain: a round is one step, and in vain if all of it was. A wait is part of a step.

    A read that found nothing is in vain, but not stuck: that nothing is there can be what was asked.

    Cost: 0.2 µs, while one of the last `KEPT_STEPS` steps was in vain.
    """
    begins = not wait
    if begins and in_round:
        begins = all(kind & WAITS for kind in run.ring.kinds(in_round))
    if begins:
        run.unproductive = (run.unproductive << 1 | is_unproductive) & _STEPS_MASK
        run.stuck = (run.stuck << 1 | is_stuck) & _STEPS_MASK
        run.void = (run.void << 1 | is_void) & _STEPS_MASK
    elif not wait:
        if not is_unproductive:
            run.unproductive &= ~1
        if not is_stuck:
            run.stuck &= ~1
        if not is_void:
            run.void &= ~1
    run.joined = (run.joined << 1 | (not begins)) & _CALLS_MASK


def _is_silent(step: ToolEnd, effect: str) -> bool:
    """Return whether an empty answer may mean that nothing was there: not from a writer, nor a function without result.

    `null` from a tool that nobody declared is what a function answers that has nothing to answer: it proves nothing.
    """
    return effect == READ or (effect == UNKNOWN and (step.result is UNSET or bytes(step.result) != b"null"))


def _is_unproductive(run: RunState, effect: str, outcome: str, kind: int) -> bool:
    """Return whether a call that failed, did not run or brought nothing was in vain (detectors.md, no_progress).

    Silence is the normal answer of a shell that did its work, and of one that did nothing: it counts as nothing if the
    two calls before brought nothing either.
    """
    if outcome != "ok":
        return outcome in _IN_VAIN
    if effect == READ:
        return True
    if not kind & SILENT:
        return False
    before = [known for known in run.ring.kinds(_LOOK_BACK) if not known & WAITS][-2:]
    return len(before) == 2 and all(known & (SILENT | UNPRODUCTIVE) for known in before)  # noqa: PLR2004 - the two
