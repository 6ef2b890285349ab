"""One answer to ever other questions."""

from __future__ import annotations

from typing import Any

import pytest
from tests._support.steps import Run, decide, levels, only, orders, tree_of, verdicts

from loopwarden_detectors.run_state import TreeState
from loopwarden_models.events import AnyStep

SAME = only("same_output")


def said(steps: list[AnyStep]) -> list[str]:
    """Return the levels that this rule alone says on the steps."""
    return levels(decide(steps, SAME))


def walk(run: Run, n: int, result: Any = "no match", **fields: Any) -> list[AnyStep]:
    """Return `n` different questions with one answer."""
    return [
        run.call(**({"tool": "grep", "args": f"a|{run.seq}", "result": result, "effect": "read"} | fields))
        for _ in range(n)
    ]


def test_levels_rise_with_the_questions() -> None:
    """Observe 4, nudge 6, kill 12."""
    for n, expected in {3: 0, 4: 1, 5: 1, 6: 2, 11: 2, 12: 3}.items():
        assert said(walk(Run(), n)) == ["observe", "nudge", "kill"][:expected]


def test_the_evidence_names_the_first_question() -> None:
    """A person at night must find the steps."""
    run = Run()
    decisions = decide([run.start(), run.call("list"), *walk(run, 6)], SAME)
    nudge = verdicts(decisions)[-1]

    assert (nudge.pattern, nudge.evidence.count, nudge.evidence.threshold) == ("param_walk", 6, 6)
    assert (nudge.evidence.first_seq, nudge.evidence.last_seq) == (2, 7)
    assert nudge.evidence.tools == ["grep"]
    assert decisions[-1].first_offset == 2


def test_an_answer_that_says_something_never_kills() -> None:
    """Thirty flights may all be available: advice at most."""
    assert set(said(walk(Run(), 30, "available"))) == {"observe", "nudge"}


@pytest.mark.parametrize("effect", ["write", "poll", "clock", "unknown", None])
def test_only_declared_reads_are_looked_at(effect: str | None) -> None:
    """Writers say "ok" whatever they did, and of an undeclared tool nobody knows."""
    assert said(walk(Run(), 20, "true", effect=effect)) == []


def test_other_tools_between_are_skipped() -> None:
    """Searching and thinking by turns is still one search."""
    run = Run()
    steps = [step for _ in range(12) for step in (*walk(run, 1), run.call("think", run.seq, "ok"))]

    assert said(steps) == ["observe", "nudge", "kill"]


@pytest.mark.parametrize(
    "between",
    [
        {"tool": "edit", "result": "ok", "effect": "write"},
        {"tool": "read", "result": "a page", "effect": "read"},
        {"tool": "grep", "result": "a hit", "effect": "read"},
        {"tool": "grep", "fails": "bad pattern", "effect": "read"},
    ],
    ids=["write", "novel read", "another answer", "failure"],
)
def test_news_between_ends_the_streak(between: dict[str, Any]) -> None:
    """Each of them is something else than the same answer again."""
    run = Run()
    steps = []
    for _ in range(5):
        steps += [
            *walk(run, 3),
            run.call(**between, args=run.seq)
            if "fails" in between
            else run.call(**(between | {"args": run.seq, "result": f"{between['result']} {run.seq}"})),
        ]

    assert said(steps) == []


def test_a_question_that_was_asked_does_not_count() -> None:
    """Equal questions are another rule's."""
    run = Run()

    assert said([step for _ in range(10) for step in walk(run, 1, args="q1") + walk(run, 1, args="q2")]) == []


def test_questions_of_one_batch_count_once() -> None:
    """Ten searches side by side are one try."""
    run = Run()

    def batch() -> list[AnyStep]:
        return run.batch(*[("grep", f"{run.seq}-{k}", "no match") for k in range(10)], effect="read")

    assert said([*batch(), *batch(), *batch()]) == []
    assert said([step for _ in range(4) for step in batch()]) == ["observe"]


def test_missing_evidence_proves_nothing() -> None:
    """Answers or arguments that nobody reports are equal to nothing."""
    assert said(walk(Run(), 20, None)) == []
    assert said(walk(Run(), 20, args=None)) == []


def test_a_person_starts_the_count_anew() -> None:
    """What the person says next is what is searched for next."""
    run = Run()

    assert said([step for _ in range(6) for step in (*walk(run, 3), run.user())]) == []


def test_progress_turns_the_kill_into_a_nudge() -> None:
    """The runtime says that the task moved on."""
    run = Run()
    decisions = decide([*walk(run, 8), run.step("progress"), *walk(run, 6)], SAME)

    assert "kill_run" not in orders(decisions)
    assert [verdict.vetoed_from for verdict in verdicts(decisions) if verdict.vetoed_from] == ["kill"]


def test_a_crash_in_the_middle_changes_nothing() -> None:
    """The questions and the count survive in the snapshot."""
    run = Run()
    steps = walk(run, 14)
    for cut in range(1, 14):
        tree = tree_of(steps[0])
        first = levels(decide(steps[:cut], SAME, tree=tree))
        again = TreeState.from_bytes(tree.to_bytes())

        assert again == tree
        assert first + levels(decide(steps[cut:], SAME, tree=again)) == said(steps)


def test_the_memory_of_questions_is_bounded() -> None:
    """A walk of a thousand questions keeps the last two dozen."""
    run = Run()
    steps = walk(run, 200)
    tree = tree_of(steps[0])
    decide(steps, SAME, tree=tree)
    state = tree.runs["r1"].same_output

    assert state is not None
    assert (state.count, len(state.questions)) == (200, 96)


SCROLLED = "Scrolled one page. The view shows the bottom of the page: Travemuende, Westerhever."
REQUESTS = (
    "Please scroll on",
    "Go further down",
    "Look at what comes below",
    "Continue to the end",
    "Keep reading there",
)


def ask(run: Run, n: int, result: Any = SCROLLED, **fields: Any) -> list[AnyStep]:
    """Return requests in ever new words to an undeclared tool, with one answer."""
    words = "abcdefghijklmnopqrstuvwxyz"
    return [
        run.call("browser", {"instruction": f"{REQUESTS[k % 5]} until {words[k]} shows"}, result, **fields)
        for k in range(n)
    ]


def test_rewordings_with_one_answer_are_nudged_and_no_more() -> None:
    """Whatever is said, the page stays where it is."""
    for n, expected in {3: [], 4: ["observe"], 5: ["observe", "nudge"], 25: ["observe", "nudge"]}.items():
        assert sorted(set(said(ask(Run(), n)))) == sorted(set(expected))


def test_another_agent_in_between_changes_nothing() -> None:
    """An orchestrator asks around while its browser stands still."""
    run = Run()
    first, second = ask(run, 4), run.call("helper", {"instruction": "Which of them may it be?"}, "I do not know yet.")

    assert said([*first, second, *ask(run, 5)[4:]]) == ["observe", "nudge"]


def test_a_page_that_moves_ends_it() -> None:
    """One other answer, and the count begins anew."""
    run = Run()
    steps = [step for k in range(8) for step in (*ask(run, 3, f"page {k}: {SCROLLED}"),)]

    assert said(steps) == []


def test_acknowledgements_take_twelve_in_a_row() -> None:
    """A tool that says "ok" may be storing what it is told."""
    assert said(ask(Run(), 11, "ok")) == []
    assert said(ask(Run(), 12, "ok")) == ["nudge"]


def test_work_between_acknowledgements_ends_the_streak() -> None:
    """A status between edits is a report."""
    run = Run()
    steps = [step for k in range(20) for step in (*ask(run, 1, "ok"), run.call("edit", f"f{k}.py", f"{k} lines"))]

    assert said(steps) == []


def test_keys_and_values_are_no_words() -> None:
    """A store that is filled says "ok" as often as it has keys."""
    run = Run()

    assert said([run.call("put", {"key": f"flag_{k}", "value": True}, SCROLLED) for k in range(30)]) == []
