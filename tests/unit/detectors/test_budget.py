"""Limits of a run's tree, counted from outside."""

from __future__ import annotations

from typing import Any

import pytest
from tests._support.steps import ENFORCE, Run, decide, levels, only, order_of, orders, tree_of, verdicts

from loopwarden_detectors import watch
from loopwarden_models.events import AnyStep
from loopwarden_models.policy import Policy

BUDGET = only("budget")


def work(run: Run, n: int, **fields: Any) -> list[AnyStep]:
    """Return `n` different calls."""
    return [run.call("fetch", run.seq, run.seq, **fields) for _ in range(n)]


def said(steps: list[AnyStep], policy: Policy = BUDGET) -> list[str]:
    """Return the levels that this rule says on the steps."""
    return levels(decide(steps, policy), "budget")


def test_declared_steps_may_all_be_used() -> None:
    """Ten were granted: the eighth is observed, the ninth nudged, and the eleventh is the one too many."""
    #  step   1 … 7  8        9      10   11
    #                observe  nudge       kill
    for used, expected in {7: 0, 8: 1, 9: 2, 10: 2, 11: 3}.items():
        run = Run()
        steps = [run.start(limits={"max_steps": 10}), *work(run, used)]

        assert said(steps) == ["observe", "nudge", "kill"][:expected]


def test_a_hard_limit_needs_no_nudge_before_it() -> None:
    """One picture costs twice the budget: neither veto nor ladder stands between it and the end."""
    run = Run()
    steps = [run.start(limits={"max_cost_usd": 1.0}), run.step("progress"), run.call(cost_usd=2.0)]

    assert orders(decide(steps)) == ["kill_run"]


@pytest.mark.parametrize(
    ("limits", "step"),
    [
        ({"max_cost_usd": 1.0}, {"kind": "model_end", "cost_usd": 0.25}),
        ({"max_tokens": 1_000}, {"kind": "model_end", "usage": {"input_tokens": 200, "output_tokens": 50}}),
        ({"max_model_calls": 3}, {"kind": "model_end"}),
        ({"max_duration_ms": 8_000}, {"kind": "model_end"}),
    ],
    ids=["cost", "tokens", "model calls", "time"],
)
def test_each_limit_ends_the_run_at_the_fourth(limits: dict[str, Any], step: dict[str, Any]) -> None:
    """Tokens, cost and time are known afterwards: reached is over. Of model calls all that were granted may be made."""
    run = Run()
    decisions = decide([run.start(limits=limits), *[run.step(**step) for _ in range(4)]])

    assert orders(decisions[:-1]) in ([], ["nudge"])
    assert orders(decisions)[-1] == "kill_run"
    assert verdicts(decisions)[-1].evidence.limit == next(iter(limits))


def test_a_cost_that_nobody_reports_is_unknown() -> None:
    """A flat-rate plan reports nothing, or zero: the limit in dollars says nothing, the one in tokens holds."""
    run = Run()
    limits = {"max_cost_usd": 0.0, "max_tokens": 1_000}
    usage = {"input_tokens": 100}
    steps = [run.start(limits=limits), *[run.model(usage=usage, cost_usd=cost) for cost in (0, None) * 5]]
    found = verdicts(decide(steps), "budget")

    assert {verdict.evidence.limit for verdict in found} == {"max_tokens"}
    assert found[-1].level == "kill"


def test_a_limit_of_nothing_allows_nothing() -> None:
    """Zero steps: the first is one too many, and the start alone is none."""
    run = Run()

    assert said([run.start(limits={"max_steps": 0}), run.model()]) == []
    assert said([run.start(limits={"max_steps": 0}), run.call()]) == ["kill"]


def test_the_smallest_positive_limit_does_not_overflow() -> None:
    """A runtime may declare anything that is a number."""
    run = Run()
    [verdict] = verdicts(decide([run.start(limits={"max_cost_usd": 5e-324}), run.call(cost_usd=1e9)], BUDGET))[:1]

    assert verdict.evidence.count == 1_000_000


def test_attempts_count_when_they_start() -> None:
    """Eight sent off at once with three left: by their ends the whole batch would slip through."""
    run = Run()
    steps = [run.start(limits={"max_steps": 10}), *work(run, 7)]
    steps += [run.step("tool_start", tool="sms", call_id=f"m{n}") for n in range(8)]
    decisions = decide(steps)

    assert order_of(decisions, "kill_run").reason.note == "11 of 10 tool calls used"


@pytest.mark.parametrize("call_id", ["c1", None])
def test_a_start_and_its_end_are_one_call(call_id: str | None) -> None:
    """Paired by id, or one to one where there is none."""
    run = Run()
    steps: list[AnyStep] = [run.start()]
    for n in range(5):
        own = call_id and f"{call_id}-{n}"
        steps += [run.step("tool_start", tool="fetch", call_id=own), run.call("fetch", n, n, call_id=own)]
    tree = tree_of(steps[0])
    decide(steps, tree=tree)

    assert tree.attempts == 5


def test_a_node_that_runs_again_after_a_resume_counts_once() -> None:
    """It reports the ids of before, starts included."""
    run = Run()
    first = [
        run.start(),
        run.step("tool_start", tool="fetch", call_id="c1"),
        run.call("fetch", call_id="c1", cost_usd=1.0),
    ]
    again = [
        run.resume("b"),
        run.step("tool_start", tool="fetch", call_id="c1"),
        run.call("fetch", call_id="c1", cost_usd=1.0),
    ]
    tree = tree_of(first[0])
    decide([*first, *again], tree=tree)

    assert (tree.attempts, tree.cost_usd) == (1, 1.0)


def test_refused_calls_are_attempts() -> None:
    """What a framework did not let through was tried, and counts."""
    run = Run()
    refused = [run.start(limits={"max_steps": 4}), *work(run, 5, outcome="denied")]

    assert said(refused)[-1] == "kill"


def test_the_policys_own_steps_are_graded() -> None:
    """60 observe, 80 nudge; 1,000 are granted, and the next one is over."""
    run = Run()
    decisions = decide([run.start(), *work(run, 1_001)], BUDGET)
    found = verdicts(decisions)

    assert [(verdict.level, verdict.evidence.count) for verdict in found if verdict.episode] == [
        ("observe", 60),
        ("nudge", 80),
        ("nudge", 160),
        ("nudge", 320),
        ("nudge", 640),
        ("kill", 1_001),
    ]
    assert orders(decisions) == ["nudge", "nudge", "kill_run"]


def test_at_a_hundred_a_run_that_is_stuck_ends() -> None:
    """Another rule must see something at that moment: a repeat ninety steps ago is no sign."""
    run = Run()
    healthy = [run.start(), *run.calls(2), *work(run, 110)]
    assert "kill" not in said(healthy, ENFORCE)

    run = Run()
    stuck = [run.start(), *work(run, 99), *run.calls(4)]
    assert "kill" in said(stuck, ENFORCE)


@pytest.mark.parametrize("allowed", [0, 6, 59, 60, 70, 90])
def test_the_policys_own_limit_holds_wherever_it_lies(allowed: int) -> None:
    """Below the steps that are observed and advised, too: an operator who writes six does not mean sixty."""
    for layer in ({}, {"tools": {"fetch": {"exact_repeat": {"nudge": 4}}}}):
        policy = Policy.from_builtins({"mode": "enforce", "budget": {"limits": {"max_steps": allowed}}, **layer})
        run = Run()
        steps = [run.start(), *work(run, allowed + 1, effect="read")]

        assert "kill_run" not in orders(decide(steps[:-1], policy))
        (kill,) = [one.order for one in decide(steps, policy) if one.order and one.order.type == "kill_run"]
        assert kill.reason.count == allowed + 1


def test_a_declared_limit_takes_the_place_of_the_policys() -> None:
    """Who declares 500 steps has thought about it: sixty are no news."""
    run = Run()

    assert said([run.start(limits={"max_steps": 500}), *work(run, 300)]) == []


def test_what_is_not_declared_is_the_policys() -> None:
    """A limit in tokens does not lift the one in dollars, nor the graded steps."""
    run = Run()

    assert said([run.start(limits={"max_tokens": 10}), run.call(cost_usd=3.0)]) == ["kill"]
    assert said([run.resume("b", limits={"max_tokens": 10}), *work(run, 60)]) == ["observe"]


def test_a_tree_draws_on_one_budget() -> None:
    """Three children of four steps each use up ten; the order is for the root, and for all below it."""
    boss = Run("boss")
    steps = [boss.start(limits={"max_steps": 10})]
    for name in ("a", "b", "c"):
        child = Run(name, root="boss")
        steps += [child.start(), *work(child, 4)]
    decisions = decide(steps)
    order = order_of(decisions, "kill_run")

    assert (order.run_id, order.scope, order.incarnation) == ("boss", "tree", "a")
    assert verdicts(decisions)[-1].run_id == "boss"


def test_a_child_has_limits_of_its_own_besides() -> None:
    """The child's limit ends the child and nobody else, and its siblings' steps do not count against it."""
    boss, one, two = Run("boss"), Run("one", root="boss"), Run("two", root="boss")
    steps = [boss.start(limits={"max_steps": 100})]
    steps += [child.start(limits={"max_steps": 12}) for child in (one, two)]
    steps += [step for _ in range(12) for child in (one, two) for step in work(child, 1)]
    assert "kill" not in said(steps)

    decisions = decide([*steps, *work(one, 1)])
    order = order_of(decisions, "kill_run")

    assert (order.run_id, order.scope) == ("one", "run")
    assert order.reason.note == "13 of its own 12 tool calls used"


def test_the_roots_limit_binds_a_child_with_a_larger_one() -> None:
    """A library's generous default must not lift what the root allows."""
    boss, child = Run("boss"), Run("child", root="boss")
    steps = [boss.start(limits={"max_model_calls": 4}), child.start(limits={"max_model_calls": 50})]

    assert "kill" in said([*steps, *[child.model() for _ in range(5)]])


def test_without_the_root_the_order_is_for_any_incarnation() -> None:
    """If no event of the root was seen, nobody knows under which incarnation it runs."""
    child = Run("child", root="boss")
    order = order_of(decide([child.call(cost_usd=5.0)]), "kill_run")

    assert (order.run_id, order.incarnation) == ("boss", "*")


def test_a_resume_gives_nothing_back() -> None:
    """Eight of ten are used: the new incarnation has two."""
    run = Run()
    limits = {"max_steps": 10}
    steps = [run.start(limits=limits), *work(run, 8), run.resume("b", limits=limits), *work(run, 3)]

    assert said(steps)[-1] == "kill"


def test_a_raised_limit_leaves_the_difference() -> None:
    """Stopped at ten, raised to fifteen by a person: five are left, and all is said again of the new limit."""
    run = Run()
    steps = [
        run.start(limits={"max_steps": 10}),
        *work(run, 11),
        run.resume("b", limits={"max_steps": 15}),
        *work(run, 5),
    ]
    found = verdicts(decide(steps))

    assert [verdict.level for verdict in found if verdict.episode][-3:] == ["observe", "nudge", "kill"]
    assert found[-1].evidence.used == 16


def test_a_level_is_said_once_whatever_a_person_says() -> None:
    """A budget is no repetition: it does not begin anew with every prompt."""
    run = Run()
    steps = [run.start(limits={"max_steps": 100}), *work(run, 80)]
    steps += [step for _ in range(4) for step in (run.user(), *work(run, 1))]

    assert said(steps) == ["observe"]


def test_waiting_for_a_person_is_not_working() -> None:
    """The hour of the approval does not count, the minutes before and after do."""
    run = Run()
    steps = [run.start(limits={"max_duration_ms": 600_000}), run.step("approval_wait", call_id="c1")]
    run.now_ms += 3_600_000
    steps += [run.step("approval_end", call_id="c1", decision="approved"), *work(run, 5)]
    assert said(steps) == []

    run.now_ms += 600_000
    assert said([*steps, *work(run, 1)]) == ["kill"]


def test_two_waits_at_once_are_one() -> None:
    """Time is not taken off twice when two approvals are pending, and not given back when one ends."""
    run = Run()
    tree = tree_of(start := run.start())
    steps = [start, run.step("approval_wait", call_id="c1"), run.step("approval_wait", call_id="c2")]
    steps += [run.step("approval_end", call_id="c1"), run.step("approval_end", call_id="c2"), run.model()]
    decide(steps, tree=tree)

    #  start  wait1  wait2  end1  end2  model      2 s apart: from the first wait to the last end are 6 s
    assert (tree.active_ms(), tree.waits) == (4_000, 0)


@pytest.mark.parametrize(
    "lost",
    [
        lambda run: run.end("failed"),
        lambda run: run.resume("b"),
        lambda run: run.call(call_id="c1"),
        lambda run: run.step("approval_end"),
    ],
    ids=["run ended", "run resumed", "call ended", "end without an id"],
)
def test_a_wait_whose_end_is_lost_does_not_stop_the_clock_for_ever(lost: Any) -> None:
    """Otherwise the wall-clock limit of that tree would be off from there on."""
    run = Run()
    tree = tree_of(start := run.start())
    decide([start, run.step("approval_wait", call_id="c1"), lost(run), run.model()], tree=tree)

    assert tree.waits == 0
    assert tree.active_ms() > 0


def test_the_end_of_an_unknown_wait_ends_no_other() -> None:
    """An approval that nobody waited for says nothing about the one that is pending."""
    run = Run()
    tree = tree_of(start := run.start())
    decide([start, run.step("approval_wait", call_id="c1"), run.step("approval_end", call_id="c9")], tree=tree)

    assert tree.waits == 1


def test_a_tick_sees_a_limit_that_no_event_passes() -> None:
    """A run that is silent still uses up its time."""
    run = Run()
    tree = tree_of(start := run.start(limits={"max_duration_ms": 60_000}))
    decide([start], tree=tree)

    assert not watch.tick(tree, run.now_ms + 10_000, ENFORCE)
    decisions = watch.tick(tree, run.now_ms + 60_000, ENFORCE)

    assert orders(decisions) == ["kill_run"]
    assert verdicts(decisions)[-1].at_ms == run.now_ms + 60_000
    assert not watch.tick(tree, run.now_ms + 61_000, ENFORCE)


def test_a_tick_is_no_event() -> None:
    """It moves no clock: the events that come after it are judged as if it had not been."""
    run = Run()
    tree = tree_of(start := run.start(limits={"max_duration_ms": 600_000}))
    decide([start], tree=tree)
    before = tree.to_bytes()
    watch.tick(tree, run.now_ms + 100_000, ENFORCE)

    assert tree.to_bytes() == before


def test_a_tick_says_nothing_about_a_tree_that_is_over_or_has_no_limit() -> None:
    """Nothing can be stopped any more, or nothing was promised."""
    run = Run()
    over = tree_of(start := run.start(limits={"max_duration_ms": 1}))
    decide([start, run.end()], BUDGET, tree=over)
    free = tree_of(start := Run().start())
    decide([start], BUDGET, tree=free)

    assert not watch.tick(over, run.now_ms + 10**9, BUDGET)
    assert not watch.tick(free, run.now_ms + 10**9, BUDGET)


def test_a_tick_sees_a_childs_own_limit() -> None:
    """The child alone is ended for it."""
    boss, child = Run("boss"), Run("child", root="boss")
    steps = [boss.start(), child.start(limits={"max_duration_ms": 60_000})]
    tree = tree_of(steps[0])
    decide(steps, tree=tree)
    order = order_of(watch.tick(tree, child.now_ms + 60_000, ENFORCE), "kill_run")

    assert (order.run_id, order.scope) == ("child", "run")


def test_a_first_event_from_a_slow_clock_uses_up_nothing() -> None:
    """A source whose clock was days behind sets it: the days are not the run's."""
    run = Run()
    run.now_ms -= 10 * 86_400_000
    first = run.start(limits={"max_duration_ms": 7_200_000})
    run.now_ms += 10 * 86_400_000
    steps = [first, *work(run, 3)]

    assert said(steps) == ["kill"]
    assert levels(decide(steps, BUDGET, latest_ms=run.now_ms)) == []


def test_sums_stay_within_what_a_snapshot_can_hold() -> None:
    """A hostile runtime reports the largest number again and again."""
    run = Run()
    usage = {"input_tokens": 2**53 - 1, "output_tokens": 2**53 - 1}
    tree = tree_of(start := run.start())
    decide([start, *[run.model(usage=usage, cost_usd=1e9) for _ in range(3_000)]], tree=tree)

    assert type(tree).from_bytes(tree.to_bytes()) == tree


def spawned(parent: Run, n: int, name: str = "child") -> list[AnyStep]:
    """Return the starts of `n` children of a run."""
    root = parent.root or parent.run_id
    return [Run(f"{name}-{k}", root=root).start(parent_run_id=parent.run_id) for k in range(n)]


@pytest.mark.parametrize("reported", [True, False])
def test_output_is_a_spend_of_its_own(reported: bool) -> None:
    """A debug log with every call: neither tokens nor dollars show it. Reached is over, cut or not."""

    #  megabytes   10 … 30  40       45     50
    #                       observe  nudge  kill
    def put_out(run: Run, megabytes: int) -> AnyStep:
        if reported:
            return run.call("bash", run.seq, f"{run.seq} (cut)", result_bytes=megabytes * 1_000_000)
        return run.call("bash", run.seq, "x" * (megabytes * 1_000 - 2))

    policy = only("budget") if reported else Policy.from_builtins({"budget": {"limits": {"max_output_bytes": 50_000}}})
    run = Run()
    tree = tree_of(first := run.start())
    decide([first], policy, tree=tree)
    for megabytes, expected in [(10, 0), (20, 0), (10, 1), (5, 2), (4, 2), (1, 3)]:
        decisions = decide([put_out(run, megabytes)], policy, tree=tree)
        assert len(tree.loops or ()) == (expected > 0)
        assert max([0, *[loop.asked for loop in tree.loops or ()]]) == [0, 1, 2, 5][expected]

    assert verdicts(decisions, "budget")[0].evidence.limit == "max_output_bytes"


def test_output_is_counted_to_the_end() -> None:
    """Whatever a runtime reports fits into a snapshot."""
    run = Run()
    tree = tree_of(first := run.start())
    decide([first, *[run.call(n, n, result_bytes=2**53 - 1) for n in map(str, range(4))]], BUDGET, tree=tree)

    assert tree.output_bytes == 2**53 - 1


def test_a_tree_of_many_levels_is_ended() -> None:
    """Agents that start agents: told of at four levels, ended at the seventh of six; nothing is advised."""
    boss = Run("boss")
    steps, parent = [boss.start()], "boss"
    for level in range(2, 9):
        child = Run(f"level-{level}", root="boss")
        steps.append(child.start(parent_run_id=parent))
        parent = child.run_id
    for levels_deep, expected in {3: 0, 4: 1, 6: 1, 7: 2, 8: 2}.items():
        decisions = decide(steps[:levels_deep], BUDGET)
        assert levels(decisions) == ["observe", "kill"][:expected]
        assert orders(decisions) == ["kill_run"] * (expected == 2)

    kill = order_of(decide(steps, BUDGET), "kill_run")
    assert (kill.run_id, kill.scope, kill.reason.note) == ("boss", "tree", "7 of 6 levels of runs used")


def test_a_run_with_many_children_is_ended() -> None:
    """Told of at 25, ended at the first that was not granted."""
    for children, expected in {24: 0, 25: 1, 50: 1, 51: 2}.items():
        boss = Run("boss")
        decisions = decide([boss.start(), *spawned(boss, children)], BUDGET)
        assert levels(decisions) == ["observe", "kill"][:expected]
    assert verdicts(decisions)[-1].evidence.limit == "max_children"


def test_children_are_counted_by_parent() -> None:
    """Three managers with twenty each are no fan-out of one."""
    boss = Run("boss")
    managers = [Run(f"m{n}", root="boss") for n in range(3)]
    steps = [boss.start(), *[manager.start(parent_run_id="boss") for manager in managers]]
    for manager in managers:
        steps += spawned(manager, 20, manager.run_id)

    assert levels(decide(steps, BUDGET)) == []


def test_a_person_grants_children_anew() -> None:
    """An assistant of many turns starts a few at each."""
    boss = Run("boss")
    steps = [boss.start()]
    for turn in range(9):
        steps += [boss.user(), *spawned(boss, 20, f"turn-{turn}")]

    assert levels(decide(steps, BUDGET)) == []


def test_a_child_that_comes_back_is_no_new_one() -> None:
    """More runs than are kept in memory: the idlest leave, and are there again with their next step."""
    boss = Run("boss")
    managers = [Run(f"m{n}", root="boss") for n in range(4)]
    workers = [Run(f"w{n}", root="boss") for n in range(80)]
    parents = [managers[n % 4].run_id for n in range(80)]
    steps = [boss.start(), *[manager.start(parent_run_id="boss") for manager in managers]]
    steps += [worker.start(parent_run_id=parent) for worker, parent in zip(workers, parents, strict=True)]
    for lap in range(9):
        steps += [
            worker.call("read", lap, f"{worker.run_id} {lap}", parent_run_id=parent)
            for worker, parent in zip(workers, parents, strict=True)
        ]

    assert not [one for one in verdicts(decide(steps, BUDGET)) if one.evidence.limit in ("max_children", "max_depth")]


def test_the_shape_of_a_tree_is_the_policy_s_alone() -> None:
    """What spawns itself without end does not decide how often it may; another agent's policy may differ."""
    policy = Policy.from_builtins(
        {
            "mode": "enforce",
            "budget": {"limits": {"max_children": 2}},
            "agents": {"swarm": {"budget": {"mode": "shadow"}}},
        }
    )
    boss = Run("boss")
    assert orders(decide([boss.start(limits={"max_children": 9}), *spawned(boss, 2)], policy)) == []
    boss = Run("boss")
    assert orders(decide([boss.start(limits={"max_children": 9}), *spawned(boss, 3)], policy)) == ["kill_run"]
