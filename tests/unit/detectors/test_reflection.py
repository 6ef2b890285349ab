"""Answer after answer, and no action."""

from __future__ import annotations

from typing import Any

import pytest
from tests._support.steps import Run, decide, levels, only, tree_of, verdicts

from loopwarden_detectors import watch
from loopwarden_detectors.run_state import TreeState
from loopwarden_models.effects import THOUGHT_TOOLS
from loopwarden_models.events import AnyStep

REFLECTION = only("reflection")


def thoughts(run: Run, n: int, tokens: int = 100, **fields: Any) -> list[AnyStep]:
    """Return `n` answers that call nothing."""
    usage = {"input_tokens": 1_000, "output_tokens": tokens}
    return [run.model(text=f"Thought {k}.", usage=usage, tool_calls=0, **fields) for k in range(n)]


def said(steps: list[AnyStep]) -> list[str]:
    """Return the levels that these steps bring."""
    return levels(decide(steps, REFLECTION))


@pytest.mark.parametrize(("n", "expected"), [(4, []), (5, ["observe"]), (7, ["observe"]), (8, ["observe", "nudge"])])
def test_answers_without_an_action_are_counted(n: int, expected: list[str]) -> None:
    """Five are noticed, eight are told."""
    run = Run()

    assert said([run.call(), *thoughts(run, n)]) == expected


def test_answers_that_do_not_say_what_they_call_are_told_later() -> None:
    """Some of them may have acted: ten."""
    run = Run()
    answers = [run.call(), *[run.model(text=f"Thought {k}.") for k in range(10)]]

    assert said(answers[:10]) == ["observe"]
    assert said(answers) == ["observe", "nudge"]


def test_tokens_count_as_well() -> None:
    """Forty thousand tokens of thought are a nudge, sixty the end."""
    run = Run()

    assert said([run.call(), *thoughts(run, 4, tokens=20_000)])[-1] == "kill"


def test_an_action_begins_anew() -> None:
    """A call in between, a word of a person."""
    run = Run()
    first = run.call()
    acted = [step for _ in range(4) for step in (*thoughts(run, 4), run.call())]
    spoken = [step for _ in range(4) for step in (*thoughts(run, 4), run.user())]

    assert said([first, *acted, *spoken]) == []


def test_a_tool_for_thoughts_is_no_action() -> None:
    """Plans that are written down are plans."""
    run = Run()
    tool = min(THOUGHT_TOOLS)
    first = run.call()
    steps = [step for k in range(6) for step in (*thoughts(run, 2), run.call(tool, k, "noted"))]

    assert "nudge" in said([first, *steps])


def test_a_run_that_never_reports_a_call_is_only_observed() -> None:
    """Its runtime may not report calls at all."""
    run = Run()
    steps = [run.model(usage={"input_tokens": 1, "output_tokens": 30_000}) for _ in range(12)]

    assert set(said(steps)) <= {"observe"}


@pytest.mark.parametrize(("silent_ms", "expected"), [(200_000, []), (290_000, ["kill"]), (3_600_000, ["kill"])])
def test_the_time_of_a_generation_under_way_counts(silent_ms: int, expected: list[str]) -> None:
    """Fifteen minutes are over before the sixth answer comes, and stay over at whichever tick the run is asked."""
    run = Run()
    run.gap_ms = 130_000
    tree = tree_of(first := run.call())
    decide([first, *thoughts(run, 6)], REFLECTION, tree=tree)

    assert levels(watch.tick(tree, run.now_ms + silent_ms, REFLECTION)) == expected


@pytest.mark.parametrize("why", ["call in flight", "approval", "person", "few answers", "little thought"])
def test_silence_that_something_explains_is_no_thought(why: str) -> None:
    """Whoever waits, or only writes now and then, must not be ended for the time that passes."""
    run = Run()
    run.gap_ms = 3_600_000 if why == "little thought" else 130_000
    steps = [run.start(attended=why == "person"), run.call(), *thoughts(run, 4 if why == "few answers" else 6)]
    if why == "call in flight":
        steps.append(run.step("tool_start", tool="build", call_id="b"))
    if why == "approval":
        steps.append(run.step("approval_wait", call_id="b"))
    tree = tree_of(steps[0])
    decide(steps, REFLECTION, tree=tree)

    assert levels(watch.tick(tree, run.now_ms + 3_600_000, REFLECTION)) == []


def test_a_leader_waits_while_its_children_answer() -> None:
    """Not every framework reports the messages between them."""
    boss, child = Run("boss"), Run("child", root="boss")
    steps = [boss.call()]
    for _ in range(12):
        steps += [*thoughts(boss, 1, tokens=9_000), child.call(args=child.seq), *thoughts(child, 1)]

    assert said(steps) == []


def test_evidence_and_state_survive_a_snapshot() -> None:
    """Half of them may be judged by another worker."""
    run = Run()
    tree = tree_of(first := run.call())
    decide([first, *thoughts(run, 6)], REFLECTION, tree=tree)
    again = TreeState.from_bytes(tree.to_bytes())
    (nudge,) = [v for v in verdicts(decide(thoughts(run, 5), REFLECTION, tree=again)) if v.episode]

    assert (nudge.level, nudge.pattern, nudge.evidence.count) == ("nudge", "reflection_paralysis", 8)
