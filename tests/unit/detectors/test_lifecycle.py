"""A run's life in its tree, and which of its events count."""

from __future__ import annotations

from typing import Any

import pytest
from tests._support.steps import ENFORCE, Run, answer, decide, levels, only, order_of, orders, tree_of, verdicts

from loopwarden_detectors.run_state import MAX_FORMER_INCARNATIONS, MAX_OPEN_CALLS, MAX_RUNS_PER_TREE, TreeState
from loopwarden_models.events import AnyStep
from loopwarden_models.policy import Policy


def killed(run: Run, status: str = "applied", **fields: Any) -> TreeState:
    """Return the state of a run that looped, was ended for it, and answered with this status."""
    tree = tree_of(first := run.start(**fields))
    kill = order_of(decide([first, *run.calls(8, effect="read")], tree=tree), "kill_run")
    answer(tree, kill, status, at_ms=run.now_ms)
    return tree


def violations(tree: TreeState, *steps: AnyStep) -> int:
    """Return how many of the steps began after the run's end was applied."""
    return sum(decision.is_violation for decision in decide(steps, tree=tree))


# -- duplicates, late copies, clocks


def test_a_duplicate_changes_nothing() -> None:
    """A client that sends its whole transcript again is folded by `seq`."""
    run = Run()
    steps = [run.start(), *run.calls(4, effect="read"), run.model(cost_usd=1.0)]
    tree = tree_of(steps[0])
    decide(steps, tree=tree)
    before = tree.to_bytes()

    assert decide(steps, tree=tree) == []
    assert tree.to_bytes() == before


def test_a_late_copy_of_a_former_incarnation_changes_nothing() -> None:
    """The process that died had events in its buffer; their `seq` may be above that of the new one."""
    run = Run()
    old = [run.start(), *run.calls(6)]
    tree = tree_of(old[0])
    decide([*old[:3], run.resume("b"), *run.calls(2)], tree=tree)
    before = tree.to_bytes()

    assert decide(old[3:], tree=tree) == []
    assert tree.to_bytes() == before


def test_former_incarnations_are_remembered_for_a_while() -> None:
    """A run may be resumed for weeks; a copy from eight resumes ago does not come."""
    run = Run()
    steps = [run.start(), *[run.resume(f"i{n}") for n in range(3 * MAX_FORMER_INCARNATIONS)]]
    tree = tree_of(steps[0])
    decide(steps, tree=tree)

    assert tree.runs["r1"].incarnation == f"i{3 * MAX_FORMER_INCARNATIONS - 1}"
    assert len(tree.runs["r1"].former or ()) == MAX_FORMER_INCARNATIONS
    assert decide([steps[-2]], tree=tree) == []
    assert tree.runs["r1"].incarnation == f"i{3 * MAX_FORMER_INCARNATIONS - 1}"


def test_an_event_without_an_incarnation_is_of_the_current_one() -> None:
    """Some adapters send it with `run_start` alone: the rest must neither begin a run nor be taken for a late copy."""
    run = Run()
    first = run.start()
    run.incarnation = None
    rest = run.calls(4, effect="read")
    run.incarnation = "a"
    tree = tree_of(first)

    assert levels(decide([first, *rest, *run.calls(1, effect="read")], tree=tree)) == ["observe", "nudge", "break"]
    assert tree.runs["r1"].former is None


def test_a_clock_that_goes_back_stands_still() -> None:
    """The time of a run never goes backwards, whatever its host does."""
    run = Run()
    tree = tree_of(first := run.start())
    decide([first, run.call()], tree=tree)
    run.now_ms -= 3_600_000
    decide(run.calls(3), tree=tree)

    assert tree.now_ms == tree.runs["r1"].now_ms == first.ts_ms + 2_000


def test_a_clock_that_runs_ahead_is_cut() -> None:
    """To what the broker's clock allows; also at the first event, or no later one would ever count."""
    run = Run()
    steps = [run.start(), run.call()]
    tree = tree_of(steps[0])
    decide(steps, tree=tree, latest_ms=steps[0].ts_ms - 86_400_000)

    assert tree.now_ms == tree.started_ms == steps[0].ts_ms - 86_400_000


def test_a_call_inside_an_hour_of_clock_change_is_no_slow_poll() -> None:
    """A host whose clock jumps ahead once does not hide a loop for more than one lap."""
    run = Run()
    before = run.calls(4, effect="unknown")
    run.now_ms += 3_600_000

    assert "kill" in levels(decide([*before, *run.calls(6)], only("exact_repeat")))


# -- incarnations


def test_a_resume_begins_a_segment() -> None:
    """The first calls after a resume look like those before it."""
    run = Run()
    steps = [run.start(), *run.calls(5, effect="read"), run.resume("b"), *run.calls(5, effect="read")]

    assert "kill" not in levels(decide(steps))


def test_a_killed_run_that_is_taken_up_is_ended_at_its_first_step() -> None:
    """Its host died before it obeyed. What is known of the loop belongs to the run, not to the incarnation."""
    run = Run()
    tree = killed(run, "received")
    decisions = decide([run.resume("b"), *run.calls(1, effect="read")], tree=tree)
    order = order_of(decisions, "kill_run")

    assert orders(decisions) == ["kill_run"]
    assert order.incarnation == "b"


def test_what_is_said_of_a_resumed_loop_fits_the_wire() -> None:
    """`seq` begins anew with the incarnation: where the loop began is before its first step, and no negative number."""
    run = Run()
    tree = tree_of(first := run.start())
    lap = [("read", "a", "A"), ("edit", "b", "no")]
    steps = [*[run.call("fetch", n, n) for n in range(30)], *[run.call(*call) for _ in range(6) for call in lap]]
    decide([first, *steps], only("cycle"), tree=tree)
    decisions = decide(
        [run.resume("b"), *[run.call(*call) for _ in range(6) for call in lap]], only("cycle"), tree=tree
    )

    assert orders(decisions) == ["kill_run"]
    assert [verdict.evidence.first_seq for verdict in verdicts(decisions)] == [0] * len(verdicts(decisions))


def test_progress_after_the_resume_is_progress_of_the_loop() -> None:
    """The `seq` of the former incarnation must not make it look older than the loop."""
    run = Run()
    tree = killed(run, "received")
    decisions = decide([run.resume("b"), run.step("progress"), *run.calls(3, effect="read")], tree=tree)

    assert orders(decisions) == []


def test_a_killed_run_that_is_taken_up_by_a_person_is_counted_anew() -> None:
    """Somebody spoke: the loop has its chance, and the ladder goes on from the rung below the kill."""
    run = Run()
    tree = killed(run)
    decisions = decide([run.resume("b"), run.user(), *run.calls(7, effect="read")], tree=tree)
    assert orders(decisions) == []

    assert orders(decide(run.calls(1, effect="read"), tree=tree)) == ["kill_run"]


def test_only_the_incarnation_after_the_kill_goes_on_where_it_was() -> None:
    """A run that worked on in peace and is resumed once more begins a segment like any other."""
    run = Run()
    tree = killed(run)
    steps = [run.resume("b"), run.call("fetch", 1, 1), run.resume("c"), *run.calls(3, effect="read")]

    assert orders(decide(steps, tree=tree)) == []


def test_a_run_that_ends_is_forgotten_as_far_as_it_repeated() -> None:
    """Fifty children that ended must not fill the memory of their tree."""
    run = Run()
    tree = tree_of(first := run.start())
    decide([first, *[run.call("fetch", n, n) for n in range(20)], run.end()], tree=tree)

    assert tree.is_over
    assert len(tree.runs["r1"].ring) == 0
    assert tree.attempts == 20


def test_a_run_that_goes_on_after_its_end_is_watched_on() -> None:
    """A runtime that reports the end of every turn still makes steps."""
    run = Run()

    assert "kill" in levels(decide([run.start(), run.end(), *run.calls(8, effect="read")]))


def test_a_resume_that_does_not_say_who_watches_changes_nothing() -> None:
    """A person was watching; a `run_start` without the field is no word to the contrary."""
    run = Run()
    steps = [run.start(attended=True), run.resume("b"), *run.calls(8, effect="read")]

    assert orders(decide(steps))[-1] == "pause_run"


def test_who_watches_the_root_watches_its_children() -> None:
    """Unless the child says otherwise."""
    boss, child, lonely = Run("boss"), Run("child", root="boss"), Run("lonely", root="boss")
    steps = [boss.start(attended=True), child.start(), *child.calls(8, effect="read")]

    assert orders(decide(steps))[-1] == "pause_run"
    assert orders(decide([*steps, lonely.start(attended=False), *lonely.calls(8, effect="read")]))[-1] == "kill_run"


def test_a_resume_with_content_is_judged_on_its_content() -> None:
    """What was made from spans is forgotten with the segment; the new process sends the whole."""
    run = Run()
    run.fidelity = "low"
    spans = run.calls(8, effect="read")
    run.fidelity = None

    assert orders(decide([*spans, run.resume("b"), *run.calls(8, effect="read")]))[-1] == "kill_run"


def test_every_incarnation_of_a_killed_run_is_ended() -> None:
    """An orchestrator that restarts it ten times gets ten kills, each with its own id."""
    run = Run()
    tree = killed(run, "received")
    given = []
    for n in range(10):
        decisions = decide([run.resume(f"i{n}"), *run.calls(1, effect="read")], tree=tree)
        given.append(order_of(decisions, "kill_run").command_id)

    assert len(set(given)) == 10


# -- after a kill


def test_a_step_that_began_before_the_gate_was_shut_is_none() -> None:
    """Steps and acknowledgements travel on different topics: the start of the call is what counts."""
    run = Run()
    tree = killed(run)

    assert violations(tree, run.call("fetch", 1, 1, duration_ms=60_000)) == 0
    assert violations(tree, run.call("fetch", 2, 2, duration_ms=500)) == 1


def test_a_call_whose_start_was_seen_is_looked_at_once() -> None:
    """At its start, not again at its end."""
    run = Run()
    tree = killed(run)
    start, end = run.step("tool_start", tool="fetch", call_id="x1"), run.call("fetch", 1, 1, call_id="x1")

    assert violations(tree, start) == 1
    assert violations(tree, end) == 0


def test_a_call_in_flight_when_the_gate_is_shut_is_none() -> None:
    """It started before, however long it takes and whether or not it says so."""
    run = Run()
    tree = tree_of(first := run.start())
    steps = [first, *run.calls(7, effect="read"), run.step("tool_start", tool="fetch", call_id="x1")]
    kill = order_of(decide([*steps, *run.calls(1, effect="read")], tree=tree), "kill_run")
    answer(tree, kill, "applied", at_ms=run.now_ms)
    run.now_ms += 60_000

    assert violations(tree, run.call("fetch", 1, 1, call_id="x1")) == 0


def test_a_model_call_counts_as_well() -> None:
    """No model call and no tool call can start once the gate is shut."""
    run = Run()
    tree = killed(run)

    assert violations(tree, run.model(duration_ms=999)) == 1


def test_a_begin_that_is_reckoned_has_the_benefit_of_a_second() -> None:
    """A duration that a framework measured leaves out what it did before: the gate had let the step through."""
    run = Run()
    tree = killed(run)

    assert violations(tree, run.model(duration_ms=1_000)) == 0


def test_a_batch_under_way_is_one_benefit_of_the_doubt() -> None:
    """Eight calls that end after the kill without saying when they began may all have been under way."""
    run = Run()
    tree = tree_of(first := run.start())
    steps = [first, *run.calls(8, effect="read")]
    kill = order_of(decide(steps, tree=tree), "kill_run")
    announced = run.model(8)
    decide([announced], tree=tree)
    answer(tree, kill, "applied", at_ms=run.now_ms)

    assert violations(tree, *[run.call("fetch", n, n) for n in range(8)]) == 0
    assert violations(tree, run.call("fetch", 9, 9)) == 1


def test_what_the_gate_refused_is_no_violation() -> None:
    """It is the proof that the gate is shut."""
    run = Run()
    tree = killed(run)

    assert violations(tree, *[run.call("fetch", n, n, outcome="blocked") for n in range(5)]) == 0


def test_another_incarnation_is_not_in_violation_of_the_old_kill() -> None:
    """A kill that names `a` does not bind `b`."""
    run = Run()
    tree = killed(run)
    run.incarnation, run.seq = "b", -1

    assert violations(tree, *[run.call("fetch", n, n, duration_ms=1) for n in range(3)]) == 0


def test_a_run_that_is_stopped_already_keeps_its_own_stop() -> None:
    """The kill of its tree comes later; what it does behind its own gate is a violation all the same."""
    boss, child = Run("boss"), Run("child", root="boss")
    tree = tree_of(first := boss.start(limits={"max_steps": 10}))
    kill = order_of(decide([first, child.start(), *child.calls(8, effect="read")], tree=tree), "kill_run")
    answer(tree, kill, "applied", at_ms=child.now_ms)
    decide([boss.call("fetch", n, n) for n in range(4)], tree=tree)

    assert violations(tree, child.call("fetch", 1, 1, duration_ms=1)) == 1


def test_a_child_born_while_its_tree_is_ended_is_bound_as_well() -> None:
    """A tree cannot outrun its kill by having children."""
    boss, child = Run("boss"), Run("child", root="boss")
    tree = tree_of(first := boss.start(limits={"max_steps": 2}))
    kill = order_of(decide([first, *boss.calls(3)], tree=tree), "kill_run")
    child.now_ms = boss.now_ms
    decisions = decide([child.start(), child.call("fetch", 1, 1)], tree=tree)
    assert orders(decisions) == []

    answer(tree, kill, "applied", at_ms=child.now_ms, run_id="child")
    assert violations(tree, *[child.call("fetch", n, n, duration_ms=1) for n in range(3)]) == 3


# -- approvals


def test_an_approved_call_is_counted_anew() -> None:
    """A person looked at this call, and at no other."""
    run = Run()
    steps = run.calls(7, effect="read")
    steps += [run.step("approval_wait", call_id="c9"), run.step("approval_end", call_id="c9", decision="approved")]
    steps += [run.call(call_id="c9", effect="read"), *run.calls(6, effect="read")]

    assert "kill" not in levels(decide(steps))


def test_an_approval_of_one_call_leaves_the_others_counted() -> None:
    """Writes are approved one by one while the reads between them go in circles."""
    run = Run()
    steps: list[AnyStep] = []
    for n in range(5):
        steps += [run.call("read", "a", "A", effect="read"), run.call("list", "b", "B", effect="read")]
        steps += [run.step("approval_end", call_id=f"w{n}", decision="approved")]

    assert "kill" in levels(decide(steps, only("cycle")))


def test_an_approved_call_leaves_the_cycle_that_it_was_in() -> None:
    """Its answers of before match nothing any more."""
    run = Run()
    lap = [("read", "a", "A"), ("edit", "b", "no")]
    steps = [run.call(*call) for _ in range(4) for call in lap]
    steps += [run.step("approval_end", call_id="w1", decision="approved")]
    steps += [run.call("read", "a", "A", call_id="w1"), run.call("edit", "b", "no")]

    assert "kill" not in levels(decide(steps, only("cycle")))


@pytest.mark.parametrize("decision", ["rejected", "expired", None, "postponed"])
def test_what_was_not_approved_counts_on(decision: str | None) -> None:
    """A rejection is no blessing."""
    run = Run()
    steps = run.calls(7, effect="read")
    steps += [run.step("approval_end", call_id="c9", decision=decision), run.call(call_id="c9", effect="read")]

    assert "kill" in levels(decide(steps, only("exact_repeat")))


def test_an_approval_without_a_call_is_for_the_run() -> None:
    """Nobody knows what was looked at, so everything is counted anew."""
    run = Run()
    steps = [*run.calls(7, effect="read"), run.step("approval_end", decision="approved"), *run.calls(7, effect="read")]

    assert "kill" not in levels(decide(steps))


# -- caps


def test_the_idlest_run_leaves_a_tree_that_is_full() -> None:
    """Ended ones first, the root never; what they used stays used."""
    boss = Run("boss")
    tree = tree_of(first := boss.start())
    steps = [first]
    for n in range(MAX_RUNS_PER_TREE + 10):
        child = Run(f"c{n}", root="boss")
        steps += [child.start(), child.call("fetch", n, n), *([child.end()] if n % 2 else [])]
    decide(steps, tree=tree)

    assert len(tree.runs) == MAX_RUNS_PER_TREE
    assert tree.evicted_runs == 11
    assert "boss" in tree.runs
    assert all(f"c{n}" in tree.runs for n in range(0, 20, 2))
    assert tree.attempts == MAX_RUNS_PER_TREE + 10


def test_a_run_that_left_and_comes_back_says_nothing_under_old_ids() -> None:
    """It starts anew, and so would its numbers."""
    looper = Run("looper", root="boss")
    tree = tree_of(first := looper.call("x", 1, 1))
    before = decide([first, *looper.calls(4, effect="read")], tree=tree)
    crowd = [Run(f"c{n}", root="boss") for n in range(MAX_RUNS_PER_TREE)]
    for child in crowd:
        child.now_ms = looper.now_ms + 1
    decide([child.start() for child in crowd], tree=tree)
    assert "looper" not in tree.runs
    after = decide(looper.calls(4, effect="read"), tree=tree)

    ids = [one.verdict.verdict_id for one in (*before, *after) if one.verdict is not None]
    assert len(set(ids)) == len(ids)


def test_calls_in_flight_are_capped() -> None:
    """A runtime that never reports an end does not fill the memory; attempts are counted all the same."""
    run = Run()
    steps = [run.step("tool_start", tool="fetch", call_id=f"c{n}") for n in range(500)]
    tree = tree_of(steps[0])
    decide(steps, tree=tree)

    assert tree.attempts == 500
    assert len(tree.runs["r1"].open_calls or ()) == MAX_OPEN_CALLS


def test_policy_can_change_between_two_steps() -> None:
    """It is read at every step: an operator who raises a mode is obeyed from the next one on."""
    run = Run()
    tree = tree_of(first := run.call(effect="read"))
    warned = decide([first, *run.calls(11, effect="read")], Policy(mode="warn"), tree=tree)

    assert "kill_run" not in orders(warned)
    assert orders(decide(run.calls(1, effect="read"), ENFORCE, tree=tree)) == ["kill_run"]
