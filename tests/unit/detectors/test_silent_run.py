"""Nothing is heard of a run any more."""

from __future__ import annotations

from typing import Any

import pytest
from tests._support.steps import Run, answer, decide, levels, only, order_of, orders, tree_of

from loopwarden_detectors import watch
from loopwarden_detectors.ladder import Decision
from loopwarden_detectors.run_state import TreeState
from loopwarden_models.events import AnyStep
from loopwarden_models.policy import Policy

POLICY = only("silent_run")
MINUTE = 60_000


def wait(tree: TreeState, minutes: float, policy: Policy = POLICY, *, since: float = 0.0) -> list[Decision]:
    """Return what ticks every ten seconds say from `since` to `minutes` after the newest event of the tree."""
    first, last = int(since * MINUTE), int(minutes * MINUTE)
    return [
        decision
        for ms in range(first + 10_000, last + 1, 10_000)
        for decision in watch.tick(tree, tree.now_ms + ms, policy)
    ]


def after(steps: list[AnyStep], policy: Policy = POLICY) -> TreeState:
    """Return the tree after these steps."""
    tree = tree_of(steps[0])
    decide(steps, policy, tree=tree)
    return tree


def hanging(run: Run, *, args: Any = "all", tool: str = "build", **start: Any) -> list[AnyStep]:
    """Return a run with a call that never comes back."""
    return [run.start(**start), run.model(1), run.step("tool_start", tool=tool, call_id="c", args=args)]


def test_a_call_that_never_comes_back_ends_the_run() -> None:
    """Told after five minutes, ended after thirty, and nothing is said to a model that would not hear it."""
    #  minutes   5         30
    #            observe   kill
    for minutes, expected in {4.9: 0, 5: 1, 29.9: 1, 30: 2, 50: 2}.items():
        decisions = wait(after(hanging(Run())), minutes)

        assert levels(decisions) == ["observe", "kill"][:expected]
        assert orders(decisions) == ["kill_run"] * (expected == 2)
    kill = order_of(wait(after(hanging(Run())), 30), "kill_run")
    assert (kill.scope, kill.reason.pattern, kill.reason.count) == ("run", "idle", 1_800)
    assert kill.reason.note == "nothing was heard of the run for 1800 seconds, with a call in flight"


def test_a_model_that_never_answers_ends_the_run() -> None:
    """It was given the result of a call half an hour ago."""
    run = Run()
    steps = [*hanging(run), run.call("build", call_id="c")]

    assert levels(wait(after(steps), 30)) == ["observe", "kill"]


def test_an_event_is_a_sign_of_life() -> None:
    """Silence begins anew."""
    run = Run()
    tree = after(hanging(run))
    assert levels(wait(tree, 29)) == ["observe"]
    run.now_ms = tree.now_ms + 29 * MINUTE
    decide([run.step("tool_start", tool="build", call_id="d")], POLICY, tree=tree)

    assert levels(wait(tree, 29)) == []
    assert levels(wait(tree, 30, since=29)) == ["kill"]


@pytest.mark.parametrize(
    "args",
    [
        {"cmd": "make all", "timeout_s": 5_400},
        {"cmd": "make all", "timeoutMs": 5_400_000},
        {"cmd": "make all", "timeout": 5_400_000},
        {"cmd": "make all", "timeout_in_minutes": "90"},
        "timeout 90m make all",
        "make && sleep 5400",
    ],
)
def test_a_limit_of_its_own_is_a_call_s_good_right(args: Any) -> None:
    """Training takes ninety minutes, and the call said so: told after once, ended after twice as long."""
    for minutes, expected in {89: 0, 90: 1, 179: 1, 180: 2}.items():
        assert levels(wait(after(hanging(Run(), args=args)), minutes)) == ["observe", "kill"][:expected]


def test_a_short_limit_in_arguments_shortens_nothing() -> None:
    """Thirty seconds, or thirty thousand of them: what a tool makes of it is its own affair."""
    assert levels(wait(after(hanging(Run(), args={"timeout": 30})), 29)) == ["observe"]


def test_a_policy_declares_a_tool_s_limit() -> None:
    """The operator knows the tool: its word counts, shorter or longer."""
    tools = {"build": {"silent_run": {"tool_limit_ms": 60_000}}, "train": {"silent_run": {"tool_limit_ms": 7_200_000}}}
    policy = Policy.from_builtins({"mode": "enforce", "tools": tools})
    assert policy.least_silence_ms == 60_000

    assert levels(wait(after(hanging(Run()), policy), 1, policy)) == ["observe"]
    assert levels(wait(after(hanging(Run()), policy), 2, policy)) == ["observe", "kill"]
    assert levels(wait(after(hanging(Run(), tool="train"), policy), 119, policy)) == []


def test_of_several_calls_the_most_patient_decides() -> None:
    """One of them may take ninety minutes; when it has come back, the times of the rest count."""
    run = Run()
    steps = [*hanging(run), run.step("tool_start", tool="train", call_id="d", args={"timeout_s": 5_400})]
    assert levels(wait(after(steps), 89)) == []

    assert levels(wait(after([*steps, run.call("train", call_id="d")]), 30)) == ["observe", "kill"]


def test_people_may_take_their_time() -> None:
    """An approval is pending, of any run of the tree; the parent waits for it as well."""
    boss, child = Run("boss"), Run("child", root="boss")
    steps = [*hanging(boss), *hanging(child), child.step("approval_wait", call_id="x")]
    tree = after(steps)
    assert levels(wait(tree, 300)) == []

    decide([child.step("approval_end", call_id="x", decision="approved")], POLICY, tree=tree)
    assert "kill" in levels(wait(tree, 60))


def test_a_pause_is_known() -> None:
    """A run that was told to wait waits."""
    run = Run()
    policy = Policy(mode="enforce")
    tree = after(steps := [run.start(attended=True), *run.calls(12, effect="read")], policy)
    assert tree.runs["r1"].stop is not None
    again = Run()
    tree = tree_of(steps[0])
    decisions = decide([again.start(attended=True), *again.calls(12, effect="read")], policy, tree=tree)
    answer(tree, order_of(decisions, "pause_run"), "applied", at_ms=again.now_ms)

    assert levels(wait(tree, 100, policy), "silent_run") == []


def test_a_run_that_is_over_is_not_silent() -> None:
    """It has said that it is, or it was stopped."""
    run = Run()
    assert levels(wait(after([*hanging(run), run.end()]), 100)) == []

    tree = after(hanging(Run()))
    kill = order_of(wait(tree, 30), "kill_run")
    answer(tree, kill, "applied", at_ms=tree.now_ms + 30 * MINUTE)
    assert levels(wait(tree, 200, since=30)) == []


@pytest.mark.parametrize("why", ["attended", "low", "no starts", "answered", "spoken to", "started"])
def test_who_may_be_waiting_for_something_else_is_only_told_of(why: str) -> None:
    """A person is there; starts are not reported, so anything may be in flight; the model has answered."""
    run = Run()
    run.fidelity = "low" if why == "low" else None
    steps = hanging(run, attended=why == "attended")
    if why == "no starts":
        steps = [steps[0], run.model(1), run.call("build")]
    if why in ("answered", "spoken to"):
        steps += [run.call("build", call_id="c"), run.model(0) if why == "answered" else run.user()]
    if why == "started":
        steps = steps[:1]

    decisions = wait(after(steps), 300)
    assert levels(decisions) == ["observe"] + ["nudge"] * (why == "low" and "nudge" in levels(decisions))
    assert orders(decisions) == []


def test_who_waits_for_its_children_is_not_silent() -> None:
    """A lead hears nothing for an hour while three workers are at it; one that hangs is ended alone."""
    lead, *workers = [Run(name, root="lead") for name in ("lead", "a", "b")]
    tree = after([step for run in (lead, *workers) for step in hanging(run)])
    said: list[Decision] = []
    for minute in range(1, 50):
        workers[0].now_ms = tree.now_ms + MINUTE - 2_000
        decide([workers[0].step("tool_start", tool="read", call_id=f"{minute}")], POLICY, tree=tree)
        said += watch.tick(tree, tree.now_ms + 1_000, POLICY)

    assert levels(said) == ["observe", "kill"]
    assert order_of(said, "kill_run").run_id == "b"


def test_a_child_s_long_call_is_waited_for() -> None:
    """The lead has nothing in flight that could say so."""
    lead, child = Run("lead"), Run("child", root="lead")
    tree = after([*hanging(lead), lead.call("build", call_id="c"), *hanging(child, args={"timeout_s": 5_400})])

    assert levels(wait(tree, 89)) == []


def test_a_clock_that_is_behind_is_no_silence() -> None:
    """A source whose clock is an hour late: it is measured from the tick that sees it first."""
    run = Run()
    tree = after(hanging(run))
    said: list[Decision] = []
    for n in range(100):
        said += watch.tick(tree, tree.now_ms + 60 * MINUTE, POLICY)
        decide([run.step("tool_start", tool="read", call_id=f"{n}")], POLICY, tree=tree)
    assert said == []

    assert levels(wait(tree, 64.9, since=60)) == []
    assert levels(wait(tree, 91, since=60)) == ["observe", "kill"]


def test_what_was_not_read_is_not_silent() -> None:
    """While the broker is away nothing is heard of anybody."""
    tree = after(hanging(Run()))

    assert watch.tick(tree, tree.now_ms + 6 * MINUTE, POLICY, is_current=False) == []


def test_a_restart_measures_anew_at_worst() -> None:
    """Ticks change no snapshot: what they noted may be lost."""
    tree = after(hanging(Run(), args={"timeout_s": 1_800}))
    tree = TreeState.from_bytes(tree.to_bytes())
    assert levels(wait(tree, 29)) == []
    assert levels(wait(tree, 60, since=29)) == ["observe", "kill"]


def test_most_runs_hold_nothing() -> None:
    """Calls that say nothing of their time, in a run that is heard of."""
    run = Run()
    tree = after([*hanging(run), run.call("build", call_id="c")])
    wait(tree, 4)

    assert tree.runs["r1"].silent_run is None
