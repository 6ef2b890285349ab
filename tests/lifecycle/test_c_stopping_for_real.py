"""Stopping for real: calls that are out, batches, frameworks that go on, hosts that die at the worst moment."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from tests._support.fleet import looping
from tests._support.hosts import Host, RemoteRun
from tests._support.stage import Message, Stage, now_ms

from loopwarden.processes import look_up
from loopwarden.testing import kill

CYCLE = ("a.py", "b.py", "c.py")


def stop(stage: Stage, run: RemoteRun, **fields: Any) -> str:
    """Have a run killed by hand, and return the command's id once its gate is shut."""
    ordered = stage.order(kill(run.key, command_id=f"{run.key.run_id}-k", **fields))
    stage.answered(ordered, "received", "applied")
    assert run.is_stopped
    return ordered


def is_alive(pid: int) -> bool:
    """Return whether a process works."""
    process = look_up(pid)
    return process is not None and not process.is_over


def ends(stage: Stage, run_id: str) -> dict[str, list[Message]]:
    """Return the ends of a run's calls, by call id."""
    found: dict[str, list[Message]] = {}
    for step in stage.steps(run_id):
        if step["type"] == "tool_end":
            found.setdefault(step["call_id"], []).append(step)
    return found


@pytest.mark.parametrize("grace_ms", [60_000, 500])
def test_27_stopped_and_the_process_lives_on(stage: Stage, host: Host, run_id: str, grace_ms: int) -> None:
    """A process that the run started keeps calling tools: it is refused, and while it lives nothing is dead."""
    run = host.run(run_id)
    pid = run.start_caller()
    stage.until(lambda: "allow" in run.calls, "the process to call tools")
    ordered = stop(stage, run, grace_ms=grace_ms)
    run.leave()
    stage.until(lambda: run.calls[-3:] == ["stop"] * 3 or not is_alive(pid), "its calls to be refused")

    if grace_ms > 500:
        calls = len(run.calls)
        stage.until(lambda: len(run.calls) > calls + 10, "it to go on for a while")
        stage.settle()
        assert stage.statuses(ordered) == ["received", "applied"]
        assert is_alive(pid)
        os.kill(pid, signal.SIGKILL)
    (*_, dead) = stage.answered(ordered, "received", "applied", "confirmed_dead")
    assert not is_alive(pid)
    assert ("had to be ended" in dead.get("detail", "")) == (grace_ms == 500)
    answers = run.calls
    assert set(answers[answers.index("stop") :]) == {"stop"}
    stage.settle()
    assert stage.steps(run_id)[-1]["status"] == "killed"


def test_28_a_call_that_cannot_be_interrupted(stage: Stage, host: Host, run_id: str) -> None:
    """Nobody can end a thread from outside: what nothing can follow is said at once, and what is over when it is."""
    run = host.run(run_id)
    assert run.begin("crunch", {"n": 1}, call_id="c1") == "allow"
    ordered = stop(stage, run)
    stage.settle()
    assert stage.statuses(ordered) == ["received", "applied"]

    run.end("c1", result="four minutes later")
    run.leave()
    stage.answered(ordered, "received", "applied", "confirmed_dead")
    stage.settle()
    ((end,),) = ends(stage, run_id).values()
    assert end["outcome"] == "cancelled"


@pytest.mark.parametrize(("limits", "status"), [(None, "killed"), ({"max_steps": 5}, "limit")])
def test_29_in_the_middle_of_a_batch(
    stage: Stage, host: Host, run_id: str, limits: Mapping[str, float] | None, status: str
) -> None:
    """Every call that a model asked for gets an end, or its provider refuses to resume the conversation."""
    #  call   1  2  3   4  5   6  7  8
    #         done      run    have not begun
    run = host.run(run_id, limits=limits)
    run.prompt(tool_calls=8)
    for number in range(1, 6):
        assert run.begin("fetch", {"page": number}, call_id=f"c{number}") == "allow"
    for number in range(1, 4):
        run.end(f"c{number}", result=f"page {number}")
    if status == "killed":
        stop(stage, run)
    assert [run.begin("fetch", {"page": n}, call_id=f"c{n}") for n in (6, 7, 8)] == ["stop"] * 3
    run.end("c4", result="page 4")
    run.leave()
    stage.settle()

    found = ends(stage, run_id)
    assert {call_id: len(each) for call_id, each in found.items()} == {f"c{number}": 1 for number in range(1, 9)}
    outcomes = [found[f"c{number}"][0]["outcome"] for number in range(1, 9)]
    assert outcomes == ["ok"] * 3 + ["cancelled"] * 5
    assert [step["call_id"] for step in stage.steps(run_id) if step["type"] == "tool_start"] == [
        f"c{number}" for number in range(1, 6)
    ]
    assert stage.steps(run_id)[-1]["status"] == status


def test_30_in_the_middle_of_a_model_call(stage: Stage, host: Host, run_id: str) -> None:
    """The framework is told at once; what the call has used counts, and nothing of what it asks for is done."""
    run = host.run(run_id)
    assert run.tell("before_model")["action"] == "allow"
    ordered = stop(stage, run)
    assert len(run.cancelled) == 1

    run.tell("after_model", usage={"input_tokens": 900, "output_tokens": 100}, tool_calls=1)
    assert run.begin("search", "q", call_id="c1") == "stop"
    run.leave()
    stage.answered(ordered, "received", "applied", "confirmed_dead")
    stage.settle()
    steps = stage.steps(run_id)
    (answer,) = [step for step in steps if step["type"] == "model_end"]
    assert answer["usage"] == {"input_tokens": 900, "output_tokens": 100}
    assert "tool_start" not in {step["type"] for step in steps}


def test_31_in_the_middle_of_a_compaction(stage: Stage, host: Host, run_id: str) -> None:
    """A context that does not get smaller is shortened again and again: that loop, too, goes through the gate."""
    run = host.run(run_id)

    def is_ended() -> bool:
        run.call(args=f"page {now_ms()}", result=f"its text {now_ms()}")
        run.prompt(text="a summary", usage={"input_tokens": 100_000, "output_tokens": 2_000})
        run.tell("compaction", tokens_before=100_000, tokens_after=97_000)
        return bool(stage.commands(run_id, "kill_run"))

    stage.until(is_ended, "the kill")
    stage.until(lambda: run.is_stopped, "the gate to shut")
    # The next one is under way: its model call is aborted, and none follows.
    assert len(run.cancelled) == 1
    assert run.tell("before_model")["action"] == "stop"
    run.leave()
    (ordered,) = stage.commands(run_id, "kill_run")
    assert ordered["reason"]["detector"] == "context_rot"
    stage.answered(ordered["command_id"], "received", "applied", "confirmed_dead")


def test_32_while_a_person_is_asked(stage: Stage, host: Host, run_id: str) -> None:
    """What is approved after the end of the run is not done, and the record says that the question was out of date."""
    run = host.run(run_id, attended=True)
    run.tell("approval_wait", "c1")
    stop(stage, run)
    run.tell("approval_end", "c1", "approved")
    assert run.begin("pay", {"usd": 10}, call_id="c1", effect="write") == "stop"
    run.leave()
    stage.settle()

    (decided,) = [step for step in stage.steps(run_id) if step["type"] == "approval_end"]
    assert decided["decision"] == "expired"
    assert "tool_start" not in {step["type"] for step in stage.steps(run_id)}


def test_33_a_write_whose_outcome_is_unknown(stage: Stage, host: Host, run_id: str) -> None:
    """A payment that was sent is not undone by a kill: whoever resumes has to know that it may have gone through."""
    run = host.run(run_id)
    run.begin("pay", {"usd": 10}, call_id="c1", effect="write")
    stop(stage, run)
    run.leave()
    stage.settle()

    ((end,),) = ends(stage, run_id).values()
    assert end["outcome"] == "cancelled"
    assert "outcome unknown" in end["error"]["message"]


def test_34_a_framework_that_swallows_the_stop(stage: Stage, host: Host, run_id: str) -> None:
    """The kill does not depend on the framework's good will."""
    run = host.run(run_id)
    ordered = stop(stage, run)
    for _ in range(5):
        assert run.tell("before_model")["action"] == "stop"
        assert run.call() == "stop"
    run.tell("finish", "completed")
    run.leave()

    stage.answered(ordered, "received", "applied", "confirmed_dead")
    stage.settle()
    steps = stage.steps(run_id)
    assert not {"tool_start", "model_end"} & {step["type"] for step in steps}
    assert (steps[-1]["status"], steps[-1]["command_id"]) == ("killed", ordered)


def test_35_late_but_not_a_violation(stage: Stage, host: Host, run_id: str) -> None:
    """Steps and answers travel on two topics: what counts is when a step began, not when its end is read."""
    run = host.run(run_id, tenant="late")
    run.begin("crunch", {"n": 1}, call_id="c1")
    run.repeat(until=lambda: run.is_stopped, what="the kill")
    ordered = stage.command(run_id, "kill_run")["command_id"]
    stage.answered(ordered, "received", "applied")
    # The answer is known to the detector before the ends of what was out are.
    stage.settle()
    run.tell("after_model", text="an answer", duration_ms=60_000.0)
    run.end("c1", result="late")
    run.leave()
    stage.settle()

    steps = stage.steps(run_id)
    assert [step["type"] for step in steps[-3:]] == ["model_end", "tool_end", "run_end"]
    stage.until(
        lambda: stage.worker.metric("loopwarden_steps_consumed_total", tenant="late") == len(steps),
        "all steps to be counted",
    )
    assert stage.worker.metric("loopwarden_steps_after_kill_total", tenant="late") == 0


def test_36_a_violation(stage: Stage, run_id: str) -> None:
    """A runtime that says `applied` and goes on is the one fault that nobody else would see."""
    events = looping(run_id, 12, start_ms=now_ms() - 50_000, tenant="stubborn")
    stage.events(events)
    ordered = stage.command(run_id, "kill_run")
    stage.answer([ordered], "applied")
    assert stage.worker.metric("loopwarden_steps_after_kill_total", tenant="stubborn") == 0

    stage.events([{**events[-1], "type": "tool_start", "call_id": "x", "seq": 90, "ts_ms": now_ms() + 1_000}])
    stage.until(
        lambda: stage.worker.metric("loopwarden_steps_after_kill_total", tenant="stubborn") == 1, "the violation"
    )


@pytest.mark.parametrize("held", [("applied", "confirmed_dead"), ("all",)], ids=["37", "38"])
def test_37_38_the_runtime_dies_before_it_says_that_it_applied(
    stage: Stage, other_host: Host, own_host: Callable[..., Host], run_id: str, held: tuple[str, ...]
) -> None:
    """Nothing is claimed that nobody has seen; and what was known of the loop belongs to the run, not to its host."""
    dying = own_host("rt-dying")
    run = dying.run(run_id)
    run.repeat(until=lambda: stage.commands(run_id, "nudge"), args=CYCLE, what="the nudge")
    run.prompt()
    dying.flush()
    dying.hold("acks", *held)
    run.repeat(until=lambda: run.is_stopped, args=CYCLE, reads=False, what="the kill")
    first = stage.command(run_id, "kill_run")
    if "all" not in held:
        stage.until(lambda: stage.statuses(first["command_id"]) == ["received"], "the first answer")
    dying.kill()
    stage.settle()
    assert stage.statuses(first["command_id"]) == ([] if "all" in held else ["received"])
    assert "killed" not in {one["state"] for one in stage.records(run_id)}
    nudges = len(stage.commands(run_id, "nudge"))

    heir = other_host.run(run_id)
    assert not heir.is_stopped
    heir.repeat(until=lambda: heir.is_stopped, args=CYCLE, what="the kill of the new incarnation")
    heir.leave()
    stage.settle()
    (last,) = [one for one in stage.commands(run_id, "kill_run") if one["incarnation"] == heir.key.incarnation]
    assert last["command_id"] != first["command_id"]
    (said,) = [one for one in stage.verdicts(run_id) if one.get("command_id") == last["command_id"]]
    # The first lap of the new incarnation: `run_start`, one answer of the model, three calls.
    assert said["evidence"]["last_seq"] <= 7
    assert len(stage.commands(run_id, "nudge")) == nudges
    stage.answered(last["command_id"], "received", "applied", "confirmed_dead")


def test_39_silence_is_not_death(stage: Stage, own_host: Callable[..., Host], run_id: str) -> None:
    """A host that says nothing may be cut off, and its run may go on: it is lost, and nobody calls it dead."""
    dying = own_host("rt-silent")
    run = dying.run(run_id, tenant="quiet")
    run.call()
    dying.flush()
    dying.kill()

    (lost,) = stage.until(lambda: stage.verdicts(run_id), "the run to be called silent")
    assert (lost["detector"], lost["level"]) == ("silent_run", "observe")
    stage.settle()
    assert stage.commands(run_id) == []
    assert stage.records(run_id, "quiet") == []
    assert "run_end" not in {step["type"] for step in stage.steps(run_id)}
