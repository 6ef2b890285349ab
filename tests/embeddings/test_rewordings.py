"""What each tier finds of the sequences in `cases/`, and that healthy ones are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopwarden_models.policy import DEFAULT_POLICY
from loopwarden_streams.evaluate_cases import find_cases, load
from loopwarden_streams.evaluate_judge import Said, judge
from loopwarden_streams.evaluate_policy import enforced
from loopwarden_streams.meaning import waited_for

CASES = Path(__file__).parent / "cases"
FOLDERS = sorted(path.name for path in CASES.iterdir() if path.is_dir())
NAME = "semantic_repeat"
POLICY = enforced(DEFAULT_POLICY)

# Share of the loops that are nudged, by the rule over meaning or by another one: at least; of the healthy ones by this
# rule: at most. The first is below what is found today, so that a model of another version may differ by a case.
LEAST_LOOPS = {"": 0.25, "static": 0.5, "both": 0.5}
MOST_HEALTHY = 0.05


def nudged(said: list[Said], detector: str | None = None) -> bool:
    """Return whether something, or one detector, asked for a nudge or more."""
    return any(one.level >= 2 and detector in (None, one.verdict.detector) for one in said)


def found(folder: str, models: tuple[str, str]) -> tuple[float, float]:
    """Return the share of loops that were nudged, and of healthy sequences that the rule over meaning nudged."""
    meaning = waited_for(*models)
    loops, healthy = [], []
    for path in find_cases([str(CASES / folder)]):
        case = load(path)
        said = judge(case.steps, POLICY, meaning=meaning)
        if path.name.startswith("loop-"):
            loops.append(nudged(said))
        else:
            healthy.append(nudged(said, NAME))
    return sum(loops) / len(loops), sum(healthy) / len(healthy)


@pytest.mark.parametrize("folder", FOLDERS)
def test_loops_in_other_words_are_found_and_healthy_look_alikes_are_not(
    folder: str, static: str, transformer: str
) -> None:
    """By n-grams and equality alone next to none; with each tier more, and no more false alarms than one in twenty."""
    bare, by_static, by_both = (found(folder, models) for models in (("", ""), (static, ""), (static, transformer)))

    assert bare[0] <= LEAST_LOOPS[""]
    assert by_static[0] >= LEAST_LOOPS["static"]
    assert by_both[0] >= max(LEAST_LOOPS["both"], by_static[0])
    assert max(by_static[1], by_both[1]) <= MOST_HEALTHY


def test_the_same_sequences_give_the_same_verdicts(static: str, transformer: str) -> None:
    """A replay that waits for the second model is a function of the events."""
    meaning = waited_for(static, transformer)
    for path in find_cases([str(CASES / "chosen")])[:6]:
        steps = load(path).steps

        assert judge(steps, POLICY, meaning=meaning) == judge(steps, POLICY, meaning=meaning)


def test_a_loop_that_goes_on_is_ended_once_it_is_confirmed(static: str, transformer: str) -> None:
    """Eight exchanges that bring nothing, each confirmed; without the second model a nudge is all."""
    steps = load(CASES / "later" / "loop-en-grey-button-goes-on.yaml").steps

    assert any(one.level == 5 for one in judge(steps, POLICY, meaning=waited_for(static, transformer)))
    assert all(one.level <= 2 for one in judge(steps, POLICY, meaning=waited_for(static, "")))
