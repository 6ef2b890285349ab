"""A run that nothing is heard of any more, and a call that never comes back."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Final

from msgspec import UNSET, Struct, field

from loopwarden_detectors.base import KILL, OBSERVE, Finding
from loopwarden_detectors.identity import call_id_key
from loopwarden_detectors.ladder_state import is_news
from loopwarden_models.effects import WAIT_TOOLS
from loopwarden_models.events import AnyStep, ToolStart
from loopwarden_models.hashes import stable_key

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState, TreeState
    from loopwarden_models.policy import Policy

# One identity for all silence of a run.
LOOP_KEY: Final = stable_key("silent_run")

# Calls in flight whose own limit is remembered. The longest stay.
MAX_LIMITS: Final = 4

# Silence that is first seen when it is this much past its limit was not seen to grow: the source's clock is behind, or
# nobody looked. It is measured from there. judgement
_SEEN_LATE_MS: Final = 60_000

_LOW: Final = 0xFFFF_FFFF

# What a call may say of its own time: `{"timeout_s": 5400}`, `{"timeout": 120000}`, `timeout 90m make`, `sleep 3600`.
_MAX_ARGS_BYTES: Final = 4_000
_FIELD: Final = re.compile(
    rb'"[\w-]{0,40}?(?:time_?out|sleep|wait|delay|duration|(?=seconds|minutes|hours))([\w-]{0,16})"\s{0,4}:\s{0,4}'
    rb'"?([0-9]{1,10}(?:\.[0-9]{1,9})?)',
    re.IGNORECASE,
)
_SHELL: Final = re.compile(rb"\b(?:sleep|timeout)\s+([0-9]{1,10}(?:\.[0-9]{1,9})?)([smhd]?)\b")
_SHELL_UNITS_MS: Final = {b"": 1_000, b"s": 1_000, b"m": 60_000, b"h": 3_600_000, b"d": 86_400_000}
# A number without a unit is taken for seconds up to a day, for milliseconds above: the longer of what it may mean.
_BARE_SECONDS: Final = 86_400


class SilentState(Struct, array_like=True, gc=False):
    """What is known of a run's silence.

    Attributes:
        limits: Limits that calls declared for themselves: key of the call id, and milliseconds.
        mark: The newest step when silence was first seen: `seq` of the run, and offset of the tree where others count.
        since_ms: From when on it is measured, by the clock of ticks.
    """

    limits: list[int] = field(default_factory=list)
    mark: tuple[int, int] = (-1, -1)
    since_ms: int = 0


class SilentRun:
    """Time without an event of a run that has not ended, and without a call in flight that may take so long.

    A call may declare its own limit, in the policy (`tools: {train: {silent_run: {tool_limit_ms: 5400000}}}`), or in
    its arguments, as `timeout_s` or `sleep 3600`: then its once and twice count in place of the times below. What is
    found in arguments only makes the run's time longer.

    A root, and a run that started others, is silent when nothing is heard of its whole tree: it may wait for them.

    Not asked while anything in the tree waits for a person or is paused, nor after an order to stop was applied.

    A kill takes a run that is unattended, that reports the starts of its calls, and that has something to wait for: a
    call in flight, or a model that was given results. A run whose model has answered may wait for its next message.

    Silence is measured from the newest event by the source's clock if it was seen to grow, else from the tick that saw
    it first: a clock that is behind is no silence.

    Levels: observe at 5 minutes, kill at 30 (`SilentRunConfig`, with sources). Nothing is said to the model: it would
    not hear it.
    State: for calls that declare a limit of their own, and for runs that are silent, at most 60 bytes.
    Cost: 0.7 µs a `tool_start`, 5 µs one whose arguments speak of a timeout or a sleep; 0.3 µs a tick of a run.
    """

    name: ClassVar[str] = "silent_run"
    pattern: ClassVar[str] = "idle"
    kinds: ClassVar[tuple[type[AnyStep], ...]] = (ToolStart,)

    def observe(
        self,
        tree: TreeState,  # noqa: ARG002 - a `StepDetector`
        run: RunState,
        step: AnyStep,
        policy: Policy,
        offset: int,  # noqa: ARG002
    ) -> Finding | None:
        """Note the limit of its own that a call declares as it begins. See the class."""
        if type(step) is not ToolStart:
            return None
        config = policy.for_tool(step.tool).silent_run
        limit_ms = config.tool_limit_ms
        if limit_ms is None:
            limit_ms = _declared_ms(step)
            # Twice the limit would end the run sooner than no limit at all.
            if limit_ms * 2 <= config.kill_ms:
                return None
        state = run.silent_run
        if state is None:
            state = run.silent_run = SilentState()
        in_flight = {opened >> 32 for opened in run.open_calls or ()}
        key = call_id_key(step.call_id)
        known = [limit for limit in state.limits if limit >> 32 in in_flight and limit >> 32 != key]
        known.append(key << 32 | min(limit_ms, _LOW))
        state.limits = sorted(known, key=lambda limit: limit & _LOW)[-MAX_LIMITS:]
        return None

    def tick(self, tree: TreeState, run: RunState, policy: Policy, now_ms: int) -> Finding | None:
        """Judge the run at `now_ms`. See the class."""
        config = policy.silent_run
        opened = run.open_calls
        is_family = run.children > 0 or run is tree.subject(run)
        newest_ms = tree.now_ms if is_family else run.now_ms
        observe_ms, kill_ms = _limits_of((run,), config.observe_ms, config.kill_ms)
        if now_ms - newest_ms < observe_ms or tree.waits:
            return None
        if is_family and len(tree.runs) > 1:
            observe_ms, kill_ms = _limits_of(tree.runs.values(), config.observe_ms, config.kill_ms)
        stop = run.stop
        if stop is not None and stop.applied_ms >= 0 and stop.incarnation == run.incarnations:
            return None
        silent_ms = _silent_ms(tree, run, newest_ms, observe_ms, now_ms, is_family=is_family)
        if silent_ms < observe_ms:
            return None
        level, threshold_ms = OBSERVE, observe_ms
        if silent_ms >= kill_ms and _may_end(run):
            level, threshold_ms = KILL, kill_ms
        count = silent_ms // 1_000
        if not is_news(run, policy, self.name, LOOP_KEY, level, count, needs_nudge=False, now_ms=now_ms):
            return None
        in_flight = ", with a call in flight" if opened else ""
        return Finding(
            detector=self.name,
            pattern=self.pattern,
            level=level,
            loop_key=LOOP_KEY,
            count=count,
            threshold=threshold_ms // 1_000,
            first_seq=max(run.seq, 0),
            first_ms=now_ms - silent_ms,
            needs_nudge=False,
            note=f"nothing was heard of the run for {count} seconds{in_flight}",
        )


def _may_end(run: RunState) -> bool:
    """Return whether silence can only mean that the run hangs: what is in flight is reported, and something is due."""
    if run.attended or run.is_low_fidelity or run.open_calls is None:
        return False
    return bool(run.open_calls) or run.round_size > 0


def _limits_of(runs: Iterable[RunState], observe_ms: int, kill_ms: int) -> tuple[int, int]:
    """Return after which silence all calls in flight are late, and late twice over."""
    observe, kill = 0, 0
    for run in runs:
        state, opened = run.silent_run, run.open_calls
        if state is None or not opened or not state.limits:
            if opened:
                observe, kill = max(observe, observe_ms), max(kill, kill_ms)
            continue
        declared = {limit >> 32: limit & _LOW for limit in state.limits}
        for call in opened:
            limit_ms = declared.get(call >> 32)
            observe = max(observe, observe_ms if limit_ms is None else limit_ms)
            kill = max(kill, kill_ms if limit_ms is None else 2 * limit_ms)
    return observe or observe_ms, kill or kill_ms


def _silent_ms(tree: TreeState, run: RunState, newest_ms: int, observe_ms: int, now_ms: int, *, is_family: bool) -> int:
    state = run.silent_run
    mark = (run.seq, tree.steps_offset if is_family else -1)
    if state is None:
        state = run.silent_run = SilentState()
    if state.mark != mark or state.since_ms > now_ms:
        state.mark = mark
        state.since_ms = newest_ms if now_ms - newest_ms < observe_ms + _SEEN_LATE_MS else now_ms
    return now_ms - max(state.since_ms, newest_ms)


def _declared_ms(step: ToolStart) -> int:
    """Return how long a call says that it may take, 0 if it says nothing."""
    if step.args is UNSET or len(step.args) > _MAX_ARGS_BYTES:
        return 0
    args = bytes(step.args)
    if b"imeout" not in args and b"sleep" not in args and step.tool not in WAIT_TOOLS:
        return 0
    found = [int(float(number) * _unit_ms(unit.lower(), float(number))) for unit, number in _FIELD.findall(args)]
    found += [int(float(number) * _SHELL_UNITS_MS[unit]) for number, unit in _SHELL.findall(args)]
    return max(found, default=0)


def _unit_ms(unit: bytes, number: float) -> int:
    unit = unit.strip(b"_-")
    if unit == b"ms" or b"milli" in unit:
        return 1
    if unit == b"m" or b"min" in unit:
        return 60_000
    if unit == b"h" or b"hour" in unit:
        return 3_600_000
    return 1_000 if unit == b"s" or b"sec" in unit or number <= _BARE_SECONDS else 1
