"""This run, once, for good: what is delivered twice, late, early, to another incarnation, or by two at once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest
from tests._support.hosts import Host, RemoteRun, StartRefusedError
from tests._support.stage import Stage, now_ms
from tests._support.workers import python_path

from loopwarden import LoopwardenStopped
from loopwarden.testing import kill, nudge, pause, resume, run_record

CYCLE = ("a.py", "b.py", "c.py")
PERSON = {"writer": "operator", "epoch": 1, "seq": 1}
HOUR_MS = 3_600_000


def killed_by_detector(stage: Stage, host: Host, run_id: str) -> str:
    """Have a run loop until it is killed and confirmed dead; returns the command's id."""
    run = host.run(run_id)
    run.repeat(until=lambda: run.is_stopped, args=CYCLE, what="the kill")
    run.leave()
    ordered = str(stage.command(run_id, "kill_run")["command_id"])
    stage.answered(ordered, "received", "applied", "confirmed_dead")
    stage.until(lambda: [one["state"] for one in stage.records(run_id)][-1:] == ["killed"], "the record in force")
    return ordered


def test_14_delivered_twice(stage: Stage, host: Host, run_id: str) -> None:
    """Kafka delivers at least once, and a topic is read again after a reconnect."""
    run = host.run(run_id)
    told = nudge(run.key, command_id=f"{run_id}-n")
    for _ in range(2):
        stage.order(told)
    stage.answered(told.command_id, "received", "noop")
    assert len(run.prompt()) == 1
    assert run.prompt() == []
    stage.answered(told.command_id, "received", "noop", "applied")

    again = kill(run.key, command_id=f"{run_id}-k", seq=101)
    for _ in range(2):
        stage.order(again)
    stage.answered(again.command_id, "received", "applied", "noop")
    run.leave()
    stage.answered(again.command_id, "received", "applied", "noop", "confirmed_dead")
    stage.settle()
    assert [step["type"] for step in stage.steps(run_id)].count("run_end") == 1


def test_15_two_commands_with_one_aim(stage: Stage, host: Host, run_id: str) -> None:
    """A person and the detector see the same loop: both get an answer, and the run ends once."""
    run = host.run(run_id)
    run.repeat(until=lambda: run.is_stopped, what="the detector's kill")
    own = stage.command(run_id, "kill_run")["command_id"]
    persons = stage.order(kill(run.key, command_id=f"{run_id}-k", **PERSON))
    stage.answered(persons, "noop")
    run.leave()

    stage.answered(own, "received", "applied", "confirmed_dead")
    stage.settle()
    assert stage.statuses(persons) == ["noop"]
    ends = [step for step in stage.steps(run_id) if step["type"] == "run_end"]
    assert [end["command_id"] for end in ends] == [own]


def test_16_the_run_ended_by_itself_first(stage: Stage, host: Host, run_id: str) -> None:
    """A kill that comes too late changes no history, and hits nobody else."""
    run = host.run(run_id)
    run.call()
    run.leave()
    late = stage.order(kill(run.key, command_id=f"{run_id}-k"))
    (answer,) = stage.answered(late, "noop")
    assert answer["detail"] == "the run is over"

    following = host.run(f"{run_id}-next")
    assert following.call() == "allow"
    following.leave()
    stage.settle()
    assert stage.steps(run_id)[-1]["status"] == "completed"
    assert stage.steps(f"{run_id}-next")[-1]["status"] == "completed"


def test_17_meant_for_the_incarnation_before(stage: Stage, host: Host, run_id: str) -> None:
    """A person has spoken since: what was ordered for the run's former life is over."""
    former = host.run(run_id)
    former.leave()
    present = host.run(run_id)
    stage.answered(stage.order(kill(former.key, command_id=f"{run_id}-k")), "stale")

    assert present.call() == "allow"
    assert not present.is_stopped
    present.leave()


def test_18_meant_for_any_incarnation(stage: Stage, host: Host, other_host: Host, run_id: str) -> None:
    """Who forbids a run means it wherever and whenever it is started, until he allows it again."""
    run = host.run(run_id)
    forbidden = stage.order(kill(run_id, command_id=f"{run_id}-k", **PERSON))
    stage.until(lambda: run.is_stopped, "the kill")
    run.leave()
    stage.answered(forbidden, "received", "applied", "confirmed_dead")
    for runtime in (host, other_host):
        with pytest.raises(StartRefusedError) as refused:
            runtime.run(run_id)
        assert refused.value.command_id == forbidden

    stage.order(resume(run_id, command_id=f"{run_id}-r", **{**PERSON, "seq": 2}))
    stage.state(run_record(run_id, "released", version=(1, 2), writer="operator"))
    for runtime in (host, other_host):
        allowed = released(stage, runtime, run_id)
        assert allowed.call() == "allow"
        allowed.leave()


def test_19_killed_before_it_began(stage: Stage, host: Host, run_id: str) -> None:
    """A kill is never lost because it came early: the record waits for the run where the command is forgotten."""
    known = host.stats()["run_records"]
    stage.state(
        run_record(
            run_id,
            "kill_wanted",
            incarnation="*",
            command_id=f"{run_id}-k",
            expires_at_ms=now_ms() + 6 * HOUR_MS,
            writer="operator",
        )
    )
    stage.until(lambda: host.stats()["run_records"] > known, "the record to be read")
    with pytest.raises(StartRefusedError):
        host.run(run_id)

    stage.answered(f"{run_id}-k", "received", "applied", "confirmed_dead")
    stage.settle()
    (end,) = stage.steps(run_id)
    assert (end["type"], end["status"], end["command_id"]) == ("run_end", "killed", f"{run_id}-k")


def test_21_brought_back_a_day_later(stage: Stage, host: Host, own_host: Callable[..., Host], run_id: str) -> None:
    """Whoever resumes the last session must not wake up what was killed, and reads why and when it was."""
    killed_by_detector(stage, host, run_id)
    later = own_host()

    with pytest.raises(
        StartRefusedError, match=r"killed by the detector at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC: \w+ x\d+"
    ):
        later.run(run_id)

    stage.settle()
    assert [step["type"] for step in stage.steps(run_id) if step["seq"] == 0][-1] == "run_end"
    assert later.stats()["starts_refused"] == 1


ORCHESTRATED = """
import json, sys, time
from loopwarden import Guard, KafkaTransport, LoopwardenStopped
guard = Guard(KafkaTransport(sys.argv[1], prefix=sys.argv[2]), tenant="acme")
guard.start(barrier_s=30.0)
try:
    with guard.run(sys.argv[3]) as run:
        for n in range(1_000):
            run.raise_if_stopped()
            for nudge in run.nudges():
                nudge.delivered()
            if run.before_tool("search", "q", str(n), effect="read").allowed:
                run.after_tool(str(n), result="nothing new")
            time.sleep(0.03)
except LoopwardenStopped as stop:
    told = {"status": stop.status, "command_id": stop.command_id, "refused": guard.stats().get("starts_refused", 0)}
    print(json.dumps(told))
    sys.exit(stop.exit_code)
"""


def test_22_restarted_by_an_orchestrator(stage: Stage, run_id: str) -> None:
    """A killed run's process ends as neither success nor crash, and starting it again changes nothing."""

    def run_process() -> tuple[int, dict[str, object]]:
        ended = subprocess.run(
            [sys.executable, "-c", ORCHESTRATED, stage.deployment.bootstrap, stage.deployment.prefix, run_id],
            env={"PYTHONPATH": python_path()},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        # Nothing but the answer on the channel that is parsed.
        return ended.returncode, json.loads(ended.stdout)

    code, told = run_process()
    ordered = stage.command(run_id, "kill_run")["command_id"]
    stage.until(lambda: [one["state"] for one in stage.records(run_id)][-1:] == ["killed"], "the record in force")
    again = run_process()

    assert code == LoopwardenStopped.exit_code
    assert code not in (0, 1)
    assert told == {"status": "killed", "command_id": ordered, "refused": 0}
    assert again == (code, {"status": "killed", "command_id": ordered, "refused": 1})
    stage.settle()
    assert [step["status"] for step in stage.steps(run_id) if step["type"] == "run_end"] == ["killed", "killed"]


def test_23_released_by_a_person(stage: Stage, host: Host, run_id: str) -> None:
    """A second chance, and not a first one: what was known of the loop is still known."""
    first = killed_by_detector(stage, host, run_id)
    stage.order(resume(run_id, command_id=f"{run_id}-r", **PERSON))
    stage.state(run_record(run_id, "released", version=(1, 1), writer="operator"))
    run = released(stage, host, run_id)
    stage.settle()
    before = len(stage.commands(run_id))

    run.repeat(until=lambda: run.is_stopped, args=CYCLE, what="the next kill")
    run.leave()
    stage.settle()
    # No nudge before it: that rung was taken, for every loop that is seen in the circle.
    (again,) = stage.commands(run_id)[before:]
    assert (again["type"], again["incarnation"]) == ("kill_run", run.key.incarnation)
    assert again["command_id"] != first


def test_24_an_old_command_after_a_new_one(stage: Stage, host: Host, run_id: str) -> None:
    """Versions order what Kafka, a reconnect or a second worker brings out of order."""
    run = host.run(run_id)
    stage.answered(stage.order(nudge(run.key, command_id=f"{run_id}-n", epoch=42, seq=1_900)), "received")
    for name, epoch, seq in (("older", 42, 1_871), ("former", 41, 5_000)):
        stage.answered(stage.order(kill(run.key, command_id=f"{run_id}-{name}", epoch=epoch, seq=seq)), "stale")

    assert run.call() == "allow"
    run.leave()


@pytest.mark.parametrize("is_person_first", [True, False])
def test_25_operator_and_detector_cross(stage: Stage, host: Host, run_id: str, is_person_first: bool) -> None:
    """Only people lift what people have ordered."""
    run = host.run(run_id)
    stage.answered(stage.order(pause(run.key, command_id=f"{run_id}-p", seq=100)), "received", "applied")
    persons = kill(run.key, command_id=f"{run_id}-k", **PERSON)
    lifts = resume(run.key, command_id=f"{run_id}-r", seq=101)
    for each in (persons, lifts) if is_person_first else (lifts, persons):
        stage.order(each)
    stage.until(lambda: stage.statuses(lifts.command_id) and stage.statuses(persons.command_id), "both answers")

    assert run.is_stopped
    assert run.call() == "stop"
    run.leave()
    stage.answered(persons.command_id, "received", "applied", "confirmed_dead")
    assert stage.statuses(lifts.command_id) == (["noop"] if is_person_first else ["received", "applied"])


def test_26_the_run_exists_twice(stage: Stage, host: Host, other_host: Host, run_id: str) -> None:
    """After a split network two hosts run it: one of them is meant, or both."""
    here, there = host.run(run_id), other_host.run(run_id)
    for_one = stage.order(kill(here.key, command_id=f"{run_id}-one"))
    stage.until(lambda: here.is_stopped and len(stage.statuses(for_one)) == 3, "the kill, and both answers")
    answers = {(ack["runtime_id"], ack["status"]) for ack in stage.acks(for_one)}
    assert answers == {("rt-1", "received"), ("rt-1", "applied"), ("rt-2", "stale")}
    assert not there.is_stopped
    here.leave()

    here = host.run(f"{run_id}-b")
    twin = other_host.run(f"{run_id}-b")
    for_both = stage.order(kill(f"{run_id}-b", command_id=f"{run_id}-both", **PERSON))
    stage.until(lambda: here.is_stopped and twin.is_stopped, "both to be stopped")
    for each in (here, twin, there):
        each.leave()
    stage.until(lambda: stage.statuses(for_both).count("confirmed_dead") == 2, "both to be confirmed")
    assert {ack["runtime_id"] for ack in stage.acks(for_both)} == {"rt-1", "rt-2"}


def released(stage: Stage, host: Host, run_id: str) -> RemoteRun:
    """Start a run as soon as it may start again."""

    def start() -> RemoteRun | None:
        try:
            return host.run(run_id)
        except StartRefusedError:
            return None

    run: RemoteRun = stage.until(start, f"the release of {run_id}")
    return run
