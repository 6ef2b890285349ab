"""What the demonstration knows of its runs, from records alone."""

from __future__ import annotations

from tests._support.demo_records import BEGIN_MS, Topics, plan

from loopwarden_models.events import RunEnd, RunStart


def test_a_run_climbs_the_ladder_before_the_eyes() -> None:
    """Each rung is a record of its own, and the picture shows where a run stands."""
    topics = Topics(plan("r-1"))
    run = topics.board.runs["acme", "r-1"]
    states = [run.state]

    topics.step(RunStart, "r-1")
    states.append(run.state)
    decided_by = topics.round("r-1", 100)
    nudge = topics.order("nudge", "r-1", decided_by, 110)
    topics.ack(nudge, "applied", 300)
    states.append(run.state)
    kill = topics.order("kill_run", "r-1", topics.round("r-1", 400), 410)
    states.append(run.state)
    topics.ack(kill, "applied", 420)
    topics.step(RunEnd, "r-1", 430, status="killed")
    states.append(run.state)

    assert states == ["waiting", "running", "nudged", "stopping", "stopped"]
    assert (run.nudges, run.steps, run.tokens) == (1, 2, 2_000)
    assert not run.is_settled, "nobody has confirmed that its code has returned"
    topics.ack(kill, "confirmed_dead", 440)
    assert topics.board.is_settled


def test_latency_counts_from_the_step_that_decided() -> None:
    """Not from the order: what the detector takes is part of what a person waits for."""
    topics = Topics(plan("r-1"))

    topics.kill("r-1", at_ms=5_000)

    stop = topics.board.runs["acme", "r-1"].stop
    assert stop is not None
    assert topics.board.decided_ms(stop) == BEGIN_MS + 5_000
    assert (stop.applied_ms, stop.dead_ms) == (BEGIN_MS + 5_020, BEGIN_MS + 5_030)


def test_an_answer_may_come_before_its_order() -> None:
    """Four topics are read side by side: between them there is no order."""
    topics = Topics(plan("r-1"))
    topics.ack("kill_run:r-1", "applied", 20)
    topics.ack("kill_run:r-1", "confirmed_dead", 30)

    topics.order("kill_run", "r-1", 0, 10)

    stop = topics.board.runs["acme", "r-1"].stop
    assert stop is not None
    assert (stop.status, stop.applied_ms, stop.dead_ms) == ("applied", BEGIN_MS + 20, BEGIN_MS + 30)


def test_a_loop_that_ends_by_itself_has_survived() -> None:
    """Its own limit or the end of the time ended it, and no detector did."""
    topics = Topics(plan("r-1"), plan("r-2", "healthy"))

    topics.live("r-1", status="limit")
    topics.live("r-2", status="cancelled")

    assert [run.state for run in topics.board.runs.values()] == ["survived", "failed"]
    assert topics.board.is_settled


def test_a_verdict_that_only_announces_an_order_is_not_shown_twice() -> None:
    """It is counted; what was seen stands in the one before it."""
    topics = Topics(plan("r-1"))

    topics.verdict("r-1", level="kill", episode=4)
    topics.verdict("r-1", level="kill", episode=0)

    assert topics.board.verdict_count == 2
    assert len(topics.board.verdicts) == 1


def test_strangers_are_passed_over() -> None:
    """A topic may hold what is not of this play."""
    topics = Topics(plan("r-1"))

    topics.live("other")
    topics.order("kill_run", "other", 0, 10)
    topics.board.read("verdicts", 0, 99, None)

    assert topics.board.steps == 0
    assert topics.board.runs["acme", "r-1"].state == "waiting"


def test_what_a_person_orders_meanwhile_is_no_verdict() -> None:
    """The topic of verdicts also carries the audit of people's orders, and kinds of a later version."""
    topics = Topics(plan("r-1"))
    fields = b'"action_id":"a1","action":"kill_run","at_ms":1,"who":"kim","why":"","key":"k"'
    action = b'{"v":1,"type":"operator_action",' + fields + b"}"

    topics.board.read("verdicts", 0, 0, action)
    topics.board.read("verdicts", 0, 1, b'{"v":1,"type":"of a later version"}')

    assert topics.board.records == 2
    assert topics.board.verdict_count == 0
