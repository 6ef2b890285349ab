"""Children: how many, how deep, and the calls in which their parents wait."""

from __future__ import annotations

import pytest

from loopwarden import Limits, LoopwardenStopped, RunGuard, RunKey, SpawnRefusedError
from loopwarden.spawning import MAX_PARENTS, Spawns
from loopwarden.stopped_runs import GRACE_MS
from loopwarden.testing import GuardBench, kill
from loopwarden_models.errors import ConfigError
from loopwarden_models.events import RunEnd, ToolEnd, ToolError


def key(name: str, depth: int = 1) -> RunKey:
    """Return the key of a run on a level of its tree."""
    return RunKey("acme", name, "root", "a", ancestors=tuple((f"above-{n}", "a") for n in range(depth - 1)))


def ends(bench: GuardBench, run: RunGuard) -> dict[str | None, tuple[str | None, ToolError | None]]:
    """Return outcome and error of each call of a run that has ended, by its id; none has two ends."""
    bench.pump()
    found = [step for step in bench.transport.steps if isinstance(step, ToolEnd) and step.run_id == run.key.run_id]
    told = {step.call_id: (step.outcome, step.error) for step in found}
    assert len(told) == len(found)
    return told


def test_all_that_is_granted_may_be_there() -> None:
    """The limit itself is allowed; the root counts as a level."""
    spawns = Spawns(max_depth=3, max_children=2)
    assert spawns.claim(key("p"), "a") is None
    assert spawns.claim(key("p"), "b") is None
    assert spawns.claim(key("p"), "c") == "limit max_children reached: 2 of 2"
    assert spawns.claim(key("p"), "a") is None, "a child that is resumed is no new one"
    assert spawns.claim(key("q", 2), "a") is None
    assert spawns.claim(key("q", 3), "a") == "limit max_depth reached: level 4 of 3"
    spawns.forget(key("p"))
    assert spawns.claim(key("p"), "c") is None


def test_parents_of_other_processes_are_forgotten_in_time() -> None:
    """Nobody says here when they end."""
    spawns = Spawns(max_depth=None, max_children=0)
    for number in range(MAX_PARENTS + 5):
        assert spawns.claim(key(f"p{number}"), "a") == "limit max_children reached: 0 of 0"
    assert len(spawns._children) == MAX_PARENTS


def delegate(bench: GuardBench, run: RunGuard) -> None:
    """Start a child that is killed."""
    with run.child("child") as child:
        bench.transport.command(kill(child.key))
        bench.pump()
        child.raise_if_stopped()


@pytest.mark.parametrize(("max_depth", "max_children"), [(0, None), (None, -1)])
def test_limits_that_cannot_be(max_depth: int | None, max_children: int | None) -> None:
    """Told when the program starts."""
    with pytest.raises(ConfigError, match="max_depth must be at least 1"):
        GuardBench(max_depth=max_depth, max_children=max_children)


def test_a_refused_child_is_a_blocked_call_of_its_parent() -> None:
    """The tool's own report, which a framework makes of the exception, is late and changes nothing."""
    bench = GuardBench(max_children=1)
    with bench.guard.run("r-42") as run:
        with run.child("first"):
            pass
        assert run.before_tool("delegate", {"to": "second"}, "d1").allowed
        with pytest.raises(SpawnRefusedError, match=r"max_children reached: 1 of 1\. Do not start another run") as told:
            run.child("second")
        run.after_tool("d1", outcome="error", error=told.value)
        error = ToolError(error_class="spawn_refused", message="limit max_children reached: 1 of 1")
        assert ends(bench, run) == {"d1": ("blocked", error)}

        run.user_input()
        with run.child("second"):
            pass
        assert run.before_tool("delegate", {"to": "x"}, "d1").allowed
        run.after_tool("d1", result="done")
    bench.pump()
    outcomes = [step.outcome for step in bench.transport.steps if isinstance(step, ToolEnd)]
    assert outcomes == ["blocked", "ok"], "the same id may be used again"
    assert {step.run_id for step in bench.transport.steps} == {"r-42", "first", "second"}
    assert bench.guard.stats()["spawns_refused"] == 1


def test_the_call_that_waits_ends_with_what_killed_the_child() -> None:
    """The parent goes on, and its own report of that call is late."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        assert run.before_tool("delegate", {"to": "child"}, "d1").allowed
        with pytest.raises(LoopwardenStopped) as told:
            delegate(bench, run)
        assert ends(bench, run) == {"d1": ("error", ToolError("killed", told.value.reason, "c1"))}
        run.after_tool("d1", outcome="error", error=told.value)
        assert run.before_tool("search", "q", "s1").allowed
        run.after_tool("s1", result="hit")
    assert list(ends(bench, run)) == ["d1", "s1"]
    end = bench.transport.steps[-1]
    assert isinstance(end, RunEnd)
    assert end.status == "completed"


def test_a_child_that_does_not_return_holds_nobody_beyond_the_grace() -> None:
    """And of two calls that are out, the one that was named ends."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        run.before_tool("search", "q", "s1")
        run.before_tool("delegate", {"to": "child"}, "d1")
        with run.child("child", call_id="d1", limits=Limits(max_steps=0)) as child:
            assert not child.before_tool("search", "q", "c1").allowed
            bench.pump()
            bench.clock.advance(GRACE_MS - 1)
            assert ends(bench, run) == {}
            bench.clock.advance(1)
            error = ToolError("limit", "limit max_steps reached: 0 of 0")
            assert ends(bench, run) == {"d1": ("error", error)}


def test_what_is_not_known_to_wait_is_left_alone() -> None:
    """Two calls are out and none was named; the parent falls as well; the child ends by itself."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        run.before_tool("search", "q", "s1")
        run.before_tool("delegate", {"to": "child"}, "d1")
        with run.child("child", limits=Limits(max_steps=0)) as child:
            child.before_tool("search", "q", "c1")
        run.after_tool("s1", result="hit")
        with run.child("healthy"):
            pass
        assert list(ends(bench, run)) == ["s1"]
        with run.child("fallen") as child:
            bench.transport.command(kill(run.key, scope="tree"))
            bench.pump()
            assert child.stopped
    assert [outcome for outcome, _ in ends(bench, run).values()] == ["ok", "cancelled"]
