"""When the detector fails, moves, comes back late, or is told to keep its hands still."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests._support.fleet import cycling, looping
from tests._support.hosts import Host
from tests._support.stage import Stage, now_ms, paced

from loopwarden.testing import enforcement, kill, nudge, pause


def test_67_68_the_old_detector_speaks_first(stage: Stage, host: Host, run_id: str) -> None:
    """A worker that slept is refused before its successor has ordered anything: the fence is there from the start."""
    run = host.run(run_id)
    partition = stage.deployment.partition_of(f"acme|{run_id}".encode())
    fence = stage.until(lambda: stage.fences(partition), "the fence")[-1]
    evidence = {"steps_partition": partition}
    former = kill(run.key, command_id=f"{run_id}-former", epoch=fence["epoch"] - 1, seq=10**6, **evidence)
    stage.answered(stage.order(former), "stale")
    assert run.call() == "allow"

    present = kill(run.key, command_id=f"{run_id}-present", epoch=fence["epoch"], seq=1, **evidence)
    stage.answered(stage.order(present), "received", "applied")
    run.leave()


def test_69_70_a_backlog_and_a_run_that_still_loops(stage: Stage, run_id: str) -> None:
    """Nobody is ended for warnings that were never given; and what happened before the worker came back is known."""
    #  laps of 20 s    1 ... 37       38 39 40
    #                  long ago       the last minute
    events = paced(looping(run_id, 40, start_ms=0), gap_ms=20_000)
    stage.events(events[:-4])
    stage.settle()
    assert stage.commands(run_id) == []
    assert "kill" in {one["level"] for one in stage.verdicts(run_id)}
    assert {one["mode"] for one in stage.verdicts(run_id)} == {"shadow"}

    stage.events(events[-2:])
    stage.settle()
    (ordered,) = stage.commands(run_id)
    assert ordered["type"] == "nudge"
    assert ordered["reason"]["count"] >= 37
    assert stage.records(run_id) == []


def test_71_acknowledgements_are_part_of_the_state(stage: Stage, run_id: str) -> None:
    """Whoever takes over knows who was ended, says nothing more about it, and watches that nothing follows."""
    events = paced(cycling(run_id, 7, start_ms=0, tenant="moved"))
    stage.events(events[:10])
    stage.settle()
    stage.answer(stage.commands(run_id, "nudge"), "applied")
    stage.events(events[10:16])
    ordered = stage.command(run_id, "kill_run")
    stage.answer([ordered], "applied")
    before = stage.commands(run_id), stage.records(run_id, "moved")

    stage.replace_worker()
    # Two more laps that were made before the gate shut: they are judged, and nothing more is ordered.
    stage.events(events[16:])
    stage.settle()
    assert (stage.commands(run_id), stage.records(run_id, "moved")) == before
    assert stage.worker.metric("loopwarden_steps_after_kill_total", tenant="moved") == 0

    stage.events([{**events[-1], "type": "tool_start", "call_id": "x", "seq": 90, "ts_ms": now_ms() + 1_000}])
    stage.until(lambda: stage.worker.metric("loopwarden_steps_after_kill_total", tenant="moved") == 1, "the violation")


@pytest.fixture
def switch(stage: Stage, host: Host) -> Iterator[Stage]:
    """The stage, with enforcement on again at the end."""
    yield stage
    stage.state(enforcement("enforce", version=(1, 9)))
    stage.until(lambda: host.stats()["enforcing"] == 1, "enforcement to be on")


def test_73_the_big_switch(switch: Stage, host: Host, run_id: str) -> None:
    """One record turns every order into advice, at once and everywhere; it raises no dead."""
    stage = switch
    dead = host.run(f"{run_id}-dead")
    stage.answered(stage.order(kill(dead.key, command_id=f"{run_id}-d")), "received", "applied")
    limited = host.run(f"{run_id}-limited", limits={"max_steps": 2})
    run = host.run(run_id)
    stage.state(enforcement("observe_only", version=(1, 1)))
    stage.until(lambda: host.stats()["enforcing"] == 0, "the switch to be read")

    for number, build in enumerate((nudge, pause, kill)):
        (answer,) = stage.answered(
            stage.order(build(run.key, command_id=f"{run_id}-{number}", seq=100 + number)), "noop"
        )
        assert answer["detail"] == "enforcement is observe_only"
    assert run.prompt() == []
    assert run.call() == "allow"
    assert dead.is_stopped
    # The limits that a run was started with are its own, and hold.
    assert [limited.call(args=number, result=number) for number in range(3)] == ["allow", "allow", "stop"]
    for each in (dead, limited, run):
        each.leave()


def test_74_a_new_tenant_has_the_default_policy(stage: Stage, host: Host, run_id: str) -> None:
    """A tenant that nobody has configured is watched: detection that has to be switched on is off."""
    run = host.run(run_id, tenant="newcomer")
    run.repeat(until=lambda: run.is_stopped, what="the kill")
    run.leave()
    assert stage.command(run_id, "kill_run")["tenant"] == "newcomer"
