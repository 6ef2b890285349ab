"""Budgets of a tree of runs."""

from __future__ import annotations

import pytest

from loopwarden.limits import Budget, has_limits
from loopwarden_models.events import Limits


def budget(parent: Budget | None = None, **limits: float) -> Budget:
    """Return a budget that began at 0 ms."""
    return Budget(Limits(**limits), now_ms=0.0, parent=parent)  # type: ignore[arg-type]  # numbers of both kinds


def test_a_batch_of_eight_with_three_left_starts_three() -> None:
    """Attempts count when they start, or the whole batch slips through."""
    tree = budget(max_steps=10)
    for _ in range(7):
        assert tree.start_tool(0.0) is None

    assert [tree.start_tool(0.0) is None for _ in range(8)] == [True] * 3 + [False] * 5
    assert tree.start_tool(0.0) == "limit max_steps reached: 10 of 10"


def test_a_model_call_is_no_step() -> None:
    """Steps are tool calls; model calls have a limit of their own."""
    tree = budget(max_steps=1, max_model_calls=2)

    assert tree.start_model(0.0, reserve=True) is None
    assert tree.start_model(0.0, reserve=False) is None
    assert tree.start_model(0.0, reserve=False) == "limit max_model_calls reached: 2 of 2"
    assert tree.start_tool(0.0) is None


def test_the_smaller_limit_binds_whoever_set_it() -> None:
    """A child's generous default must not lift the root's limit, nor the root's the child's."""
    root = budget(max_steps=3)
    wide, narrow = budget(root, max_steps=50), budget(root, max_steps=1)

    assert narrow.start_tool(0.0) is None
    assert narrow.start_tool(0.0) == "limit max_steps reached: 1 of 1"
    assert wide.start_tool(0.0) is None
    assert wide.start_tool(0.0) is None
    assert wide.start_tool(0.0) == "limit max_steps reached: 3 of 3"
    assert root.start_tool(0.0) is not None


def test_a_refused_attempt_is_not_charged_to_the_others() -> None:
    """A child at its own limit must not eat up what its siblings have left."""
    root = budget(max_steps=2)
    child = budget(root, max_steps=0)
    for _ in range(5):
        child.start_tool(0.0)

    assert root.start_tool(0.0) is None


def test_calls_under_way_are_reserved_with_the_mean_of_those_that_ended() -> None:
    """Six children in parallel would otherwise all start on the last dollar."""
    tree = budget(max_tokens=1_000)
    tree.start_model(0.0, reserve=True)
    tree.end_model(300, None, reserved=True)
    assert tree.start_model(0.0, reserve=True) is None
    assert tree.start_model(0.0, reserve=True) is None
    assert tree.start_model(0.0, reserve=True) is None

    refused = tree.start_model(0.0, reserve=True)
    assert refused == "limit max_tokens reached: 300 of 1000 with 3 more calls under way"
    tree.release()
    assert tree.start_model(0.0, reserve=True) is None


def test_tokens_stand_in_for_a_cost_that_nobody_knows() -> None:
    """A flat-rate plan reports no cost; unknown is not zero."""
    tree = budget(max_cost_usd=1.0, max_tokens=100)
    tree.end_model(100, None, reserved=False)

    assert tree.start_model(0.0, reserve=True) == "limit max_tokens reached: 100 of 100"


def test_the_cost_of_tools_counts() -> None:
    """Paid searches have run up larger bills than the model."""
    tree = budget(max_cost_usd=1.0)
    tree.end_model(5, 0.4, reserved=False)
    tree.spend(0.6)

    assert tree.start_tool(0.0) == "limit max_cost_usd reached: 1 of 1"


def test_waiting_for_a_person_is_not_working() -> None:
    """An hour for an approval must not use up the ten minutes of the run."""
    tree = budget(max_duration_ms=1_000)
    tree.add_waiting(60_000.0)

    assert tree.start_tool(60_999.0) is None
    assert tree.start_tool(61_000.0) == "limit max_duration_ms reached: 1000 of 1000"


@pytest.mark.parametrize("limits", [None, Limits()])
def test_no_limits_are_no_budget(limits: Limits | None) -> None:
    """Runs without limits do not pay for counting."""
    assert not has_limits(limits)
    assert has_limits(Limits(max_steps=0))
