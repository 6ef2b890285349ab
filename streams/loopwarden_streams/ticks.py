"""What must happen without an event: rules about passing time, expiry of what is over, and the cap on runs held."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import islice

from loopwarden_detectors import landing
from loopwarden_detectors.ladder import Decision
from loopwarden_detectors.watch import tick
from loopwarden_streams.dispatch import Dispatch
from loopwarden_streams.eviction import choose
from loopwarden_streams.metrics import Metrics
from loopwarden_streams.partition import STEPS, Partition
from loopwarden_streams.policy_follower import PolicyInForce
from loopwarden_streams.settings import Settings
from loopwarden_streams.shared import Shared

# A tick looks at this share of a partition's runs for expiry, so that all are seen within a minute of ticks.
SWEEP_TICKS = 60
# Rules about silence are asked every so many ticks, each partition at another one: they count minutes, and there may be
# a hundred thousand runs.
SILENCE_TICKS = 10
# ... and of a partition of which the broker said in this time that nothing is left to read. While it is away no run is
# heard of, and none is silent. Three looks of `LagWatch`.
CURRENT_S = 6.0
# When the cap is hit, this share goes at once: finding the idlest costs a pass over all.
EVICT_SHARE = 0.02
# Counting the live runs of each tenant is a pass over all: 10 ms for a hundred thousand.
REPORT_EVERY_S = 10.0


class Ticker:
    """Feeds the passing of time through the partitions of one worker, under the same locks as events."""

    def __init__(
        self,
        settings: Settings,
        rules: PolicyInForce,
        partitions: Mapping[int, Partition],
        dispatch: Dispatch,
        shared: Shared,
        metrics: Metrics,
    ) -> None:
        """Tick `partitions` by their own clocks."""
        self._settings = settings
        self._rules = rules
        self._partitions = partitions
        self._dispatch = dispatch
        self._shared = shared
        self._metrics = metrics
        self._sweeps: dict[int, Iterator[bytes]] = {}
        self._report_at = 0.0
        self._ticks = 0

    async def tick(self) -> None:
        """Judge, expire and evict once. Ticks are not replayed: each rule is a level, true again at the next.

        Raises:
            TransportError: A decision could not be published.
        """
        self._ticks += 1
        for partition in list(self._partitions.values()):
            async with partition.lock:
                decisions = self._judge(partition)
                self._expire(partition)
                if decisions:
                    await self._dispatch.send(partition, decisions)
                await self._shared.tick(partition)
        self._evict()
        self._shared.report(self._partitions)
        self._report()

    def _judge(self, partition: Partition) -> list[tuple[Decision, int]]:
        clock_ms = partition.clock_ms()
        policy = self._rules.policy
        is_current = self._asks_for_silence(partition)
        decisions = self._look_at_orders(partition, clock_ms)
        keys = list(partition.trees if policy.has_wall_clock else partition.timed)
        if is_current and not policy.has_wall_clock:
            keys += self._quiet(partition, clock_ms)
        act, offset = self._acts_at(clock_ms), _offset_of(partition)
        for key in keys:
            found = tick(partition.trees[key], clock_ms, policy, act=act, is_current=is_current)
            if found:
                partition.dirty.add(key)
                decisions.extend((decision, offset) for decision in found)
        return decisions

    def _look_at_orders(self, partition: Partition, clock_ms: int) -> list[tuple[Decision, int]]:
        """Look at what was ordered and has not landed, if every answer was read: else it may be there already."""
        is_answered = not partition.is_replaying and time.monotonic() - partition.answered_at < CURRENT_S
        if not partition.landing or not is_answered:
            return []
        act, offset = self._acts_at(clock_ms), _offset_of(partition)
        decisions: list[tuple[Decision, int]] = []
        for key in list(partition.landing):
            tree = partition.trees[key]
            if not landing.is_waited_for(tree):
                partition.landing.discard(key)
                continue
            found = landing.look(tree, clock_ms, self._rules.policy, act=act)
            if found:
                partition.dirty.add(key)
                decisions.extend((decision, offset) for decision in found)
        return decisions

    def _acts_at(self, clock_ms: int) -> bool:
        oldest_ms = time.time() * 1000 - self._settings.max_action_age_ms
        return not self._settings.max_action_age_ms or clock_ms >= oldest_ms

    def _asks_for_silence(self, partition: Partition) -> bool:
        """Return whether it is the partition's turn, and everything that runs have said was read."""
        if (self._ticks + partition.number) % SILENCE_TICKS:
            return False
        return not partition.is_replaying and time.monotonic() - partition.caught_up_at < CURRENT_S

    def _quiet(self, partition: Partition, clock_ms: int) -> list[bytes]:
        """Return the keys of trees that may hold a silent run, without those that are asked anyway.

        Of a tree of several runs one may be silent while the others are not.

        Cost: 0.05 µs a tree.
        """
        quiet_before = clock_ms - self._rules.policy.least_silence_ms
        timed = partition.timed
        return [
            key
            for key, tree in partition.trees.items()
            if (tree.now_ms <= quiet_before or len(tree.runs) > 1) and key not in timed
        ]

    def _expire(self, partition: Partition) -> None:
        trees = partition.trees
        sweep = self._sweeps.get(partition.number)
        if sweep is None:
            sweep = self._sweeps[partition.number] = iter(list(trees))
        clock_ms = partition.clock_ms()
        idle_before = clock_ms - self._settings.run_ttl_ms
        ended_before = clock_ms - self._settings.ended_run_ttl_ms
        looked = ended = idle = 0
        for key in islice(sweep, len(trees) // SWEEP_TICKS + 1):
            looked += 1
            tree = trees.get(key)
            if tree is None:
                continue
            if tree.now_ms < idle_before:
                partition.forget(key)
                idle += 1
            elif tree.now_ms < ended_before and tree.is_over:
                partition.forget(key)
                ended += 1
        if looked == 0:
            del self._sweeps[partition.number]
        self._metrics.count_evictions("ended", ended)
        self._metrics.count_evictions("idle", idle)

    def _evict(self) -> None:
        held = sum(len(partition.trees) for partition in self._partitions.values())
        over = held - self._settings.max_runs
        if over <= 0:
            return
        for number, key in choose(self._partitions, over + int(self._settings.max_runs * EVICT_SHARE)):
            self._partitions[number].forget(key)
            self._metrics.count_evictions("cap")

    def _report(self) -> None:
        now = time.monotonic()
        if now < self._report_at:
            return
        self._report_at = now + REPORT_EVERY_S
        active: dict[str, int] = {}
        live: dict[str, int] = {}
        orders: dict[str, int] = {}
        for partition in self._partitions.values():
            # Those that had some and have none any more are told of once.
            own = dict.fromkeys(partition.loads_live, 0)
            for tree in partition.trees.values():
                active[tree.tenant] = active.get(tree.tenant, 0) + len(tree.runs)
                alive = sum(not run.is_over for run in tree.runs.values())
                if alive:
                    own[tree.tenant] = own.get(tree.tenant, 0) + alive
            partition.loads.live = own
            partition.loads_live = {tenant for tenant, runs in own.items() if runs}
            for tenant in partition.loads_live:
                live[tenant] = live.get(tenant, 0) + own[tenant]
            for key in partition.landing:
                for state in landing.open_orders(partition.trees[key]):
                    orders[state] = orders.get(state, 0) + 1
        self._metrics.set_active_runs(active)
        self._metrics.set_open_orders(orders)
        self._dispatch.set_live(live)
        self._metrics.set_state_entries("runs", sum(len(partition.trees) for partition in self._partitions.values()))


def _offset_of(partition: Partition) -> int:
    """Return the offset that stands for a tick: that of the newest step."""
    return max(partition.next_offset[STEPS] - 1, 0)
