"""Clocks that are wrong, connections that break, and runs that wait."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest
from tests._support.fleet import GAP_MS, cycling, looping
from tests._support.hosts import Host
from tests._support.stage import Stage, now_ms, paced

from loopwarden.testing import kill, nudge, pause, resume

TEN_MINUTES_MS = 600_000
DAY_MS = 86_400_000


@pytest.mark.parametrize("skew_ms", [TEN_MINUTES_MS, -TEN_MINUTES_MS], ids=["75", "76"])
def test_75_76_the_runtimes_clock_is_ten_minutes_wrong(
    stage: Stage, own_host: Callable[..., Host], run_id: str, skew_ms: int
) -> None:
    """The age of a command is told by the broker's clock: neither a fast host nor a slow one changes it."""
    host = own_host("rt-skewed").guard(skew_ms=skew_ms)
    run = host.run(run_id)
    # The host sleeps through the life of a command, and reads it when it wakes up.
    stage.answered(stage.order(nudge(run.key, command_id=f"{run_id}-n", seq=99)), "received")
    os.kill(host.pid, signal.SIGSTOP)
    late = stage.order(kill(run.key, command_id=f"{run_id}-late", life_ms=1_000))
    time.sleep(1.5)
    os.kill(host.pid, signal.SIGCONT)
    stage.answered(late, "expired")
    assert run.call() == "allow"

    fresh = stage.order(kill(run.key, command_id=f"{run_id}-fresh", life_ms=120_000, seq=101))
    answers = stage.answered(fresh, "received", "applied")
    assert run.is_stopped
    run.leave()
    for answer in answers:
        assert 0 <= answer["latency_ms"] < 10_000
        assert ("ahead of" if skew_ms > 0 else "behind") in answer["detail"]


def test_77_events_from_the_future(stage: Stage, run_id: str) -> None:
    """A source's clock jumps ahead by a day and back: nobody has worked for a day."""
    start_ms = now_ms() - 20_000
    events = looping(run_id, 1, start_ms=start_ms)
    events[0]["limits"] = {"max_duration_ms": 3_600_000}
    odd = {**events[1], "seq": 2, "call_id": "x", "args": "other", "ts_ms": start_ms + DAY_MS}
    back = {**events[1], "seq": 3, "call_id": "y", "args": "one more", "ts_ms": start_ms + 2 * GAP_MS}
    stage.events([*events, odd, back])
    stage.settle()

    assert stage.verdicts(run_id) == []
    assert stage.commands(run_id) == []


def test_78_an_expired_command_and_a_loop_that_goes_on(stage: Stage, run_id: str) -> None:
    """What came too late is not sent again: the loop's next lap brings an order of its own."""
    events = paced(cycling(run_id, 7, start_ms=0))
    stage.events(events[:10])
    stage.settle()
    stage.answer(stage.commands(run_id, "nudge"), "applied")
    stage.events(events[10:16])
    first = stage.command(run_id, "kill_run")
    stage.answer([first], "expired")
    assert len(stage.commands(run_id, "kill_run")) == 1

    stage.events(events[16:19])
    second = stage.until(lambda: stage.commands(run_id, "kill_run")[1:], "another kill")[0]
    assert second["command_id"] != first["command_id"]
    assert second["expires_at_ms"] > first["expires_at_ms"]
    stage.settle()
    assert len(stage.commands(run_id, "kill_run")) == 2


def test_80_the_acknowledgement_cannot_be_sent(stage: Stage, own_host: Callable[..., Host], run_id: str) -> None:
    """The stop waits for nobody, and what is told later tells when it was."""
    host = own_host("rt-mute")
    run = host.run(run_id)
    host.hold("acks", "all")
    ordered = stage.order(kill(run.key, command_id=f"{run_id}-k"))
    stage.until(lambda: run.is_stopped, "the kill")
    assert run.call() == "stop"
    run.leave()
    stage.until(lambda: host.stats()["acks_queued"] == 3, "all three answers to wait")
    released_ms = now_ms()
    host.hold("acks")

    answers = stage.answered(ordered, "received", "applied", "confirmed_dead")
    assert all(answer["at_ms"] <= released_ms <= answer["append_ms"] + 1 for answer in answers)


def test_81_a_paused_run_is_not_a_silent_one(stage: Stage, host: Host, run_id: str) -> None:
    """Who was told to wait says nothing, and nobody may take that for a run that is lost."""
    run = host.run(run_id, tenant="quiet", attended=True)
    run.repeat(until=lambda: run.tell("before_model")["action"] == "pause", what="the pause")
    held = stage.command(run_id, "pause_run")
    stage.answered(held["command_id"], "received", "applied")
    beside = stage.beside(run_id, "quiet")
    silent = host.run(beside, tenant="quiet")
    silent.call()

    stage.until(lambda: stage.verdicts(beside), "the silence of the other run")
    stage.settle()
    assert "silent_run" not in {one["detector"] for one in stage.verdicts(run_id)}
    for each in (run, silent):
        each.leave()


def test_82_a_pause_in_the_middle_of_a_call(stage: Stage, host: Host, run_id: str) -> None:
    """The call that is out may end and its result is kept; nothing is done twice."""
    run = host.run(run_id, attended=True)
    assert run.begin("report", {"year": 2024}, call_id="c1") == "allow"
    stage.answered(stage.order(pause(run.key, command_id=f"{run_id}-p", seq=100)), "received", "applied")
    assert run.begin("mail", {"to": "all"}, call_id="c2", effect="write") == "pause"
    run.end("c1", result="the report")

    stage.answered(stage.order(resume(run.key, command_id=f"{run_id}-r", seq=101)), "received", "applied")
    assert run.begin("mail", {"to": "all"}, call_id="c2", effect="write") == "allow"
    run.end("c2", result="sent")
    run.leave()
    stage.settle()
    steps = stage.steps(run_id)
    assert [step["call_id"] for step in steps if step["type"] == "tool_start"] == ["c1", "c2"]
    ended = [(step["call_id"], step["outcome"], step["result"]) for step in steps if step["type"] == "tool_end"]
    assert ended == [("c1", "ok", "the report"), ("c2", "ok", "sent")]
    assert steps[-1]["status"] == "completed"
