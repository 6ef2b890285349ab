"""From the verdict to the run: what is ordered, what is carried out, and what is said about it."""

from __future__ import annotations

from tests._support.fleet import cycling
from tests._support.hosts import Host
from tests._support.stage import Stage, paced

from loopwarden.testing import command, kill

CYCLE = ("a.py", "b.py", "c.py")


def test_1_the_plain_kill(stage: Stage, host: Host, run_id: str) -> None:
    """The promise of it all: a loop that was warned is ended, in order, provably, and no step follows."""
    run = host.run(run_id)
    run.repeat(until=lambda: run.is_stopped, what="the kill")
    assert run.call() == "stop"
    run.leave()

    ordered = stage.command(run_id, "kill_run")
    answers = stage.answered(ordered["command_id"], "received", "applied", "confirmed_dead")
    stage.settle()
    steps = stage.steps(run_id)
    applied_ms = answers[1]["at_ms"]
    assert {one["type"] for one in stage.commands(run_id)} == {"nudge", "kill_run"}
    assert (steps[-1]["type"], steps[-1]["status"], steps[-1]["command_id"]) == (
        "run_end", "killed", ordered["command_id"]
    )  # fmt: skip
    # What was refused after it is an end without a beginning.
    begun = [step for step in steps if step["type"] in ("tool_start", "model_end")]
    assert begun[-1]["ts_ms"] <= applied_ms
    assert 0 <= applied_ms - ordered["issued_at_ms"] < 5_000
    assert stage.worker.metric("loopwarden_command_latency_seconds_count") >= 1
    assert stage.worker.metric("loopwarden_command_acks_total", status="confirmed_dead") >= 1


def test_2_a_nudge_that_nobody_reads_is_not_a_nudge(stage: Stage, host: Host, run_id: str) -> None:
    """A warning in a log warns nobody: it counts from the prompt that carries it."""
    run = host.run(run_id)
    for _ in range(3):
        run.call()
    nudged = stage.command(run_id, "nudge")["command_id"]
    stage.until(lambda: stage.statuses(nudged) == ["received"], "the nudge to be received")

    for _ in range(3):
        for _ in range(3):
            run.call()
        stage.settle()
    assert {one["type"] for one in stage.commands(run_id)} == {"nudge"}
    assert stage.records(run_id) == []
    assert stage.statuses(nudged) == ["received"]

    texts = run.prompt()
    assert any("same arguments" in text for text in texts)
    stage.answered(nudged, "received", "applied")
    run.repeat(until=lambda: run.is_stopped, what="the kill, now that the warning was read")
    run.leave()
    stage.answered(stage.command(run_id, "kill_run")["command_id"], "received", "applied", "confirmed_dead")


def test_3_a_nudge_that_cannot_be_delivered(stage: Stage, host: Host, run_id: str) -> None:
    """A run that builds no prompt cannot be talked to: when the nudge's life is over, the next rung is due."""
    run = host.run(run_id, tenant="brief")
    run.repeat(until=lambda: stage.commands(run_id, "nudge"), args=CYCLE, reads=False, what="the nudge")
    nudged = stage.command(run_id, "nudge")["command_id"]
    stage.answered(nudged, "received", "expired")

    run.repeat(until=lambda: run.is_stopped, args=CYCLE, reads=False, what="the kill")
    run.leave()
    stage.answered(stage.command(run_id, "kill_run")["command_id"], "received", "applied", "confirmed_dead")
    nudges = [one["command_id"] for one in stage.commands(run_id, "nudge")]
    assert not any("applied" in stage.statuses(own_id) for own_id in nudges)


def test_4_nudges_are_few(stage: Stage, host: Host, run_id: str) -> None:
    """Advice that did not help twice does not help; another loop is another matter."""
    run = host.run(run_id)

    def nudges() -> int:
        return len(stage.commands(run_id, "nudge"))

    for _ in range(3):
        run.call(args="the first question")
    stage.until(lambda: nudges() == 1, "a nudge")
    for laps in (3, 3):
        for _ in range(laps):
            run.call(args="the second question")
        stage.settle()
    assert nudges() == 3, "one for the loop that was left, and two for the other, which began at the first rung"

    for one in stage.commands(run_id, "nudge"):
        stage.answered(one["command_id"], "received")
    assert len(run.prompt()) == 3
    run.repeat(until=lambda: run.is_stopped, args=("the second question",), what="the kill")
    run.leave()
    stage.settle()

    loops = {one["command_id"]: one["loop_id"] for one in stage.verdicts(run_id) if "command_id" in one}
    by_loop = [loops[one["command_id"]] for one in stage.commands(run_id, "nudge")[:3]]
    assert by_loop[1] == by_loop[2] != by_loop[0]
    assert by_loop[1] not in [loops[one["command_id"]] for one in stage.commands(run_id, "nudge")[3:]]
    assert len(stage.commands(run_id, "kill_run")) == 1


def test_5_blocking_a_call_is_not_stopping_a_run(stage: Stage, host: Host, run_id: str) -> None:
    """A blocked tool ends nothing: what runs against the door again and again is ended."""
    run = host.run(run_id)
    for _ in range(3):
        run.call()
    nudged = stage.command(run_id, "nudge")["command_id"]
    stage.answered(nudged, "received")
    run.prompt()
    stage.answered(nudged, "received", "applied")
    stage.settle()
    for _ in range(2):
        run.call()
    (blocked,) = stage.until(lambda: stage.records(run_id), "the block")
    assert [one["tool"] for one in blocked["blocked_tools"]] == ["search"]

    run.repeat(until=lambda: run.is_stopped, what="the kill")
    run.leave()
    stage.settle()

    assert len(stage.commands(run_id, "kill_run")) == 1
    refused = [step for step in stage.steps(run_id) if step.get("outcome") == "blocked"]
    assert 0 < len(refused) <= 20


def test_6_refused_attempts_are_events(stage: Stage, host: Host, run_id: str) -> None:
    """Counts that see only what ran stand still for ever while a run beats against a closed door."""
    run = host.run(run_id)
    for number in range(3):
        run.begin("rm", {"path": number}, call_id=f"d{number}")
        run.end(f"d{number}", outcome="denied")
        # The framework knows of no such tool, so nobody asked before.
        run.end(f"u{number}", outcome="unknown_tool", tool="look_up", args={"q": number})
    stage.until(
        lambda: {one["reason"]["detector"] for one in stage.commands(run_id, "nudge")} >= {"denied", "unknown_tool"},
        "nudges for both",
    )
    run.leave()
    stage.settle()

    steps = stage.steps(run_id)
    ends = [step for step in steps if step["type"] == "tool_end"]
    assert [step["seq"] for step in steps] == list(range(len(steps)))
    assert [step["outcome"] for step in ends] == ["denied", "unknown_tool"] * 3
    pattern_counts = {one["detector"]: one["evidence"]["count"] for one in stage.verdicts(run_id)}
    assert pattern_counts["denied"] >= 2
    assert pattern_counts["unknown_tool"] >= 2


def test_7_calls_whose_result_is_never_reported(stage: Stage, host: Host, run_id: str) -> None:
    """What nobody has seen equals nothing: ten equal beginnings prove no loop."""
    run = host.run(run_id)
    for number in range(10):
        assert run.begin(call_id=f"c{number}") == "allow"
    stage.settle()

    assert {verdict["level"] for verdict in stage.verdicts(run_id)} <= {"observe", "nudge"}
    assert {one["type"] for one in stage.commands(run_id)} <= {"nudge"}
    assert stage.records(run_id) == []
    run.leave()


def test_8_automation_gets_no_dialogue(stage: Stage, host: Host, run_id: str) -> None:
    """Who has nobody to ask is ended; who has a person waits for that person."""
    alone = host.run(f"{run_id}-alone")
    watched = host.run(f"{run_id}-watched", attended=True)

    def is_held() -> bool:
        return bool(watched.tell("before_model")["action"] == "pause")

    alone.repeat(until=lambda: alone.is_stopped, args=CYCLE, what="the kill")
    watched.repeat(until=is_held, args=CYCLE, what="the pause")
    alone.leave()

    killed = stage.command(f"{run_id}-alone", "kill_run")
    held = stage.command(f"{run_id}-watched", "pause_run")
    stage.answered(killed["command_id"], "received", "applied", "confirmed_dead")
    stage.answered(held["command_id"], "received", "applied")
    assert watched.call() == "pause"
    stage.settle()
    assert stage.commands(f"{run_id}-watched", "kill_run") == []
    watched.leave()


def test_9_shadow_means_no_effect(stage: Stage, host: Host, run_id: str) -> None:
    """A policy is tried out on the real fleet before it may touch it."""
    run = host.run(run_id, tenant="watched")
    for _ in range(12):
        run.call()
    stage.settle()
    assert stage.commands(run_id) == []
    assert "kill" in {verdict["level"] for verdict in stage.verdicts(run_id)}
    assert {verdict["mode"] for verdict in stage.verdicts(run_id)} == {"shadow"}
    assert stage.worker.metric("loopwarden_would_have_total", tenant="watched", level="kill") >= 1

    answer = stage.order(kill(run.key, tenant="watched", mode="shadow", command_id=f"{run_id}-k"))
    (told,) = stage.answered(answer, "noop")
    assert told["detail"] == "mode is shadow"
    assert run.call() == "allow"
    run.leave()


def test_10_a_command_that_the_runtime_does_not_know(stage: Stage, host: Host, run_id: str) -> None:
    """A newer detector meets an older runtime: it hears what cannot be done, and does what can."""
    run = host.run(run_id)
    stage.answered(stage.order(command("rewind_run", run.key, command_id=f"{run_id}-w")), "unsupported")
    assert run.call() == "allow"
    run.leave()

    # An old runtime, which does not know this nudge.
    events = paced(cycling(f"{run_id}-old", 7, start_ms=0))
    stage.events(events[:10])
    stage.settle()
    stage.answer(stage.commands(f"{run_id}-old", "nudge"), "unsupported")
    stage.events(events[10:])
    stage.settle()

    assert [one["type"] for one in stage.commands(f"{run_id}-old")][-1] == "kill_run"
