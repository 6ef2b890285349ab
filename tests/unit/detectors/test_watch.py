"""The way in: one step event, and what has to be said and done about it."""

from __future__ import annotations

import pytest
from msgspec import Raw
from tests._support.steps import ENFORCE, Run, decide, levels, only, orders, tree_of, verdicts

from loopwarden_detectors import fleet_breaker, landing, restart_loop, watch
from loopwarden_models.errors import InvalidEvent
from loopwarden_models.events import ToolEnd
from loopwarden_models.patterns import PATTERNS
from loopwarden_models.policy import Policy


def test_a_healthy_run_says_nothing() -> None:
    """Nothing is allocated for it either: the empty answer is one object."""
    run = Run()
    tree = tree_of(first := run.start())
    steps = [first, *[run.call("read", n, f"text {n}", effect="read") for n in range(30)], run.end()]

    assert all(watch.observe(tree, step, ENFORCE) is watch.NOTHING for step in steps)


def test_every_event_of_the_contract_is_taken() -> None:
    """Also those that no rule looks at: they move the clock."""
    run = Run()
    kinds = ["run_start", "model_end", "user_input", "approval_wait", "approval_end", "compaction", "progress"]
    steps = [run.step(kind) for kind in [*kinds, "message", "run_end"]]
    steps += [run.step("tool_start", tool="x"), run.call()]
    tree = tree_of(steps[0])
    decide(steps, tree=tree)

    assert tree.runs["r1"].seq == len(steps) - 1
    assert tree.now_ms == steps[-1].ts_ms


@pytest.mark.parametrize("field", ["args_hash", "result_hash"])
def test_a_refused_event_leaves_the_state_as_it_was(field: str) -> None:
    """It goes to the dead letters; half of it must not be counted."""
    run = Run()
    steps = [run.start(), *run.calls(4)]
    tree = tree_of(steps[0])
    decide(steps, tree=tree)
    before = tree.to_bytes()

    with pytest.raises(InvalidEvent):
        watch.observe(tree, run.call(**{field: "not hexadecimal"}), ENFORCE)

    assert tree.to_bytes() == before


def test_a_refused_first_event_opens_no_run() -> None:
    """An empty state is what it was."""
    tree = tree_of(step := Run().call())
    assert isinstance(step, ToolEnd)
    step.args = Raw(b"1e999")

    with pytest.raises(InvalidEvent):
        watch.observe(tree, step, ENFORCE)

    assert tree == tree_of(step)


def test_each_pattern_has_its_public_name() -> None:
    """What users filter by is a closed set."""
    patterns = {watch.BUDGET.pattern, *(rule.pattern for rule in watch.CALL_DETECTORS)}
    patterns |= {rule.pattern for rule in watch.STEP_DETECTORS} | {rule.pattern for rule in watch.TICK_DETECTORS}

    others = {restart_loop.PATTERN, fleet_breaker.PATTERN, *landing.PATTERNS.values()}
    assert patterns | others == set(PATTERNS)
    assert len(watch.DETECTORS) == len(set(watch.DETECTORS))


def test_every_detector_is_part_of_the_policy() -> None:
    """A rule that cannot be switched off alone cannot be rolled out alone."""
    assert {Policy(mode="shadow").mode_of(detector) for detector in watch.DETECTORS} == {"shadow"}


def test_the_offset_of_the_first_step_is_told() -> None:
    """A post-mortem reads the records themselves."""
    run = Run()
    steps = [run.start(), run.call("list"), *run.calls(3)]
    tree = tree_of(steps[0])
    decisions = [
        decision for n, step in enumerate(steps) for decision in watch.observe(tree, step, ENFORCE, offset=1_000 + n)
    ]

    assert [decision.first_offset for decision in decisions] == [1_002, 1_002]
    assert [decision.first_offset for decision in decide(Run().calls(3), offset=-1)] == [-1, -1]


def test_the_effect_of_a_silent_tool_is_what_the_policy_says() -> None:
    """The same failures end a declared tool's run and never an undeclared one's."""
    run = Run()
    steps = [run.call("cc", n, fails="missing ;") for n in range(9)]
    declared = Policy.from_builtins({"mode": "enforce", "effects": {"cc": "read"}})

    assert "kill" not in levels(decide(steps))
    assert "kill" in levels(decide(steps, declared))


def test_a_changed_answer_of_any_call_is_progress() -> None:
    """Edits that fail alike while the listing between them changes: something moves."""
    run = Run()
    steps = [
        step
        for n in range(9)
        for step in (
            run.call("edit", n, fails="no match", effect="write"),
            run.call("list", "", f"{n} files", effect="read"),
        )
    ]

    assert "kill" not in levels(decide(steps, only("same_error")))


@pytest.mark.parametrize("tool", ["sleep", "now"])
def test_what_changes_with_the_time_alone_is_no_progress(tool: str) -> None:
    """A clock's answer is always new."""
    run = Run()
    steps = [
        step
        for n in range(9)
        for step in (
            run.call("edit", n, fails="no match", effect="write"),
            run.call(tool, "", f"{n} s", effect="clock"),
        )
    ]

    assert "kill" in levels(decide(steps, only("same_error")))


def test_a_write_without_an_answer_is_new_once() -> None:
    """Its result is not known, so the call decides: the same write again moves nothing."""
    run = Run()
    steps = [
        step
        for n in range(9)
        for step in (run.call("save", "a", None, effect="write"), run.call("cc", n, fails="missing ;", effect="read"))
    ]

    assert "kill" in levels(decide(steps, only("same_error")))


def test_trees_do_not_see_each_other() -> None:
    """Two runs that repeat the same call are two runs."""
    one, two = Run("one"), Run("two")
    first = decide(one.calls(8, effect="read"))
    second = decide(two.calls(2, effect="read"))

    assert levels(first)[-1] == "kill"
    assert levels(second) == ["observe"]
    assert verdicts(second)[0].run_id == "two"


def test_runs_of_one_tree_are_judged_one_by_one() -> None:
    """Two children that read the same file are no loop."""
    one, two = Run("one", root="boss"), Run("two", root="boss")
    steps = [step for _ in range(2) for run in (one, two) for step in run.calls(1, effect="read")]

    assert set(levels(decide(steps))) == {"observe"}
    assert orders(decide(steps)) == []
