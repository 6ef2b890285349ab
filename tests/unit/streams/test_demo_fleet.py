"""The plan of the demonstration's fleet."""

from __future__ import annotations

from collections import Counter

import pytest

from loopwarden_streams.demo_fleet import MAX_AGENTS, MIN_AGENTS, SCRIPTS, TENANTS, plan_fleet, split_hosts


def test_the_fleet_of_the_readme() -> None:
    """Thirty agents: nine loop, one takes advice, twenty are well, and every tenant has some of both."""
    plans = plan_fleet(30, seed=1)

    assert Counter(plan.kind for plan in plans) == {"loops": 9, "recovers": 1, "healthy": 20}
    for kind in ("loops", "healthy"):
        assert {plan.tenant for plan in plans if plan.kind == kind} == set(TENANTS)
    assert len({plan.agent for plan in plans if plan.kind == "loops"}) == 9


def test_a_seed_is_a_fleet() -> None:
    """A demonstration that went wrong can be had again."""
    assert plan_fleet(30, seed=4) == plan_fleet(30, seed=4)
    assert plan_fleet(30, seed=4) != plan_fleet(30, seed=5)


@pytest.mark.parametrize("agents", [MIN_AGENTS, 9, 10, 31, MAX_AGENTS])
def test_every_size_has_loops_and_healthy_runs(agents: int) -> None:
    """Either half alone shows nothing: a system that stops all, or none."""
    plans = plan_fleet(agents, seed=1)

    assert len(plans) == agents
    assert len({(plan.tenant, plan.run_id) for plan in plans}) == agents
    assert {"loops", "healthy"} <= {plan.kind for plan in plans}
    assert all(plan.agent in SCRIPTS for plan in plans)


def test_a_process_belongs_to_one_tenant() -> None:
    """As in real life: a guard is made for a tenant, and processes of different tenants know nothing of each other."""
    plans = plan_fleet(200, seed=1)

    hosts = split_hosts(plans)

    assert sorted(plan.run_id + plan.tenant for own in hosts for plan in own) == sorted(
        plan.run_id + plan.tenant for plan in plans
    )
    assert all(len({plan.tenant for plan in own}) == 1 for own in hosts)
    assert all(len(own) <= 30 for own in hosts)
    assert len(split_hosts(plan_fleet(30, seed=1))) == len(TENANTS)
