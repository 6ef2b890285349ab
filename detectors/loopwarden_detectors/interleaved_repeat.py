"""The same call with the same answer among other calls, while nothing moves."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from statistics import median
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from loopwarden_detectors.base import NUDGE, REPEATED, Call, Finding, grade
from loopwarden_detectors.ladder_state import is_news
from loopwarden_detectors.rings import GUARDED, HALF, KEPT_CALLS, UNDECLARED, WAITS, holds_key, ms_of
from loopwarden_models.effects import GUARD_ANSWERS, POLL, UNKNOWN, WRITE

if TYPE_CHECKING:
    from loopwarden_detectors.rings import Row
    from loopwarden_detectors.run_state import RunState
    from loopwarden_models.call_rules import ExactRepeatConfig
    from loopwarden_models.policy import Policy

_TWIN: Final = 4
_MAX_TWINS_BYTES: Final = KEPT_CALLS * _TWIN
_LOW: Final = 0xFFFF_FFFF


class _Repeats(NamedTuple):
    """How often a pair came since the last new write, and how many calls ago it came first."""

    times: int
    first_age: int


class InterleavedRepeat:
    """`n` = how often the current pair is among the last 40 calls, counted since the last new write.

    Silent as long as any call of these 40 was answered in two ways: something moves. A streak is left to the rule about
    exact repeats while it lasts, though its calls count. A second equal call of one round does not count; an attempt
    that a guard answered does. Polls and waits are left out, and so are calls of an undeclared tool right after a wait
    or after a long pause: that is how an undeclared poller looks.

    A write that is made again with the same answer may turn a page: as long as new answers come in between, it is
    nudged and no more.

    Levels: observe 3, nudge 3 (4 where the effect is not declared), kill 6 (`InterleavedRepeatConfig`, with sources).
    State: `seq` of second equal calls of a round, 4 bytes each, hardly ever any.
    Cost: 0.5 µs for a repeated call, 10 µs from the third occurrence on.
    """

    name: ClassVar[str] = "interleaved_repeat"
    pattern: ClassVar[str] = "tool_repetition"
    signs: ClassVar[int] = REPEATED

    def observe(self, run: RunState, call: Call, policy: Policy) -> Finding | None:
        """Judge one call. See the class."""
        is_guarded = call.outcome in GUARD_ANSWERS
        if not (call.pair_age or is_guarded) or call.is_wait or call.effect == POLL or not call.call_key:
            return None
        if 0 < call.call_age <= call.in_round:
            _note_twin(run, call)
            return None
        marks = run.ring.marks
        config = policy.interleaved_repeat
        # Bytes that are no whole mark may match: at most one look more.
        if marks.count(call.mark[HALF:] if is_guarded else call.mark) < config.observe and not is_guarded:
            return None
        # Not before `Cycle` or `ExactRepeat`: in order of the catalogue, the state is of this call.
        if run.exact_repeat is not None and call.call_key == run.exact_repeat.call_key:
            return None
        rows = run.ring.newest_rows(KEPT_CALLS)
        slow_ms = _slow_ms(rows, policy.exact_repeat) if call.effect == UNKNOWN else inf
        if call.effect == UNKNOWN and _is_patient(rows, len(rows) - 1, slow_ms):
            return None
        if _something_moves(rows):
            return None
        repeats = _count(run, rows, call, slow_ms)
        return self._finding(run, call, repeats, policy) if repeats.times >= config.observe else None

    def _finding(self, run: RunState, call: Call, repeats: _Repeats, policy: Policy) -> Finding | None:
        config = policy.interleaved_repeat
        count = repeats.times
        nudge = config.nudge_undeclared if call.effect == UNKNOWN else config.nudge
        level, threshold = grade(count, config.observe, nudge, kill=config.kill)
        if level > NUDGE and call.effect == WRITE and run.novel_call > run.calls - repeats.first_age:
            level, threshold = NUDGE, nudge
        seq, offset, ms, _ = run.ring.call_at(repeats.first_age, seq=call.step.seq, offset=call.offset)
        if not is_news(run, policy, self.name, call.call_key, level, count, seq):
            return None
        return Finding(
            detector=self.name,
            pattern=self.pattern,
            level=level,
            loop_key=call.call_key,
            count=count,
            threshold=threshold,
            first_seq=seq,
            first_ms=run.started_ms + ms,
            first_offset=offset,
            tools=(call.tool,),
            veto_after_seq=seq,
            note=f"{call.tool} was called {count} times among other calls, with the same arguments and the same answer",
            effect=call.effect,
        )


def _note_twin(run: RunState, call: Call) -> None:
    """Remember that a call is the second equal one of its round: it does not count."""
    twins = run.round_twins
    if twins is None:
        twins = run.round_twins = bytearray()
    twins += (call.step.seq & _LOW).to_bytes(_TWIN, "big")
    del twins[:-_MAX_TWINS_BYTES]


def _something_moves(rows: list[Row]) -> bool:
    """Return whether any call was answered in two ways. The answers of clocks and waits say nothing."""
    answers: dict[int, int] = {}
    for result, call, _, when in rows:
        if result and call and answers.setdefault(call, result) != result and not when & WAITS:
            return True
    return False


def _count(run: RunState, rows: list[Row], call: Call, slow_ms: float) -> _Repeats:
    key = call.call_key & _LOW
    twins = run.round_twins
    newest = len(rows) - 1
    since_write = run.calls - run.write_call if run.write_call >= 0 else len(rows)
    times = first_age = 0
    for at in range(newest, max(newest - since_write, -1), -1):
        result, other, seq, when = rows[at]
        # All answers of this call are one, or something would move.
        if other != key or not (result or when & GUARDED):
            continue
        if twins and holds_key(twins, seq.to_bytes(_TWIN, "big")):
            continue
        if when & UNDECLARED and _is_patient(rows, at, slow_ms):
            continue
        times += 1
        first_age = newest - at
    return _Repeats(times, first_age)


def _is_patient(rows: list[Row], at: int, slow_ms: float) -> bool:
    """Return whether a call came after a wait or after a pause as long as only polling explains."""
    if at == 0:
        return False
    before = rows[at - 1]
    return before[3] & WAITS != 0 or ms_of(rows[at]) - ms_of(before) >= slow_ms


def _slow_ms(rows: list[Row], config: ExactRepeatConfig) -> float:
    gaps = [ms_of(later) - ms_of(earlier) for earlier, later in pairwise(rows)]
    if not gaps or max(gaps) < config.slow_gap_ms:
        return inf
    return max(config.slow_gap_ms, config.slow_gap_medians * median(gaps))
