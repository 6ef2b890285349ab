"""Tool calls of one run per minute."""

from __future__ import annotations

from tests._support.steps import Run, decide, levels, only, orders, tree_of, verdicts

from loopwarden_models.events import AnyStep
from loopwarden_models.policy import Policy

RATE = only("rate")


def calls(run: Run, n: int, gap_ms: int, tool: str = "search") -> list[AnyStep]:
    """Return `n` different calls, `gap_ms` apart."""
    run.gap_ms = gap_ms
    return [run.call(tool, run.seq, run.seq) for _ in range(n)]


def said(steps: list[AnyStep], policy: Policy = RATE) -> list[str]:
    """Return the levels that this rule alone says on the steps."""
    return levels(decide(steps, policy))


def test_a_busy_agent_is_no_runaway() -> None:
    """A call every other second, all day, is work."""
    assert said(calls(Run(), 1_000, 1_000)) == []


def test_two_calls_a_second_are_observed_and_four_are_nudged() -> None:
    """120 and 240 a minute; a burst is not a loop, so nothing stronger is decided."""
    assert said(calls(Run(), 119, 100)) == []
    assert said(calls(Run(), 120, 100)) == ["observe"]
    assert set(said(calls(Run(), 2_000, 100))) == {"observe", "nudge"}


def test_only_the_last_minute_counts() -> None:
    """A burst of a hundred, a minute's rest, another burst: neither reaches the number."""
    run = Run()
    burst = calls(run, 100, 100)
    run.now_ms += 60_000

    assert said([*burst, *calls(run, 100, 100)]) == []


def test_calls_before_the_run_was_counted_count() -> None:
    """A run gets its window when it becomes fast; what came just before is not lost."""
    #   29 calls in 29 s, then a hundred a second: the 120th of the last minute is the 91st fast one
    run = Run()
    steps = [*calls(run, 29, 1_000), *calls(run, 91, 10)]

    assert said(steps[:-1]) == []
    assert said(steps) == ["observe"]


def test_an_operator_may_set_a_number_that_kills() -> None:
    """Without it nothing above a nudge exists; with it the ladder is climbed as for any other rule."""
    policy = Policy.from_builtins({"mode": "enforce", "rate": {"kill_per_min": 300}})
    decisions = decide(calls(Run(), 310, 100), policy)

    assert verdicts(decisions, "rate")[-1].level == "kill"
    assert orders(decisions)[-1] == "kill_run"


def test_refused_calls_count() -> None:
    """An agent that hammers on a closed door at full speed is a runaway."""
    run = Run()
    run.gap_ms = 50

    assert said([run.call("search", n, outcome="blocked") for n in range(150)]) == ["observe"]


def test_a_person_who_speaks_does_not_reset_the_clock() -> None:
    """The rate is the provider's concern, not the segment's."""
    run = Run()
    fast = calls(run, 100, 100)

    assert said([*fast, run.user(), *calls(run, 30, 100)]) == ["observe"]


def test_the_most_frequent_tool_is_named() -> None:
    """The person who looks wants to know which tool to slow down."""
    run = Run()
    run.gap_ms = 100
    steps = [run.call("fetch" if n % 4 else "list", n, n) for n in range(120)]
    [verdict] = verdicts(decide(steps, RATE))

    assert verdict.evidence.tools == ["fetch"]
    assert verdict.evidence.note == "120 tool calls in the last minute, 75 % of the newest by fetch"
    assert verdict.evidence.window_ms <= 60_000


def test_a_slow_run_needs_no_window() -> None:
    """Nearly every run of a fleet is slow: what is not needed is not kept."""
    run = Run()
    steps = [*calls(run, 60, 100), *calls(run, 200, 30_000)]
    tree = tree_of(steps[0])
    decide(steps[:60], RATE, tree=tree)
    assert tree.runs["r1"].rate is not None

    decide(steps[60:], RATE, tree=tree)

    assert tree.runs["r1"].rate is None
