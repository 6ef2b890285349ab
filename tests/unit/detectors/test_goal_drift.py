"""Texts that lead away from the goal: observed where a policy asks for it, and no more."""

from __future__ import annotations

import pytest
from tests._support.meanings import WordMeaning
from tests._support.steps import Run, decide, levels, only, tree_of, verdicts

from loopwarden_detectors import watch
from loopwarden_detectors.run_state import TreeState
from loopwarden_models.events import AnyStep
from loopwarden_models.policy import Policy

OFF = only("context_rot")
DRIFT = Policy.from_builtins(
    {
        "mode": "enforce",
        **{name: {"mode": "off"} for name in watch.DETECTORS if name != "context_rot"},
        "context_rot": {"drift_steps": 8},
    }
)
GOAL = "Write the quarterly report on the traffic of the harbour, with one table for each of its four berths"
ON = [
    f"For the report on the traffic of the harbour I now write the table for berth {n} of the four." for n in range(5)
]
AWAY = [
    f"The linter complains: rule E{n * 37} wants imports sorted in another way, so I upgrade plugin {n}."
    for n in range(20)
]


def run_of(*texts: str, goal: str | None = GOAL) -> list[AnyStep]:
    """Return a run with this goal that says this."""
    run = Run()
    return [run.start(goal=goal), *[run.model(text=text) for text in texts]]


def test_it_is_off_unless_a_policy_asks_for_it() -> None:
    """It costs more than all rules together, and tells little."""
    tree = tree_of(run_of()[0])
    assert levels(decide(run_of(*ON, *AWAY), OFF, tree=tree)) == []
    assert tree.runs["r1"].goal_drift is None


def test_eight_answers_in_a_row_are_observed_and_nothing_more() -> None:
    """However long it goes on."""
    [verdict] = verdicts(decide(run_of(*ON, *AWAY), DRIFT))

    assert (verdict.level, verdict.pattern, verdict.evidence.count) == ("observe", "context_rot", 8)
    assert verdict.evidence.last_seq - verdict.evidence.first_seq == 7
    assert verdict.evidence.first_seq > len(ON)


@pytest.mark.parametrize(
    "texts",
    [ON * 5, AWAY, [*ON, *AWAY[:4], *ON, *AWAY[:4], *ON], [*ON, *(["Done."] * 30)]],
    ids=["stays", "was never near", "comes back", "says little"],
)
def test_what_is_no_drift(texts: list[str]) -> None:
    """Less like the goal than before, for long, is what counts."""
    assert levels(decide(run_of(*texts), DRIFT)) == []


@pytest.mark.parametrize("goal", [None, "", "   "])
def test_without_a_goal_nothing_is_measured(goal: str | None) -> None:
    """There is nothing to compare with."""
    assert levels(decide(run_of(*ON, *AWAY, goal=goal), DRIFT)) == []


def test_a_person_may_change_the_task() -> None:
    """What is said after it is measured by what is said right after it."""
    run = Run()
    steps = [run.start(goal=GOAL), *[run.model(text=text) for text in ON], run.user()]
    steps += [run.model(text=text) for text in AWAY]

    assert levels(decide(steps, DRIFT)) == []


@pytest.mark.parametrize("cut", range(1, 20, 3))
def test_a_restart_changes_nothing(cut: int) -> None:
    """What is measured is in the snapshot, the goal as hashes alone."""
    steps = run_of(*ON, *AWAY)
    tree = tree_of(steps[0])
    before = levels(decide(steps[:cut], DRIFT, tree=tree))
    data = tree.to_bytes()

    assert b"harbour" not in data
    assert before + levels(decide(steps[cut:], DRIFT, tree=TreeState.from_bytes(data))) == ["observe"]


def test_with_a_model_of_texts_meaning_is_compared_and_not_letters() -> None:
    """Letters that are like those of the goal say nothing; and the other way round."""
    letters = [f"{GOAL[::-1]} {n}" for n in range(20)]
    steps = run_of(*[f"{GOAL}: part {n}" for n in range(5)], *letters)

    assert levels(decide(steps, DRIFT, meaning=WordMeaning())) == ["observe"]
    assert levels(decide(run_of(*ON, *AWAY), DRIFT, meaning=WordMeaning())) == ["observe"]
    assert levels(decide(run_of(*ON * 5), DRIFT, meaning=WordMeaning())) == []


def test_while_the_model_is_away_no_text_is_measured() -> None:
    """The two scales have nothing to do with each other: a worker that was restarted has no model for seconds."""
    steps = run_of(*ON, *AWAY)
    tree = tree_of(steps[0])
    with_model, without = steps[: 1 + len(ON)], steps[1 + len(ON) :]
    decide(with_model, DRIFT, tree=tree, meaning=WordMeaning())
    drift = tree.runs["r1"].goal_drift

    assert drift is not None
    before = (list(drift.first), list(drift.recent))
    assert levels(decide(without, DRIFT, tree=tree)) == []
    assert (drift.first, drift.recent) == before
