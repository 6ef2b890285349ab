"""Orders that are out: sent once more, alarmed, answered with a wider kill; by trees, incarnations and hosts."""

from __future__ import annotations

import pytest
from tests._support.steps import ENFORCE, START_MS, Run, decide, order_of, orders, tree_of, verdicts

from loopwarden_detectors import landing
from loopwarden_detectors.answers import acknowledge, is_confirmed
from loopwarden_detectors.ladder import Decision, Order
from loopwarden_detectors.run_state import TreeState
from loopwarden_detectors.stops import StopState
from loopwarden_models.acks import Ack
from loopwarden_models.events import AnyStep
from loopwarden_models.policy import Policy

S = 1_000


class Stage:
    """A tree whose orders go out on a clock that the test moves, as a worker's partition does it."""

    def __init__(self, policy: Policy = ENFORCE) -> None:
        """Begin with no run."""
        self.policy = policy
        self.now_ms = START_MS
        self.tree: TreeState | None = None

    def read(self, *steps: AnyStep, act: bool = True) -> list[Decision]:
        """Judge steps, and send what is ordered."""
        self.tree = tree_of(steps[0]) if self.tree is None else self.tree
        self.now_ms = max(self.now_ms, *(step.ts_ms for step in steps))
        return self._sent(decide(steps, self.policy, tree=self.tree, act=act))

    def later(self, seconds: float, *, act: bool = True) -> list[Decision]:
        """Let time pass, and return what the tick after it says."""
        assert self.tree is not None
        self.now_ms += int(seconds * S)
        return self._sent(landing.look(self.tree, self.now_ms, self.policy, act=act))

    def answer(self, order: Order, *statuses: str, run_id: str | None = None, host: str | None = "rt-1") -> None:
        """Read acknowledgements of an order, now."""
        assert self.tree is not None
        for status in statuses:
            ack = Ack(
                v=1,
                command_id=order.command_id,
                tenant=order.tenant,
                run_id=run_id or order.run_id,
                root_run_id=order.root_run_id,
                runtime_id=host,
                status=status,
                at_ms=self.now_ms,
            )
            acknowledge(self.tree, ack, self.now_ms)

    def stop(self, run_id: str = "r1") -> StopState:
        """Return the newest order to a run."""
        assert self.tree is not None
        stop = self.tree.runs[run_id].stop
        assert stop is not None
        return stop

    def _sent(self, decisions: list[Decision]) -> list[Decision]:
        assert self.tree is not None
        for decision in decisions:
            order = decision.order
            if order is not None and order.type != "nudge":
                issued_ms = self.now_ms if order.issued_at_ms is None else order.issued_at_ms
                landing.note_sent(self.tree, order.command_id, issued_ms, self.now_ms)
        return decisions


def killed(run: Run, **fields: object) -> tuple[Stage, Order]:
    """Return a run that looped, and the kill that went out for it."""
    stage = Stage()
    kill = order_of(stage.read(run.start(**fields), *run.calls(8, effect="read")), "kill_run")
    return stage, kill


def alarms(decisions: list[Decision]) -> list[str]:
    """Return the alarms among decisions."""
    return [decision.alarm for decision in decisions if decision.alarm is not None]


def notes(decisions: list[Decision]) -> str:
    """Return what the verdicts among decisions say to people."""
    return "\n".join(verdict.evidence.note for verdict in verdicts(decisions))


def after(run: Run, stage: Stage, n: int = 1) -> list[AnyStep]:
    """Return steps that began after everything that was read."""
    run.now_ms = max(run.now_ms, stage.now_ms)
    return [run.call("fetch", k, k, duration_ms=1) for k in range(n)]


# -- nobody answers (12, 38)


def test_what_nobody_answers_goes_out_once_more_and_is_then_alarmed() -> None:
    """The same command, once; the alarm names the run. The order stays: whoever takes the run up finds its record."""
    stage, kill = killed(Run())
    assert stage.later(9.9) == []

    (again,) = stage.later(0.2)
    assert again.verdict is None
    assert again.order is not None
    same = ("command_id", "type", "run_id", "incarnation", "scope", "ttl_ms", "grace_ms")
    assert [getattr(again.order, name) for name in same] == [getattr(kill, name) for name in same]
    assert again.order.issued_at_ms == stage.stop().issued_at_ms == START_MS + 18 * S

    assert stage.later(9) == []
    told = stage.later(2)
    assert alarms(told) == ["unanswered"]
    assert orders(told) == []
    assert "r1" in notes(told)
    assert "no runtime" in notes(told)
    assert all(stage.later(20) == [] for _ in range(20))


def test_the_alarm_names_the_runtime_that_was_heard_of_last() -> None:
    """That is where a person begins to look."""
    run = Run()
    stage = Stage()
    decisions = stage.read(run.start(runtime="agentkit 3"), *run.calls(7, effect="read"))
    stage.answer(order_of(decisions, "nudge"), "applied", host="rt-7")
    stage.read(*run.calls(1, effect="read"))
    stage.later(11)

    assert "rt-7" in notes(stage.later(11))


@pytest.mark.parametrize("status", ["received", "applied", "noop", "expired", "stale"])
def test_an_answer_is_an_answer(status: str) -> None:
    """Whatever it says, the command has reached somebody."""
    stage, kill = killed(Run())
    stage.later(9)
    stage.answer(kill, status)

    assert "unanswered" not in alarms([*stage.later(5), *stage.later(60), *stage.later(600)])
    assert stage.stop().sends == 1


def test_a_pause_is_waited_for_as_well() -> None:
    """And is landed when it is applied: nobody is alarmed. How it ends is in `test_questions`."""
    run = Run()
    stage = Stage()
    pause = order_of(stage.read(run.start(attended=True), *run.calls(8, effect="read")), "pause_run")
    assert orders(stage.later(11)) == ["pause_run"]
    stage.answer(pause, "received", "applied")
    assert stage.tree is not None

    assert list(landing.open_orders(stage.tree)) == []
    assert [stage.later(600) for _ in range(3)] == [[], [], []]


def test_a_run_that_ended_by_itself_is_not_waited_for() -> None:
    """Its host would say `noop`, if it still lived."""
    run = Run()
    stage, _ = killed(run)
    stage.read(run.end())

    assert [stage.later(30) for _ in range(3)] == [[], [], []]


def test_nothing_is_sent_while_far_behind() -> None:
    """What is due stays due: it goes out when the clock is near again."""
    stage, _ = killed(Run())

    assert stage.later(11, act=False) == []
    assert orders(stage.later(1)) == ["kill_run"]


def test_what_has_expired_is_not_sent_again() -> None:
    """The worker was away for the whole life of the command. That nobody answered is said."""
    stage, _ = killed(Run())
    told = stage.later(180)

    assert alarms(told) == ["unanswered"]
    assert orders(told) == []


# -- applied, and not dead (13, 28, 37)


def test_a_kill_whose_end_is_not_confirmed_is_alarmed_once() -> None:
    """After the grace of 5 s and ten more. `applied` is not dead."""
    stage, kill = killed(Run())
    stage.answer(kill, "received", "applied")
    assert stage.later(14) == []

    assert alarms(stage.later(2)) == ["unconfirmed"]
    assert all(stage.later(60) == [] for _ in range(5))
    assert stage.tree is not None
    assert list(landing.open_orders(stage.tree)) == ["unconfirmed"]


def test_the_tool_that_is_waited_for_is_named() -> None:
    """A synchronous call takes four more minutes in its thread."""
    run = Run()
    stage = Stage()
    stage.read(run.start())
    waits = run.step("tool_start", tool="transcode", call_id="x1")
    done = [run.step("tool_start", tool="fetch", call_id="x2"), run.call("fetch", 1, 1, call_id="x2")]
    kill = order_of(stage.read(waits, *done, *run.calls(8, effect="read")), "kill_run")
    stage.answer(kill, "received", "applied")
    told = stage.later(16)

    (verdict,) = verdicts(told)
    assert verdict.evidence.tools == ["transcode"]
    assert "waiting for transcode; last heard of: rt-1" in verdict.evidence.note
    assert (verdict.detector, verdict.pattern, verdict.level) == ("landing", "kill_unconfirmed", "observe")


def test_a_kill_that_was_read_and_never_applied_stays_visible() -> None:
    """The host lost power after `received`, and nobody took the run up."""
    stage, kill = killed(Run())
    stage.answer(kill, "received")

    assert alarms(stage.later(16)) == ["unconfirmed"]


def test_a_confirmed_kill_is_landed() -> None:
    """Nothing is waited for any more."""
    stage, kill = killed(Run())
    stage.answer(kill, "received", "applied", "confirmed_dead")
    assert stage.tree is not None

    assert is_confirmed(stage.tree, kill.command_id)
    assert not landing.is_waited_for(stage.tree)
    assert stage.later(600) == []


# -- a step after the kill (35, 36), and a kill that failed


def test_a_violation_is_answered_once_by_a_kill_of_the_tree_in_any_incarnation() -> None:
    """At the step itself. What goes on behind it is counted, and needs a person."""
    run = Run()
    stage, kill = killed(run)
    stage.answer(kill, "received", "applied")
    stage.now_ms += S
    decisions = stage.read(*after(run, stage, 5))

    (wider,) = [decision.order for decision in decisions if decision.order is not None]
    assert (wider.type, wider.scope, wider.incarnation, wider.run_id) == ("kill_run", "tree", "*", "r1")
    assert wider.command_id != kill.command_id
    assert wider.is_in_force
    assert alarms(decisions) == ["violation"]
    assert sum(decision.is_violation for decision in decisions) == 5
    (verdict,) = verdicts(decisions, "landing")
    assert (verdict.pattern, verdict.level, verdict.command_id) == ("step_after_kill", "kill", wider.command_id)


def test_the_ids_of_the_answer_hang_on_the_kill_alone() -> None:
    """Which step is seen first depends on when the acknowledgement was read."""
    found = []
    for late in (1, 3):
        run = Run()
        stage, kill = killed(run)
        stage.answer(kill, "received", "applied")
        stage.now_ms += S
        steps = after(run, stage, 4)
        decisions = stage.read(*steps[late:])
        found.append((order_of(decisions, "kill_run").command_id, verdicts(decisions, "landing")[0].verdict_id))

    assert found[0] == found[1]


def test_a_late_end_of_a_call_is_no_violation() -> None:
    """It began before the gate was shut: nothing is answered."""
    run = Run()
    stage, kill = killed(run)
    stage.answer(kill, "received", "applied")
    run.now_ms = stage.now_ms + 4 * S

    assert stage.read(run.call("fetch", 1, 1, duration_ms=6 * S)) == []


def test_a_violation_that_was_read_late_is_answered_when_it_may_be() -> None:
    """A day's backlog is judged in shadow; a run that still goes on is a run that does not obey."""
    run = Run()
    stage, kill = killed(run)
    stage.answer(kill, "received", "applied")
    stage.now_ms += S
    decisions = stage.read(*after(run, stage), act=False)
    assert alarms(decisions) == ["violation"]
    assert orders(decisions) == []

    told = stage.later(1)
    assert orders(told) == ["kill_run"]
    assert verdicts(told)[0].verdict_id != verdicts(decisions, "landing")[0].verdict_id
    assert stage.later(1) == []


def test_nobody_is_killed_for_a_rule_that_was_switched_off_since() -> None:
    """The alarm stays: a step after a kill must not be."""
    run = Run()
    stage, kill = killed(run)
    stage.answer(kill, "received", "applied")
    stage.policy = Policy(mode="shadow")
    stage.now_ms += S
    decisions = stage.read(*after(run, stage, 3))

    assert alarms(decisions) == ["violation"]
    assert orders(decisions) == []


def test_the_answer_of_a_shut_gate_ends_the_wider_kill() -> None:
    """`noop`: the run is stopped already. The wider kill was for whoever else hosts it."""
    run = Run()
    stage, kill = killed(run)
    stage.answer(kill, "received", "applied")
    stage.now_ms += S
    wider = order_of(stage.read(*after(run, stage)), "kill_run")
    stage.answer(wider, "noop")

    assert [stage.later(30) for _ in range(4)] == [[], [], [], []]
    stage.answer(kill, "confirmed_dead")
    assert stage.stop().is_dead


def test_a_kill_that_failed_is_alarmed_and_answered_with_a_wider_one() -> None:
    """A second failure is alarmed, and is a matter for people."""
    stage, kill = killed(Run())
    stage.answer(kill, "failed")
    told = stage.later(1)
    wider = order_of(told, "kill_run")
    assert alarms(told) == ["failed"]
    assert (wider.scope, wider.incarnation, wider.is_in_force) == ("tree", "*", False)

    stage.answer(wider, "failed")
    told = stage.later(1)
    assert alarms(told) == ["failed"]
    assert orders(told) == []
    assert stage.later(60) == []


def test_the_ladder_leaves_a_failed_kill_to_the_wider_one() -> None:
    """A lap that comes before the tick orders nothing."""
    run = Run()
    stage, kill = killed(run)
    stage.answer(kill, "failed")

    assert orders(stage.read(*run.calls(3, effect="read"))) == []
    assert orders(stage.later(1)) == ["kill_run"]


def test_a_runtime_that_cannot_kill_is_alarmed() -> None:
    """There is nothing wider that it could do."""
    stage, kill = killed(Run())
    stage.answer(kill, "unsupported")
    told = stage.later(1)

    assert alarms(told) == ["failed"]
    assert orders(told) == []
    assert "cannot do it" in notes(told)


def test_where_a_pause_cannot_be_done_the_run_is_killed() -> None:
    """The next rung that this runtime supports."""
    run = Run()
    stage = Stage()
    pause = order_of(stage.read(run.start(attended=True), *run.calls(8, effect="read")), "pause_run")
    stage.answer(pause, "unsupported")

    assert orders(stage.read(*run.calls(1, effect="read"))) == ["kill_run"]


def test_enforcement_that_was_switched_off_uses_up_no_attempt() -> None:
    """`noop` for an hour: when it is on again the run is killed like any other."""
    run = Run()
    run.gap_ms = 29 * S
    stage, kill = killed(run)
    ids = {kill.command_id}
    stage.answer(kill, "noop")
    for _ in range(60):
        for decision in stage.read(*run.calls(1, effect="read")):
            if decision.order is not None:
                ids.add(decision.order.command_id)
                stage.answer(decision.order, "noop")

    assert len(ids) > 5


# -- trees (40 to 43)


def family() -> tuple[Stage, Order, dict[str, Run]]:
    """Return a tree of four that passed its limit, and the kill that went out for all of it.

    boss ── left ── grandchild
         └─ right
    """
    runs = {
        "boss": Run("boss"),
        "left": Run("left", root="boss"),
        "right": Run("right", root="boss"),
        "grandchild": Run("grandchild", root="boss"),
    }
    stage = Stage()
    starts = [
        runs["boss"].start(limits={"max_steps": 3}),
        *(runs[name].start(parent_run_id="boss") for name in ("left", "right")),
        runs["grandchild"].start(parent_run_id="left"),
    ]
    calls = [runs["left"].call("fetch", n, n) for n in range(4)]
    return stage, order_of(stage.read(*starts, *calls), "kill_run"), runs


def test_a_tree_is_dead_when_the_last_descendant_is() -> None:
    """One command, and an answer of each run."""
    stage, kill, runs = family()
    assert stage.tree is not None
    for n, run_id in enumerate(runs, 1):
        stage.answer(kill, "received", "applied", run_id=run_id, host=f"rt-{n % 2}")
    for run_id in runs:
        assert not is_confirmed(stage.tree, kill.command_id)
        stage.answer(kill, "confirmed_dead", run_id=run_id)
    assert not is_confirmed(stage.tree, kill.command_id)  # from another host than it was applied at

    for n, run_id in enumerate(runs, 1):
        stage.answer(kill, "confirmed_dead", run_id=run_id, host=f"rt-{n % 2}")
    assert is_confirmed(stage.tree, kill.command_id)
    assert stage.later(600) == []


def test_one_silent_descendant_is_asked_again_and_named() -> None:
    """One command once more for all of them, one alarm for the runs that are silent."""
    stage, kill, runs = family()
    for run_id in ("boss", "left", "right"):
        stage.answer(kill, "received", "applied", "confirmed_dead", run_id=run_id)
    again = order_of(stage.later(11), "kill_run")
    assert (again.command_id, again.run_id, again.scope) == (kill.command_id, "boss", "tree")

    told = stage.later(11)
    assert alarms(told) == ["unanswered"]
    assert verdicts(told)[0].run_id == "grandchild"
    stage.answer(kill, "received", "applied", "confirmed_dead", run_id="grandchild")
    assert stage.tree is not None
    assert len(runs) == len(stage.tree.runs)
    assert is_confirmed(stage.tree, kill.command_id)


def test_a_run_of_the_tree_that_ended_by_itself_holds_nobody_up() -> None:
    """Its host has nothing to confirm."""
    stage, kill, runs = family()
    stage.read(runs["right"].end())
    for run_id in ("boss", "left", "grandchild"):
        stage.answer(kill, "received", "applied", "confirmed_dead", run_id=run_id)
    assert stage.tree is not None

    assert is_confirmed(stage.tree, kill.command_id)


def test_who_is_born_during_the_kill_is_waited_for_as_well() -> None:
    """Born of a grandchild, after the order: it has its own ten seconds, and the command is not sent for it alone."""
    stage, kill, _ = family()
    stage.later(11)
    late = Run("late", root="boss")
    late.now_ms = stage.now_ms
    stage.read(late.start(parent_run_id="grandchild"))
    assert stage.stop("late").command_id == kill.command_id
    for run_id in ("boss", "left", "right", "grandchild"):
        stage.answer(kill, "received", "applied", "confirmed_dead", run_id=run_id)
    assert stage.tree is not None
    assert not is_confirmed(stage.tree, kill.command_id)

    assert stage.later(9) == []
    told = stage.later(5)
    assert alarms(told) == ["unanswered"]
    assert verdicts(told)[0].run_id == "late"


def test_a_wider_kill_takes_the_descendants_and_leaves_the_siblings() -> None:
    """What a child does behind its shut gate is its own matter and that of whom it started."""
    stage = Stage()
    boss, left, right, grandchild = (
        Run("boss"),
        Run("left", root="boss"),
        Run("right", root="boss"),
        Run("grandchild", root="boss"),
    )
    stage.read(boss.start(), left.start(parent_run_id="boss"), right.start(parent_run_id="boss"))
    stage.read(grandchild.start(parent_run_id="left"))
    kill = order_of(stage.read(*left.calls(8, effect="read")), "kill_run")
    stage.answer(kill, "received", "applied")
    stage.now_ms += S
    wider = order_of(stage.read(*after(left, stage)), "kill_run")
    assert stage.tree is not None

    bound = {run_id for run_id, run in stage.tree.runs.items() if run.stop and run.stop.command_id == wider.command_id}
    assert bound == {"left", "grandchild"}
    assert (wider.run_id, wider.root_run_id) == ("left", "boss")


# -- incarnations, and runs that have two hosts: cases 16, 17, 23, 26, 37


def test_what_was_taken_up_is_killed_and_the_old_kill_is_let_go() -> None:
    """The host died after `received`: the first step that continues the loop brings a kill for `b`, and no nudge."""
    run = Run()
    stage, kill = killed(run)
    stage.answer(kill, "received")
    run.now_ms = stage.now_ms + 5 * S
    decisions = stage.read(run.resume("b"), *run.calls(1, effect="read"))

    assert orders(decisions) == ["kill_run"]
    assert order_of(decisions, "kill_run").incarnation == "b"
    assert order_of(decisions, "kill_run").command_id != kill.command_id


def test_a_run_that_completed_first_keeps_nothing_of_the_kill() -> None:
    """Its record is withdrawn, and the next run of the conversation begins anew."""
    run = Run()
    stage, kill = killed(run)
    (ended,) = stage.read(run.end("completed"))
    assert ended.record is not None
    assert (ended.record.state, ended.record.run_id, ended.record.command_id) == ("open", "r1", kill.command_id)
    stage.answer(kill, "noop")

    decisions = stage.read(run.resume("b"), *run.calls(7, effect="read"))
    assert "kill_run" not in orders(decisions)


def test_a_run_that_was_killed_keeps_its_record() -> None:
    """The end may be read before the acknowledgement that puts the kill in force."""
    run = Run()
    stage, kill = killed(run)

    assert stage.read(run.step("run_end", status="killed", command_id=kill.command_id)) == []


def test_the_record_of_a_person_that_was_written_over_is_written_again() -> None:
    """An operator killed the run while the detector's kill was on its way: only people lift what people ordered."""
    run = Run()
    stage, _ = killed(run)
    (ended,) = stage.read(run.step("run_end", status="killed", command_id="by-hand-1"))

    assert ended.record is not None
    assert (ended.record.state, ended.record.command_id) == ("killed", "by-hand-1")


def test_a_released_run_is_on_the_rung_below_the_kill() -> None:
    """Dead, and released by a person: counted anew, with no nudge before the next kill."""
    run = Run()
    stage, kill = killed(run)
    stage.answer(kill, "received", "applied")
    stage.read(run.step("run_end", status="killed", command_id=kill.command_id))
    stage.answer(kill, "confirmed_dead")
    decisions = stage.read(run.resume("b"), *run.calls(7, effect="read"))
    assert orders(decisions) == []

    assert orders(stage.read(*run.calls(1, effect="read"))) == ["kill_run"]


def test_a_run_with_two_hosts_is_dead_when_both_have_said_so() -> None:
    """After a network split a kill of any incarnation reaches both."""
    run = Run()
    run.incarnation = None
    stage = Stage()
    kill = order_of(stage.read(*run.calls(8, effect="read")), "kill_run")
    assert kill.incarnation == "*"
    stage.answer(kill, "received", "applied", host="rt-1")
    stage.answer(kill, "received", "applied", host="rt-2")
    stage.answer(kill, "confirmed_dead", host="rt-1")
    assert stage.tree is not None
    assert not is_confirmed(stage.tree, kill.command_id)

    stage.answer(kill, "confirmed_dead", host="rt-2")
    assert is_confirmed(stage.tree, kill.command_id)


def test_a_former_host_that_has_nothing_to_do_does_not_close_the_kill() -> None:
    """`noop` of the one, then `received` of the other."""
    stage, kill = killed(Run())
    stage.answer(kill, "noop", host="rt-0")
    stage.answer(kill, "received", "applied", host="rt-1")

    assert alarms(stage.later(16)) == ["unconfirmed"]


def test_an_answer_to_a_command_of_another_make_is_none_of_ours() -> None:
    """An operator chooses the ids of his commands."""
    stage, kill = killed(Run())
    assert stage.tree is not None
    ack = Ack(v=1, command_id="stop it!", tenant="acme", run_id="r1", status="applied", at_ms=stage.now_ms)

    assert acknowledge(stage.tree, ack) is None
    assert stage.stop().applied_ms < 0
    assert stage.stop().command_id == kill.command_id


# -- kept back (72)


def test_a_kill_that_is_kept_back_is_ordered_again_by_the_same_command() -> None:
    """At the next lap, and it uses up no attempt. Nothing is waited for meanwhile, and nobody is under a kill."""
    run = Run()
    stage = Stage()
    steps = [run.start(), *run.calls(7, effect="read")]
    stage.read(*steps)
    assert stage.tree is not None
    ids = set()
    for _ in range(10):
        order = order_of(decide(run.calls(1, effect="read"), tree=stage.tree), "kill_run")
        ids.add(order.command_id)
        assert landing.withhold(stage.tree, order.command_id)
        assert list(landing.open_orders(stage.tree)) == ["withheld"]
        assert landing.look(stage.tree, run.now_ms + 60 * S, ENFORCE) == []

    assert len(ids) == 1
    stage.now_ms = run.now_ms
    kill = order_of(stage.read(*run.calls(1, effect="read")), "kill_run")
    assert {kill.command_id} == ids
    stage.answer(kill, "received", "applied", "confirmed_dead")
    assert is_confirmed(stage.tree, kill.command_id)


def test_what_hurts_less_works_on_while_a_kill_is_kept_back() -> None:
    """The tool of the loop is blocked for the run."""
    run = Run()
    stage = Stage()
    kill = order_of(stage.read(run.start(), *run.calls(8, effect="read")), "kill_run")
    assert stage.tree is not None
    landing.withhold(stage.tree, kill.command_id)
    run.now_ms += ENFORCE.ladder.tool_block_ms

    decisions = decide(run.calls(1, effect="read"), tree=stage.tree)
    assert [decision.block.tools[0].tool for decision in decisions if decision.block is not None] == ["search"]
    assert orders(decisions) == ["kill_run"]


def test_what_was_answered_is_out_and_not_kept_back() -> None:
    """The order is given again after a crash, and its answer was read before it."""
    stage, kill = killed(Run())
    stage.answer(kill, "received")
    assert stage.tree is not None

    assert not landing.withhold(stage.tree, kill.command_id)
    assert not stage.stop().is_withheld


def test_a_run_that_is_resumed_beside_a_kept_kill_begins_a_segment() -> None:
    """It was not killed: its resume is like any other."""
    run = Run()
    stage = Stage()
    kill = order_of(stage.read(run.start(), *run.calls(8, effect="read")), "kill_run")
    assert stage.tree is not None
    landing.withhold(stage.tree, kill.command_id)

    assert orders(stage.read(run.resume("b"), *run.calls(6, effect="read"))) == []


# -- state


def test_what_is_waited_for_survives_a_move() -> None:
    """The new owner knows the kill, and what was said of it: it sends nothing more, and watches."""
    run = Run()
    stage, kill = killed(run)
    stage.answer(kill, "received", "applied")
    stage.later(16)
    assert stage.tree is not None
    stage.tree = TreeState.from_bytes(stage.tree.to_bytes())

    assert landing.is_waited_for(stage.tree)
    assert stage.later(60) == []
    assert alarms(stage.read(*after(run, stage))) == ["violation"]


def test_two_ticks_say_it_once_and_a_crash_says_it_again_under_the_same_id() -> None:
    """A tick is not replayed: what it finds is a level."""
    stage, _ = killed(Run())
    stage.later(11)
    assert stage.tree is not None
    before = stage.tree.to_bytes()
    first = stage.later(11)
    stage.tree = TreeState.from_bytes(before)
    second = stage.later(0)

    assert [verdict.verdict_id for verdict in verdicts(first)] == [verdict.verdict_id for verdict in verdicts(second)]
