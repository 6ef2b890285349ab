"""Waits, and nothing between them: the agent sleeps, wakes up, and sleeps again."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Final

from msgspec import UNSET, Struct

from loopwarden_detectors.base import NUDGE, PATIENT, Call, Finding
from loopwarden_detectors.ladder_state import is_news
from loopwarden_detectors.rings import POLLS, UNDECLARED, UNPRODUCTIVE, WAITS
from loopwarden_models.effects import CLOCK, WAIT_TOOLS
from loopwarden_models.hashes import stable_key

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState
    from loopwarden_models.events import ToolEnd
    from loopwarden_models.policy import Policy

# One identity for all waiting of a run: how long it asks to sleep is no other loop.
LOOP_KEY: Final = stable_key("sleep_only")

# What a wait asks for: `{"seconds": 300}`, `{"waitMs": 5000}`, `sleep 5m`. A longer text is no plain wait.
_MAX_ARGS_BYTES: Final = 200
_SHELL: Final = re.compile(rb"\bsleep\s+([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd]?)\b")
_FIELD: Final = re.compile(
    rb'"(?:[\w-]{0,40}[_-]|[\w-]{0,40}[a-z](?=[A-Z]))?(?i:(ms|milli)|(s|se[cgk])|(mi?n)|(h))(?i:[a-z]{0,10})"'
    rb'\s{0,4}:\s{0,4}"?([0-9]{1,9}(?:\.[0-9]{1,9})?)'
)
_UNITS_MS: Final = (1, 1_000, 60_000, 3_600_000)
_SHELL_UNITS_MS: Final = {b"": 1_000, b"s": 1_000, b"m": 60_000, b"h": 3_600_000, b"d": 86_400_000}
# A number without a unit: seconds by custom, but some tools count milliseconds.
_BARE: Final = re.compile(
    rb'(?:\{\s{0,4}"(?i:time(?:out)?|duration|delay|wait|sleep)"\s{0,4}:)?\s{0,4}([0-9]{1,3}(?:\.[0-9]{1,9})?)\s{0,4}\}?'
)
# A clock that is read is no wait. judgement
_MIN_WAIT_MS: Final = 1_000
_MEMO: Final = 1_024


class SleepState(Struct, array_like=True, gc=False):
    """Two waits or more in a row: how many, the run's number of the last one, its round, and where they began."""

    count: int
    last_call: int
    round: int
    first_seq: int
    first_ms: int
    first_offset: int


class SleepOnly:
    """Waits in a row with nothing between them, or one wait of two minutes and more that nothing explains.

    A wait after a poll belongs to the poll, and so does one after a call that was made before: an undeclared poller. A
    long wait right after a write, or an undeclared call that succeeded, waits for what that began. A round counts once.
    A clock that is only read is no wait.

    Levels: nudge, at three waits in a row or at a long one (`SleepOnlyConfig`, with sources). Nothing more: limits on
    time end what waits for ever.
    State: from the second wait in a row on.
    Cost: 0.3 µs a wait, 2 µs for one whose arguments were not seen lately.
    """

    name: ClassVar[str] = "sleep_only"
    pattern: ClassVar[str] = "idle"
    signs: ClassVar[int] = PATIENT

    def observe(self, run: RunState, call: Call, policy: Policy) -> Finding | None:
        """Judge one call. See the class."""
        if not call.is_wait or call.outcome != "ok":
            return None
        wait_ms = _wait_ms(call.step)
        if wait_ms < _MIN_WAIT_MS and call.effect == CLOCK and call.step.tool not in WAIT_TOOLS:
            return None
        config = policy.sleep_only
        count = _count(run, call)
        if count >= config.nudge:
            return self._finding(run, call, count, config.nudge, policy)
        if wait_ms >= config.nudge_wait_ms and not _is_explained(run, call):
            return self._finding(run, call, wait_ms // 1_000, config.nudge_wait_ms // 1_000, policy)
        return None

    def _finding(self, run: RunState, call: Call, count: int, threshold: int, policy: Policy) -> Finding | None:
        if not is_news(run, policy, self.name, LOOP_KEY, NUDGE, count):
            return None
        state = run.sleep_only
        first = (call.step.seq, run.now_ms, call.offset)
        note = f"{call.tool} let {count} seconds pass in one call, and nothing was being waited for"
        if state is not None and state.last_call == run.calls:
            first = (state.first_seq, state.first_ms, state.first_offset)
            note = f"{state.count} calls in a row only let time pass"
        return Finding(
            detector=self.name,
            pattern=self.pattern,
            level=NUDGE,
            loop_key=LOOP_KEY,
            count=count,
            threshold=threshold,
            first_seq=first[0],
            first_ms=first[1],
            first_offset=first[2],
            tools=(call.tool,),
            note=note,
        )


def _count(run: RunState, call: Call) -> int:
    """Return how many rounds in a row the run has only waited, this one included."""
    state = run.sleep_only
    if state is not None and state.last_call == run.calls - 1:
        if call.round != state.round:
            state.count += 1
            state.round = call.round
        state.last_call = run.calls
        return state.count
    run.sleep_only = None
    if call.in_round or not run.ring.before(1)[1] & WAITS:
        return 1
    seq, offset, ms, _ = run.ring.call_at(1, seq=call.step.seq, offset=call.offset)
    run.sleep_only = SleepState(2, run.calls, call.round, seq, run.started_ms + ms, offset)
    return 2


def _is_explained(run: RunState, call: Call) -> bool:
    """Return whether there is something to wait for: work that the call before began, or what it looks at by turns."""
    ring = run.ring
    back = call.in_round + 1
    mark, kind = ring.before(back)
    if not mark or kind & WAITS:
        return False
    if kind & POLLS or ring.find_call_before(back) >= 0:
        return True
    return not kind & UNPRODUCTIVE and (kind & UNDECLARED != 0 or run.write_call == run.calls - back)


def _wait_ms(step: ToolEnd) -> int:
    """Return how long a call let time pass: as it was measured, or as it was asked for. 0 = not known."""
    if step.duration_ms is not None:
        return int(step.duration_ms)
    if step.args is UNSET or len(step.args) > _MAX_ARGS_BYTES:
        return 0
    return _asked_ms(bytes(step.args))


@lru_cache(_MEMO)
def _asked_ms(args: bytes) -> int:
    shell = _SHELL.search(args)
    if shell is not None:
        return int(float(shell[1]) * _SHELL_UNITS_MS[shell[2]])
    found = _FIELD.search(args)
    if found is not None:
        unit_ms = next(unit_ms for unit_ms, name in zip(_UNITS_MS, found.groups(), strict=False) if name is not None)
        return int(float(found[5]) * unit_ms)
    bare = _BARE.fullmatch(args)
    return 0 if bare is None else int(float(bare[1]) * 1_000)
