"""Calls of tools that do not exist."""

from __future__ import annotations

from typing import Any

import pytest
from tests._support.steps import Run, decide, levels, only, orders, tree_of, verdicts

from loopwarden_detectors.run_state import TreeState
from loopwarden_models.events import AnyStep

UNKNOWN = only("unknown_tool")
# The second nudge is due when the count has doubled.
LADDER = ["observe", "nudge", "nudge", "kill"]


def said(steps: list[AnyStep]) -> list[str]:
    """Return the levels that this rule alone says on the steps."""
    return levels(decide(steps, UNKNOWN))


def invented(run: Run, n: int = 1, **fields: Any) -> list[AnyStep]:
    """Return `n` calls of tools that do not exist, each of another name."""
    return [run.call(f"tool {run.seq}", run.seq, None, outcome="unknown_tool", **fields) for _ in range(n)]


def work(run: Run, n: int, **fields: Any) -> list[AnyStep]:
    """Return `n` calls that bring something new."""
    return [run.call("fetch", run.seq, f"page {run.seq}", **fields) for _ in range(n)]


def test_levels_rise_with_the_attempts() -> None:
    """Observe 1, nudge 2, kill 5, of any name."""
    for n, expected in {0: 0, 1: 1, 2: 2, 3: 2, 4: 3, 5: 4}.items():
        assert said(invented(Run(), n)) == LADDER[:expected]


def test_thoughts_in_between_hide_nothing() -> None:
    """Trace L10: an invented tool and a thought by turns, which no streak sees."""
    run = Run()
    decisions = decide([s for _ in range(6) for s in (*invented(run), *work(run, 1))], UNKNOWN)
    kill = next(verdict for verdict in verdicts(decisions) if verdict.level == "kill")

    assert levels(decisions) == LADDER
    assert orders(decisions) == ["nudge", "nudge", "kill_run"]
    assert (kill.pattern, kill.evidence.count, kill.evidence.threshold) == ("tool_hallucination", 5, 5)
    assert (kill.evidence.first_seq, kill.evidence.last_seq, kill.evidence.tools) == (0, 8, ["tool 7"])
    assert decisions[0].first_offset == 0


def test_ten_productive_calls_in_a_row_forget_one() -> None:
    """A slip in a long day of work is no loop."""
    run = Run()
    day = [s for _ in range(20) for s in (*work(run, 10), *invented(run))]

    assert said(day) == ["observe"]
    assert said([s for _ in range(20) for s in (*work(run, 9), *invented(run))])[-1] == "kill"


@pytest.mark.parametrize(
    "idle",
    [{"fails": "no"}, {"result": "", "effect": "read"}, {"args": "same", "result": "same"}, {"outcome": "cached"}],
    ids=["failed", "empty", "known", "cached"],
)
def test_calls_that_bring_nothing_forgive_nothing(idle: dict[str, Any]) -> None:
    """Twelve calls in vain between two inventions are part of the trouble."""
    run = Run()
    vain = {"args": 0, **idle}
    steps = [s for _ in range(5) for s in (*invented(run), *[run.call(**vain) for _ in range(12)])]

    assert said(steps) == LADDER


def test_a_batch_of_inventions_is_one() -> None:
    """One wrong name, five times side by side, is one mistake."""
    run = Run()
    batch = [(f"tool {n}", n, None) for n in range(5)]

    assert said(run.batch(*batch, outcome="unknown_tool")) == ["observe"]
    assert said([s for _ in range(5) for s in run.batch(*batch, outcome="unknown_tool")]) == LADDER


def test_progress_in_between_turns_the_kill_into_a_nudge() -> None:
    """A sloppy run that moves the world is advised, not ended."""
    run = Run()
    sloppy = [s for _ in range(9) for s in (*invented(run), *work(run, 1, effect="write"))]
    decisions = decide(sloppy, UNKNOWN)

    assert set(levels(decisions)) == {"observe", "nudge"}
    assert "kill" in [verdict.vetoed_from for verdict in verdicts(decisions)]
    assert "kill_run" not in orders(decisions)


def test_progress_long_ago_protects_no_longer() -> None:
    """Five inventions in a row after the last good step are a loop like any other."""
    run = Run()

    assert said([*invented(run), *work(run, 1, effect="write"), *invented(run, 5)])[-1] == "kill"


def test_a_new_segment_starts_afresh() -> None:
    """What was invented before a person spoke, or before a resume, is forgotten."""
    run = Run()

    assert "kill" not in said([*invented(run, 4), run.user(), *invented(run, 4)])
    assert "kill" not in said([*invented(run, 4), run.resume("b"), *invented(run, 4)])


def test_a_healthy_run_keeps_nothing() -> None:
    """State is there only from the first invention until it is forgiven."""
    run = Run()
    steps = [*work(run, 3), *invented(run), *work(run, 10)]
    tree = tree_of(steps[0])

    decide(steps[:3], UNKNOWN, tree=tree)
    assert tree.runs["r1"].unknown_tool is None
    decide(steps[3:4], UNKNOWN, tree=tree)
    assert tree.runs["r1"].watched
    decide(steps[4:], UNKNOWN, tree=tree)
    assert (tree.runs["r1"].unknown_tool, tree.runs["r1"].watched) == (None, 0)


def test_a_snapshot_in_the_middle_changes_nothing() -> None:
    """The worker that takes over says what the other would have said."""
    run = Run()
    steps = [s for _ in range(5) for s in (*invented(run), *work(run, 2))]
    for cut in range(len(steps)):
        tree = tree_of(steps[0])
        before = levels(decide(steps[:cut], UNKNOWN, tree=tree))
        restored = TreeState.from_bytes(tree.to_bytes())

        assert before + levels(decide(steps[cut:], UNKNOWN, tree=restored)) == LADDER
