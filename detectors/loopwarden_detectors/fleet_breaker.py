"""The circuit breaker that all runs of a tool share: closed, open, half open.

Pure functions over the state of one tool. Sums of calls and ticks go in, transitions come out; a transition that is to
be obeyed is a record on `control.state`. What a person set (`forced_open`, `disabled`, `observe_only`) is never left;
in `observe_only` it is said, in shadow, when it would have opened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from loopwarden_detectors.tool_state import ToolState
from loopwarden_models.breaker_config import BreakerConfig
from loopwarden_models.commands import ANY_INCARNATION, Reason
from loopwarden_models.control_state import BreakerState, BreakerStateName, Probe, breaker_key
from loopwarden_models.hashes import stable_key
from loopwarden_models.ids import verdict_id
from loopwarden_models.patterns import LevelName, Mode
from loopwarden_models.tool_health import SecondSum
from loopwarden_models.verdicts import Evidence, Verdict

NAME: Final = "fleet_breaker"
PATTERN: Final = "retry_storm"
# A verdict about a tool is about every run that calls it.
EVERY_RUN: Final = "*"

MANUAL: Final[frozenset[BreakerStateName]] = frozenset({"forced_open", "disabled", "observe_only"})
HELD_OPEN: Final[frozenset[BreakerStateName]] = frozenset({"open", "half_open"})

# Clocks of hosts differ: a probe's event time may lie so far before the half-opening. judgement
SKEW_S: Final = 10
# Nobody called it for so long: what is known of it is worth nothing any more, and it closes. judgement
FORGOTTEN_MS: Final = 3_600_000
_JITTER: Final = 0.2

Room = Callable[[], str | None]
NOTHING: Final[Sequence[Transition]] = ()


class Transition(Struct, frozen=True, kw_only=True):
    """One thing that is said of a tool. `is_change`: the breaker changed, and its record is to be published.

    Attributes:
        held_back: The breaker would have opened, and too many tools of the tenant are held open already.
    """

    verdict: Verdict
    is_change: bool
    before: BreakerStateName
    after: BreakerStateName
    held_back: bool = False


def observe(
    tool: ToolState, one: SecondSum, config: BreakerConfig, mode: Mode, *, act: bool = True, room: Room = lambda: None
) -> Sequence[Transition]:
    """Add one second of calls.

    Args:
        tool: Changed in place.
        one: Its source was admitted (`ToolState.admit`).
        config: In force for the tool.
        mode: In force for the tool (`mode_of`). In `shadow` and `warn` it is only said that it would have opened.
        act: False opens nothing: the calls are too old to act on.
        room: Returns why no further tool of the tenant may be held open, `None` if one may. Asked only before opening.

    Returns:
        Transitions in order; nearly always none.

    Cost: 1.5 µs.
    """
    if mode == "off" and tool.state == "closed":
        return NOTHING
    due = tick(tool, one.at_ms, config, mode)
    if tool.state == "observe_only":
        mode, act = "shadow", False
    elif tool.state in MANUAL:
        return due
    if one.at_ms // 1000 < tool.counts_from:
        return due
    tool.heard_ms = max(tool.heard_ms, one.at_ms)
    if tool.state == "half_open":
        return [*due, *_probed(tool, one, config, mode)]
    if tool.state == "open":
        return due  # from callers that did not know yet
    if not tool.add(one, config.window_ms // 1000):
        return due
    found = _judge(tool, config, mode, act=act, room=room)
    return [*due, found] if found is not None else due


def tick(tool: ToolState, now_ms: int, config: BreakerConfig, mode: Mode) -> Sequence[Transition]:
    """Let time pass: the pause ends, or the wait for a probe does. `now_ms` in Unix milliseconds."""
    tool.now_ms = max(tool.now_ms, now_ms)
    state, now = tool.state, tool.now_ms
    if state not in HELD_OPEN:
        return NOTHING
    if mode != "enforce":
        return [_close(tool, mode, f"{tool.tool}: closed, for the policy does not enforce its breaker any more")]
    if now < tool.until_ms:
        return NOTHING
    if now - tool.heard_ms >= FORGOTTEN_MS:
        return [_close(tool, mode, f"{tool.tool} was not called for an hour: closed, for nothing is known of it")]
    if state == "open":
        return [_half_open(tool, config, mode)]
    if not tool.is_wider:
        tool.is_wider = True
        tool.share = min(1.0, 2 * tool.share)
        tool.until_ms = now + config.probe_wait_ms
        note = f"{tool.tool}: no probe reported, {tool.share:.0%} of the runs may try now"
        evidence = Evidence(count=tool.probed)
        return [_said(tool, "half_open", "half_open", "observe", mode, note, evidence, is_change=True)]
    return [_open(tool, config, mode, Evidence(count=0), "no probe reported twice", is_again=True)]


def set_by_hand(tool: ToolState, state: BreakerStateName) -> None:
    """Take over what a person ordered: a manual state, or `closed`, which gives the breaker back to the detector."""
    tool.state = state
    tool.reopened = tool.probed = 0
    tool.reason = None
    tool.start_window()


def record_of(tool: ToolState, config: BreakerConfig, *, epoch: int, lease_until_ms: int) -> BreakerState:
    """Return the record that says how the breaker stands.

    Args:
        tool: Its state is no manual one.
        config: In force for the tool.
        epoch: Of the owner.
        lease_until_ms: Until when what is not closed binds, in Unix milliseconds of the broker's clock.
    """
    state = tool.state
    is_held = state in HELD_OPEN
    wait_ms = max(tool.until_ms - tool.now_ms, 0) if state == "open" else config.pause_ms
    return BreakerState(
        v=1,
        key=breaker_key(tool.tenant, tool.tool),
        version=[epoch, tool.version],
        state=state,
        opened_at_ms=tool.opened_ms or None,
        lease_until_ms=lease_until_ms if is_held else None,
        reopen_count=tool.reopened,
        retry_after_ms=wait_ms if is_held else None,
        probe=Probe(tool.probe_epoch, tool.share) if state == "half_open" else None,
        reason=tool.reason if is_held else None,
    )


def _judge(tool: ToolState, config: BreakerConfig, mode: Mode, *, act: bool, room: Room) -> Transition | None:
    """Return what the window says of a closed breaker that lets calls pass, `None` if that is no news."""
    why = _why(tool, config)
    if why is None:
        return _observed(tool, config, mode)
    evidence, said = why
    full = None
    if act and mode == "enforce":
        full = room()
        if full is None:
            return _open(tool, config, mode, evidence, said)
        said = f"{said}; left closed, for {full}"
    if tool.now_ms < tool.quiet_ms:
        return None
    tool.quiet_ms = tool.now_ms + config.pause_ms
    shown: Mode = "shadow" if mode == "enforce" else mode
    note = f"{tool.tool}: {said}"
    return _said(tool, tool.state, tool.state, "break", shown, note, evidence, held_back=full is not None)


def _why(tool: ToolState, config: BreakerConfig) -> tuple[Evidence, str] | None:
    calls, failures = tool.calls, tool.failures
    if calls >= config.min_calls:
        window_s = tool.newest - tool.buckets[0].second + 1
        if (
            failures >= config.min_failures
            and failures * 100 >= config.failed_percent * calls
            and tool.failed_runs() >= config.min_runs
        ):
            said = f"{failures} of {calls} calls failed within {window_s} s, in {config.min_runs} runs or more"
            return _evidence(tool, failures, config.min_failures, window_s), said
        if (
            config.slow_ms is not None
            and tool.slow * 100 >= config.slow_percent * calls
            and tool.slow_runs() >= config.min_runs
        ):
            said = f"{tool.slow} of {calls} calls took longer than {config.slow_ms:,} ms within {window_s} s"
            return _evidence(tool, tool.slow, config.min_calls, window_s), said
    if tool.row >= config.failures_in_a_row and len(tool.row_runs) >= config.min_runs:
        window_s = tool.row_to - tool.row_from + 1
        said = f"{tool.row} calls failed and none succeeded within {window_s} s, in {config.min_runs} runs or more"
        return _evidence(tool, tool.row, config.failures_in_a_row, window_s), said
    return None


def _observed(tool: ToolState, config: BreakerConfig, mode: Mode) -> Transition | None:
    failures = tool.failures
    if failures < config.observe:
        tool.is_observed = False
        return None
    if tool.is_observed or failures * 100 < config.failed_percent * tool.calls or tool.failed_runs() < config.min_runs:
        return None
    tool.is_observed = True
    window_s = tool.newest - tool.buckets[0].second + 1
    runs = config.min_runs
    note = f"{tool.tool}: {failures} of {tool.calls} calls failed within {window_s} s, in {runs} runs or more"
    evidence = _evidence(tool, failures, config.observe, window_s)
    return _said(tool, tool.state, tool.state, "observe", mode, note, evidence)


def _probed(tool: ToolState, one: SecondSum, config: BreakerConfig, mode: Mode) -> Sequence[Transition]:
    bad = one.failures + one.slow
    if bad:
        said = f"{bad} of {one.calls} probes failed" if one.failures else f"{bad} of {one.calls} probes were slow"
        return [_open(tool, config, mode, Evidence(count=bad, threshold=1), said, is_again=True)]
    tool.probed += one.calls
    if tool.probed < config.probes:
        return NOTHING
    return [_close(tool, mode, f"{tool.tool}: {tool.probed} probes without a failure: closed")]


def _open(
    tool: ToolState, config: BreakerConfig, mode: Mode, evidence: Evidence, said: str, *, is_again: bool = False
) -> Transition:
    before, now = tool.state, tool.now_ms
    tool.state = "open"
    tool.opened_ms = now
    if is_again:
        tool.reopened += 1
    else:
        tool.episode += 1
        tool.reopened = 0
        tool.heard_ms = max(tool.heard_ms, now)
    pause_ms = _pause_ms(tool, config)
    tool.until_ms = now + pause_ms
    note = f"{tool.tool}: {said}: open{' again' if is_again else ''} for {pause_ms // 1000} s"
    window_ms = evidence.window_ms or None
    if not is_again or tool.reason is None:
        tool.reason = Reason(PATTERN, NAME, evidence.count, window_ms, tool.tool, note[:256])
    tool.start_window()
    return _said(tool, before, "open", "break", mode, note, evidence, is_change=True)


def _half_open(tool: ToolState, config: BreakerConfig, mode: Mode) -> Transition:
    tool.state = "half_open"
    tool.probed = 0
    tool.probe_epoch += 1
    tool.share = config.probe_share
    tool.is_wider = False
    tool.until_ms = tool.now_ms + config.probe_wait_ms
    # Not before it opened, either: what failed then comes late, and is no probe.
    tool.counts_from = tool.now_ms // 1000 - min(SKEW_S, config.pause_ms // 2_000)
    note = f"{tool.tool}: half open, {tool.share:.0%} of the runs may try"
    return _said(tool, "open", "half_open", "observe", mode, note, Evidence(count=0), is_change=True)


def _close(tool: ToolState, mode: Mode, note: str) -> Transition:
    before = tool.state
    tool.state = "closed"
    tool.reopened = 0
    evidence = Evidence(count=tool.probed)
    tool.reason = None
    tool.quiet_ms = 0
    tool.start_window()
    return _said(tool, before, "closed", "observe", mode, note, evidence, is_change=True)


def _pause_ms(tool: ToolState, config: BreakerConfig) -> int:
    """Return the pause: doubled with each re-opening, and spread, so that tools that fell together do not rise so."""
    pause_ms = min(config.max_pause_ms, config.pause_ms * 2 ** min(tool.reopened, 30))
    drawn = stable_key(f"{tool.tenant}|{tool.tool}|{tool.episode}|{tool.reopened}") / 2**64
    return int(pause_ms * (1 - _JITTER + 2 * _JITTER * drawn))


def _evidence(tool: ToolState, count: int, threshold: int, window_s: int) -> Evidence:
    return Evidence(count=count, threshold=threshold, window_ms=window_s * 1000, tools=[tool.tool])


def _said(
    tool: ToolState,
    before: BreakerStateName,
    after: BreakerStateName,
    level: LevelName,
    mode: Mode,
    note: str,
    evidence: Evidence,
    *,
    is_change: bool = False,
    held_back: bool = False,
) -> Transition:
    tool.said += 1
    if is_change:
        tool.version += 1
    loop_id = f"{stable_key(f'{tool.tool}|{tool.born}'):016x}"
    verdict = Verdict(
        v=1,
        verdict_id=verdict_id(tool.tenant, EVERY_RUN, ANY_INCARNATION, NAME, loop_id, tool.said),
        tenant=tool.tenant,
        run_id=EVERY_RUN,
        root_run_id=EVERY_RUN,
        incarnation=ANY_INCARNATION,
        at_ms=tool.now_ms,
        detector=NAME,
        pattern=PATTERN,
        level=level,
        mode=mode,
        loop_id=loop_id,
        episode=tool.said,
        evidence=Evidence(
            count=evidence.count,
            threshold=evidence.threshold,
            window_ms=evidence.window_ms,
            tools=[tool.tool],
            note=note[:512],
        ),
        recovery="circuit_breaker" if level == "break" else None,
        recovery_level="L3" if level == "break" else None,  # L2 shuts it to one run, L3 to all
        probable_cause="tool_down" if level == "break" else None,
    )
    return Transition(verdict=verdict, is_change=is_change, before=before, after=after, held_back=held_back)
