"""Which trees are asked for silence, and when."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any, cast

from tests._support.steps import Run, decide, only, tree_of

from loopwarden_detectors.ladder import Decision
from loopwarden_detectors.run_state import TreeState
from loopwarden_models.events import AnyStep
from loopwarden_models.policy import Policy
from loopwarden_streams.dispatch import Dispatch
from loopwarden_streams.metrics import Metrics
from loopwarden_streams.partition import Partition
from loopwarden_streams.policy_follower import PolicyInForce
from loopwarden_streams.settings import Settings
from loopwarden_streams.shared import Shared
from loopwarden_streams.ticks import CURRENT_S, SILENCE_TICKS, Ticker

POLICY = only("silent_run")
MINUTE = 60_000


class Said:
    """Keeps what would be sent."""

    def __init__(self) -> None:
        """Keep nothing yet."""
        self.levels: list[str] = []
        self.runs: set[str] = set()
        self.live: dict[str, int] = {}

    async def send(self, _: Partition, decisions: list[tuple[Decision, int]]) -> None:
        """Keep the verdicts."""
        found = [decision.verdict for decision, _ in decisions if decision.verdict is not None]
        self.levels += [verdict.level for verdict in found if verdict.episode]
        self.runs |= {verdict.run_id for verdict in found}

    def set_live(self, live: dict[str, int]) -> None:
        """Keep how many runs are alive."""
        self.live = live


class Still:
    """Tools and tasks that never move."""

    async def tick(self, _: Partition) -> None:
        """Do nothing."""

    def report(self, _: object) -> None:
        """Say nothing."""


def hanging(run_id: str, *, root: str | None = None) -> list[AnyStep]:
    """Return a run with a call that never comes back."""
    run = Run(run_id, root=root)
    return [run.start(), run.step("tool_start", tool="build", call_id=run_id)]


def partition_of(*trees: list[AnyStep], silent_ms: int, is_current: bool = True) -> Partition:
    """Return a partition that holds these trees, whose clock is so far past their newest events."""
    held: dict[bytes, TreeState] = {}
    for steps in trees:
        tree = held[steps[0].run_id.encode()] = tree_of(steps[0])
        decide(steps, POLICY, tree=tree)
    newest_ms = max(tree.now_ms for tree in held.values())
    partition = Partition(number=3, epoch=0, next_offset={"steps": 9, "acks": 0}, trees=held)
    partition.watermark_ms = newest_ms + silent_ms
    partition.caught_up_at = time.monotonic() if is_current else time.monotonic() - CURRENT_S - 1
    return partition


def ticked(partition: Partition, policy: Policy = POLICY, *, ticks: int = SILENCE_TICKS, **settings: Any) -> Said:
    """Return what so many ticks say of a partition."""
    said = Said()
    ticker = Ticker(
        Settings(**{"max_action_age_ms": 0, "run_ttl_ms": 10**12} | settings),
        PolicyInForce(policy),
        {partition.number: partition},
        cast("Dispatch", said),
        cast("Shared", Still()),
        Metrics(),
    )

    async def run() -> None:
        for _ in range(ticks):
            await ticker.tick()

    asyncio.run(run())
    return said


def test_a_silent_run_is_told_of_without_an_event() -> None:
    """It has no limit of time of its own, and is asked all the same; once in so many ticks."""
    partition = partition_of(hanging("r1"), silent_ms=5 * MINUTE + 1_000)

    assert ticked(partition, ticks=6).levels == []
    assert ticked(partition, ticks=SILENCE_TICKS).levels == ["observe"]
    assert partition.dirty == {b"r1"}


def test_a_child_may_hang_while_the_tree_is_heard_of() -> None:
    """The tree's newest event is a second old, the child's five minutes."""
    lead, other = Run("lead"), hanging("child", root="lead")
    lead.now_ms += 5 * MINUTE
    partition = partition_of([*other, lead.start(), lead.step("progress")], silent_ms=1_000)

    assert ticked(partition).runs == {"child"}


def test_nobody_is_silent_while_the_broker_is_away() -> None:
    """Nothing was read for minutes, of any run: the end of all of them would be published when it is back."""
    partition = partition_of(hanging("r1"), silent_ms=40 * MINUTE, is_current=False)
    assert ticked(partition).levels == []

    partition = partition_of(hanging("r1"), silent_ms=5 * MINUTE + 1_000)
    partition.replay_until = 10
    assert ticked(partition).levels == []


def test_a_worker_that_was_down_measures_anew() -> None:
    """It takes over a run that has been silent for an hour by its events: what it missed is not known."""
    partition = partition_of(hanging("r1"), silent_ms=60 * MINUTE)

    assert ticked(partition).levels == []


def test_limits_of_time_are_asked_every_tick_as_before() -> None:
    """In a partition that is not current, too: they count from the run's own beginning."""
    run = Run("r1")
    steps = [run.start(limits={"max_duration_ms": MINUTE})]
    partition = partition_of(steps, silent_ms=5 * MINUTE, is_current=False)
    partition.timed.add(b"r1")

    assert ticked(partition, Policy(mode="enforce"), ticks=1).levels == ["kill"]


def test_beyond_the_cap_the_tenant_that_floods_loses_its_own_runs() -> None:
    """The other one's are older than all of them."""
    small = [hanging(f"s{number}") for number in range(5)]
    partition = partition_of(*small, *[hanging(f"f{number}") for number in range(100)], silent_ms=0)
    for key, tree in partition.trees.items():
        tree.tenant = "globex" if key.startswith(b"s") else "acme"
        tree.now_ms += 1_000 * (tree.tenant == "acme")
    ticked(partition, ticks=1, max_runs=50)

    assert Counter(tree.tenant for tree in partition.trees.values()) == {"globex": 5, "acme": 44}


def test_silence_of_many_runs_costs_little() -> None:
    """A hundred thousand live runs in twelve partitions: the ones that were heard of are passed over."""
    partition = partition_of(hanging("r1"), silent_ms=1_000)
    tree = partition.trees[b"r1"]
    partition.trees = {f"r{n}".encode(): tree for n in range(10_000)}
    began = time.perf_counter()
    assert ticked(partition).levels == []

    assert time.perf_counter() - began < 1.0
