"""Commands that reach a runtime: who obeys, once, in time. Names refer to nothing but the behaviour."""

from __future__ import annotations

import itertools

import pytest

from loopwarden import Action
from loopwarden.testing import START_MS, GuardBench, enforcement, fence, kill, nudge, pause, resume
from loopwarden_models.events import RunEnd


def test_a_kill_is_received_applied_and_confirmed_in_this_order() -> None:
    """The plain case: what people are shown as "stopped" was seen at every stage."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        bench.clock.advance(250)
        bench.transport.command(kill(run.key))
        bench.pump()
        assert run.stopped
        assert bench.transport.statuses("c1") == ["received", "applied"]
    bench.pump()

    assert bench.transport.statuses("c1") == ["received", "applied", "confirmed_dead"]
    end = bench.transport.steps[-1]
    assert isinstance(end, RunEnd)
    assert (end.status, end.command_id) == ("killed", "c1")


def test_a_nudge_is_applied_when_the_model_has_it() -> None:
    """A warning that reached only a log is no warning: until delivery the ladder must not move."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        bench.transport.command(nudge(run.key))
        bench.pump()
        assert bench.transport.statuses("c1") == ["received"]

        (given,) = run.nudges()
        bench.pump()
        assert bench.transport.statuses("c1") == ["received"]
        given.delivered()
        assert run.nudges() == ()
        bench.pump()

    assert bench.transport.statuses("c1") == ["received", "applied"]


@pytest.mark.parametrize("was_handed_out", [False, True])
def test_a_nudge_that_no_prompt_carries_in_time_expires(was_handed_out: bool) -> None:
    """The detector may go on, and its reason says that the nudge was not delivered."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        bench.transport.command(nudge(run.key))
        bench.pump()
        given = run.nudges() if was_handed_out else ()
        bench.clock.advance(120_000)
        bench.pump()
        for late in given:
            late.delivered()
        bench.pump()

        assert bench.transport.statuses("c1") == ["received", "expired"]
        assert run.nudges() == ()


def test_a_nudge_of_a_run_that_ends_expires_at_once() -> None:
    """No prompt can carry it any more; the detector need not wait for its life to be over."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        bench.transport.command(nudge(run.key))
        bench.pump()
    bench.pump()

    assert bench.transport.statuses("c1") == ["received", "expired"]


def test_a_kill_takes_the_nudges_with_it() -> None:
    """A stopped run builds no prompt."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        bench.transport.command(nudge(run.key, command_id="n1"))
        bench.transport.command(kill(run.key, command_id="k1", seq=101))
        bench.pump()

        assert run.nudges() == ()
        assert bench.transport.statuses("n1") == ["received", "expired"]


@pytest.mark.parametrize("mode", ["shadow", "warn", "off"])
def test_shadow_has_no_effect(mode: str) -> None:
    """A rule is tried on live traffic before it may stop anything."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        bench.transport.command(kill(run.key, mode=mode))
        bench.pump()

        assert not run.stopped
        assert [(ack.status, ack.detail) for ack in bench.transport.acks] == [("noop", f"mode is {mode}")]


@pytest.mark.parametrize(
    "unknown",
    [{"type": "reset_context"}, {"scope": "galaxy"}, {"writer": "stranger"}, {"mode": "maybe"}],
)
def test_what_this_runtime_does_not_know_is_unsupported(unknown: dict[str, str]) -> None:
    """A newer detector then takes the next rung that this runtime has."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        bench.transport.command(kill(run.key, **unknown))
        bench.pump()

        assert not run.stopped
        assert bench.transport.statuses("c1") == ["unsupported"]


def test_a_nudge_without_a_text_is_unsupported() -> None:
    """A text that was made up would name evidence that nobody counted."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        bench.transport.command(nudge(run.key, message_id="nudge.of_tomorrow"))
        bench.pump()

        assert bench.transport.statuses("c1") == ["unsupported"]
        assert run.nudges() == ()


def test_who_does_not_host_the_run_says_nothing() -> None:
    """Every runtime reads every command of its tenant; only one may answer."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        bench.transport.command(kill("r-77", incarnation="a"))
        bench.transport.command(kill("r-77", incarnation="a", command_id="c2", type="reset_context"))
        bench.pump()

        assert not run.stopped
        assert bench.transport.acks == []


def test_the_same_kill_twice_is_a_noop() -> None:
    """Reconnects and repeated commands are normal."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        bench.transport.command(kill(run.key))
        bench.transport.command(kill(run.key))
        bench.pump()

        assert bench.transport.statuses("c1") == ["received", "applied", "noop"]


def test_a_nudge_delivered_twice_appears_once() -> None:
    """A nudge is not idempotent by nature: it is keyed by its id."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        bench.transport.command(nudge(run.key))
        bench.transport.command(nudge(run.key))
        bench.pump()

        assert len(run.nudges()) == 1
        assert bench.transport.statuses("c1") == ["received", "noop"]


def test_two_kills_by_two_writers_stop_the_run_once() -> None:
    """Both are acknowledged under their own ids, and there is one `run_end`."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        bench.transport.command(kill(run.key, command_id="k1"))
        bench.transport.command(kill(run.key, command_id="k2", writer="operator", epoch=1, seq=1))
        bench.pump()
    bench.pump()

    assert bench.transport.statuses("k1") == ["received", "applied", "confirmed_dead"]
    assert bench.transport.statuses("k2") == ["noop"]
    assert sum(isinstance(step, RunEnd) for step in bench.transport.steps) == 1


def test_a_run_that_ended_by_itself_stays_completed() -> None:
    """The kill comes 300 ms late; neither this run nor the next of the conversation is touched."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        pass
    bench.clock.advance(300)
    bench.transport.command(kill(run.key))
    bench.pump()

    assert bench.transport.statuses("c1") == ["noop"]
    end = bench.transport.steps[-1]
    assert isinstance(end, RunEnd)
    assert end.status == "completed"
    with bench.guard.run("r-42") as following:
        assert following.before_model().allowed


def test_a_kill_for_the_incarnation_before_is_stale() -> None:
    """The person's next message started the run anew: what was decided about the old one does not hit it."""
    bench = GuardBench()
    with bench.guard.run("r-42") as first:
        pass
    with bench.guard.run("r-42") as second:
        bench.transport.command(kill(first.key))
        bench.pump()

        assert not second.stopped
        assert bench.transport.statuses("c1") == ["stale"]


def test_a_kill_for_any_incarnation_hits_whoever_runs() -> None:
    """An operator forbids the run, whatever it is called this time."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        bench.transport.command(kill("r-42", writer="operator"))
        bench.pump()

        assert run.stopped


def test_an_old_command_after_a_new_one_is_stale() -> None:
    """A paused detector that wakes up has a fresh clock; its versions are old."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        bench.transport.command(nudge(run.key, command_id="n1", epoch=42, seq=1_900))
        bench.transport.command(kill(run.key, command_id="k1", epoch=42, seq=1_871))
        bench.transport.command(kill(run.key, command_id="k2", epoch=41, seq=5_000))
        bench.pump()

        assert not run.stopped
        assert bench.transport.statuses("k1") == ["stale"]
        assert bench.transport.statuses("k2") == ["stale"]


def test_a_detector_that_was_replaced_is_refused_although_it_speaks_first() -> None:
    """The new owner announced its epoch and had nothing to command yet."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        bench.transport.state(fence(3, 42))
        bench.transport.command(kill(run.key, command_id="old", epoch=41, steps_partition=3))
        bench.pump()
        assert not run.stopped
        assert bench.transport.statuses("old") == ["stale"]

        bench.transport.command(kill(run.key, command_id="new", epoch=42, steps_partition=3))
        bench.pump()
        assert run.stopped


@pytest.mark.parametrize("operator_first", [True, False])
def test_operator_kills_and_detector_resumes_in_either_order(operator_first: bool) -> None:
    """Only people lift what people have ordered."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        bench.transport.command(pause(run.key, command_id="p1", seq=90))
        orders = [
            kill(run.key, command_id="k1", writer="operator", epoch=1, seq=1),
            resume(run.key, command_id="s1", seq=100),
        ]
        for order in orders if operator_first else reversed(orders):
            bench.transport.command(order)
        bench.pump()

        assert run.stopped
        assert run.before_tool("search", {}, "x").action is Action.STOP


def test_a_split_run_is_stopped_on_one_side_only() -> None:
    """`b` was taken up by another runtime: a kill for `a` is not for it, a kill for any is."""
    bench = GuardBench()
    with bench.guard.run("r-42") as b:
        bench.transport.command(kill("r-42", command_id="k-a", incarnation="a"))
        bench.pump()
        assert not b.stopped

        bench.transport.command(kill("r-42", command_id="k-any", seq=101))
        bench.pump()
        assert b.stopped
    bench.pump()
    assert bench.transport.statuses("k-any") == ["received", "applied", "confirmed_dead"]


def test_a_tree_kill_reaches_every_descendant_once() -> None:
    """One acknowledgement for each run, with its own id and the common command."""
    bench = GuardBench()
    with bench.guard.run("r-42") as root, root.child("r-43") as child, child.child("r-44") as grandchild:
        with bench.guard.run("r-99") as other:
            bench.transport.command(kill(root.key, scope="tree"))
            bench.pump()
            assert root.stopped
            assert child.stopped
            assert grandchild.stopped
            assert not other.stopped
        applied = [ack.run_id for ack in bench.transport.acks if ack.status == "applied"]
        assert sorted(applied) == ["r-42", "r-43", "r-44"]
        assert {ack.root_run_id for ack in bench.transport.acks} == {"r-42"}


def test_a_kill_of_one_child_leaves_parent_and_siblings_alone() -> None:
    """A child that used up its own limit is no reason to stop the others."""
    bench = GuardBench()
    with bench.guard.run("r-42") as root, root.child("r-43") as child, root.child("r-44") as sibling:
        bench.transport.command(kill(child.key))
        bench.pump()

        assert child.stopped
        assert not root.stopped
        assert not sibling.stopped


def test_a_tree_kill_without_the_root_here_still_reaches_its_children() -> None:
    """The tree spans processes: the parent's key came over the wire."""
    bench = GuardBench()
    elsewhere = GuardBench()
    with elsewhere.guard.run("r-42") as root:
        parent = root.key
    with bench.guard.run("r-43", parent=parent) as child:
        bench.transport.command(kill("r-42", incarnation="another", scope="tree", command_id="k0"))
        bench.pump()
        assert not child.stopped

        bench.transport.command(kill(parent, scope="tree", seq=101))
        bench.pump()
        assert child.stopped
        assert [ack.run_id for ack in bench.transport.acks] == ["r-43", "r-43"]


def test_a_pause_holds_until_it_is_lifted() -> None:
    """Nothing new starts, nothing is lost, and `applied` is said at once."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        bench.transport.command(pause(run.key, command_id="p1"))
        bench.pump()
        assert run.before_model().action is Action.PAUSE
        assert run.before_tool("search", {}, "x").action is Action.PAUSE
        assert bench.transport.statuses("p1") == ["received", "applied"]

        bench.transport.command(resume(run.key, command_id="s1", seq=101))
        bench.pump()
        assert run.before_model().allowed
        assert bench.transport.statuses("s1") == ["received", "applied"]


def test_the_detector_cannot_lift_a_persons_pause() -> None:
    """A person who wants to look first must not be overtaken."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        bench.transport.command(pause(run.key, command_id="p1", writer="operator", epoch=1, seq=1))
        bench.transport.command(resume(run.key, command_id="s1"))
        bench.pump()
        assert run.before_model().action is Action.PAUSE
        assert [ack.detail for ack in bench.transport.acks if ack.command_id == "s1"] == ["held by another order"]

        bench.transport.command(resume(run.key, command_id="s2", writer="operator", epoch=1, seq=2))
        bench.pump()
        assert run.before_model().allowed


def test_a_pause_from_before_a_persons_release_is_stale() -> None:
    """The order of arrival of two writers is chance; the times at which they decided are not."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        release = resume(run.key, command_id="s1", writer="operator", epoch=1, seq=1, issued_at_ms=START_MS + 50)
        bench.transport.command(release)
        bench.transport.command(pause(run.key, command_id="p1", issued_at_ms=START_MS))
        bench.transport.command(pause(run.key, command_id="p2", issued_at_ms=START_MS + 60, seq=101))
        bench.pump()

        assert bench.transport.statuses("p1") == ["stale"]
        assert bench.transport.statuses("p2") == ["received", "applied"]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_persons_release_lifts_what_was_ordered_before_it_and_nothing_later(order: tuple[int, ...]) -> None:
    """Three orders by two writers, in any order of arrival: the detector's last word came after the release."""
    #  issued at   10       20        30
    #              pause    release   pause
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        made = [
            pause(run.key, command_id="p1", seq=1, issued_at_ms=START_MS + 10),
            resume(run.key, command_id="s1", writer="operator", epoch=1, seq=1, issued_at_ms=START_MS + 20),
            pause(run.key, command_id="p2", seq=2, issued_at_ms=START_MS + 30),
        ]
        for n in order:
            bench.transport.command(made[n])
        bench.pump()

        assert run.before_model().action is Action.PAUSE


def test_age_is_judged_by_the_broker_though_the_host_is_ten_minutes_fast() -> None:
    """By the host's clock a fresh kill would have expired long ago."""
    bench = GuardBench()
    bench.clock.host_skew_ms = 600_000
    with bench.guard.run("r-42") as run:
        bench.transport.command(kill(run.key))
        bench.clock.advance(2_000)
        bench.pump()

        assert run.stopped
        applied = bench.transport.acks[-1]
        assert applied.latency_ms is not None
        assert applied.latency_ms >= 0
        assert "ahead of the broker's" in (applied.detail or "")


def test_an_expired_kill_is_refused_though_the_host_is_ten_minutes_slow() -> None:
    """By the host's clock it would still be fresh."""
    bench = GuardBench()
    bench.clock.host_skew_ms = -600_000
    with bench.guard.run("r-42") as run:
        bench.transport.command(nudge(run.key, command_id="earlier", seq=1))
        bench.pump()
        bench.clock.advance(300_000)
        bench.transport.command(kill(run.key), append_ms=START_MS)
        bench.pump()

        assert not run.stopped
        assert bench.transport.statuses("c1") == ["expired"]


def test_an_expired_kill_does_not_stop_the_next_one() -> None:
    """A loop that goes on brings a new command with a new id and a new life."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        bench.transport.command(kill(run.key, command_id="k1", life_ms=0))
        bench.transport.command(kill(run.key, command_id="k2", seq=101))
        bench.pump()

        assert bench.transport.statuses("k1") == ["expired"]
        assert run.stopped


def test_the_big_switch_turns_commands_into_noops() -> None:
    """One record sets the fleet free; who is dead stays dead."""
    bench = GuardBench()
    with bench.guard.run("r-1") as dead, bench.guard.run("r-2") as run, bench.guard.run("r-3") as held:
        bench.transport.command(kill(dead.key, command_id="k1"))
        bench.transport.command(nudge(run.key, command_id="n1"))
        bench.transport.command(pause(held.key, command_id="p1"))
        bench.pump()
        bench.transport.state(enforcement("observe_only"))
        bench.transport.command(kill(run.key, command_id="k2", seq=101))
        bench.pump()

        assert dead.stopped
        assert not run.stopped
        assert run.nudges() == ()
        assert held.before_model().allowed
        assert bench.transport.statuses("k2") == ["noop"]
        assert bench.transport.statuses("n1") == ["received", "noop"]
        assert bench.guard.stats()["enforcing"] == 0

        bench.transport.state(enforcement("on", version=(1, 0)))
        bench.pump()
        assert bench.guard.stats()["enforcing"] == 0
        bench.transport.state(enforcement("on", version=(1, 2)))
        bench.transport.command(kill(run.key, command_id="k3", seq=102))
        bench.pump()
        assert run.stopped


def test_too_many_nudges_are_refused() -> None:
    """A broken detector must not fill a prompt."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        for n in range(20):
            bench.transport.command(nudge(run.key, command_id=f"n{n}"))
        bench.pump()

        assert len(run.nudges()) == 16
        assert bench.transport.statuses("n19") == ["failed"]


def test_the_cancel_function_is_called_once_after_the_gate_is_shut() -> None:
    """It is the only push into a framework; everything else is a flag that the agent reads."""
    bench = GuardBench()
    seen: list[tuple[str, bool]] = []
    run = bench.guard.run("r-42", cancel=lambda reason: seen.append((reason, run.stopped)))
    with run:
        bench.transport.command(kill(run.key))
        bench.transport.command(kill(run.key, command_id="again"))
        bench.pump()

    assert seen == [("tool_oscillation x5 (search), by the detector", True)]


def test_a_cancel_function_that_fails_harms_nobody() -> None:
    """It is the agent's code in our thread: the next command must still be read."""

    def broken(reason: str) -> None:
        raise RuntimeError(reason)

    bench = GuardBench()
    with bench.guard.run("r-1", cancel=broken) as first, bench.guard.run("r-2") as second:
        bench.transport.command(kill(first.key, command_id="k1"))
        bench.transport.command(kill(second.key, command_id="k2"))
        bench.pump()

        assert first.stopped
        assert second.stopped
        assert bench.guard.stats()["cancel_errors"] == 1
