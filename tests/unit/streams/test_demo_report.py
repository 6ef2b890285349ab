"""The sums of a demonstration, and the object that scripts read."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console
from tests._support.demo_records import Topics, plan

from loopwarden_models.events import RunStart, ToolStart
from loopwarden_streams.demo_report import (
    as_json,
    percentile,
    quantiles,
    saved,
    short_number,
    summarise,
    summary_view,
)


def good_play() -> Topics:
    """Two loops that are stopped, one that takes advice, two that are well."""
    topics = Topics(plan("r-1"), plan("r-2"), plan("r-3", "recovers"), plan("r-4", "healthy"), plan("r-5", "healthy"))
    topics.live("r-1", rounds=12, status=None)
    topics.kill("r-1", at_ms=2_000)
    topics.kill("r-2", at_ms=3_000)
    topics.order("nudge", "r-3", 0, 10)
    for run_id in ("r-3", "r-4", "r-5"):
        topics.live(run_id)
    return topics


def shown(topics: Topics, *, width: int = 120) -> str:
    """Return the summary as text."""
    console = Console(file=io.StringIO(), width=width, record=True)
    console.print(summary_view(summarise(topics.board), width=width))
    return console.export_text()


def test_the_object_for_scripts_has_this_shape() -> None:
    """Scripts read it: nothing is renamed, nothing added."""
    found = as_json(summarise(good_play().board))

    assert json.loads(json.dumps(found)) == {
        "ok": True,
        "looping": {"of": 2, "stopped": 2},
        "healthy": {"of": 2, "touched": 0},
        "latency_ms": {"applied": {"p50": 20, "p99": 20}, "confirmed_dead": {"p50": 30, "p99": 30}},
    }


def test_nothing_stopped_is_not_ok_and_has_no_latency() -> None:
    """Zero would be a boast."""
    topics = Topics(plan("r-1"))
    topics.live("r-1", status="limit")

    found = as_json(summarise(topics.board))

    assert found["ok"] is False
    assert found["latency_ms"]["applied"] == {"p50": None, "p99": None}
    assert "survived   acme/r-1" in shown(topics)


@pytest.mark.parametrize("kind", ["kill_run", "pause_run"])
def test_a_healthy_run_that_was_touched_is_a_failure(kind: str) -> None:
    """A person would have to explain it to somebody, whether the order was carried out or not."""
    topics = good_play()
    topics.order(kind, "r-4", 0, 10)

    summary = summarise(topics.board)

    assert not summary.is_ok
    assert as_json(summary)["healthy"] == {"of": 2, "touched": 1}
    assert "touched    acme/r-4" in shown(topics)


def test_a_nudged_healthy_run_is_told_but_not_touched() -> None:
    """Advice costs a sentence; that it was given is said."""
    topics = good_play()
    topics.order("nudge", "r-4", 0, 10)

    assert summarise(topics.board).is_ok
    assert "left alone 1 of 2 healthy runs" in shown(topics)


def test_who_takes_advice_is_counted_on_neither_side() -> None:
    """It was no survivor, and it was not stopped."""
    topics = good_play()

    summary = summarise(topics.board)

    assert (summary.looping, summary.healthy) == (2, 2)
    assert "acme/r-3: one nudge, and it finished by itself" in shown(topics)


def test_a_step_after_the_stop_is_told() -> None:
    """`applied` means that no step begins any more."""
    topics = good_play()
    assert not summarise(topics.board).late_steps

    topics.step(ToolStart, "r-1", 2_021, tool="search")

    assert [run.plan.run_id for run in summarise(topics.board).late_steps] == ["r-1"]


def test_a_healthy_run_without_an_end_is_told() -> None:
    """A machine that is too slow for the time must not look like a clean sheet."""
    topics = Topics(plan("r-1", "healthy"))
    topics.live("r-1", status="cancelled")

    assert summarise(topics.board).is_ok
    assert "the time was too short for acme/r-1" in shown(topics)


def test_what_was_saved_is_the_pace_of_the_last_ten_steps_up_to_the_limit() -> None:
    """Old steps were cheap because the context was small: they say nothing of what would have come."""
    #  steps    1 2 3 … 9   10 11 … 20        limit 100
    #  price    $1 each     $0.02 each        80 left: $1.60
    topics = Topics(plan("r-1", max_steps=100))
    for number in range(20):
        topics.round("r-1", number, tokens=1_000, cost_usd=1.0 if number < 10 else 0.02)

    tokens, usd = saved(topics.board.runs["acme", "r-1"])

    assert tokens == 80 * 1_000
    assert usd == pytest.approx(80 * 0.02)


def test_no_run_saves_more_than_it_may_cost() -> None:
    """A limit of ten thousand steps would make the figure worthless."""
    topics = Topics(plan("r-1", max_steps=10_000))
    for number in range(20):
        topics.round("r-1", number, cost_usd=0.05)

    assert saved(topics.board.runs["acme", "r-1"])[1] == 3.0


def test_a_run_of_one_step_has_no_pace() -> None:
    """Nothing is claimed that was not seen."""
    topics = Topics(plan("r-1"))
    topics.step(RunStart, "r-1")
    topics.round("r-1")

    assert saved(topics.board.runs["acme", "r-1"]) == (0, 0.0)


@pytest.mark.parametrize(
    ("values", "p50", "p99"),
    [([], None, None), ([7], 7, 7), ([1, 2], 1, 2), (list(range(1, 101)), 50, 99), ([3, 1, 2], 2, 3)],
)
def test_percentiles_are_values_that_were_measured(values: list[int], p50: int | None, p99: int | None) -> None:
    """Nearest rank: of nine values the 99th percentile is the slowest, and nothing is made up in between."""
    assert (percentile(values, 50), percentile(values, 99)) == (p50, p99)
    assert quantiles([*values, None]) == {"p50": p50, "p99": p99}


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (870, "870"), (61_234, "61.2k"), (126_000, "126k"), (1_400_000, "1.4M"), (2_000_000_000, "2.0G")],
)
def test_short_numbers_fit_their_column(number: int, text: str) -> None:
    """Five characters, whatever a loop has burnt."""
    assert short_number(number) == text


@pytest.mark.parametrize("width", [80, 120])
def test_the_summary_fits_its_terminal(width: int) -> None:
    """Columns are left out rather than cut to pieces."""
    lines = shown(good_play(), width=width).splitlines()

    assert max(map(len, lines)) <= width
    assert "2 of 2 looping runs were stopped" in lines[0]
    assert not any("…" in line for line in lines)
    assert ("what it did" in lines[1]) == (width == 120)
