"""What the end of a run has probably saved."""

from __future__ import annotations

from typing import Any

import pytest
from tests._support.steps import Run, decide, tree_of

from loopwarden_detectors.savings import saved_usd
from loopwarden_models.policy import DEFAULT_POLICY


def saved(calls: int, cost_usd: float | None, **limits: Any) -> float:
    """Return the estimate for a run that made so many calls of so much each, with these limits."""
    run = Run()
    start = run.start(limits=limits) if limits else run.start()
    tree = tree_of(start)
    decide([start, *[run.call("look", n, f"text {n}", cost_usd=cost_usd) for n in range(calls)]], tree=tree)
    return saved_usd(tree, DEFAULT_POLICY)


def test_the_nearer_limit_counts() -> None:
    """Ten calls of five cents: ninety more to the limit of steps, or what is left of the money."""
    assert saved(10, 0.05, max_steps=100, max_cost_usd=100.0) == pytest.approx(4.5)
    assert saved(10, 0.05, max_steps=100, max_cost_usd=1.0) == pytest.approx(0.5)


def test_the_policys_limits_stand_in_for_those_that_nobody_declared() -> None:
    """Three dollars a run."""
    assert saved(10, 0.05) == pytest.approx(2.5)


@pytest.mark.parametrize(("calls", "cost_usd"), [(10, None), (10, 0.0), (0, 1.0)])
def test_without_a_cost_nothing_is_claimed(calls: int, cost_usd: float | None) -> None:
    """A flat rate reports none, and missing is not zero."""
    assert saved(calls, cost_usd) == 0.0


def test_who_is_past_its_limit_saves_nothing() -> None:
    """Less than nothing is no estimate."""
    assert saved(10, 0.5, max_steps=100, max_cost_usd=2.0) == 0.0
