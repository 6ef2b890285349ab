"""Pages that were read already are read through once more, if shifted by a few lines."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar
from zlib import crc32

from msgspec import UNSET, Struct

from loopwarden_detectors.base import ALIKE, KILL, NUDGE, OBSERVE, Call, Finding
from loopwarden_detectors.identity import tool_key
from loopwarden_detectors.novelty import after_novelty
from loopwarden_detectors.streak_finding import finding_of
from loopwarden_models.effects import READ, UNKNOWN
from loopwarden_models.hashes import stable_key

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState
    from loopwarden_models.policy import Policy

# Of each a snapshot keeps some 200 bytes. judgement
MAX_FAMILIES = 2
MAX_INTERVALS = 4
# Of arguments: what pages through a thing names it, a place and a size.
MAX_PAGED_BYTES = 300
MAX_NUMBERS = 4

# A number of a call: not a part of a word or of another number. Longer ones are ids, not places.
_NUMBER = re.compile(rb"(?<![\w.-])\d{1,9}(?![\w.])")
# Of the pages of a sweep, so many per cent have been read before; for single pages the same holds of their lines.
_INSIDE_PERCENT = 90

_MEMO = 2_048


class Sweep(Struct, array_like=True, gc=False):
    """One thing that is paged through.

    Attributes:
        key: Of the tool and the arguments without their numbers.
        numbers: Those of the newest call.
        axis: Which of them is the place, -1 until a second page was read. The one after it may be the end of a range.
        width: Of a page.
        last_call: The run's number of the newest call.
        covered: What was read, as joined intervals `[low, high, low, high, …]`. `before`: what had been read when this
            sweep began, `again`: what of that it has read.
        sweep: Number of the current sweep, from 1.
        pages: Pages of this sweep, and `inside`: how many of them were read before.
        is_repeated: This sweep has met the rule.
    """

    key: int
    numbers: list[int]
    last_call: int
    progress_seq: int
    axis: int = -1
    width: int = 0
    covered: list[int] = []
    before: list[int] = []
    again: list[int] = []
    sweep: int = 1
    pages: int = 0
    inside: int = 0
    is_repeated: bool = False
    first_seq: int = 0
    first_ms: int = 0
    first_offset: int = -1


class Resweep:
    """`n` = number of the current sweep through one thing, from the second on.

    Calls of one tool that differ in one number, or in two that bound a range, are pages of one thing. A step back over
    more than half of what was read begins a new sweep. It counts when it has at least five pages, nine of ten of which
    were read before, and has covered half of what was.

    A page is as wide as its range, or as the largest other number that does not exceed the step to the next page (a
    limit), or as that step. Wherever the world may have moved, everything begins anew: at any progress of the run, and,
    for a tool without a declared effect, at any other call in between, which may have been the edit that is checked.

    Levels: observe at the step back, nudge when the second sweep counts, kill when the third does (`ResweepConfig`).
    New answers of a declared read within the last four calls lower the kill; shifted pages are new answers.
    Cost: 2 µs for a call whose arguments have the length of those before; nothing otherwise.
    """

    name: ClassVar[str] = "resweep"
    pattern: ClassVar[str] = "param_walk"
    signs: ClassVar[int] = ALIKE

    def observe(self, run: RunState, call: Call, policy: Policy) -> Finding | None:
        """Judge one call. See the class."""
        args = call.step.args
        if call.effect not in (READ, UNKNOWN) or call.outcome != "ok" or args is UNSET or len(args) > MAX_PAGED_BYTES:
            return None
        raw = bytes(args)
        numbers = [int(text) for text in _NUMBER.findall(raw)]
        if not 0 < len(numbers) <= MAX_NUMBERS:
            return None
        key = tool_key(call.tool) ^ crc32(_NUMBER.sub(b"#", raw))
        state = _find(run, call, key, numbers)
        if state is None:
            return None
        steps_back = _turn_page(run, call, state, numbers)
        if steps_back is None or state.sweep < policy.resweep.nudge_sweep:
            return None
        config = policy.resweep
        if not state.is_repeated:
            state.is_repeated = (
                state.pages >= config.min_calls
                and state.inside * 100 >= _INSIDE_PERCENT * state.pages
                and _size(state.again) * 2 >= _size(state.before)
            )
            if not state.is_repeated and not steps_back:
                return None
        count = state.sweep
        level = OBSERVE if not state.is_repeated else KILL if count >= config.kill_sweep else NUDGE
        level = after_novelty(run, level)
        loop_key = _loop_key(state.key)
        return finding_of(
            self,
            run,
            policy,
            state,
            level=level,
            count=count,
            threshold=config.kill_sweep if level == KILL else config.nudge_sweep,
            loop_key=loop_key,
            note=lambda: f"{call.tool} pages through what it has read already, for the {_ordinal(count)} time",
            tool=call.tool,
        )


def _find(run: RunState, call: Call, key: int, numbers: list[int]) -> Sweep | None:
    """Return what is known of the thing that is paged through; begin with it if nothing is."""
    sweeps = run.resweep
    if sweeps is None:
        sweeps = run.resweep = []
    state = next((known for known in sweeps if known.key == key and len(known.numbers) == len(numbers)), None)
    if state is not None:
        is_stale = run.progress_seq > state.progress_seq or (call.effect == UNKNOWN and state.last_call < run.calls - 1)
        moved = [at for at, (old, new) in enumerate(zip(state.numbers, numbers, strict=True)) if old != new]
        if not moved:
            state.last_call = run.calls
            return None
        is_range = len(moved) == 2 and moved[1] == moved[0] + 1  # noqa: PLR2004 - both ends
        if not is_stale and (len(moved) == 1 or is_range) and state.axis in (-1, moved[0]):
            if state.axis < 0:
                state.axis = moved[0]
            return state
        sweeps.remove(state)
    elif len(sweeps) >= MAX_FAMILIES:
        sweeps.remove(min(sweeps, key=lambda known: known.last_call))
    sweeps.append(Sweep(key, numbers, run.calls, run.progress_seq))
    return None


def _turn_page(run: RunState, call: Call, state: Sweep, numbers: list[int]) -> bool | None:
    """Add a page to a sweep; return whether it is a step back that begins a new one, `None` if it is no page at all."""
    place, former = numbers[state.axis], state.numbers[state.axis]
    width = _width(state, numbers, place - former)
    state.numbers, state.last_call = numbers, run.calls
    if not width:
        return None
    if not state.covered:
        # Of the thing's very first page no more is known than that a call of the same tool and length was made.
        _join(state.covered, max(0, former - width), former + width)
    low, high = state.covered[0], state.covered[-1]
    begins = not call.in_round and (former - place) * 2 > high - low
    if begins:
        state.sweep = state.sweep + 1 if state.sweep == 1 or state.is_repeated else state.sweep
        state.before, state.again = list(state.covered), []
        state.pages = state.inside = 0
        state.is_repeated = False
        state.first_seq, state.first_ms, state.first_offset = call.step.seq, run.now_ms, call.offset
    state.pages += 1
    if state.sweep > 1:
        pieces = _overlaps(state.before, place, place + width)
        if sum(end - start for start, end in pieces) * 100 >= _INSIDE_PERCENT * width:
            state.inside += 1
        for start, end in pieces:
            _join(state.again, start, end)
    _join(state.covered, place, place + width)
    return begins


def _width(state: Sweep, numbers: list[int], step: int) -> int:
    """Return how wide the page is, 0 if that cannot be told yet."""
    axis = state.axis
    others = [number for at, number in enumerate(numbers) if at != axis]
    if axis + 1 < len(numbers) and numbers[axis + 1] != state.numbers[axis + 1]:
        return max(0, numbers[axis + 1] - numbers[axis] + 1)
    if step > 0:
        fitting = [number for number in others if 0 < number <= step]
        state.width = max(fitting, default=step)
    return state.width


def _join(intervals: list[int], low: int, high: int) -> None:
    """Add `[low, high)` to joined intervals; too many, and the shortest is forgotten, as if it had not been read."""
    merged: list[tuple[int, int]] = []
    for start, end in zip(intervals[::2], intervals[1::2], strict=True):
        if end < low or start > high:
            merged.append((start, end))
        else:
            low, high = min(low, start), max(high, end)
    merged.append((low, high))
    if len(merged) > MAX_INTERVALS:
        merged.remove(min(merged, key=lambda piece: piece[1] - piece[0]))
    intervals[:] = [bound for piece in sorted(merged) for bound in piece]


def _overlaps(intervals: list[int], low: int, high: int) -> list[tuple[int, int]]:
    pairs = zip(intervals[::2], intervals[1::2], strict=True)
    return [(max(low, start), min(high, end)) for start, end in pairs if max(low, start) < min(high, end)]


def _size(intervals: list[int]) -> int:
    return sum(intervals[1::2]) - sum(intervals[::2])


@lru_cache(_MEMO)
def _loop_key(key: int) -> int:
    return stable_key(f"resweep\0{key}") or 1


def _ordinal(count: int) -> str:
    return {2: "second", 3: "third"}.get(count, f"{count}th")
