"""The safety net: with Kafka away for good, on what one process sees."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from loopwarden import Action, Decision, RunGuard, SafetyNet
from loopwarden.testing import GuardBench, breaker, enforcement
from loopwarden_models.errors import ConfigError
from loopwarden_models.events import RunEnd, ToolEnd


def net_bench(**options: Any) -> GuardBench:
    """Return a bench with a safety net, without the stop unless it is asked for."""
    return GuardBench(safety_net=SafetyNet(**{"max_refusals": None, **options}))


def fail(
    bench: GuardBench, run: RunGuard, number: int, *, outcome: str = "error", tool: str = "search", **end: Any
) -> Decision:
    """Make one call that goes wrong, a second after the last; the number is its argument."""
    bench.clock.advance(1_000)
    decision = run.before_tool(tool, {"n": number}, f"c{number}")
    if decision.allowed:
        run.after_tool(f"c{number}", outcome=outcome, **end)
    return decision


def test_without_a_net_nothing_is_refused() -> None:
    """What a process sees of a tool is little: the detector decides."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        assert all(fail(bench, run, 1).allowed for _ in range(50))


def test_a_tool_that_keeps_failing_is_refused_to_all_runs_of_the_process() -> None:
    """Kafka is down: nobody else can say so. Reported as `blocked`, and sent in order when it is back."""
    bench = net_bench()
    bench.transport.is_down = True
    with bench.guard.run("r-1") as one, bench.guard.run("r-2") as other:
        for number in range(5):
            assert fail(bench, one if number % 2 else other, number).allowed
        refused = fail(bench, other, 5)
        assert fail(bench, other, 6, tool="read").allowed
    bench.transport.is_down = False
    bench.pump()

    answer = json.loads(refused.message or "")
    assert (answer["error"], answer["reason"]) == ("tool_unavailable", "breaker_open")
    assert refused.retry_after_ms is not None
    assert 24_000 <= refused.retry_after_ms < 72_000
    ends = [step for step in bench.transport.steps if isinstance(step, ToolEnd) and step.run_id == "r-2"]
    blocked = [step for step in ends if step.outcome == "blocked"]
    assert [step.call_id for step in blocked] == ["c5"]
    assert blocked[0].error is not None
    assert blocked[0].error.error_class == "local_breaker:search"
    assert [step.seq for step in ends] == sorted(step.seq for step in ends)
    stats = bench.guard.stats()
    assert (stats["local_openings"], stats["local_refusals"]) == (1, 1)
    assert "faults" not in stats


def test_one_call_that_keeps_failing_is_refused_to_its_run_alone() -> None:
    """Other calls of the tool go well: it is the run's own trouble (63)."""
    bench = net_bench()
    with bench.guard.run("r-1") as run, bench.guard.run("r-2") as other:
        for number in range(5):
            assert fail(bench, run, 7).allowed
            for n in range(3):
                other.before_tool("search", {"other": n}, f"o{number}-{n}")
                other.after_tool(f"o{number}-{n}", result=n)
        refused = fail(bench, run, 8)
        assert "blocked_for_this_run" in (refused.message or "")
        assert refused.retry_after_ms == 59_000
        assert fail(bench, other, 9).allowed
        bench.clock.advance(59_000)
        assert fail(bench, run, 8).allowed


@pytest.mark.parametrize(
    ("outcome", "end", "spends"),
    [
        ("error", {}, True),
        ("error", {"error": RuntimeError("down")}, True),
        ("error", {"error": {"status": 503}}, True),
        ("error", {"error": {"status": 429}}, True),
        ("error", {"error": {"status": 422}}, False),
        ("error", {"error": {"status": "404"}}, False),
        ("timeout", {}, True),
        ("invalid_args", {}, False),
        ("unknown_tool", {}, False),
        ("denied", {}, False),
        ("cached", {}, False),
        ("half_done", {}, False),
    ],
)
def test_only_what_is_the_tools_fault_spends_the_budget(outcome: str, end: dict[str, Any], spends: bool) -> None:
    """What the arguments caused, or a person refused, is the run's."""
    bench = net_bench()
    with bench.guard.run("r-42") as run:
        allowed = [fail(bench, run, 1, outcome=outcome, **end).allowed for _ in range(8)]

    assert allowed == ([True] * 5 + [False] * 3 if spends else [True] * 8)


def test_calls_without_arguments_equal_nothing() -> None:
    """They cannot be told to be the same."""
    bench = net_bench(min_failures=100)
    with bench.guard.run("r-42") as run:
        for number in range(20):
            assert run.before_tool("search", None, f"c{number}").allowed
            run.after_tool(f"c{number}", outcome="error")

    assert "faults" not in bench.guard.stats()


@pytest.mark.parametrize("gaps_ms", [[15_000] * 30, [100 * 2**n for n in range(10)]])
def test_one_call_that_fails_now_and_then_or_ever_later_is_not_refused(gaps_ms: list[int]) -> None:
    """Four in a minute; and back-off counts half."""
    bench = net_bench(min_failures=1_000)
    with bench.guard.run("r-42") as run:
        for gap_ms in gaps_ms:
            bench.clock.advance(gap_ms - 1_000)
            assert fail(bench, run, 1).allowed


def test_five_rounds_of_refusals_in_a_row_end_the_run() -> None:
    """Blocking alone ends nothing: a stubborn model asks until the framework's own limit."""
    bench = GuardBench(safety_net=SafetyNet())
    bench.transport.state(breaker("search", "forced_open"))
    bench.pump()
    with bench.guard.run("r-42") as run:
        actions = []
        for number in range(6):
            run.before_model()
            # A batch of three: its model reads the refusals together.
            actions.append({run.before_tool("search", {}, f"c{number}-{n}").action for n in range(3)})
    bench.pump()

    assert actions[:4] == [{Action.BLOCK}] * 4
    assert actions[4] == actions[5] == {Action.STOP}
    end = bench.transport.steps[-1]
    assert isinstance(end, RunEnd)
    assert (end.status, bench.guard.stats()["local_stops"]) == ("limit", 1)


def test_a_call_that_was_made_begins_the_row_anew() -> None:
    """The run has found something else to do."""
    bench = GuardBench(safety_net=SafetyNet())
    bench.transport.state(breaker("search", "forced_open"))
    bench.pump()
    with bench.guard.run("r-42") as run:
        for number in range(30):
            run.before_model()
            run.before_tool("search" if number % 5 else "read", {}, f"c{number}")
            run.after_tool(f"c{number}", result=number) if number % 5 == 0 else None
        assert not run.stopped


def test_what_others_refuse_counts_as_well() -> None:
    """From whatever source: a guardrail of the framework says no. Without rounds each refusal counts."""
    bench = GuardBench(safety_net=SafetyNet())
    with bench.guard.run("r-42") as run:
        for number in range(5):
            assert run.before_tool("pay", {}, f"c{number}").allowed
            run.after_tool(f"c{number}", outcome="denied")
        assert run.stopped
        assert run.before_tool("pay", {}, "c9").action is Action.STOP


@pytest.mark.parametrize("holds", [False, True])
def test_under_the_big_switch_refusals_of_others_end_a_run_only_where_that_was_set(holds: bool) -> None:
    """73: the net follows its own policy for that case."""
    bench = GuardBench(safety_net=SafetyNet(holds_under_observe_only=holds))
    bench.transport.state(enforcement("observe_only"))
    bench.pump()
    with bench.guard.run("r-42") as run:
        for number in range(9):
            run.before_tool("pay", {}, f"c{number}")
            run.after_tool(f"c{number}", outcome="denied")
        assert run.stopped is holds


@pytest.mark.parametrize("state", ["disabled", "observe_only"])
def test_a_tool_that_a_person_holds_open_is_left_alone(state: str) -> None:
    """An operator's word comes before the net."""
    bench = net_bench()
    bench.transport.state(breaker("search", state))
    bench.pump()
    with bench.guard.run("r-42") as run:
        assert all(fail(bench, run, 1).allowed for _ in range(20))


def test_the_net_tightens_what_the_detector_lets_through() -> None:
    """The probe of a half-open tool is a call like any other to it."""
    bench = net_bench()
    with bench.guard.run("r-42") as run:
        for _ in range(5):
            fail(bench, run, 1)
        bench.transport.state(breaker("search", "closed"))
        bench.pump()
        assert not fail(bench, run, 2).allowed


@pytest.mark.parametrize("holds", [False, True])
def test_the_big_switch_and_the_net(holds: bool) -> None:
    """73: it does what was set for this case."""
    bench = GuardBench(safety_net=SafetyNet(holds_under_observe_only=holds, max_refusals=2))
    bench.transport.state(enforcement("observe_only"))
    bench.pump()
    with bench.guard.run("r-42") as run:
        for number in range(9):
            fail(bench, run, number)
        assert run.stopped is holds
    stats = bench.guard.stats()

    assert ("local_advice" in stats) is not holds
    assert ("local_refusals" in stats) is holds


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("window_ms", 0),
        ("min_failures", 0),
        ("open_ms", -1),
        ("run_failures", 0),
        ("run_block_ms", 0),
        ("failure_share", 0.0),
        ("failure_share", 1.1),
        ("failure_share", float("nan")),
        ("max_open_ms", 29_999),
        ("max_refusals", 0),
    ],
)
def test_a_net_that_could_not_work_is_refused_by_name(field: str, value: float) -> None:
    """When the program starts, and nowhere later."""
    with pytest.raises(ConfigError, match=f"safety_net.{field} is"):
        SafetyNet(**{field: value})  # type: ignore[arg-type]  # any number, on purpose


def test_the_page_has_every_field_with_its_default() -> None:
    """People switch the net on from the page, and tune it from there."""
    page = (Path(__file__).parents[3] / "docs" / "runtime.md").read_text(encoding="utf-8")
    printed = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", page.split("## The safety net")[1], re.MULTILINE))
    net = SafetyNet()

    for name in SafetyNet.__struct_fields__:
        assert printed[name].strip("`").replace(",", "") == str(getattr(net, name))
