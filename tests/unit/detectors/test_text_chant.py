"""One generation that says the same words over and over."""

from __future__ import annotations

import pytest
from tests._support.steps import Run, decide, levels, only, tree_of, verdicts

from loopwarden_detectors.run_state import TreeState
from loopwarden_detectors.text_chant import may_chant

CHANT = only("text_chant")
BLOCK = "Let me have one more look at it. "


def said(*texts: str, tool_calls: int = 0) -> list[str]:
    """Return the levels that answers with these texts bring."""
    run = Run()
    return levels(decide([run.model(text=text, tool_calls=tool_calls) for text in texts], CHANT))


@pytest.mark.parametrize(("repeats", "expected"), [(1, []), (3, []), (4, ["nudge"]), (30, ["nudge"])])
def test_four_repeats_are_a_chant(repeats: int, expected: list[str]) -> None:
    """Back to back, at the end of the text."""
    assert said("First I read the file. " + BLOCK * repeats) == expected


def test_the_end_takes_two_long_generations() -> None:
    """One may be an accident of sampling."""
    assert said(BLOCK * 12, BLOCK * 12) == ["nudge", "kill"]
    assert said(BLOCK * 12, BLOCK * 5) == ["nudge"]


def test_a_call_between_them_begins_anew() -> None:
    """Whoever acts has come out of it."""
    run = Run()
    steps = [run.model(text=BLOCK * 12, tool_calls=0), run.call(), run.model(text=BLOCK * 12, tool_calls=0)]

    assert "kill" not in levels(decide(steps, CHANT))


def test_an_answer_that_announces_calls_has_recovered() -> None:
    """It ends in an action."""
    assert said(BLOCK * 12, tool_calls=1) == []


def test_reasoning_is_read_as_well() -> None:
    """What a model thinks costs as much as what it says."""
    run = Run()

    assert levels(decide([run.model(text="Done.", reasoning=BLOCK * 6, tool_calls=0)], CHANT)) == ["nudge"]


@pytest.mark.parametrize(
    "text",
    [
        "| a | b |\n" * 30,
        "```\n" + BLOCK * 20 + "\n```",
        "- one more item\n" * 20,
        "Each line differs. " + "x y z " * 2,
    ],
    ids=["table", "code", "list", "short"],
)
def test_what_repeats_by_nature_is_no_chant(text: str) -> None:
    """Tables, code and lists."""
    assert said(text) == []


def test_the_cheap_question_misses_no_exact_repetition() -> None:
    """Whether the text ends in three equal stretches decides whether it is read."""
    for words in range(1, 17):
        block = " ".join(f"word{n}" for n in range(words)) + ". "
        assert may_chant("Something before. " + block * max(4, 40 // words))
    assert not may_chant("Nothing in this sentence comes again and nothing ends as it began, so it is not read.")


def test_evidence_and_state_survive_a_snapshot() -> None:
    """The second generation may be judged by another worker."""
    run = Run()
    tree = tree_of(first := run.model(text=BLOCK * 12, tool_calls=0))
    decide([first], CHANT, tree=tree)
    again = TreeState.from_bytes(tree.to_bytes())
    (kill,) = [v for v in verdicts(decide([run.model(text=BLOCK * 12, tool_calls=0)], CHANT, tree=again)) if v.episode]

    assert (kill.level, kill.pattern, kill.evidence.first_seq) == ("kill", "text_loop", 0)
