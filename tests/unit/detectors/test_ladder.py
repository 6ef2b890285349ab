"""From findings to verdicts and orders."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests._support.steps import (
    ENFORCE,
    Run,
    answer,
    decide,
    levels,
    only,
    order_of,
    orders,
    tree_of,
    verdicts,
)

from loopwarden_detectors.answers import acknowledge
from loopwarden_detectors.ladder_state import MAX_LOOPS, MAX_STOPS_PER_LOOP
from loopwarden_detectors.run_state import TreeState
from loopwarden_models.acks import Ack
from loopwarden_models.events import AnyStep
from loopwarden_models.policy import Policy
from loopwarden_models.verdicts import Verdict


def reads(run: Run, n: int, args: str = "q") -> list[AnyStep]:
    """Return `n` equal calls of a declared read."""
    return run.calls(n, args=args, result="chapter one" if args == "q" else f"what {args} says", effect="read")


def ordered(steps: list[AnyStep], policy: Policy = ENFORCE, **options: Any) -> list[tuple[str, int]]:
    """Return each order with the count at which it was given."""
    decisions = decide(steps, policy, **options)
    return [(one.order.type, one.order.reason.count) for one in decisions if one.order is not None]


# -- rungs


def test_two_nudges_and_then_the_end() -> None:
    """The second nudge comes when the count has doubled, the kill at its own number, if each was heard and ignored."""
    #  count   2       3        5      6        8
    #  said    observe nudge    break           kill
    #  order           nudge           nudge    kill
    assert ordered(reads(Run(), 40)) == [("nudge", 3), ("nudge", 6), ("kill_run", 8)]


def test_a_nudge_that_nobody_answered_is_waited_for() -> None:
    """Thirty seconds without an acknowledgement: it may never have reached the model, but the loop goes on."""
    #  the second nudge at call 6 = 12 s, thirty seconds later is call 21
    assert ordered(reads(Run(), 40), heed=False) == [("nudge", 3), ("nudge", 6), ("kill_run", 21)]


@pytest.mark.parametrize("status", ["expired", "unsupported", "failed", "stale", "noop"])
def test_a_nudge_that_could_not_be_delivered_is_not_waited_for(status: str) -> None:
    """The ladder goes on at the kill's own number."""
    run = Run()
    tree = tree_of(first := run.call(effect="read"))
    nudged = decide([first, *reads(run, 5)], tree=tree, heed=False)
    answer(tree, order_of(nudged, "nudge"), status)

    assert ordered(reads(run, 4), tree=tree, heed=False) == [("kill_run", 8)]


def test_received_is_not_applied() -> None:
    """A runtime that has read the nudge promises nothing yet: the model has not seen it."""
    run = Run()
    tree = tree_of(first := run.call(effect="read"))
    nudged = decide([first, *reads(run, 5)], tree=tree, heed=False)
    answer(tree, order_of(nudged, "nudge"), "received")

    assert ordered(reads(run, 5), tree=tree, heed=False) == []


def test_the_loop_must_come_back_twice_after_the_model_was_told() -> None:
    """What was under way when the nudge arrived is not disobedience."""
    run = Run()
    tree = tree_of(first := run.call(effect="read"))
    nudged = decide([first, *reads(run, 8)], tree=tree, heed=False)
    answer(tree, order_of(nudged, "nudge"), "applied")

    assert ordered(reads(run, 4), tree=tree, heed=False) == [("kill_run", 11)]


def test_another_loop_starts_with_its_own_two_nudges() -> None:
    """A run must not be ended for the warning that another loop got."""
    run = Run()

    assert ordered([*reads(run, 7, "a"), *reads(run, 7, "b")]) == [("nudge", 3), ("nudge", 6)] * 2


def test_a_loop_that_comes_back_after_a_prompt_is_known() -> None:
    """A person's turn forgets the counts, not what was ordered."""
    run = Run()

    assert ordered([*reads(run, 7), run.user(), *reads(run, 9)]) == [("nudge", 3), ("nudge", 6), ("kill_run", 8)]


def test_a_run_gets_six_nudges_and_no_more() -> None:
    """Advice itself can become the loop. After the last, the kill's own number counts."""
    run = Run()
    steps = [step for n in range(8) for step in reads(run, 5, f"question {n}")]
    assert ordered(steps) == [("nudge", 3)] * 6

    assert ordered([*steps, *reads(run, 8, "question 9")])[-1] == ("kill_run", 8)


def test_one_message_tells_of_all_that_was_seen_at_a_step() -> None:
    """A call that fails in the same way is repeated and an error: one nudge, and both climb from there."""
    run = Run()
    decisions = decide(run.calls(9, fails="no match", effect="write"))

    assert [verdict.detector for verdict in verdicts(decisions) if verdict.level == "nudge"][:2] == [
        "exact_repeat",
        "same_error",
    ]
    assert orders(decisions) == ["nudge", "nudge", "kill_run"]


# -- what is said


def test_a_verdict_is_said_when_something_changed() -> None:
    """The level rises, or the count has doubled: forty laps are six verdicts."""
    found = verdicts(decide(reads(Run(), 40), only("exact_repeat", "shadow")))

    assert [(verdict.level, verdict.evidence.count) for verdict in found] == [
        ("observe", 2),
        ("nudge", 3),
        ("break", 5),
        ("kill", 8),
        ("kill", 16),
        ("kill", 32),
    ]
    assert [verdict.episode for verdict in found] == [1, 2, 3, 4, 5, 6]


def test_an_order_without_news_has_a_verdict_of_its_own() -> None:
    """Every order can be found among the verdicts, by its id."""
    decisions = decide(reads(Run(), 8))
    given = [decision for decision in decisions if decision.order is not None]

    assert [decision.verdict.command_id for decision in given if decision.verdict] == [
        decision.order.command_id for decision in given if decision.order
    ]
    assert [decision.verdict.level for decision in given if decision.verdict] == ["nudge", "nudge", "kill"]


def test_equal_events_give_equal_ids() -> None:
    """What is processed again after a crash is said again, not anew; another run's or incarnation's is another."""
    tenants = [decide(reads(Run(tenant=tenant), 8)) for tenant in ("acme", "acme", "other")]
    ids = [[verdict.verdict_id for verdict in verdicts(decisions)] for decisions in tenants]
    commands = [{one.order.command_id for one in decisions if one.order} for decisions in tenants]

    assert ids[0] == ids[1]
    assert len(set(ids[0])) == len(ids[0])
    assert not set(ids[0]) & set(ids[2])
    assert commands[0] == commands[1] != commands[2]


def test_all_that_is_said_fits_the_wire() -> None:
    """A reader refuses what is longer than the contract allows, and then nobody sees it."""
    run = Run("r" * 128)
    tool = "\U0001f527" * 256
    steps = [run.start(limits={"max_steps": 12})]
    steps += [
        step
        for n in range(6)
        for step in (run.call(tool, "a", fails="no"), run.call(f"{tool[:-1]}{n % 2}", "b", fails="x"))
    ]
    steps += run.calls(9, tool)
    decisions = decide(steps)

    assert {verdict.detector for verdict in verdicts(decisions)} >= {"exact_repeat", "same_error", "budget"}
    for verdict in verdicts(decisions):
        assert msgspec.json.decode(msgspec.json.encode(verdict), type=Verdict) == verdict
    for decision in decisions:
        if decision.order is not None:
            reason = decision.order.reason
            assert msgspec.json.decode(msgspec.json.encode(reason), type=type(reason)) == reason


# -- modes


def test_shadow_says_and_does_nothing() -> None:
    """Decide and record, so that precision is known before anything is enforced."""
    decisions = decide(reads(Run(), 20), Policy(mode="shadow"))

    assert levels(decisions) == ["observe", "nudge", "break", "kill", "kill"]
    assert orders(decisions) == []
    assert {verdict.mode for verdict in verdicts(decisions)} == {"shadow"}


def test_warn_nudges_and_says_what_it_would_have_done() -> None:
    """A first deployment: the kill is recorded, not ordered."""
    decisions = decide(reads(Run(), 20), Policy(mode="warn"))

    assert "kill" in levels(decisions)
    assert orders(decisions) == ["nudge", "nudge"]


def test_off_says_nothing() -> None:
    """Neither a verdict nor a trace in the state: it costs nothing."""
    run = Run()
    tree = tree_of(first := run.call(effect="read"))

    assert decide([first, *reads(run, 20)], Policy(mode="off"), tree=tree) == []
    assert tree.runs["r1"].loops is None


def test_one_detector_may_differ_from_the_others() -> None:
    """Kills are reviewed detector by detector."""
    policy = Policy.from_builtins({"mode": "warn", "exact_repeat": {"mode": "enforce"}})

    assert ordered(reads(Run(), 9), policy)[-1] == ("kill_run", 8)


def test_what_is_old_is_judged_in_shadow() -> None:
    """A detector that comes back with a day of backlog must not stop today's runs for yesterday's steps."""
    decisions = decide(reads(Run(), 20), act=False)

    assert "kill" in levels(decisions)
    assert {verdict.mode for verdict in verdicts(decisions)} == {"shadow"}
    assert orders(decisions) == []


def test_when_the_backlog_is_through_the_rung_that_is_due_is_taken() -> None:
    """The first nudge, not the kill that the count would allow; for a hard limit the end, and at once."""
    run = Run()
    tree = tree_of(first := run.start(limits={"max_cost_usd": 1.0}))
    decide([first, *reads(run, 20)], act=False, tree=tree)
    assert ordered(reads(run, 1), tree=tree) == [("nudge", 21)]

    spent = Run("r2")
    tree = tree_of(first := spent.start(limits={"max_cost_usd": 1.0}))
    decide([first, spent.call(cost_usd=2.0)], act=False, tree=tree)
    assert ordered([spent.call("other", "x", "y")], tree=tree) == [("kill_run", 200)]


# -- attended runs


def test_where_a_person_is_watching_the_run_waits() -> None:
    """Nothing is thrown away that a person could still put right."""
    run = Run()

    assert ordered([run.start(attended=True), *reads(run, 40)]) == [("nudge", 3), ("nudge", 6), ("pause_run", 8)]


def test_a_hard_limit_ends_an_attended_run_too() -> None:
    """It was agreed on."""
    run = Run()

    assert orders(decide([run.start(attended=True, limits={"max_steps": 2}), *reads(run, 3)]))[-1] == "kill_run"


def test_a_paused_run_that_goes_on_was_resumed_by_a_person() -> None:
    """It is counted anew, and may be paused again: another order, with another id."""
    run = Run()
    tree = tree_of(first := run.start(attended=True))
    paused = order_of(decide([first, *reads(run, 8)], tree=tree), "pause_run")
    answer(tree, paused, "applied", at_ms=run.now_ms + 100)
    run.now_ms += 60_000
    decisions = decide([run.model(duration_ms=900), *reads(run, 8)], tree=tree)

    assert "break" in levels(decisions)
    assert orders(decisions) == ["pause_run"]
    assert order_of(decisions, "pause_run").command_id != paused.command_id


def test_a_pause_stops_the_clock() -> None:
    """A person may take an hour to look; the run's time limit is not for people."""
    run = Run()
    tree = tree_of(first := run.start(attended=True, limits={"max_duration_ms": 120_000}))
    paused = order_of(decide([first, *reads(run, 8)], tree=tree), "pause_run")
    answer(tree, paused, "applied", at_ms=run.now_ms)
    run.now_ms += 3_600_000

    assert orders(decide([run.model()], tree=tree)) == []
    assert tree.active_ms() < 60_000


# -- what is not known for sure


def test_a_run_made_from_spans_is_never_ended() -> None:
    """Without content the evidence is thin: a nudge at most, also at a hard limit."""
    run = Run()
    run.fidelity = "low"
    decisions = decide([run.start(limits={"max_steps": 5}), *reads(run, 40)])

    assert set(levels(decisions)) == {"observe", "nudge"}
    assert set(orders(decisions)) == {"nudge"}


def test_hashes_alone_have_the_full_ladder() -> None:
    """Equality needs no content."""
    run = Run()
    run.fidelity = "hash"
    steps = [run.call(args=None, result=None, args_hash="a", result_hash="b", effect="read") for _ in range(9)]

    assert ordered(steps)[-1] == ("kill_run", 8)


# -- the end of a run


def test_a_kill_names_the_run_and_its_incarnation() -> None:
    """What comes later under the same name is not hit by it."""
    order = order_of(decide(reads(Run(), 8)), "kill_run")

    assert (order.run_id, order.root_run_id, order.incarnation, order.scope) == ("r1", "r1", "a", "run")
    assert (order.ttl_ms, order.grace_ms, order.message_id) == (120_000, 5_000, None)
    assert order.reason.tool == "search"


def test_a_run_without_incarnations_is_meant_in_any() -> None:
    """A runtime that never sends one would refuse an order for an empty one."""
    run = Run()
    run.incarnation = None

    assert order_of(decide(reads(run, 8)), "kill_run").incarnation == "*"


def test_a_kill_that_may_still_land_is_not_repeated() -> None:
    """One order; whoever publishes it repeats it under the same id."""
    assert orders(decide(reads(Run(), 60))).count("kill_run") == 1


@pytest.mark.parametrize("status", ["expired", "stale", "unsupported"])
def test_a_kill_that_was_not_carried_out_is_followed_by_another(status: str) -> None:
    """With a new id: a runtime applies an id once. After three it is the alarm's turn."""
    run = Run()
    tree = tree_of(first := run.call(effect="read"))
    decisions = decide([first, *reads(run, 7)], tree=tree)
    ids = set()
    for _ in range(MAX_STOPS_PER_LOOP + 2):
        for decision in decisions:
            if decision.order is not None and decision.order.type == "kill_run":
                ids.add(decision.order.command_id)
                answer(tree, decision.order, status)
        decisions = decide(reads(run, 1), tree=tree)

    assert len(ids) == MAX_STOPS_PER_LOOP


def test_a_kill_that_nobody_answered_within_its_life_is_followed_by_another() -> None:
    """The command has expired by then, and the run is seen to go on."""
    run = Run()
    run.gap_ms = 20_000
    kills = [order for order in ordered(reads(run, 40)) if order[0] == "kill_run"]

    assert kills == [("kill_run", 8), ("kill_run", 14), ("kill_run", 20)]


def test_an_applied_kill_ends_the_orders() -> None:
    """What goes on behind a gate that is shut is a violation, answered once, and no matter for the ladder."""
    run = Run()
    tree = tree_of(first := run.call(effect="read"))
    kill = order_of(decide([first, *reads(run, 7)], tree=tree), "kill_run")
    answer(tree, kill, "applied", at_ms=run.now_ms)
    decisions = decide(reads(run, 200), tree=tree)

    assert [(order.scope, order.is_wider) for one in decisions if (order := one.order)] == [("tree", True)]
    # The first may have been under way when the gate shut: nothing tells when it began.
    assert sum(decision.is_violation for decision in decisions) == 199


def test_an_acknowledgement_shuts_the_gate_once() -> None:
    """The run's record is written when `applied` comes, not again with `confirmed_dead` or a repetition."""
    run = Run()
    tree = tree_of(first := run.call(effect="read"))
    kill = order_of(decide([first, *reads(run, 7)], tree=tree), "kill_run")
    answers = [
        acknowledge(tree, Ack(v=1, command_id=kill.command_id, tenant="acme", run_id="r1", status=status, at_ms=7))
        for status in ("received", "applied", "applied", "confirmed_dead")
    ]

    assert [stop is not None for stop in answers] == [False, True, False, False]
    stop = tree.runs["r1"].stop
    assert stop is not None
    assert (stop.applied_ms, stop.is_dead) == (7, True)


def test_an_acknowledgement_of_a_stranger_is_nothing() -> None:
    """Of a command that is not known, or of a run that is not held any more."""
    run = Run()
    tree = tree_of(first := run.call(effect="read"))
    kill = order_of(decide([first, *reads(run, 7)], tree=tree), "kill_run")
    before = tree.to_bytes()
    answer(tree, kill, "applied", run_id="nobody")
    kill = msgspec.structs.replace(kill, command_id="f" * 32)
    answer(tree, kill, "applied")

    assert tree.to_bytes() == before


def test_a_tree_kill_binds_every_run_and_each_answers_for_itself() -> None:
    """One command, one acknowledgement per run: a child whose gate is open is not in violation."""
    boss, child = Run("boss"), Run("child", root="boss")
    tree = tree_of(first := boss.start(limits={"max_steps": 3}))
    kill = order_of(decide([first, child.start(), *reads(child, 4)], tree=tree), "kill_run")
    answer(tree, kill, "applied", at_ms=child.now_ms, run_id="boss")
    assert not any(decision.is_violation for decision in decide(reads(child, 2), tree=tree))

    answer(tree, kill, "applied", at_ms=child.now_ms, run_id="child")
    assert any(decision.is_violation for decision in decide(reads(child, 2), tree=tree))


def test_a_limit_of_the_tree_reaches_children_of_a_run_that_is_ended_already() -> None:
    """The root was stopped for a loop; its children spend on, and the tree's limit is theirs as well."""
    boss, child = Run("boss"), Run("child", root="boss")
    tree = tree_of(first := boss.start(limits={"max_steps": 12}))
    kill = order_of(decide([first, *reads(boss, 8)], tree=tree), "kill_run")
    answer(tree, kill, "applied", at_ms=boss.now_ms)
    decisions = decide([child.start(), *[child.call("fetch", n, n) for n in range(6)]], tree=tree)

    assert order_of(decisions, "kill_run").scope == "tree"


def test_a_hard_limit_is_not_kept_waiting_by_a_loop() -> None:
    """The loop's nudge is still unanswered when the money is gone."""
    run = Run()
    steps = [run.start(limits={"max_cost_usd": 1.0}), *[run.call(cost_usd=0.125, effect="read") for _ in range(8)]]

    assert ordered(steps, heed=False)[-1] == ("kill_run", 100)


# -- memory


def test_nudged_loops_are_remembered_before_the_others() -> None:
    """A stream of harmless repetitions must not make the ladder forget whom it has warned."""
    run = Run()
    warned = reads(run, 4)
    noise = [step for n in range(3 * MAX_LOOPS) for step in reads(run, 2, f"noise {n}")]

    given = ordered([*warned, *noise, *reads(run, 9)], only("exact_repeat"))
    assert given == [("nudge", 3), ("nudge", 6), ("kill_run", 8)]


def test_what_is_forgotten_never_gets_the_same_id_again() -> None:
    """Two verdicts with one id are one to every reader; a second nudge with the first one's id would be ignored."""
    run = Run()
    steps = [step for lap in range(3) for n in range(2 * MAX_LOOPS) for step in reads(run, 4, f"question {n}")]
    policy = Policy.from_builtins({"mode": "enforce", "ladder": {"max_nudges_per_run": 100}})
    decisions = decide(steps, policy)
    said = [verdict.verdict_id for verdict in verdicts(decisions)]
    given = [decision.order.command_id for decision in decisions if decision.order is not None]

    assert len(said) > 100
    assert len(set(said)) == len(said)
    assert len(given) > 2 * MAX_LOOPS
    assert len(set(given)) == len(given)


def test_the_state_of_the_ladder_survives() -> None:
    """Between any two steps a worker may die: the next one goes on where it was."""
    run = Run()
    steps = reads(run, 12)
    undisturbed = [(verdict.verdict_id, verdict.command_id) for verdict in verdicts(decide(steps))]
    tree, said = tree_of(steps[0]), []
    for step in steps:
        said += verdicts(decide([step], tree=tree))
        tree = TreeState.from_bytes(tree.to_bytes())

    assert [(verdict.verdict_id, verdict.command_id) for verdict in said] == undisturbed


def test_a_policys_own_words_go_out_with_the_nudge() -> None:
    """The runtime's text stays named: whoever may not show free words shows that."""
    words = {"exact_repeat": "{tool} said it {count} times."}
    policy = Policy.from_builtins({"mode": "enforce", "agents": {"poet": {"nudges": words}}})
    poet, other = Run("p1"), Run("o1")

    told = order_of(decide([poet.start(agent="poet"), *poet.calls(3)], policy), "nudge")
    assert (told.message, told.message_id) == ("search said it 3 times.", "nudge.exact_repeat")
    plain = order_of(decide([other.start(agent="clerk"), *other.calls(3)], policy), "nudge")
    assert (plain.message, plain.message_id) == (None, "nudge.exact_repeat")
