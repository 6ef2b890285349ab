"""Trees: who falls with whom, who is born too late, and whose limit it is."""

from __future__ import annotations

import pytest
from tests._support.hosts import Host, StartRefusedError
from tests._support.stage import Stage

from loopwarden.testing import kill

PERSON = {"writer": "operator", "epoch": 1, "seq": 1}


def test_40_41_the_whole_family_and_who_is_born_meanwhile(
    stage: Stage, host: Host, other_host: Host, run_id: str
) -> None:
    """A tree over two runtimes falls as one, and cannot outrun its end by having children."""
    #  rt-1   root          grandchild
    #            \          /        \
    #  rt-2       child ---           born too late
    names = [f"{run_id}-{name}" for name in ("root", "child", "grandchild")]
    root = host.run(names[0])
    child = other_host.run(names[1], parent=root.key)
    grandchild = host.run(names[2], parent=child.key)
    family = (root, child, grandchild)

    ordered = stage.order(kill(root.key, command_id=f"{run_id}-k", scope="tree", **PERSON))
    stage.until(lambda: all(run.is_stopped for run in family), "the whole family to be stopped")
    for number, runtime in enumerate((host, other_host)):
        with pytest.raises(StartRefusedError, match=r"was (stopped|killed)|by the operator"):
            runtime.run(f"{run_id}-late-{number}", parent=grandchild.key)
    for run in family:
        assert run.call() == "stop"
        run.leave()

    for name in names:
        stage.answered(ordered, "received", "applied", "confirmed_dead", run_id=name)
    stage.settle()
    assert {stage.steps(name)[-1]["status"] for name in names} == {"killed"}
    for number in range(2):
        (end,) = stage.steps(f"{run_id}-late-{number}")
        assert (end["type"], end["status"]) == ("run_end", "killed")
    assert {step["root_run_id"] for name in names[1:] for step in stage.steps(name)} == {names[0]}


def test_42_the_parent_that_waits(stage: Stage, host: Host, run_id: str) -> None:
    """Who is killed takes nobody along: the parent's open call is its own, and it can say what became of the child."""
    parent = host.run(run_id)
    child = host.run(f"{run_id}-child", child_of=parent)
    assert parent.begin("delegate", {"to": "child"}, call_id="d1") == "allow"
    ordered = stage.order(kill(child.key, command_id=f"{run_id}-k", **PERSON))
    stage.answered(ordered, "received", "applied")
    child.leave()
    stage.answered(ordered, "received", "applied", "confirmed_dead")

    assert not parent.is_stopped
    parent.end("d1", outcome="error", error={"class": "killed", "message": "by an operator", "status": ordered})
    assert parent.call() == "allow"
    parent.leave()
    stage.settle()
    (delegated,) = [step for step in stage.steps(run_id) if step["type"] == "tool_end" and step["tool"] == "delegate"]
    assert delegated["outcome"] == "error"
    assert delegated["error"] == {"class": "killed", "message": "by an operator", "status": ordered}
    assert stage.steps(run_id)[-1]["status"] == "completed"
    assert stage.steps(f"{run_id}-child")[-1]["status"] == "killed"


def test_43_the_siblings(stage: Stage, host: Host, run_id: str) -> None:
    """Who has used up his own allowance ends alone."""
    root = host.run(run_id)
    spender, *others = [
        host.run(f"{run_id}-{name}", child_of=root, limits={"max_steps": 3}) for name in ("spender", "b", "c")
    ]
    assert [spender.call(args=number, result=number) for number in range(4)] == ["allow"] * 3 + ["stop"]
    spender.leave()
    ordered = stage.command(f"{run_id}-spender", "kill_run")
    assert ordered.get("scope", "run") == "run"
    stage.answered(ordered["command_id"], "noop")

    for run in (*others, root):
        assert run.call(args="something", result=run.number) == "allow"
        run.leave()
    stage.settle()
    ends = {name: stage.steps(f"{run_id}{name}")[-1]["status"] for name in ("", "-spender", "-b", "-c")}
    assert ends == {"": "completed", "-spender": "limit", "-b": "completed", "-c": "completed"}
    assert not stage.commands(run_id, "kill_run")


def test_44_a_child_with_limits_of_its_own(stage: Stage, host: Host, other_host: Host, run_id: str) -> None:
    """A library's generous default inside the child lifts no limit of the root: here, and in another process."""
    root = host.run(run_id, limits={"max_model_calls": 16})
    near = host.run(f"{run_id}-near", child_of=root, limits={"max_model_calls": 50})
    far = other_host.run(f"{run_id}-far", parent=root.key, limits={"max_model_calls": 50})
    for run in (root, near):
        for _ in range(5):
            run.prompt()
    for _ in range(6):
        far.prompt()
    stage.settle()
    assert not stage.commands(run_id, "kill_run")

    # Sixteen are used, by the count of the detector; by its own, the process of the root has made ten.
    far.prompt()
    stage.until(lambda: root.is_stopped and near.is_stopped and far.is_stopped, "the tree to be stopped")
    for run in (far, near, root):
        run.leave()
    ordered = stage.command(run_id, "kill_run")
    assert (ordered["scope"], ordered["reason"]["detector"]) == ("tree", "budget")
    stage.settle()
    (evidence,) = [one["evidence"] for one in stage.verdicts(run_id) if one.get("command_id") == ordered["command_id"]]
    assert (evidence["limit"], evidence["used"], evidence["allowed"]) == ("max_model_calls", 17, 16)

    alone = host.run(f"{run_id}-alone", limits={"max_model_calls": 16})
    below = host.run(f"{run_id}-below", child_of=alone, limits={"max_model_calls": 50})
    for _ in range(16):
        assert below.tell("before_model")["action"] == "allow"
        below.tell("after_model")
    assert below.tell("before_model")["action"] == "stop"
    assert alone.tell("before_model")["action"] == "stop"
    below.leave()
    alone.leave()
