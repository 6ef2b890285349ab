"""What people are asked: about a paused run and about a call; when a question ends, and what follows from silence."""

from __future__ import annotations

import pytest
from tests._support.steps import ENFORCE, Run, order_of, orders, verdicts
from tests.unit.detectors.test_landing import Stage

from loopwarden_detectors import landing, watch
from loopwarden_detectors.ladder import Decision, Order
from loopwarden_detectors.questions import Question
from loopwarden_models.policy import Policy

HOUR_S = 3_600


def questions(decisions: list[Decision]) -> list[Question]:
    """Return the questions among decisions."""
    return [decision.question for decision in decisions if decision.question is not None]


def paused(run: Run, policy: Policy = ENFORCE) -> tuple[Stage, Order, Question]:
    """Return an attended run that looped and was paused, the order and the question that went with it."""
    stage = Stage(policy)
    said = stage.read(run.start(attended=True, agent="clerk"), *run.calls(8, effect="read"))
    pause = order_of(said, "pause_run")
    (asked,) = questions(said)
    stage.answer(pause, "received", "applied")
    return stage, pause, asked


def test_a_pause_asks_a_person() -> None:
    """Lifecycle 8: the question names the run, why, and until when, under the id of the command."""
    _, pause, asked = paused(Run())

    assert (asked.question_id, asked.kind, asked.state) == (pause.command_id, "pause", "open")
    assert (asked.run_id, asked.agent, asked.tool, asked.timeout_ms) == ("r1", "clerk", "search", HOUR_S * 1000)
    assert asked.reason is not None
    assert (asked.reason.detector, asked.reason.count) == ("exact_repeat", pause.reason.count)


def test_an_unattended_run_asks_nobody() -> None:
    """Lifecycle 8: automation gets no dialogue."""
    run = Run()
    said = Stage().read(run.start(), *run.calls(8, effect="read"))

    assert "kill_run" in orders(said)
    assert questions(said) == []


def test_a_pause_that_nobody_answers_for_ends_the_run_once() -> None:
    """Lifecycle 81: an hour later the run is killed, its question has expired, and neither comes twice."""
    stage, pause, _ = paused(Run())

    assert stage.later(HOUR_S - 1) == []
    said = stage.later(2)
    kill = order_of(said, "kill_run")
    (ended,) = questions(said)
    (verdict,) = verdicts(said)
    assert (ended.question_id, ended.state, ended.at_ms) == (pause.command_id, "expired", stage.now_ms)
    assert (kill.incarnation, kill.scope, kill.is_after_pause) == ("a", "run", True)
    assert (verdict.level, verdict.command_id, verdict.pattern) == ("kill", kill.command_id, pause.reason.pattern)
    assert "nobody said" in verdict.evidence.note

    stage.answer(kill, "received", "applied", "confirmed_dead")
    assert stage.later(2 * HOUR_S) == []
    assert stage.tree is not None
    assert not landing.is_waited_for(stage.tree)


def test_the_end_of_a_pause_has_the_same_id_after_a_crash() -> None:
    """A tick is no event: the next one after a restart must not be another order."""
    (first, _, _), (second, _, _) = paused(Run()), paused(Run())

    late = order_of(second.later(HOUR_S + 77), "kill_run")
    assert order_of(first.later(HOUR_S + 1), "kill_run").command_id == late.command_id


def test_the_time_of_a_pause_is_policy() -> None:
    """`null` waits for as long as it takes."""
    short = Policy.from_builtins({"mode": "enforce", "ladder": {"pause_timeout_ms": 60_000}})
    stage, _, asked = paused(Run(), short)
    assert asked.timeout_ms == 60_000
    assert orders(stage.later(61)) == ["kill_run"]

    for_ever = Policy.from_builtins({"mode": "enforce", "ladder": {"pause_timeout_ms": None}})
    stage, _, asked = paused(Run(), for_ever)
    assert asked.timeout_ms is None
    assert stage.later(30 * 24 * HOUR_S) == []


def test_a_detector_that_is_far_behind_ends_no_pause() -> None:
    """Somebody may have answered in what it has not read."""
    stage, _, _ = paused(Run())

    assert stage.later(2 * HOUR_S, act=False) == []
    assert orders(stage.later(1)) == ["kill_run"]


def test_a_switched_off_rule_ends_no_pause() -> None:
    """What the operator has taken back is not finished by the clock."""
    stage, _, _ = paused(Run())
    stage.policy = Policy.from_builtins({"mode": "enforce", "exact_repeat": {"mode": "off", "until": "2099-01-01"}})

    assert stage.later(2 * HOUR_S) == []


def test_a_paused_run_is_neither_silent_nor_out_of_time() -> None:
    """Lifecycle 50, 81: the wait counts against no limit, and no silence is seen in it."""
    policy = Policy.from_builtins(
        {"mode": "enforce", "budget": {"limits": {"max_duration_ms": 600_000}}, "ladder": {"pause_timeout_ms": None}}
    )
    stage, _, _ = paused(Run(), policy)
    assert stage.tree is not None

    assert watch.tick(stage.tree, stage.now_ms + 5 * HOUR_S * 1000, policy) == []


def test_a_resumed_run_closes_its_question_and_is_not_ended() -> None:
    """The step after the pause shows that a person let it go on; what was used stays used."""
    run = Run()
    stage, pause, _ = paused(run)
    stage.later(600)
    used = stage.tree.calls if stage.tree is not None else 0
    run.now_ms = stage.now_ms + 1_000

    (ended,) = questions(stage.read(run.step("tool_start", tool="search", args="other", call_id="c")))
    assert (ended.question_id, ended.state) == (pause.command_id, "approved")
    assert stage.tree is not None
    assert stage.tree.calls == used == 8
    assert stage.later(2 * HOUR_S) == []


@pytest.mark.parametrize("status", ["killed", "completed", "cancelled"])
def test_a_run_that_ends_while_it_is_paused_closes_its_question(status: str) -> None:
    """Lifecycle 32: whoever answers later is told that it is too late."""
    run = Run()
    stage, pause, _ = paused(run)
    run.now_ms = stage.now_ms

    (ended,) = questions(stage.read(run.end(status)))
    assert (ended.question_id, ended.state) == (pause.command_id, "expired")
    assert stage.later(2 * HOUR_S) == []


def test_a_run_whose_code_returns_for_the_wait_keeps_its_question() -> None:
    """`awaiting_approval` is no end: the answer is for whoever takes the run up."""
    run = Run()
    stage, _, _ = paused(run)

    assert questions(stage.read(run.end("awaiting_approval"))) == []


def test_a_call_that_needs_approval_asks_and_ends() -> None:
    """The step says what is asked; the detector passes on names, times and hashes."""
    run, stage = Run(), Stage()
    words = {"call_id": "c1", "question_id": "q1", "action_hash": "ab12"}
    (asked,) = questions(
        stage.read(run.start(), run.step("approval_wait", tool="pay", args={"sum": 3}, timeout_ms=5_000, **words))
    )
    assert (asked.question_id, asked.kind, asked.state, asked.tool) == ("q1", "action", "open", "pay")
    assert (asked.action_hash, asked.call_id, asked.timeout_ms, asked.at_ms) == ("ab12", "c1", 5_000, run.now_ms)

    for decision, state in (
        ("approved", "approved"),
        ("rejected", "rejected"),
        ("expired", "expired"),
        ("?", "expired"),
    ):
        (ended,) = questions(stage.read(run.step("approval_end", decision=decision, **words)))
        assert (ended.question_id, ended.state) == ("q1", state)


def test_a_wait_that_has_no_id_asks_nobody() -> None:
    """The agent's code asks its own user: there is nothing to answer."""
    run = Run()

    assert questions(Stage().read(run.start(), run.step("approval_wait", call_id="c1"))) == []
