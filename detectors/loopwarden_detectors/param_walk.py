"""One tool, ever other arguments, and never anything in the answer: a search that walks through its parameters."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from loopwarden_detectors.base import EMPTY, WATCHED, WATCHES_WALK, Call, Finding, grade
from loopwarden_detectors.identity import FULL, NEGATIVE_ANSWER, tool_key
from loopwarden_detectors.novelty import after_novelty
from loopwarden_detectors.rings import HALF, KEPT_CALLS, SILENT, UNPRODUCTIVE
from loopwarden_detectors.streak_finding import finding_of
from loopwarden_models.effects import READ, UNKNOWN
from loopwarden_models.hashes import stable_key

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState
    from loopwarden_models.policy import Policy

# Tools that are walked with at a time; the one that rested longest leaves. judgement
MAX_WALKS = 4

_MEMO = 2_048


class WalkState(Struct, array_like=True, gc=False):
    """A tool's walk: how many different calls found nothing, and where it began.

    `round` is the last one that counted, `last_call` the run's number of the last empty call. `others_work`: another
    tool brought something since.
    """

    tool_key: int
    count: int
    round: int
    last_call: int
    first_seq: int
    first_ms: int
    first_offset: int
    others_work: bool = False


class ParamWalk:
    """`n` = different calls of one tool with an empty or negative answer since it last answered anything else.

    Different = not among the last 40 calls. A new write of any tool ends all walks; an error neither lengthens nor ends
    one. A round counts once. Effects need not be declared, because an empty answer acknowledges nothing; but the
    silence of an undeclared tool counts only where it is unproductive (`no_progress`), and writers and pollers never
    walk.

    A walk that rested for 40 calls is over.

    Levels: observe 5, nudge 8, break 12, kill 16 if no other tool was productive since the walk began
    (`ParamWalkConfig`, with sources). Progress lowers break and kill, and so does a new answer of a declared read
    within the last four calls.
    Cost: 0.2 µs for an empty answer, 0.3 µs for every call while a walk is remembered.
    """

    name: ClassVar[str] = "param_walk"
    pattern: ClassVar[str] = "param_walk"
    signs: ClassVar[int] = EMPTY | WATCHED

    def observe(self, run: RunState, call: Call, policy: Policy) -> Finding | None:
        """Judge one call. See the class."""
        if call.is_wait:
            return None
        walks = run.param_walk
        if not _finds_nothing(call):
            if walks is not None:
                _go_on(run, walks, call)
            return None
        key = tool_key(call.tool)
        state = next((known for known in walks or () if known.tool_key == key), None)
        if state is None:
            _begin(run, call, key)
            return None
        is_other = call.call_age == 0 and call.round != state.round
        state.last_call = run.calls
        if not is_other:
            return None
        state.round = call.round
        state.count += 1
        return self._finding(run, call, state, policy) if state.count >= policy.param_walk.observe else None

    def _finding(self, run: RunState, call: Call, state: WalkState, policy: Policy) -> Finding | None:
        config = policy.param_walk
        count = state.count
        kill = None if state.others_work else config.kill
        level, threshold = grade(count, config.observe, config.nudge, config.break_at, kill)
        level = after_novelty(run, level)
        loop_key = _loop_key(call.tool)
        return finding_of(
            self,
            run,
            policy,
            state,
            level=level,
            count=count,
            threshold=threshold,
            loop_key=loop_key,
            note=lambda: f"{call.tool} found nothing with {count} different arguments",
            tool=call.tool,
            cause=None if state.others_work else "impossible_goal",
        )


def _finds_nothing(call: Call) -> bool:
    if call.emptiness == FULL or not call.call_key or call.outcome != "ok":
        return False
    if call.effect == READ:
        return True
    return call.effect == UNKNOWN and (call.emptiness == NEGATIVE_ANSWER or call.is_unproductive)


def _begin(run: RunState, call: Call, key: int) -> None:
    """Remember a walk if the tool's call before found nothing, too: a single miss is nothing to remember.

    Of that call the ring knows that it was silent and in vain, or that its answer was word for word this one. What it
    does not know for sure is not counted.
    """
    ring = run.ring
    tools = ring.tools()
    number = run.tool_number(call.tool)
    for back in range(call.in_round + 1, len(tools)):
        if tools[-1 - back] != number:
            continue
        mark, kind = ring.before(back)
        is_miss = kind & SILENT and kind & UNPRODUCTIVE
        is_same = call.result_key and mark[:HALF] == call.mark[:HALF]
        if not (is_miss or is_same) or mark[HALF:] == call.mark[HALF:] or back >= KEPT_CALLS:
            return
        seq, offset, ms, _ = ring.call_at(back, seq=call.step.seq, offset=call.offset)
        if seq < run.progress_seq and call.step.seq > run.progress_seq:
            return
        state = WalkState(key, 2, call.round, run.calls, seq, run.started_ms + ms, offset)
        walks = run.param_walk = run.param_walk or []
        if len(walks) >= MAX_WALKS:
            walks.remove(min(walks, key=lambda known: known.last_call))
        walks.append(state)
        run.watched |= WATCHES_WALK
        return


def _go_on(run: RunState, walks: list[WalkState], call: Call) -> None:
    """Let a call that is no miss end or mark the walks: a new write ends all, an answer that of its own tool."""
    if call.is_new_write:
        walks.clear()
    elif call.outcome == "ok":
        key = tool_key(call.tool)
        oldest = run.calls - KEPT_CALLS
        is_answer = call.emptiness == FULL
        walks[:] = [walk for walk in walks if walk.last_call > oldest and not (is_answer and walk.tool_key == key)]
        if not call.is_unproductive:
            for walk in walks:
                walk.others_work = walk.others_work or walk.tool_key != key
    if not walks:
        run.param_walk = None
        run.watched &= ~WATCHES_WALK


@lru_cache(_MEMO)
def _loop_key(tool: str) -> int:
    return stable_key(f"param_walk\0{tool}") or 1
