"""One answer to ever other questions: the agent varies what it asks of a tool, and is told the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from msgspec import UNSET, Struct

from loopwarden_detectors.asked_in_words import is_asked_in_words
from loopwarden_detectors.base import NUDGE, SAME_RESULT, WATCHED, WATCHES_OUTPUT, Call, Finding, grade
from loopwarden_detectors.identity import FULL, set_key, tool_key
from loopwarden_detectors.rings import HALF, NO_KEY, OTHER_TOOL, holds_key
from loopwarden_detectors.streak_finding import finding_of
from loopwarden_models.effects import READ, UNKNOWN

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState
    from loopwarden_models.events import ToolEnd
    from loopwarden_models.policy import Policy

# A shorter answer only says that the call was carried out ("ok", "message sent"). judgement
_ACKNOWLEDGEMENT_BYTES: Final = 48

# Twice as many as kill: a walk that comes back to older questions is a sweep.
_MAX_QUESTIONS_BYTES: Final = 24 * HALF


class SameOutputState(Struct, array_like=True, gc=False):
    """A streak of two or more: its tool and its answer, the questions by half of their call keys, and its beginning.

    `round` is the last one that lengthened it. `is_acknowledged`: the tool is not declared, and its answer is so short
    that it may only say that the call was carried out.
    """

    tool_key: int
    result: bytes
    questions: bytearray
    count: int
    round: int
    first_seq: int
    first_ms: int
    first_offset: int
    is_acknowledged: bool = False


class SameOutput:
    """`n` = calls of one declared read in a row with pairwise different arguments and one equal answer.

    Calls of other tools in between are skipped, a question that was asked before does not count, and a round counts
    once. Another answer of the tool, a new write and a new answer of any read end it. An answer that holds something
    may be right every time, as "available" is of five flights: it is never a reason to kill, nothing found is.

    Tools without a declared effect say "ok" whatever they did, so only those count that are asked in words, a sentence
    as the one argument: an instruction to another agent, a query. Five rewordings that end in one and the same text
    are worth a nudge. An answer too short to say more than "done" takes twelve, and nothing else in between.

    Levels: observe 4, nudge 6, kill 12 for empty and negative answers (`SameOutputConfig`, with sources). Asked in
    words: nudge 5, or 12, and no more.
    State: the last 24 questions, from the second on.
    Cost: 0.1 µs a call while an answer comes back, 1 µs for one that lengthens the streak, 2 µs more for a sentence.
    """

    name: ClassVar[str] = "same_output"
    pattern: ClassVar[str] = "param_walk"
    signs: ClassVar[int] = SAME_RESULT | WATCHED

    def observe(self, run: RunState, call: Call, policy: Policy) -> Finding | None:
        """Judge one call. See the class."""
        state = run.same_output
        if state is not None:
            if call.is_novel or call.is_new_write:
                _forget(run)
                return None
            if state.tool_key != tool_key(call.tool):
                if state.is_acknowledged and not call.is_wait:
                    _forget(run)
                return None
            if call.outcome != "ok" or call.mark[:HALF] != state.result:
                _forget(run)
                state = None
        if call.outcome != "ok" or not call.has_pair or (state is None and not call.signs & SAME_RESULT):
            return None
        if call.effect != READ and (
            call.effect != UNKNOWN or call.emptiness != FULL or not is_asked_in_words(call.step)
        ):
            return None
        if state is None:
            state = _begin(run, call)
            if state is None:
                return None
        else:
            question = call.mark[HALF:]
            if holds_key(state.questions, question):
                return None
            state.questions += question
            del state.questions[:-_MAX_QUESTIONS_BYTES]
            if call.round == state.round:
                return None
            state.round = call.round
            state.count += 1
        config = policy.same_output
        least = config.nudge_acknowledged if state.is_acknowledged else config.observe
        return self._finding(run, call, state, policy) if state.count >= least else None

    def _finding(self, run: RunState, call: Call, state: SameOutputState, policy: Policy) -> Finding | None:
        config = policy.same_output
        count = state.count
        if state.is_acknowledged:
            level, threshold = NUDGE, config.nudge_acknowledged
        elif call.effect == UNKNOWN:
            level, threshold = grade(count, config.observe, config.nudge_in_words)
        else:
            level, threshold = grade(
                count, config.observe, config.nudge, kill=config.kill if call.emptiness != FULL else None
            )
        loop_key = set_key({state.tool_key, call.result_key})
        return finding_of(
            self,
            run,
            policy,
            state,
            level=level,
            count=count,
            threshold=threshold,
            loop_key=loop_key,
            note=lambda: f"{call.tool} was asked {count} different things in a row and gave one and the same answer",
            tool=call.tool,
        )


def _begin(run: RunState, call: Call) -> SameOutputState | None:
    """Return the streak that begins with the tool's call before this one, `None` if that was answered otherwise."""
    ring = run.ring
    tool = run.tool_number(call.tool)
    if tool == OTHER_TOOL:
        return None  # which of the others it was is not known
    tools = ring.tools()
    back = call.in_round + 1
    while back < len(tools) and tools[-1 - back] != tool:
        back += 1
    mark = ring.before(back)[0]
    if not mark or mark[:HALF] != call.mark[:HALF] or mark[HALF:] in (call.mark[HALF:], NO_KEY):
        return None
    seq, offset, ms, _ = ring.call_at(back, seq=call.step.seq, offset=call.offset)
    # Its own answer may have been new.
    if run.progress_seq > seq or run.novel_call > run.calls - back:
        return None
    run.watched |= WATCHES_OUTPUT
    state = run.same_output = SameOutputState(
        tool_key(call.tool),
        call.mark[:HALF],
        bytearray(mark[HALF:] + call.mark[HALF:]),
        2,
        call.round,
        seq,
        run.started_ms + ms,
        offset,
        call.effect == UNKNOWN and _is_acknowledgement(call.step),
    )
    return state


def _is_acknowledgement(step: ToolEnd) -> bool:
    size = step.result_bytes
    if size is None:
        size = 0 if step.result is UNSET else len(step.result)
    return size < _ACKNOWLEDGEMENT_BYTES


def _forget(run: RunState) -> None:
    run.same_output = None
    run.watched &= ~WATCHES_OUTPUT
