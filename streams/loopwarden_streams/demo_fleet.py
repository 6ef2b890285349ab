"""The fleet of the demonstration: which agents there are, whose they are, and when they begin."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from random import Random
from typing import Final, Literal

from msgspec import Struct

from loopwarden_streams.demo_healthy import HEALTHY
from loopwarden_streams.demo_loops import LOOPS, RECOVERS
from loopwarden_streams.demo_scripts import Script

TENANTS: Final = ("acme", "borealis", "cirrus")
Kind = Literal["loops", "recovers", "healthy"]

# Of ten agents three loop, which is far more than in real life: there is something to see.
LOOPING_SHARE: Final = 0.3
MIN_AGENTS: Final = 3
MAX_AGENTS: Final = 300
# Below this many agents the one that takes advice is left out: there would be too little of the rest.
_RECOVERS_FROM: Final = 10

# Starts are spread, so that the first loops are over when the last begin.
_LOOPS_WITHIN_MS: Final = 18_000
_HEALTHY_WITHIN_MS: Final = 16_000
_RATE_WITHIN_MS: Final = 5_000
_AGENTS_PER_HOST: Final = 30
_RATE_AGENTS: Final = frozenset({"crawler", "notifier"})

_CATALOGUE: Final = (*LOOPS, RECOVERS, *HEALTHY)
SCRIPTS: Final[dict[str, Script]] = {agent: script for _, agent, script, _ in _CATALOGUE}


class AgentPlan(Struct, frozen=True):
    """One agent and its only run.

    Attributes:
        tenant: Whose it is. `run_id`: its run. `agent`: its name, and that of its script.
        kind: What will become of it: `loops` until it is stopped, `recovers` when it is nudged, or `healthy`.
        doing: What it does, for people.
        start_ms: When it begins, after the fleet.
        max_steps: The limit it is started with.
        seed: Of its own randomness.
    """

    tenant: str
    run_id: str
    agent: str
    kind: Kind
    doing: str
    start_ms: int
    max_steps: int
    seed: int


def plan_fleet(agents: int, seed: int) -> list[AgentPlan]:
    """Return `agents` plans, the looping ones first; equal arguments give equal plans."""
    rng = Random(seed)
    looping = max(1, round(agents * LOOPING_SHARE))
    recovering = 1 if agents >= _RECOVERS_FROM else 0
    healthy = agents - looping - recovering
    numbers = {tenant: count(1) for tenant in TENANTS}
    plans: list[AgentPlan] = []
    groups: Sequence[tuple[Kind, int, Sequence[tuple[str, str, Script, int]], int]] = (
        ("loops", looping, LOOPS, _LOOPS_WITHIN_MS),
        ("recovers", recovering, (RECOVERS,), _LOOPS_WITHIN_MS // 3),
        ("healthy", healthy, HEALTHY, _HEALTHY_WITHIN_MS),
    )
    for kind, wanted, catalogue, within_ms in groups:
        for number in range(wanted):
            doing, agent, _, max_steps = catalogue[number % len(catalogue)]
            tenant = TENANTS[len(plans) % len(TENANTS)]
            span_ms = _RATE_WITHIN_MS if agent in _RATE_AGENTS else within_ms
            plans.append(
                AgentPlan(
                    tenant=tenant,
                    run_id=f"{agent}-{next(numbers[tenant])}",
                    agent=agent,
                    kind=kind,
                    doing=doing,
                    start_ms=span_ms * number // max(1, wanted) + rng.randrange(1_000),
                    max_steps=max_steps,
                    seed=rng.randrange(2**32),
                )
            )
    return plans


def split_hosts(plans: Sequence[AgentPlan]) -> list[list[AgentPlan]]:
    """Return the agents of each process: one process for each tenant, and another for each further thirty agents."""
    hosts: list[list[AgentPlan]] = []
    for tenant in dict.fromkeys(plan.tenant for plan in plans):
        own = [plan for plan in plans if plan.tenant == tenant]
        parts = -(-len(own) // _AGENTS_PER_HOST)
        hosts += [own[at::parts] for at in range(parts)]
    return hosts
