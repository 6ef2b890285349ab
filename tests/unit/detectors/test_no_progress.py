"""Most of the last steps failed or brought nothing."""

from __future__ import annotations

from typing import Any

import pytest
from tests._support.steps import Run, decide, levels, only, tree_of, verdicts

from loopwarden_detectors.run_state import TreeState
from loopwarden_models.events import AnyStep

STILL = only("no_progress", observe_without_write=False)
ALL = ["observe", "nudge", "kill"]


def said(steps: list[AnyStep]) -> list[str]:
    """Return the levels that this rule alone says on the steps."""
    return levels(decide(steps, STILL))


def failures(run: Run, n: int, **fields: Any) -> list[AnyStep]:
    """Return calls that fail, each in its own words."""
    return [run.call("sh", run.seq, fails=f"wall {'x' * k}", **fields) for k in range(n)]


def works(run: Run, n: int, **fields: Any) -> list[AnyStep]:
    """Return calls that bring something, each something else."""
    return [run.call("ls", run.seq, f"file {run.seq}", **fields) for _ in range(n)]


def test_levels_rise_with_the_failures() -> None:
    """Observe 6 of 8, nudge 8 of 9, kill 14 of 16."""
    for n, expected in {5: 0, 6: 1, 7: 1, 8: 2, 13: 2, 14: 3, 40: 3}.items():
        assert said(failures(Run(), n)) == ALL[:expected]


@pytest.mark.parametrize(("good", "expected"), [(2, 3), (3, 2), (4, 1)])
def test_steps_that_bring_something_fill_the_window(good: int, expected: int) -> None:
    """The window is of steps, not of failures: 14 of 16 allows two good ones, 8 of 9 one."""
    run = Run()
    # The good steps come first in every window, so each window holds as many of them as it can.
    lap = {2: 14, 3: 9, 4: 6}[good]

    assert said([step for _ in range(4) for step in (*works(run, good), *failures(run, lap))]) == ALL[:expected]


def test_the_evidence_begins_at_the_first_bad_step_of_the_window() -> None:
    """A person at night must find the steps."""
    run = Run()
    decisions = decide([run.start(), *works(run, 20), *failures(run, 8)], STILL)
    nudge = verdicts(decisions)[-1]

    assert (nudge.level, nudge.pattern) == ("nudge", "no_progress")
    assert (nudge.evidence.count, nudge.evidence.threshold) == (8, 8)
    assert (nudge.evidence.first_seq, nudge.evidence.last_seq, nudge.evidence.tools) == (21, 28, ["sh"])
    assert decisions[-1].first_offset == 21


def test_a_round_is_dated_by_its_own_calls() -> None:
    """Three calls a round: nine bad rounds began 27 calls ago, and the model turns are not among them."""
    run = Run()
    first = [run.start(), *works(run, 5)]
    rounds = [run.batch(*[("find", f"{k} {n}", "") for n in range(3)], effect="read") for k in range(9)]
    steps = [step for one in rounds for step in one]
    nudge = verdicts(decide([*first, *steps], STILL), "no_progress")[-1]

    assert nudge.level == "nudge"
    assert rounds[0][1].seq <= nudge.evidence.first_seq <= rounds[0][3].seq


def test_a_round_counts_once() -> None:
    """Two batches of eight searches without a hit are two steps."""
    run = Run()
    batch = [("find", f"{n}", "") for n in range(8)]

    assert said([*run.batch(*batch, effect="read"), *run.batch(*batch, effect="read")]) == []


def test_a_round_that_brought_something_is_no_failure() -> None:
    """One hit among eight searches is a hit, whichever of them it is."""
    run = Run()
    mixed = [[("find", f"{k} {n}", "hit" if n == k % 4 else "") for n in range(4)] for k in range(20)]

    assert said([step for calls in mixed for step in run.batch(*calls, effect="read")]) == []


def test_calls_that_were_announced_and_never_came_hide_nothing() -> None:
    """Providers run some tools themselves: their calls are announced and never reported."""
    run = Run()
    steps = [step for k in range(15) for step in (run.model(2), run.call("sh", k, fails="x" * k))]

    assert said(steps) == ALL


@pytest.mark.parametrize("outcome", ["error", "timeout", "denied", "blocked", "cached"])
def test_whatever_went_wrong_counts(outcome: str) -> None:
    """By whoever's fault: the step brought nothing."""
    run = Run()

    assert said([run.call(args=k, outcome=outcome) for k in range(14)]) == ALL


@pytest.mark.parametrize("outcome", ["invalid_args", "unknown_tool"])
def test_what_nobody_understood_is_told_sooner(outcome: str) -> None:
    """There is nothing to wait for."""
    run = Run()

    assert said([run.call(args=k, outcome=outcome) for k in range(5)]) == ["nudge"]


@pytest.mark.parametrize("outcome", ["cancelled", "teleported"])
def test_what_says_nothing_about_the_agent_does_not_count(outcome: str) -> None:
    """A person pressed stop, or a newer runtime reports what this version does not know."""
    run = Run()

    assert said([run.call(args=k, outcome=outcome) for k in range(30)]) == []


@pytest.mark.parametrize("answer", ["", "(Bash completed with no output)", "(no output)"])
def test_the_silence_of_an_undeclared_tool_counts_from_the_third_on(answer: str) -> None:
    """One silent command is work; commands that do nothing are silent one after another."""
    run = Run()

    assert said([run.call("sh", f": {k}", answer) for k in range(7)]) == []
    assert said([run.call("sh", f": {k}", answer) for k in range(16)]) == ALL


def test_silent_commands_between_others_are_work() -> None:
    """`mkdir` and `mv` say nothing and do what they should."""
    run = Run()
    steps = [step for k in range(30) for step in (*works(run, 1), run.call("sh", f"mv {k}", ""))]

    assert said(steps) == []


@pytest.mark.parametrize("effect", ["write", "poll", "clock"])
def test_silence_is_the_normal_answer_of_writers_and_pollers(effect: str) -> None:
    """Declared effects decide more than any threshold."""
    run = Run()

    assert said([run.call("put", k, "", effect=effect) for k in range(40)]) == []


def test_a_function_without_a_result_is_not_silent() -> None:
    """`null` from a tool that nobody declared is a missing answer, and what is missing proves nothing."""
    run = Run()
    steps = [run.step("tool_end", tool="put", args=k, result=None, call_id=f"n{k}") for k in range(30)]

    assert said(steps) == []
    assert said([run.call("put", k, None) for k in range(30)]) == []


def test_searches_without_a_hit_end_no_run() -> None:
    """That a name is used nowhere can be what was asked: thirteen searches of a run that passed found nothing."""
    run = Run()

    assert said([run.call(("grep", "glob")[k % 2], k, "no files found", effect="read") for k in range(40)]) == ALL[:2]


def test_waits_are_no_steps() -> None:
    """Fail, sleep, fail, sleep: the sleeps neither help nor harm."""
    run = Run()
    steps = [step for k in range(14) for step in (run.call("sh", k, fails="x" * k), run.call("sleep", k, ""))]

    assert said(steps) == ALL


def test_progress_in_the_window_turns_the_kill_into_a_nudge() -> None:
    """The runtime says that the task moved on."""
    run = Run()

    assert "kill" not in said([*failures(run, 8), run.step("progress"), *failures(run, 8)])
    assert said([run.step("progress"), *failures(run, 16)])[-1] == "kill"


def test_a_new_answer_lately_turns_the_kill_into_a_nudge() -> None:
    """Whoever reads something new in every fourth call is not stuck, until nothing new comes any more."""
    run = Run()
    steps = [*failures(run, 13), *works(run, 1, effect="read"), *failures(run, 1)]

    assert "kill" not in said(steps)
    assert said([*steps, *failures(run, 3)])[-1] == "kill"


def test_a_person_who_speaks_starts_afresh() -> None:
    """The first steps of a new prompt must not inherit the failures of the old one."""
    run = Run()

    assert "kill" not in said([*failures(run, 13), run.user(), *failures(run, 13)])


def test_a_snapshot_changes_no_verdict() -> None:
    """A crash in the middle of the stretch gives the verdicts of an uninterrupted run."""
    run = Run()
    steps = [*works(run, 3), *failures(run, 15)]
    tree = tree_of(steps[0])
    before = levels(decide(steps[:10], STILL, tree=tree))
    after = levels(decide(steps[10:], STILL, tree=TreeState.from_bytes(tree.to_bytes())))

    assert before + after == said(steps)
