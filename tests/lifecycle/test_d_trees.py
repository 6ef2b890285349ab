"""Trees: who falls with whom, who is born too late, and whose limit it is."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from tests._support.hosts import Host, StartRefusedError
from tests._support.stage import Message, Stage

from loopwarden import SpawnRefusedError
from loopwarden.testing import kill
from loopwarden_models.commands import Reason

CONFIRMED = "loopwarden_kills_confirmed_total"
PERSON = {"writer": "operator", "epoch": 1, "seq": 1}


def delegations(stage: Stage, run_id: str) -> list[Message]:
    """Return the ends of the calls by which a run starts others."""
    return [step for step in stage.steps(run_id) if step["type"] == "tool_end" and step["tool"] == "delegate"]


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
    assert parent.begin("delegate", {"to": "child"}, call_id="d1") == "allow"
    child = host.run(f"{run_id}-child", child_of=parent)
    reason = Reason("operator", "operator", 0, note="enough")
    ordered = stage.order(kill(child.key, command_id=f"{run_id}-k", reason=reason, **PERSON))
    stage.answered(ordered, "received", "applied")
    child.leave()
    stage.answered(ordered, "received", "applied", "confirmed_dead")

    assert not parent.is_stopped
    stage.settle()
    # Its framework has not said a word yet; what it says later changes nothing.
    (delegated,) = delegations(stage, run_id)
    assert delegated["outcome"] == "error"
    assert delegated["error"] == {"class": "killed", "message": "kill_run by the operator: enough", "status": ordered}
    parent.end("d1", outcome="error", error="LoopwardenStopped")
    assert parent.call() == "allow"
    parent.leave()
    stage.settle()
    assert delegations(stage, run_id) == [delegated]
    assert stage.steps(run_id)[-1]["status"] == "completed"
    assert stage.steps(f"{run_id}-child")[-1]["status"] == "killed"


def test_42_the_parent_that_waits_for_code_that_hangs(stage: Stage, host: Host, run_id: str) -> None:
    """The child's code does not return: the open call ends with the grace, and the parent goes on."""
    parent = host.run(run_id)
    child = host.run(f"{run_id}-child", child_of=parent, call_id="d1")
    assert parent.begin("delegate", {"to": "child"}, call_id="d1") == "allow"
    assert parent.begin("search", "beside it", call_id="d2") == "allow"
    ordered = stage.order(kill(child.key, command_id=f"{run_id}-k", grace_ms=300, **PERSON))
    stage.until(lambda: delegations(stage, run_id), "the open call to end")
    (delegated,) = delegations(stage, run_id)
    assert (delegated["error"]["class"], delegated["error"]["status"]) == ("killed", ordered)
    assert stage.statuses(ordered) == ["received", "applied"]
    parent.end("d2", result="found")
    assert parent.call() == "allow"
    child.leave()
    parent.leave()
    stage.answered(ordered, "received", "applied", "confirmed_dead")


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
    # One signal for the whole family (40): when the last of them is dead.
    ordered = stage.command(run_id, "kill_run")
    stage.settle()
    confirmed = stage.worker.metric(CONFIRMED)
    for run in (root, near):
        run.leave()
        stage.answered(ordered["command_id"], "received", "applied", "confirmed_dead", run_id=run.key.run_id)
    stage.settle()
    assert stage.worker.metric(CONFIRMED) == confirmed
    far.leave()
    stage.until(lambda: stage.worker.metric(CONFIRMED) > confirmed, "the end of the whole family to be counted")
    stage.settle()
    assert stage.worker.metric(CONFIRMED) == confirmed + 1
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


def test_45_deeper_and_wider(stage: Stage, own_host: Callable[..., Host], run_id: str) -> None:
    """A child too many is refused before it exists, and who goes on to ask for more is ended."""
    host = own_host().guard(max_depth=3, max_children=2)
    #  level 1   root
    #  level 2   a        b        (c: too wide)
    #  level 3   a-a
    #  level 4   (a-a-a: too deep)
    root = host.run(run_id)
    child, other = (host.run(f"{run_id}-{name}", child_of=root) for name in "ab")
    leaf = host.run(f"{run_id}-a-a", child_of=child)
    refusals = ((root, f"{run_id}-c", "max_children"), (leaf, f"{run_id}-a-a-a", "max_depth"))
    for parent, name, limit in refusals:
        assert parent.begin("delegate", {"to": name}, call_id="d1") == "allow"
        with pytest.raises(SpawnRefusedError, match=limit):
            host.run(name, child_of=parent)
    with pytest.raises(SpawnRefusedError, match="max_depth"):
        host.run(f"{run_id}-far", parent=leaf.key)
    stage.settle()
    for parent, name, limit in refusals:
        assert not stage.steps(name)
        (refused,) = delegations(stage, parent.key.run_id)
        assert (refused["outcome"], refused["error"]["class"]) == ("blocked", "spawn_refused")
        assert limit in refused["error"]["message"]

    numbers = itertools.count(2)

    def is_ended() -> bool:
        other.prompt()
        call_id = f"d{next(numbers)}"
        if other.begin("delegate", {"to": "someone"}, call_id=call_id) == "allow":
            for name in ("c", "d", "e"):
                try:
                    host.run(f"{run_id}-b-{name}", child_of=other, call_id=call_id).leave()
                except SpawnRefusedError:
                    break
        return bool(stage.commands(other.key.run_id, "kill_run"))

    stage.until(is_ended, "the kill of who does not listen")
    stage.until(lambda: other.is_stopped, "it to be stopped")
    assert not root.is_stopped
    for run in (other, leaf, child, root):
        run.leave()
    (ordered,) = stage.commands(other.key.run_id, "kill_run")
    stage.answered(ordered["command_id"], "received", "applied", "confirmed_dead")
