"""A command that is sent again with one more copy of itself glued on."""

from __future__ import annotations

from typing import Any

import pytest
from tests._support.steps import Run, decide, levels, only, tree_of, verdicts

from loopwarden_detectors.run_state import TreeState
from loopwarden_models.events import AnyStep

APPEND = only("self_append")
ALL = ["observe", "nudge", "kill"]


def said(steps: list[AnyStep]) -> list[str]:
    """Return the levels that this rule alone says on the steps."""
    return levels(decide(steps, APPEND))


def copies(run: Run, n: int, piece: str = "; make all", **fields: Any) -> list[AnyStep]:
    """Return commands each of which is the one before and one more piece, with an answer that grows as well."""
    return [run.call("sh", {"cmd": "cd src" + piece * (k + 1)}, "x" * (k + 1), **fields) for k in range(n)]


@pytest.mark.parametrize("effect", ["unknown", "write"])
def test_levels_rise_with_the_copies(effect: str) -> None:
    """Observe 3, nudge 4, kill 8; each of them being a new write is no progress."""
    for n, expected in {2: 0, 3: 1, 4: 2, 7: 2, 8: 3}.items():
        assert said(copies(Run(), n, effect=effect)) == ALL[:expected]


def test_the_evidence_begins_with_the_command_that_was_copied() -> None:
    """The first of them is a call like any other; it is dated from the ring."""
    run = Run()
    decisions = decide([run.start(), run.call("ls"), *copies(run, 4)], APPEND)
    nudge = verdicts(decisions)[-1]

    assert (nudge.pattern, nudge.evidence.count, nudge.evidence.first_seq) == ("param_walk", 4, 2)
    assert decisions[-1].first_offset == 2


def test_a_pipeline_that_is_refined_is_work() -> None:
    """Each stage is new, and so is each answer."""
    run = Run()
    stages = [
        "cat access.log",
        "| grep 499",
        "| awk '{print $1}'",
        "| sort",
        "| uniq -c",
        "| sort -rn",
        "| head",
        "| tee x",
    ]
    steps = [run.call("sh", {"cmd": " ".join(stages[: k + 1])}, f"form {k}") for k in range(len(stages))]

    assert said(steps) == []


def test_growth_that_changes_nothing_is_advised_on_and_never_ended() -> None:
    """A list of exclusions grows by one item per call, and the answer stays the same."""
    run = Run()
    words = ["apples", "pears", "plums", "cherries", "grapes", "melons", "figs", "dates", "limes", "kiwis"]
    steps = [run.call("sh", {"cmd": "find . " + " ".join(words[: k + 1])}, "a b c") for k in range(len(words))]

    assert set(said(steps)) == {"observe", "nudge"}


def test_short_pieces_are_no_copies() -> None:
    """A word typed letter by letter: every letter is in what stands there already."""
    run = Run()
    text = "a banana and another banana"

    assert said([run.call("type", {"text": text[: k + 8]}, f"{k} hits") for k in range(19)]) == []


def test_another_call_in_between_ends_the_streak() -> None:
    """Only consecutive calls grow out of each other."""
    run = Run()
    grown = copies(run, 3)
    looked = run.call("ls", "x", "y")

    assert said([*grown, looked, *copies(run, 3)]) == ["observe"] * (said(copies(Run(), 3)).count("observe"))


@pytest.mark.parametrize("between", ["user_input", "run_start"])
@pytest.mark.parametrize("pieces", [1, 2, 4])
def test_no_call_grows_out_of_one_before_a_person_spoke(pieces: int, between: str) -> None:
    """What was forgotten is not looked up: such a call could not be judged at all."""
    run = Run()
    before, after = copies(run, 5)[:pieces], copies(run, 8)[pieces:]
    step = run.user() if between == "user_input" else run.start(goal="another task")
    for seq, one in enumerate([*before, step, *after]):
        one.seq = seq

    assert said([*before, step, *after]) == ALL[:2] * (2 if pieces == 4 else 1)


@pytest.mark.parametrize("more", ["", "; make all"], ids=["the same", "more each time"])
def test_a_call_does_not_grow_out_of_one_of_another_tool(more: str) -> None:
    """Two tools by turns, asked the same or ever more, and answering the same: neither appends to what it was sent."""
    run = Run()
    steps = [run.call(("read", "open")[k % 2], {"cmd": "cd src" + more * k}, "the same answer") for k in range(12)]
    steps += [run.call(f"tool-{k}", {"cmd": "cd src" + more * k}, "the same answer") for k in range(12)]

    assert said(steps) == []


def test_calls_side_by_side_do_not_grow_out_of_each_other() -> None:
    """They were all written at once."""
    run = Run()
    calls = [("sh", {"cmd": "cd src" + "; make all" * (k + 1)}, "x" * k) for k in range(9)]

    assert said(run.batch(*calls)) == []


def test_the_runtimes_word_starts_the_streak_anew() -> None:
    """The task moved on in between."""
    run = Run()
    steps = copies(run, 4)
    moved = run.step("progress")
    grown = [run.call("sh", {"cmd": "cd src" + "; make all" * k}, "x" * k) for k in range(5, 9)]

    assert "kill" not in said([*steps, moved, *grown])


def test_new_answers_of_a_declared_read_take_the_kill_away() -> None:
    """What is read is new each time."""
    assert set(said(copies(Run(), 12, effect="read"))) == {"observe", "nudge"}


def test_a_person_who_speaks_starts_afresh() -> None:
    """Counting begins anew."""
    run = Run()
    steps = copies(run, 8)

    assert "kill" not in said([*steps[:4], run.user(), *steps[4:]])


def test_a_snapshot_changes_no_verdict() -> None:
    """A crash in the middle of the streak gives the verdicts of an uninterrupted run."""
    run = Run()
    steps = copies(run, 9)
    tree = tree_of(steps[0])
    before = levels(decide(steps[:5], APPEND, tree=tree))

    assert before + levels(decide(steps[5:], APPEND, tree=TreeState.from_bytes(tree.to_bytes()))) == said(steps)
