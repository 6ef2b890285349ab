"""The same call with the same answer among other calls, while nothing moves."""

from __future__ import annotations

from typing import Any

import pytest
from tests._support.steps import Run, decide, levels, only, orders, tree_of, verdicts

from loopwarden_detectors.run_state import TreeState
from loopwarden_models.events import AnyStep

INTERLEAVED = only("interleaved_repeat")


def said(steps: list[AnyStep]) -> list[str]:
    """Return the levels that this rule alone says on the steps."""
    return levels(decide(steps, INTERLEAVED))


def among(run: Run, n: int, *others: str, effect: str | None = "read", **fields: Any) -> list[AnyStep]:
    """Return `n` equal reads, each followed by reads of other things."""
    steps = []
    for _ in range(n):
        steps.append(run.call(**({"effect": effect} | fields)))
        steps += [run.call("read", (other, run.seq), run.seq, effect="read") for other in others]
    return steps


def test_levels_rise_with_the_occurrences() -> None:
    """Observed and nudged at 3, killed at 6."""
    for n, expected in {2: [], 3: ["nudge"], 5: ["nudge"], 6: ["nudge", "kill"]}.items():
        assert [level for level in said(among(Run(), n, "x", "y")) if level != "observe"] == expected


def test_an_undeclared_tool_is_nudged_later() -> None:
    """Edit, run, the same output: three times of that happen in runs that pass."""
    assert said(among(Run(), 3, "x", effect=None)) == ["observe"]
    assert said(among(Run(), 4, "x", effect=None)) == ["observe", "nudge"]
    assert said(among(Run(), 6, "x", effect=None))[-1] == "kill"


def test_the_evidence_names_the_first_occurrence() -> None:
    """A person at night must find the steps, and how many they are."""
    run = Run()
    decisions = decide([run.start(), run.call("list", 1, 1), *among(run, 3, "x")], INTERLEAVED)
    nudge = verdicts(decisions)[-1]

    assert (nudge.pattern, nudge.evidence.count, nudge.evidence.threshold) == ("tool_repetition", 3, 3)
    assert (nudge.evidence.first_seq, nudge.evidence.last_seq) == (2, 6)
    assert nudge.evidence.tools == ["search"]
    assert decisions[-1].first_offset == 2


def test_a_new_write_starts_the_count_anew() -> None:
    """A memory looked up before each chapter is fine while chapters are written."""
    run = Run()
    steps = []
    for n in range(12):
        steps += [*among(run, 1, "x"), run.call("write", n, "ok", effect="write")]

    assert said(steps) == []


def test_the_same_write_again_moves_nothing() -> None:
    """Save, look, save, look: the first save was news, the others are not."""
    run = Run()
    save = {"tool": "save", "args": "a", "result": "ok", "effect": "write"}
    steps = [
        step for _ in range(8) for step in (run.call(effect="read"), run.call(**save), run.call("read", run.seq, 1))
    ]

    assert "kill" in said(steps)


def test_a_call_that_is_answered_otherwise_silences_the_rule() -> None:
    """The test fails otherwise after each change: the runs between have equal answers, and the world moves."""
    run = Run()
    steps = [step for n in range(12) for step in (run.call(effect="read"), run.call("test", {}, f"{n} failed"))]

    assert said(steps) == []


def test_a_clock_among_them_moves_nothing() -> None:
    """The time is always another one."""
    run = Run()
    steps = [step for n in range(6) for step in (*among(run, 1, "x"), run.call("now", {}, n, effect="clock"))]

    assert said(steps)[-1] == "kill"


def test_a_streak_is_left_to_its_own_rule() -> None:
    """But its calls count: one other read between must not hide eight repetitions."""
    run = Run()
    streak = run.calls(5, effect="read")

    assert said(streak) == []
    assert said([*streak, run.call("read", 1, 1), run.call(effect="read")]) == ["kill"]


@pytest.mark.parametrize("wait", [("sleep", {"s": 5}), ("bash", "sleep 5")], ids=["tool", "shell"])
def test_an_undeclared_tool_asked_after_waits_is_polled(wait: tuple[str, Any]) -> None:
    """Twenty patient looks, and one glance elsewhere: no reason to kill at the next look."""
    run = Run()
    steps = [step for _ in range(15) for step in (run.call("peek", "b3", "running"), run.call(*wait, ""))]
    steps += [run.call("ls", 1, 1), run.call("peek", "b3", "running"), run.call("ls", 2, 2)]
    steps += [run.call("peek", "b3", "running")]

    assert said(steps) == ["observe"]


def test_an_undeclared_tool_asked_after_long_pauses_is_polled() -> None:
    """A minute between two looks, and seconds between all other steps."""
    run = Run()
    steps = []
    for n in range(12):
        run.gap_ms = 2_000
        steps += [run.call("ls", (n, k), (n, k)) for k in range(2)]
        run.gap_ms = 60_000
        steps.append(run.call("peek", "b3", "running"))

    assert said(steps) == []


def test_declared_polls_are_left_to_their_rule() -> None:
    """They are meant to be asked again."""
    assert said(among(Run(), 12, "x", effect="poll")) == []


def test_equal_calls_of_one_batch_count_once() -> None:
    """Three questions side by side are one, whatever comes between the batches."""
    run = Run()
    batch = [("search", "q", "none")] * 3
    steps = []
    for n in range(2):
        steps += [*run.batch(*batch, effect="read"), run.model(1), run.call("read", n, n)]

    assert said(steps) == []
    assert said([*steps, *run.batch(*batch, effect="read")]) == ["nudge"]


def test_what_the_guard_answered_is_an_attempt() -> None:
    """Reads served from the cache in place of the tool are asked as often."""
    run = Run()

    assert said([*among(run, 2, "x"), *among(run, 4, "x", outcome="cached", result="stub")])[-1] == "kill"


def test_missing_evidence_proves_nothing() -> None:
    """Answers or arguments that nobody reports are equal to nothing."""
    assert said(among(Run(), 12, "x", result=None)) == []
    assert said(among(Run(), 12, "x", args=None)) == []


def test_far_apart_is_no_repetition() -> None:
    """Only what is among the last 40 calls counts."""
    run = Run()

    assert said(among(run, 12, *(f"x{k}" for k in range(20)))) == []


def test_a_write_that_turns_pages_is_not_killed() -> None:
    """`next()` says "ok" each time, and each page brings something new."""
    run = Run()
    next_page: dict[str, Any] = {"tool": "next", "args": {}, "result": "ok", "effect": "write"}
    steps = [step for n in range(10) for step in (run.call(**next_page), run.call("read", n, f"p{n}", effect="read"))]

    assert set(said(steps)) == {"nudge"}


def test_a_person_starts_the_count_anew() -> None:
    """The same items looked up for the next question are no loop."""
    run = Run()

    assert said([step for _ in range(8) for step in (*among(run, 2, "x"), run.user())]) == []


def test_progress_turns_the_kill_into_a_nudge() -> None:
    """The runtime says that the task moved on."""
    run = Run()
    decisions = decide([*among(run, 4, "x"), run.step("progress"), *among(run, 3, "x")], INTERLEAVED)

    assert "kill_run" not in orders(decisions)
    assert [verdict.vetoed_from for verdict in verdicts(decisions) if verdict.vetoed_from] == ["kill"]


def test_a_crash_in_the_middle_changes_nothing() -> None:
    """What was counted twice, and the last write, survive in the snapshot."""
    run = Run()
    batch = [("search", "q", "none")] * 2
    steps = [run.call("write", 1, "ok", effect="write")]
    steps += [
        step for n in range(8) for step in (*run.batch(*batch, effect="read"), run.model(1), run.call("ls", n, n))
    ]
    for cut in range(1, len(steps)):
        tree = tree_of(steps[0])
        first = levels(decide(steps[:cut], INTERLEAVED, tree=tree))
        again = TreeState.from_bytes(tree.to_bytes())

        assert again == tree
        assert first + levels(decide(steps[cut:], INTERLEAVED, tree=again)) == said(steps)
