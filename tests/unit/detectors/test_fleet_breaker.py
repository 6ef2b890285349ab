"""The breaker of one tool: when it opens, when it tries again, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from tests._support.tools import CONFIG, T0, second

from loopwarden_detectors import fleet_breaker
from loopwarden_detectors.fleet_breaker import MANUAL, Transition, observe, record_of, set_by_hand, tick
from loopwarden_detectors.tool_state import ToolState
from loopwarden_models.breaker_config import BreakerConfig
from loopwarden_models.tool_health import SecondSum


def new_tool() -> ToolState:
    """Return a tool that nobody has called."""
    return ToolState("acme", "search", born=7, version=7)


def feed(tool: ToolState, *seconds: SecondSum, config: BreakerConfig = CONFIG, **how: Any) -> list[Transition]:
    """Return what is said of `seconds`."""
    return [said for one in seconds for said in observe(tool, one, config, how.pop("mode", "enforce"), **how)]


def changes(said: Sequence[Transition]) -> list[tuple[str, str]]:
    """Return the changes of the breaker."""
    return [(one.before, one.after) for one in said if one.is_change]


def opened(config: BreakerConfig = CONFIG) -> ToolState:
    """Return a tool whose breaker opened at the second 1."""
    tool = new_tool()
    assert changes(feed(tool, second(0, failed=6), second(1, failed=6), config=config)) == [("closed", "open")]
    return tool


def half_opened(config: BreakerConfig = CONFIG) -> tuple[ToolState, int]:
    """Return a half-open tool, and the second in which it became so."""
    tool = opened(config)
    assert changes(tick(tool, tool.until_ms, config, "enforce")) == [("open", "half_open")]
    return tool, (tool.now_ms - T0) // 1000


@pytest.mark.parametrize(
    "seconds",
    [
        [second(0, failed=9)],  # nine calls
        [second(0, ok=6, failed=4)],  # four failures
        [second(0, ok=8, failed=7)],  # less than half
        [second(0, failed=40, runs=("a", "b"))],  # two runs
        [second(at, failed=40, runs=("a",)) for at in range(30)],  # one that loops
        [second(0, failed=5), second(30, failed=5)],  # not within one window
        [second(0, ok=4, failed=5), second(40, ok=4, failed=5)],
    ],
    ids=["few-calls", "few-failures", "low-share", "two-runs", "one-run", "two-windows", "two-bad-moments"],
)
def test_it_stays_closed_below_any_of_the_thresholds(seconds: list[SecondSum]) -> None:
    """All must hold: volume, failures, their share, and that it is not the doing of one run."""
    tool = new_tool()

    assert changes(feed(tool, *seconds)) == []
    assert tool.state == "closed"


def test_it_opens_when_all_thresholds_are_reached() -> None:
    """The verdict says how many calls failed; the record, how long callers should wait."""
    tool = new_tool()
    said = feed(tool, second(0, ok=3, failed=3, runs=("a",)), second(4, ok=2, failed=2, runs=("b", "c")))
    verdict = said[-1].verdict

    assert changes(said) == [("closed", "open")]
    assert (verdict.level, verdict.mode, verdict.pattern, verdict.run_id) == ("break", "enforce", "retry_storm", "*")
    assert (verdict.evidence.count, verdict.evidence.window_ms, verdict.evidence.tools) == (5, 5_000, ["search"])
    assert "5 of 10 calls failed within 5 s" in verdict.evidence.note
    record = record_of(tool, CONFIG, epoch=3, lease_until_ms=T0 + 90_000)
    assert (record.key, record.version, record.state) == ("acme|breaker|search", [3, 8], "open")
    assert record.opened_at_ms == T0 + 4_000
    assert record.lease_until_ms == T0 + 90_000
    assert record.retry_after_ms is not None
    assert 24_000 <= record.retry_after_ms <= 36_000
    assert record.reason is not None
    assert (record.reason.detector, record.reason.count, record.reason.tool) == ("fleet_breaker", 5, "search")


def test_the_verdict_names_the_breaker_of_all_runs_and_the_tool_that_is_down() -> None:
    """Only that of the opening: what is observed needs no cure."""
    said = [one.verdict for one in feed(new_tool(), second(0, failed=4), second(1, failed=8))]
    told = [(one.level, one.recovery, one.recovery_level, one.probable_cause) for one in said]

    assert told[0] == ("observe", None, None, None)
    assert told[-1] == ("break", "circuit_breaker", "L3", "tool_down")


def test_failures_of_several_runs_are_said_before_it_opens() -> None:
    """Once, not at every sum; and again when the window was quiet in between."""
    tool = new_tool()
    said = feed(tool, second(0, failed=3), second(1, failed=1), second(2, failed=1), second(60, ok=1))
    again = feed(tool, second(100, failed=3))

    assert [one.verdict.level for one in (*said, *again)] == ["observe", "observe"]
    assert not any(one.is_change for one in (*said, *again))


def test_runs_that_all_retry_on_the_minute_are_a_row() -> None:
    """Eight calls a minute are never ten in thirty seconds, and none of them gets through."""
    tool = new_tool()
    waves = [second(60 * wave, failed=8) for wave in range(3)]

    assert changes(feed(tool, *waves[:2])) == []
    assert changes(feed(tool, waves[2])) == [("closed", "open")]


@pytest.mark.parametrize("between", [second(90, ok=1), second(200, failed=8)], ids=["a-success", "a-long-gap"])
def test_a_success_or_a_long_gap_ends_the_row(between: SecondSum) -> None:
    """What gets through now and then is not down."""
    tool = new_tool()
    later = between.at_ms + 60_000

    assert changes(feed(tool, second(0, failed=8), second(60, failed=8), between)) == []
    assert changes(feed(tool, second((later - T0) // 1000, failed=8))) == []


def test_slow_calls_open_it_where_a_limit_is_declared() -> None:
    """Without a limit nobody knows what slow is."""
    limited = replace(CONFIG, slow_ms=20_000)
    calls = second(0, ok=2, slow=8)

    assert changes(feed(new_tool(), calls)) == []
    said = feed(new_tool(), calls, config=limited)
    assert changes(said) == [("closed", "open")]
    assert "8 of 10 calls took longer than 20,000 ms" in said[-1].verdict.evidence.note
    assert changes(feed(new_tool(), second(0, ok=2, slow=8, runs=("a",)), config=limited)) == []


def test_calls_of_those_that_do_not_know_yet_change_nothing() -> None:
    """Neither failure nor success, or an open breaker would hold itself open."""
    tool = opened()
    until_ms = tool.until_ms

    assert feed(tool, second(2, failed=50), second(3, ok=50)) == []
    assert (tool.state, tool.until_ms) == ("open", until_ms)


def test_probes_without_a_failure_close_it() -> None:
    """Three of them, and what was before is forgotten."""
    tool, now = half_opened()
    said = feed(tool, second(now, ok=2), second(now + 1, ok=1))

    assert changes(said) == [("half_open", "closed")]
    assert record_of(tool, CONFIG, epoch=1, lease_until_ms=0).lease_until_ms is None
    assert changes(feed(tool, second(now + 2, failed=9))) == []


def test_one_failed_probe_opens_it_again_for_longer() -> None:
    """With each time the pause doubles, up to five minutes, spread by a fifth; other runs get a turn."""
    tool, now = half_opened()
    pauses, epochs = [], []
    for _ in range(5):
        epochs.append(tool.probe_epoch)
        assert changes(feed(tool, second(now, ok=1, failed=1))) == [("half_open", "open")]
        pauses.append(tool.until_ms - tool.now_ms)
        tick(tool, tool.until_ms, CONFIG, "enforce")
        now = (tool.now_ms - T0) // 1000 + 1

    assert tool.reopened == 5
    assert epochs == [1, 2, 3, 4, 5]
    for pause, base in zip(pauses, (60, 120, 240, 300, 300), strict=True):
        assert 0.8 * base <= pause / 1000 <= 1.2 * base
    assert len(set(pauses)) == 5


def test_what_ended_before_the_half_opening_is_no_probe() -> None:
    """Clocks may differ by ten seconds; a failure from before the pause says nothing about now."""
    tool, now = half_opened()

    assert feed(tool, second(now - 11, failed=1)) == []
    assert changes(feed(tool, second(now - 9, failed=1))) == [("half_open", "open")]


def test_without_a_probe_the_share_is_doubled_once_and_then_it_is_opened_again() -> None:
    """Nobody may have drawn a ticket; if that helps nothing, it is not known to be well."""
    tool, _ = half_opened()
    share, version = tool.share, tool.version
    first = tick(tool, tool.until_ms, CONFIG, "enforce")
    doubled = tool.share
    second_time = tick(tool, tool.until_ms, CONFIG, "enforce")

    assert changes(first) == [("half_open", "half_open")]
    assert (share, doubled) == (0.05, 0.1)
    assert changes(second_time) == [("half_open", "open")]
    assert tool.version == version + 2
    assert tool.reopened == 1


def test_what_nobody_calls_for_an_hour_closes() -> None:
    """A tool that is out of use would be opened again for ever."""
    tool = opened()
    seen = []
    while tool.state != "closed":
        seen += changes(tick(tool, max(tool.until_ms, tool.now_ms), CONFIG, "enforce"))
    assert seen[-1][1] == "closed"
    assert 3_600_000 <= tool.now_ms - (T0 + 1_000) < 4_300_000


@pytest.mark.parametrize("state", sorted(MANUAL))
def test_what_a_person_set_is_never_left(state: Any) -> None:
    """Neither by failures nor by time."""
    tool = opened()
    set_by_hand(tool, state)

    said = feed(tool, second(2, failed=50), second(3, ok=50))
    assert [(one.verdict.level, one.verdict.mode) for one in said] == [("break", "shadow")] * (state == "observe_only")
    assert changes(said) == []
    assert tick(tool, T0 + 10_000_000, CONFIG, "enforce") == ()
    assert tool.state == state
    set_by_hand(tool, "closed")
    assert changes(feed(tool, second(10_001, failed=12))) == [("closed", "open")]


@pytest.mark.parametrize("mode", ["shadow", "warn"])
def test_a_mode_that_holds_back_says_what_would_have_been(mode: Any) -> None:
    """Once in a pause, with the mode that held it back."""
    tool = new_tool()
    said = [one for at in range(20) for one in observe(tool, second(at, failed=5), CONFIG, mode)]

    assert tool.state == "closed"
    assert [(one.verdict.level, one.verdict.mode) for one in said] == [("observe", mode), ("break", mode)]
    assert not any(one.is_change for one in said)


def test_a_policy_that_stops_enforcing_closes_what_is_open() -> None:
    """Nobody would judge its probes."""
    tool = opened()

    assert changes(tick(tool, tool.now_ms, CONFIG, "shadow")) == [("open", "closed")]


def test_old_calls_open_nothing_and_do_not_hide_fresh_ones() -> None:
    """After a day's backlog: said in shadow, and acted on as soon as the calls are fresh."""
    tool = new_tool()
    old = feed(tool, second(0, failed=12), act=False)
    fresh = feed(tool, second(2, failed=1))

    assert [(one.verdict.level, one.verdict.mode) for one in old] == [("break", "shadow")]
    assert changes(old) == []
    assert changes(fresh) == [("closed", "open")]


def test_without_room_it_stays_closed_and_says_so() -> None:
    """Too many tools are held open; an operator may still open it."""
    tool = new_tool()
    said = feed(tool, second(0, failed=12), second(1, failed=12), room=lambda: "2 of 20 are held open")

    assert [(one.verdict.level, one.verdict.mode, one.held_back) for one in said] == [("break", "shadow", True)]
    assert "2 of 20 are held open" in said[0].verdict.evidence.note
    assert changes(feed(tool, second(2, failed=1))) == [("closed", "open")]


def test_ids_are_told_apart_and_derived() -> None:
    """The same sums give the same ids; a tool that was forgotten and comes back gives others."""
    one, same, later = new_tool(), new_tool(), ToolState("acme", "search", born=900)
    ids = [[said.verdict.verdict_id for said in feed(tool, second(0, failed=12))] for tool in (one, same, later)]

    assert ids[0] == ids[1]
    assert ids[0] != ids[2]
    assert fleet_breaker.NAME == "fleet_breaker"
