"""Waits, and nothing between them."""

from __future__ import annotations

from typing import Any

import pytest
from tests._support.steps import Run, decide, levels, only, tree_of, verdicts

from loopwarden_detectors.run_state import TreeState
from loopwarden_models.events import AnyStep

SLEEP = only("sleep_only")


def said(steps: list[AnyStep]) -> list[str]:
    """Return the levels that this rule alone says on the steps."""
    return levels(decide(steps, SLEEP))


def nap(run: Run, args: Any = None, tool: str = "sleep", **fields: Any) -> AnyStep:
    """Return one short wait, or another one."""
    return run.call(tool, {"seconds": 5} if args is None else args, "", **fields)


def test_three_waits_in_a_row_are_nudged() -> None:
    """Two are a slow start."""
    run = Run()

    assert said([nap(run) for _ in range(2)]) == []
    assert said([nap(run) for _ in range(3)]) == ["nudge"]


def test_nothing_is_ever_stronger() -> None:
    """Limits on time end what sleeps for ever."""
    run = Run()

    assert set(said([nap(run) for _ in range(100)])) == {"nudge"}


def test_the_evidence_names_the_first_wait() -> None:
    """A person at night must find the steps."""
    run = Run()
    decisions = decide([run.start(), run.call(), *(nap(run) for _ in range(3))], SLEEP)
    nudge = verdicts(decisions)[-1]

    assert (nudge.pattern, nudge.evidence.count, nudge.evidence.threshold) == ("idle", 3, 3)
    assert (nudge.evidence.first_seq, nudge.evidence.last_seq) == (2, 4)


def test_anything_between_two_waits_is_no_row() -> None:
    """Look, sleep, look, sleep is a poll, whoever declared it."""
    run = Run()

    assert said([step for n in range(20) for step in (run.call("peek", 1, n), nap(run))]) == []
    assert said([step for _ in range(20) for step in (run.call("status", 1, "R", effect="poll"), nap(run))]) == []


def test_waits_of_one_batch_count_once() -> None:
    """Three timers side by side are one wait."""
    run = Run()
    batch = [("sleep", {"seconds": n}, "") for n in range(3)]

    assert said([*run.batch(*batch), *run.batch(*batch)]) == []
    assert said([step for _ in range(3) for step in run.batch(*batch)]) == ["nudge"]


@pytest.mark.parametrize(
    ("tool", "args"),
    [
        ("sleep", {"seconds": 120}),
        ("sleep", 120),
        ("sleep", {"time": 300}),
        ("wait", {"wait_ms": 120_000}),
        ("wait", {"waitSeconds": 180}),
        ("wait", {"minutes": 2}),
        ("wait", {"secondi": 300}),
        ("bash", "sleep 300"),
        ("bash", {"command": "sleep 5m"}),
    ],
)
def test_one_long_wait_that_nothing_explains_is_nudged(tool: str, args: Any) -> None:
    """Two minutes are an eternity for something that was not begun."""
    assert said([nap(Run(), args, tool)]) == ["nudge"]


@pytest.mark.parametrize(
    ("tool", "args"),
    [
        ("sleep", {"seconds": 119}),
        ("sleep", 5_000),
        ("wait", {"wait_ms": 5_000}),
        ("wait", {"items": 300}),
        ("wait", {"until": "the page is there"}),
        ("bash", "sleep 2m && make"),
        ("bash", "sleep 30"),
    ],
)
def test_a_short_or_unknown_wait_is_not(tool: str, args: Any) -> None:
    """Many tools count milliseconds: a bare 5,000 is no evidence of an hour."""
    assert said([nap(Run(), args, tool)]) == []


def test_what_was_measured_counts_before_what_was_asked_for() -> None:
    """A wait of an hour that came back at once was none."""
    run = Run()

    assert said([run.call("sleep", {"seconds": 3_600}, "", duration_ms=200.0)]) == []
    assert said([run.call("sleep", {"until": "ready"}, "", duration_ms=150_000.0)]) == ["nudge"]


@pytest.mark.parametrize(
    "before",
    [
        {"tool": "status", "result": "RUNNING", "effect": "poll"},
        {"tool": "start", "result": "started", "effect": "write"},
        {"tool": "bash", "args": "make &", "result": "[1] 4711"},
    ],
    ids=["poll", "write", "undeclared"],
)
def test_a_long_wait_for_something_is_patience(before: dict[str, Any]) -> None:
    """One blocking wait is just what a poller is advised to make."""
    run = Run()

    assert said([run.call(**before), nap(run, {"seconds": 600})]) == []


def test_a_long_wait_between_equal_looks_is_patience() -> None:
    """A check every five minutes, as the person asked for, by a tool that nobody declared a poller."""
    run = Run()
    looks = [step for _ in range(6) for step in (run.call("check", 1, "open"), nap(run, {"seconds": 300}))]

    assert said(looks) == []


def test_a_long_wait_after_a_wait_or_a_failure_is_none() -> None:
    """Nothing was begun that could be waited for."""
    run = Run()

    assert said([run.call("start", 1, "ok", effect="write"), nap(run), nap(run, {"seconds": 600})]) == ["nudge"]
    assert said([run.call("start", 2, fails="no quota", effect="write"), nap(run, {"seconds": 600})]) == ["nudge"]


def test_a_clock_that_is_read_is_no_wait() -> None:
    """The time in three cities, one after another."""
    run = Run()

    assert said([run.call("now", {"city": n}, n, effect="clock") for n in range(6)]) == []
    assert said([run.call("pause", {"seconds": 9}, n, effect="clock") for n in range(3)]) == ["nudge"]


def test_a_refused_wait_let_no_time_pass() -> None:
    """The runtime forbids long sleeps: other rules speak about refusals."""
    run = Run()

    assert said([nap(run, outcome="denied") for _ in range(6)]) == []


def test_a_person_starts_the_count_anew() -> None:
    """What the agent was asked for is another matter."""
    run = Run()

    assert said([step for _ in range(6) for step in (nap(run), nap(run), run.user())]) == []


def test_a_crash_in_the_middle_changes_nothing() -> None:
    """The count survives in the snapshot."""
    run = Run()
    steps = [nap(run) for _ in range(12)]
    for cut in range(1, 12):
        tree = tree_of(steps[0])
        first = levels(decide(steps[:cut], SLEEP, tree=tree))
        again = TreeState.from_bytes(tree.to_bytes())

        assert again == tree
        assert first + levels(decide(steps[cut:], SLEEP, tree=again)) == said(steps)
