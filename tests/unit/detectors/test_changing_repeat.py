"""Same call, changing result, in a row."""

from __future__ import annotations

from tests._support.steps import Run, decide, levels, only, verdicts

from loopwarden_models.events import AnyStep

CHANGING = only("changing_repeat")


def said(steps: list[AnyStep]) -> list[str]:
    """Return the levels that this rule alone says on the steps."""
    return levels(decide(steps, CHANGING))


def changing(run: Run, n: int, **fields: object) -> list[AnyStep]:
    """Return `n` equal calls, each with a new answer."""
    return [run.call("claim_next", {}, f"item {k}", **fields) for k in range(n)]


def test_it_advises_and_never_kills() -> None:
    """A queue drained by a call without arguments is the healthy twin: only budgets end such a run."""
    assert said(changing(Run(), 9)) == []
    assert said(changing(Run(), 10)) == ["observe"]
    assert said(changing(Run(), 20)) == ["observe", "nudge"]
    assert set(said(changing(Run(), 500))) == {"observe", "nudge"}


def test_a_clock_is_asked_too_often_sooner() -> None:
    """Its answer is always new, so a new answer proves nothing."""
    assert said(changing(Run(), 4, effect="clock")) == []
    assert said(changing(Run(), 10, effect="clock")) == ["observe", "nudge"]


def test_pollers_are_meant_to_ask_again() -> None:
    """A status that moves is a job that moves."""
    assert said(changing(Run(), 100, effect="poll")) == []


def test_half_of_the_answers_must_be_new() -> None:
    """Two answers in turn are no news: that is a cycle."""
    run = Run()

    assert said([run.call("look", "x", f"state {n % 2}") for n in range(60)]) == []


def test_another_call_ends_the_streak() -> None:
    """Search, rename, search: the work lies in between."""
    run = Run()
    steps = [step for n in range(30) for step in (run.call("glob", "*", f"{30 - n} files"), run.call("mv", n, ""))]

    assert said(steps) == []


def test_calls_of_one_batch_count_once() -> None:
    """Four looks side by side are one look."""
    run = Run()
    rounds = [step for n in range(9) for step in run.batch(*[("look", "x", f"state {n}-{k}") for k in range(4)])]

    assert said(rounds) == []


def test_refused_calls_bring_nothing_new() -> None:
    """A refusal is an attempt; more refusals than answers are another rule's business."""
    run = Run()

    assert said([run.call("look", "x", f"no {n}", outcome="denied") for n in range(40)]) == []


def test_missing_arguments_equal_nothing() -> None:
    """Calls whose arguments nobody reports are not the same call."""
    run = Run()

    assert said([run.call("look", None, f"state {n}") for n in range(40)]) == []


def test_the_evidence_says_how_many_answers_were_new() -> None:
    """The person who reads it wants to know whether the world moved."""
    [verdict] = verdicts(decide(changing(Run(), 10), CHANGING))

    assert verdict.evidence.note.endswith("10 times in a row with the same arguments; 10 answers were new")
    assert (verdict.evidence.first_seq, verdict.evidence.last_seq) == (0, 9)
