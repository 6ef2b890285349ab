"""What binds a run before its first step, and what the control thread survives."""

from __future__ import annotations

import pytest

from loopwarden import Action, LoopwardenStopped
from loopwarden.testing import START_MS, TENANT, GuardBench, enforcement, kill, pause, resume, run_record
from loopwarden_models.commands import Reason
from loopwarden_models.control_state import BlockedTool
from loopwarden_models.events import RunEnd, RunStart, ToolEnd

HOUR_MS = 3_600_000


def last_end(bench: GuardBench) -> RunEnd:
    """Return the last event, which has to be an end."""
    bench.pump()
    end = bench.transport.steps[-1]
    assert isinstance(end, RunEnd)
    return end


def test_a_run_killed_before_it_began_starts_nothing() -> None:
    """The command topic has forgotten the kill of two hours ago; the run record has not."""
    bench = GuardBench()
    wanted = run_record("r-42", "kill_wanted", command_id="k1", expires_at_ms=START_MS + 6 * HOUR_MS)
    bench.transport.state(wanted)
    bench.clock.advance(2 * HOUR_MS)
    bench.pump()

    with pytest.raises(LoopwardenStopped) as stopped, bench.guard.run("r-42"):
        pytest.fail("the run was started")

    assert stopped.value.command_id == "k1"
    assert last_end(bench).status == "killed"
    assert [type(step) for step in bench.transport.steps] == [RunEnd]
    assert bench.transport.statuses("k1") == ["received", "applied", "confirmed_dead"]
    assert bench.guard.stats()["starts_refused"] == 1


def test_a_wanted_kill_that_has_expired_lets_the_run_start() -> None:
    """Everything expires: a dead detector sets the fleet free."""
    bench = GuardBench()
    bench.transport.state(run_record("r-42", "kill_wanted", command_id="k1", expires_at_ms=START_MS + HOUR_MS))
    bench.pump()
    bench.clock.advance(2 * HOUR_MS)

    with bench.guard.run("r-42") as run:
        assert run.before_model().allowed


def test_a_command_for_any_incarnation_waits_for_the_run() -> None:
    """Half a minute ago nobody hosted the run; the runtime that takes it over has read the commands."""
    bench = GuardBench()
    bench.transport.command(kill("r-42", writer="operator"))
    bench.clock.advance(30_000)
    bench.pump()
    assert bench.transport.acks == []

    with pytest.raises(LoopwardenStopped), bench.guard.run("r-42"):
        pytest.fail("the run was started")
    bench.pump()
    assert bench.transport.statuses("c1") == ["received", "applied", "confirmed_dead"]


def test_a_waiting_command_expires_like_any_other() -> None:
    """A kill of the morning is not for the run of the afternoon."""
    bench = GuardBench()
    bench.transport.command(kill("r-42"))
    bench.pump()
    bench.clock.advance(120_000)

    with bench.guard.run("r-42") as run:
        assert run.before_model().allowed


@pytest.mark.parametrize("by_record", [False, True])
def test_a_release_by_a_person_lifts_a_waiting_kill(by_record: bool) -> None:
    """The next start is allowed, as a new incarnation."""
    bench = GuardBench()
    bench.transport.command(kill("r-42", writer="operator", epoch=1, seq=1))
    bench.clock.advance(10)
    if by_record:
        bench.transport.state(run_record("r-42", "released", writer="operator"))
    else:
        bench.transport.command(resume("r-42", command_id="s1", writer="operator", epoch=1, seq=2))
    bench.pump()

    with bench.guard.run("r-42") as run:
        assert run.before_model().allowed


def test_a_waiting_kill_is_not_lifted_by_a_later_pause() -> None:
    """Only a release lifts a kill."""
    bench = GuardBench()
    bench.transport.command(kill("r-42", seq=1))
    bench.transport.command(pause("r-42", command_id="p1", seq=2))
    bench.pump()

    with pytest.raises(LoopwardenStopped), bench.guard.run("r-42"):
        pytest.fail("the run was started")


def test_a_killed_run_that_is_brought_back_is_refused_with_the_date_of_the_kill() -> None:
    """The record in force binds every later incarnation, and the person who resumes must learn why."""
    bench = GuardBench()
    reason = Reason("tool_oscillation", "cycle", 5)
    record = run_record("r-42", "killed", incarnation="a", command_id="k1", reason=reason)
    bench.transport.state(record)
    bench.clock.advance(24 * HOUR_MS)
    bench.pump()

    with pytest.raises(LoopwardenStopped, match=r"killed by the detector at 2027-01-15 08:00:00 UTC: tool_osc"):
        bench.guard.run("r-42").__enter__()
    assert last_end(bench).command_id == "k1"
    # The kill itself was acknowledged and confirmed yesterday.
    assert bench.transport.acks == []


def test_a_release_on_the_record_allows_the_next_start() -> None:
    """What was killed can be released by a person, and by nobody else."""
    bench = GuardBench()
    bench.transport.state(run_record("r-42", "killed", version=(42, 1)))
    bench.transport.state(run_record("r-42", "released", version=(1, 1), writer="operator"))
    bench.pump()

    with bench.guard.run("r-42") as run:
        assert run.before_model().allowed


def test_a_child_of_a_killed_ancestor_is_refused() -> None:
    """A tree cannot outrun its kill by having children, wherever they are born."""
    elsewhere = GuardBench()
    with elsewhere.guard.run("r-42") as root, root.child("r-43") as child:
        parent = child.key
    bench = GuardBench()
    bench.transport.state(run_record("r-42", "killed"))
    bench.pump()

    with pytest.raises(LoopwardenStopped, match="ancestor r-42"):
        bench.guard.run("r-45", parent=parent).__enter__()


def test_a_child_of_a_run_that_was_stopped_here_is_refused() -> None:
    """The record may not be written yet; the gate of the parent is known."""
    bench = GuardBench()
    with bench.guard.run("r-42") as root:
        bench.transport.command(kill(root.key))
        bench.pump()
        with pytest.raises(LoopwardenStopped, match="r-42 was stopped"):
            root.child("r-43").__enter__()
    with pytest.raises(LoopwardenStopped, match="r-42 was stopped"):
        root.child("r-44").__enter__()


def test_a_tree_kill_waits_for_children_that_are_not_born_yet() -> None:
    """The child's parent lives in another process, and its record is not written yet."""
    elsewhere = GuardBench()
    with elsewhere.guard.run("r-42") as root:
        parent = root.key
    bench = GuardBench()
    bench.transport.command(kill("r-42", scope="tree"))
    bench.pump()

    with pytest.raises(LoopwardenStopped):
        bench.guard.run("r-45", parent=parent).__enter__()
    bench.pump()
    assert {ack.run_id for ack in bench.transport.acks} == {"r-45"}


def test_a_paused_record_holds_the_run_until_it_is_released() -> None:
    """A run that waits for a person goes on waiting when it is resumed elsewhere."""
    bench = GuardBench()
    bench.transport.state(run_record("r-42", "paused"))
    bench.pump()
    with bench.guard.run("r-42") as run:
        assert run.before_model().action is Action.PAUSE

        bench.transport.state(run_record("r-42", "released", version=(42, 101)))
        bench.pump()
        assert run.before_model().allowed


def test_a_deleted_record_lifts_its_pause() -> None:
    """A tombstone is the end of a record."""
    bench = GuardBench()
    bench.transport.state(run_record("r-42", "paused"))
    bench.pump()
    with bench.guard.run("r-42") as run:
        bench.transport.raw("state", f"{TENANT}|run|r-42", None)
        bench.pump()

        assert run.before_model().allowed


def test_a_runtime_that_was_late_obeys_as_soon_as_it_has_caught_up() -> None:
    """Kafka was away when the run began; the kill of yesterday is found when it is back."""
    bench = GuardBench()
    bench.transport.state(run_record("r-42", "killed"))
    bench.transport.is_down = True
    bench.pump()
    cancelled: list[str] = []
    with bench.guard.run("r-42", cancel=cancelled.append) as run:
        assert run.before_model().allowed

        bench.transport.is_down = False
        bench.pump()
        assert run.before_model().action is Action.STOP
        assert len(cancelled) == 1


def test_the_record_of_a_twin_does_not_bind_a_running_incarnation() -> None:
    """After a split `a` was killed at another runtime while `b` ran here: only `a` was meant."""
    bench = GuardBench()
    bench.pump()
    with bench.guard.run("r-42") as b:
        bench.clock.advance(1_000)
        bench.transport.state(run_record("r-42", "killed", incarnation="a"))
        bench.pump()
        assert not b.stopped

        bench.transport.state(run_record("r-42", "killed", incarnation="*", version=(42, 101)))
        bench.pump()
        assert b.stopped


def test_a_wanted_kill_on_the_record_leaves_a_running_run_to_the_command() -> None:
    """The command has the checks of a command; a record of a replaced detector has not."""
    bench = GuardBench()
    bench.pump()
    with bench.guard.run("r-42") as run:
        bench.clock.advance(1_000)
        bench.transport.state(run_record("r-42", "kill_wanted", incarnation=run.key.incarnation, command_id="k1"))
        bench.pump()

        assert not run.stopped


def test_a_tool_can_be_blocked_for_one_run() -> None:
    """The refusal is short and stable, says what to do, and is a step of its own."""
    bench = GuardBench()
    blocked = [BlockedTool("search", START_MS + 60_000, "v1")]
    with bench.guard.run("r-42") as run, bench.guard.run("r-43") as other:
        bench.transport.state(run_record("r-42", "open", blocked_tools=blocked))
        bench.pump()

        decision = run.before_tool("search", {"q": 1}, "c1")
        assert decision.action is Action.BLOCK
        assert decision.retry_after_ms == 60_000
        assert '"hint":"Do not call this tool again.' in (decision.message or "")
        assert run.before_tool("read", {}, "c2").allowed
        assert other.before_tool("search", {}, "c3").allowed
        bench.pump()
        refusal = next(step for step in bench.transport.steps if isinstance(step, ToolEnd))
        assert (refusal.call_id, refusal.outcome) == ("c1", "blocked")

        bench.clock.advance(60_000)
        assert run.before_tool("search", {"q": 1}, "c4").allowed


def test_the_big_switch_opens_blocked_tools() -> None:
    """Observe only: breakers of every kind are advice."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        blocked = [BlockedTool("search", START_MS + 60_000, "v1")]
        bench.transport.state(run_record("r-42", "open", blocked_tools=blocked))
        bench.transport.state(enforcement("observe_only"))
        bench.pump()
        assert run.before_tool("search", {}, "c1").allowed

        bench.transport.raw("state", "*|enforcement|global", None)
        bench.pump()
        assert run.before_tool("search", {}, "c2").action is Action.BLOCK


def test_under_the_big_switch_the_dead_stay_dead_and_the_wanted_may_start() -> None:
    """What was done is not undone; what is only wanted has no effect."""
    bench = GuardBench()
    bench.transport.state(enforcement("observe_only"))
    bench.transport.state(run_record("r-1", "killed"))
    bench.transport.state(run_record("r-2", "kill_wanted"))
    bench.pump()

    with pytest.raises(LoopwardenStopped):
        bench.guard.run("r-1").__enter__()
    with bench.guard.run("r-2") as run:
        assert run.before_model().allowed


@pytest.mark.parametrize(
    ("inlet", "key", "value"),
    [
        ("commands", "acme|r-42", b"{"),
        ("commands", "acme|r-42", None),
        ("commands", "acme|r-42", b'{"v":2}'),
        ("commands", "acme|r-42", b"\xff\xfe"),
        ("state", "acme|run|r-42", b'{"v":1}'),
        ("state", "acme|breaker|search", b'{"v":1}'),
        ("state", "acme|breaker|search", b'{"v":1,"key":"acme|breaker|search","version":[1],"state":"open"}'),
        ("state", "*|fence|3", b"[]"),
        ("state", "*|enforcement|global", b'""'),
    ],
)
def test_a_broken_record_is_counted_and_skipped(
    inlet: str, key: str, value: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """One bad record must not end the thread that reads all kills."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        bench.transport.raw(inlet, key, value)  # type: ignore[arg-type]  # one of the two
        bench.transport.command(kill(run.key))
        bench.pump()

        assert run.stopped
        assert bench.guard.stats()["control_invalid"] == 1
        assert len(caplog.records) == 1


def test_records_for_others_and_of_later_versions_are_ignored() -> None:
    """Tenants share partitions, and new kinds of state are additive."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        bench.transport.command(kill(run.key, tenant="borealis"))
        bench.transport.raw("state", "borealis|run|r-42", b"not for us")
        bench.transport.raw("state", "borealis|breaker|search", b"not for us")
        bench.transport.raw("state", "*|breaker|search", b"{}")
        bench.transport.raw("state", "acme|channel|a|b", b"{}")
        bench.transport.raw("state", "*|fence|x", b"{}")
        bench.pump()

        assert not run.stopped
        assert bench.guard.stats()["control_ignored"] == 2
        assert "control_invalid" not in bench.guard.stats()


def test_run_start_is_the_first_event_of_a_run_that_starts() -> None:
    """The detector learns goal and limits before the first step."""
    bench = GuardBench()
    with bench.guard.run("r-42", goal="find it", attended=True, agent="researcher"):
        pass
    bench.pump()

    start = bench.transport.steps[0]
    assert isinstance(start, RunStart)
    assert (start.goal, start.attended, start.agent, start.seq) == ("find it", True, "researcher", 0)
    assert (start.runtime or "").startswith("loopwarden-python/")
