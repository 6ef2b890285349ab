"""One tool, ever other arguments, and never anything in the answer."""

from __future__ import annotations

from typing import Any

import pytest
from tests._support.steps import Run, decide, levels, only, tree_of, verdicts

from loopwarden_detectors.run_state import TreeState
from loopwarden_models.events import AnyStep

WALK = only("param_walk")
ALL = ["observe", "nudge", "break", "kill"]


def said(steps: list[AnyStep]) -> list[str]:
    """Return the levels that this rule alone says on the steps."""
    return levels(decide(steps, WALK))


def misses(run: Run, n: int, answer: Any = "", effect: str = "read") -> list[AnyStep]:
    """Return searches that find nothing, each for something else."""
    return [run.call("find", f"q {run.seq}", answer, effect=effect) for _ in range(n)]


@pytest.mark.parametrize("answer", ["", [], {}, "not found", "No matches found.", "0 rows"])
def test_levels_rise_with_the_walk(answer: Any) -> None:
    """Observe 5, nudge 8, break 12, kill 16."""
    for n, expected in {4: 0, 5: 1, 8: 2, 12: 3, 16: 4}.items():
        assert said(misses(Run(), n, answer)) == ALL[:expected]


def test_the_evidence_begins_at_the_first_miss() -> None:
    """It is dated from the ring: the state begins with the second."""
    run = Run()
    decisions = decide([run.start(), run.call("find", "x", "hit", effect="read"), *misses(run, 8)], WALK)
    nudge = verdicts(decisions)[-1]

    assert (nudge.level, nudge.pattern, nudge.evidence.count) == ("nudge", "param_walk", 8)
    assert (nudge.evidence.first_seq, nudge.evidence.last_seq, nudge.evidence.tools) == (2, 9, ["find"])
    assert decisions[-1].first_offset == 2


def test_one_answer_ends_the_walk() -> None:
    """Existence checks come in threes and sevens, and then something is there."""
    run = Run()

    assert (
        said([s for _ in range(5) for s in (*misses(run, 4), *run.calls(1, "find", run.seq, "hit", effect="read"))])
        == []
    )


def test_a_new_write_ends_the_walk() -> None:
    """The world is another one; so may the answers be."""
    run = Run()
    steps = [step for k in range(5) for step in (*misses(run, 4), run.call("put", k, "ok", effect="write"))]

    assert said(steps) == []


def test_the_same_call_again_is_no_step_of_a_walk() -> None:
    """Equal calls are judged by the rules about repetition."""
    assert said(Run().calls(30, "find", "x", "", effect="read")) == []


def test_a_round_counts_once() -> None:
    """Eight probes side by side are one question."""
    run = Run()
    rounds = [run.batch(*[("find", f"{k} {n}", "") for n in range(8)], effect="read") for k in range(4)]

    assert said([step for one in rounds for step in one]) == []


def test_other_tools_that_work_take_the_kill_away() -> None:
    """The walk is one idea among others that bring something."""
    run = Run()
    steps = [step for k in range(20) for step in (*misses(run, 1), run.call("sh", k, f"line {k}"))]

    assert said(steps) == ALL[:3]


def test_new_answers_of_reads_leave_advice_only() -> None:
    """Something new came within the last four calls."""
    run = Run()
    steps = [step for k in range(20) for step in (*misses(run, 1), run.call("cat", k, f"line {k}", effect="read"))]

    assert set(said(steps)) == {"observe", "nudge"}


def test_effects_need_not_be_declared() -> None:
    """An answer that says that there is nothing acknowledges nothing."""
    assert said(misses(Run(), 16, "no results", effect="unknown")) == ALL


@pytest.mark.parametrize("effect", ["write", "poll", "clock"])
def test_writers_and_pollers_never_walk(effect: str) -> None:
    """Their silence is an acknowledgement, or patience."""
    assert said(misses(Run(), 40, "", effect=effect)) == []


def test_a_shell_that_works_in_silence_does_not_walk() -> None:
    """Silent by nature: it counts only where the calls before were in vain as well."""
    run = Run()

    assert (
        said([s for k in range(30) for s in (run.call("sh", f"mv {k}", ""), run.call("sh", f"ls {k}", f"{k}"))]) == []
    )


def test_a_failure_neither_lengthens_nor_ends_a_walk() -> None:
    """Failures have rules of their own."""
    run = Run()
    steps = [step for k in range(8) for step in (*misses(run, 1), run.call("find", k, fails="x" * k, effect="read"))]

    assert "kill" not in said(steps)


def test_a_person_who_speaks_starts_afresh() -> None:
    """Another question, another walk."""
    run = Run()

    assert said([*misses(run, 4), run.user(), *misses(run, 4)]) == []


def test_a_snapshot_changes_no_verdict() -> None:
    """A crash in the middle of the walk gives the verdicts of an uninterrupted run."""
    run = Run()
    steps = misses(run, 17)
    tree = tree_of(steps[0])
    before = levels(decide(steps[:7], WALK, tree=tree))

    assert before + levels(decide(steps[7:], WALK, tree=TreeState.from_bytes(tree.to_bytes()))) == said(steps)
