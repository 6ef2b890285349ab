"""Same call, same result, in a row."""

from __future__ import annotations

from typing import Any

import pytest
from tests._support.steps import Run, decide, levels, only, orders, verdicts

from loopwarden_models.events import AnyStep

EXACT = only("exact_repeat")


def said(steps: list[AnyStep]) -> list[str]:
    """Return the levels that this rule alone says on the steps."""
    return levels(decide(steps, EXACT))


def test_levels_rise_with_the_streak() -> None:
    """Observe 2, nudge 3, break 5, kill 8: a verdict where the level rises, none in between."""
    #  call     1   2        3      4   5      6   7   8
    #               observe  nudge      break          kill
    for n, expected in {1: 0, 2: 1, 3: 2, 4: 2, 5: 3, 7: 3, 8: 4}.items():
        assert said(Run().calls(n, effect="read")) == ["observe", "nudge", "break", "kill"][:expected]


def test_the_evidence_names_the_calls() -> None:
    """A person at night must find the steps: from the first of the streak to the one that decided."""
    run = Run()
    decisions = decide([run.start(), run.call("list"), *run.calls(3)], EXACT)
    nudge = verdicts(decisions)[-1]

    assert (nudge.pattern, nudge.evidence.count, nudge.evidence.threshold) == ("tool_repetition", 3, 3)
    assert (nudge.evidence.first_seq, nudge.evidence.last_seq, nudge.evidence.window_ms) == (2, 4, 4_000)
    assert nudge.evidence.tools == ["search"]
    assert decisions[-1].first_offset == 2


@pytest.mark.parametrize(
    "other",
    [{"args": "another question"}, {"result": "another answer"}, {"tool": "fetch"}, {"effect": "poll"}],
    ids=["question", "answer", "tool", "poll"],
)
def test_anything_else_breaks_the_streak(other: dict[str, Any]) -> None:
    """Never stop a run on equal arguments alone."""
    run = Run()

    assert said([*run.calls(7, effect="read"), run.call(**other), *run.calls(4, effect="read")]).count("kill") == 0


def test_a_missing_result_proves_nothing() -> None:
    """Five calls whose answer nobody reports may be nudged, nothing more, however many follow."""
    run = Run()

    assert set(said(run.calls(4, result=None))) == set()
    assert set(said(run.calls(40, result=None))) == {"nudge"}


def test_missing_arguments_equal_nothing() -> None:
    """Otherwise every call of a tool whose arguments are not reported would be the same."""
    assert said(Run().calls(20, args=None)) == []
    assert said(Run().calls(20, args=None, result=None)) == []


def test_calls_of_one_batch_are_one_repetition() -> None:
    """Five equal calls side by side are one question asked at once."""
    run = Run()
    batch = [("search", "q", "nothing found")] * 5

    assert said(run.batch(*batch)) == []
    assert said([*run.batch(*batch), *run.batch(*batch), *run.batch(*batch)]) == ["observe", "nudge"]


def test_a_repetition_is_seen_whatever_came_first_in_its_batch() -> None:
    """Each turn waits a moment and asks again: the question is second in its batch, and the same every time."""
    run = Run()
    turns = [step for _ in range(8) for step in run.batch(("sleep", 1, ""), ("search", "q", "none"), effect="read")]

    assert "kill" in said(turns)


def test_more_calls_than_were_announced_are_rounds_of_their_own() -> None:
    """Many runtimes report only some model turns; a loop between two of them must be seen."""
    run = Run()

    assert said([run.model(1), *run.calls(8, effect="read")])[-1] == "kill"


def test_a_batch_without_end_hides_no_loop() -> None:
    """A model turn that announces a billion calls does not make one round of all that follows."""
    run = Run()

    assert said([run.model(2**53 - 1), *run.calls(200, effect="read")])[-1] == "kill"


def test_a_retry_report_counts_once() -> None:
    """A second end of one call is the same call: a provider that retries is no agent that repeats."""
    run = Run()

    assert said([run.call(call_id="c1") for _ in range(10)]) == []


@pytest.mark.parametrize("outcome", ["blocked", "cached"])
def test_a_closed_door_is_still_hammered_on(outcome: str) -> None:
    """What the guard answers in place of the tool is an attempt, and its wording is no new result."""
    run = Run()
    answered = run.calls(2, effect="read")
    knocks = [run.call(outcome=outcome, result=f"refused for the {n}th time", effect="read") for n in range(6)]

    assert said([*answered, *knocks])[-1] == "kill"


def test_guarded_attempts_alone_are_a_streak() -> None:
    """The runtime's own guard spoke from the first repetition on: its word is evidence enough."""
    run = Run()
    stubs = [run.call(outcome="cached", result=f"wasted call {n}", effect="read") for n in range(8)]

    assert said(stubs)[-1] == "kill"


def test_refusals_side_by_side_do_not_restart_the_count() -> None:
    """Two blocked calls in one batch lengthen the streak by one, they do not end it."""
    run = Run()
    answered, blocked = run.call(effect="read"), ("search", "q", None)
    rounds = [step for _ in range(7) for step in run.batch(blocked, blocked, outcome="blocked", effect="read")]

    assert said([answered, *rounds])[-1] == "kill"


def test_a_denied_call_has_no_result() -> None:
    """A policy's refusal is judged by the rule about refusals; here it is a call without an answer."""
    run = Run()
    denied = [run.call(outcome="denied", result="not allowed", effect="write") for _ in range(12)]

    assert set(said(denied)) == {"nudge"}


def test_an_unknown_outcome_proves_nothing() -> None:
    """A newer runtime's outcome is an attempt whose result must not count."""
    run = Run()

    assert "kill" not in said([run.call(outcome="teleported") for _ in range(20)])


def test_a_wait_neither_lengthens_nor_breaks_a_streak() -> None:
    """`read, sleep, read, sleep` of a declared read asks the same question again and again."""
    run = Run()
    steps = [step for _ in range(8) for step in (run.call(effect="read"), run.call("sleep", 5, ""))]

    assert said(steps) == ["observe", "nudge", "break", "kill"]


@pytest.mark.parametrize("wait", [("sleep", {"s": 5}), ("bash", {"command": "sleep 5"})], ids=["tool", "shell"])
def test_an_undeclared_tool_with_waits_between_is_polled(wait: tuple[str, Any]) -> None:
    """A poller that nobody declared must not be killed for its patience."""
    run = Run()
    steps = [step for _ in range(30) for step in (run.call("BashOutput", "b3", "running"), run.call(*wait, ""))]

    assert said(steps) == []


def test_an_undeclared_tool_asked_far_apart_is_polled() -> None:
    """Thirty seconds and three times the run's usual pace: that is polling, not looping."""
    run = Run()
    steps = [run.call("ls", n, n) for n in range(6)]
    for _ in range(12):
        run.gap_ms = 2_000
        steps.append(run.call("ls", run.seq, run.seq))
        run.gap_ms = 45_000
        steps += [run.call("BashOutput", "b3", "running"), run.call("BashOutput", "b3", "running")]

    assert "nudge" not in said(steps)


def test_a_slow_model_alone_does_not_look_like_polling() -> None:
    """Every step takes a minute, so a minute between equal calls says nothing."""
    run = Run()
    run.gap_ms = 60_000

    assert said([*[run.call("ls", n, n) for n in range(4)], *run.calls(9)])[-1] == "kill"


@pytest.mark.parametrize("effect", ["poll", "clock"])
def test_pollers_and_clocks_are_left_to_their_own_rules(effect: str) -> None:
    """Their normal answer is the answer they gave before."""
    run = Run()
    polls = run.calls(30, effect=effect)
    refused = [run.call(effect=effect, outcome="blocked") for _ in range(10)]

    assert said([*polls, *refused]) == []


def test_a_person_who_speaks_starts_afresh() -> None:
    """The first step of a new prompt must not inherit a streak."""
    run = Run()

    assert "kill" not in said([*run.calls(7, effect="read"), run.user(), *run.calls(7, effect="read")])


def test_a_new_incarnation_starts_afresh() -> None:
    """The same first call after a resume is no repeat by the agent."""
    run = Run()

    assert "kill" not in said([*run.calls(7, effect="read"), run.resume("b"), *run.calls(7, effect="read")])


def test_progress_inside_the_streak_turns_the_kill_into_a_nudge() -> None:
    """The runtime says that the task moved on; the verdict is said all the same, with what it was lowered from."""
    run = Run()
    steps = [*run.calls(4, effect="read"), run.step("progress"), *run.calls(8, effect="read")]
    decisions = decide(steps, EXACT)

    assert set(levels(decisions)) == {"observe", "nudge"}
    assert [verdict.vetoed_from for verdict in verdicts(decisions) if verdict.vetoed_from] == ["break", "kill"]
    assert "kill_run" not in orders(decisions)


def test_progress_before_the_streak_protects_nothing() -> None:
    """A good step ten minutes ago says nothing about the loop of now."""
    run = Run()

    assert said([run.step("progress"), *run.calls(8, effect="read")])[-1] == "kill"


def test_a_repeated_write_is_no_progress() -> None:
    """The same message sent again with the same acknowledgement: new once, then a loop."""
    assert said(Run().calls(8, "send", "hello", "ok", effect="write"))[-1] == "kill"


def test_a_streak_that_goes_on_is_said_again_when_it_doubles() -> None:
    """Thousands of laps must not be a thousand verdicts, nor silence."""
    counts = [
        verdict.evidence.count
        for verdict in verdicts(decide(Run().calls(70, effect="read"), only("exact_repeat", "shadow")))
    ]

    assert counts == [2, 3, 5, 8, 16, 32, 64]
