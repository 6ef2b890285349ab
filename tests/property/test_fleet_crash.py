"""Cut anywhere, restart from the snapshots, deliver sums twice: the breakers make the same transitions."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests._support.tools import T0

from loopwarden_detectors.tool_fleet import ToolFleet
from loopwarden_detectors.tool_state import ToolState
from loopwarden_models.policy import Policy
from loopwarden_models.tool_health import PartialSum, SecondSum

POLICY = Policy.from_builtins({"fleet_breaker": {"max_open_percent": 40, "slow_ms": 1_000, "failures_in_a_row": 8}})
TOOLS = ("search", "mail", "shell")
Event = tuple[str, Any]
HEALTHY, BROKEN, BUSY = range(3)


@st.composite
def events(draw: st.DrawFn) -> list[Event]:
    """Draw a history: sums of a few tools from two partitions, in rough order of time, and ticks."""
    history: list[Event] = []
    now = 0
    offsets = [0, 0]
    for _ in range(draw(st.integers(5, 60))):
        now += draw(st.sampled_from([0, 1, 1, 3, 20, 70]))
        if draw(st.integers(0, 4)) == 0:
            history.append(("tick", T0 + now * 1000))
            continue
        partition = draw(st.integers(0, 1))
        calls = draw(st.integers(1, 12))
        kind = draw(st.sampled_from([HEALTHY, BROKEN, BROKEN, BUSY]))
        bad = draw(st.integers(0, calls)) if kind == BUSY else calls * (kind == BROKEN)
        slow = draw(st.integers(0, calls - bad)) if kind == BUSY else 0
        runs = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3, unique=True))
        at_ms = T0 + max(0, now - draw(st.sampled_from([0, 0, 2, 40]))) * 1000
        one = SecondSum(
            at_ms=at_ms,
            calls=calls,
            failures=bad,
            slow=slow,
            failed_runs=runs if bad else [],
            slow_runs=runs if slow else [],
        )
        first = offsets[partition]
        offsets[partition] += calls
        tool = draw(st.sampled_from(TOOLS))
        sums = PartialSum(
            v=1,
            tenant="acme",
            tool=tool,
            partition=partition,
            epoch=1,
            first_offset=first,
            last_offset=first + calls - 1,
            seconds=[one],
        )
        history.append(("sum", sums))
    return history


def run(fleet: ToolFleet, history: list[Event], start: int, said: list[Any], *, repeat: set[int] = frozenset()) -> None:  # type: ignore[assignment]  # a frozen set is never changed
    """Feed a history from `start` on; those in `repeat` come twice, the second time as a sum of a new record."""
    for number in range(start, len(history)):
        what, value = history[number]
        if what == "tick":
            said += [transition for _, transition in fleet.tick(value)]
            continue
        counted = fleet.count(value, 2 * number)
        said += counted.transitions
        if number in repeat:
            assert fleet.count(value, 2 * number).transitions == ()
            again = fleet.count(value, 2 * number + 1)
            assert (again.admission, list(again.transitions)) == ("duplicate", [])


@settings(max_examples=150, deadline=None)
@given(history=events(), data=st.data())
def test_a_cut_anywhere_changes_nothing(history: list[Event], data: st.DataObject) -> None:
    """The states are saved at one point, the worker dies at a later one, and reads again from the first."""
    expected: list[Any] = []
    run(ToolFleet(POLICY), history, 0, expected)

    saved_at = data.draw(st.integers(0, len(history)), label="saved after")
    repeat = data.draw(st.sets(st.integers(0, len(history) - 1), max_size=6), label="delivered twice")
    before: list[Any] = []
    fleet = ToolFleet(POLICY)
    run(fleet, history[:saved_at], 0, before, repeat=repeat)
    snapshots = [tool.to_bytes() for tool in fleet.tools.values()]
    crashed_at = data.draw(st.integers(saved_at, len(history)), label="died after")
    lost: list[Any] = []
    run(fleet, history[:crashed_at], saved_at, lost)

    restored = ToolFleet(POLICY)
    restored.restore(ToolState.from_bytes(data) for data in snapshots)
    after: list[Any] = []
    run(restored, history, saved_at, after, repeat=repeat)

    assert [*before, *after] == expected
    assert after[: len(lost)] == lost
    assert len({one.verdict.verdict_id for one in expected}) == len(expected)


@settings(max_examples=100, deadline=None)
@given(history=events())
def test_the_totals_are_those_of_the_seconds(history: list[Event]) -> None:
    """What is subtracted when a second leaves is what was added when it came; and no state is left out of `held`."""
    fleet = ToolFleet(POLICY)
    for number in range(len(history)):
        run(fleet, history[: number + 1], number, [])
        for key, tool in fleet.tools.items():
            assert tool.calls == sum(bucket.calls for bucket in tool.buckets)
            assert tool.failures == sum(bucket.failures for bucket in tool.buckets)
            assert tool.slow == sum(bucket.slow for bucket in tool.buckets)
            assert tool.calls >= tool.failures + tool.slow >= 0
            assert (key in fleet.held) == (tool.state in ("open", "half_open"))
        assert len(fleet.held) <= max(1, len(TOOLS) * 40 // 100)
