"""The tenants that a worker owns: loads go in; verdicts on limits, and gauges of what is used, come out."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from loopwarden_detectors.tenant_limits import limits_of
from loopwarden_models.tenant_load import TenantLoad
from loopwarden_models.verdicts import Verdict
from loopwarden_streams import metric_catalogue as of
from loopwarden_streams.metrics import Metrics
from loopwarden_streams.outbox import Outbox
from loopwarden_streams.partition import TOOLS, Partition

# States are kept for a day.
SWEEP_EVERY_S: Final = 600.0

_GAUGES: Final = {
    "max_calls_per_min": of.TENANT_CALLS,
    "max_cost_usd_per_min": of.TENANT_COST_MINUTE,
    "max_cost_usd_per_day": of.TENANT_COST_DAY,
    "max_live_runs": of.TENANT_LIVE_RUNS,
}


class Tenants:
    """Judges the tenants of one worker. Call it under the partition's lock."""

    def __init__(self, outbox: Outbox, metrics: Metrics) -> None:
        """Publish through `outbox`."""
        self._outbox = outbox
        self._metrics = metrics
        self._swept: dict[int, float] = {}

    def count(self, partition: Partition, load: TenantLoad, offset: int, act_from_ms: int) -> list[Verdict]:
        """Count one load of the partition's tenants, and return what is to be published of it.

        Args:
            partition: Owner of the tenant.
            load: As it was sent.
            offset: Its own.
            act_from_ms: What happened before, in Unix milliseconds, is said in shadow.
        """
        newest_ms = load.seconds[-1].at_ms if load.seconds else load.at_ms
        return partition.tenants.load(
            load,
            offset,
            act=newest_ms >= act_from_ms,
            busiest=lambda: partition.tools.busiest(load.tenant),
        )

    async def publish(self, partition: Partition, said: Sequence[Verdict]) -> None:
        """Publish what was said.

        Raises:
            TransportError: The broker refused something since the last call.
        """
        for verdict in said:
            self._metrics.count_verdict(verdict)
            self._metrics.observe_detection(verdict.detector, time.time() - verdict.at_ms / 1000)
        await self._outbox.say(partition, said)

    def tick(self, partition: Partition) -> None:
        """Forget the tenants of which nothing was heard for a day, once all was read."""
        now = time.monotonic()
        is_replaying = partition.next_offset[TOOLS] < partition.tools_until
        if not is_replaying and now - self._swept.get(partition.number, 0.0) >= SWEEP_EVERY_S:
            self._swept[partition.number] = now
            partition.tenants.forget_old(int(time.time() * 1000))

    def report(self, partitions: Mapping[int, Partition]) -> None:
        """Set the gauges of what is used now, by the wall clock. Cost: 15 µs a tenant."""
        now_ms = int(time.time() * 1000)
        values: dict[str, dict[tuple[str, ...], float]] = {limit: {} for limit in _GAUGES}
        ratios: dict[tuple[str, ...], float] = {}
        for partition in partitions.values():
            for tenant, state in partition.tenants.tenants.items():
                used = state.used(now_ms, now_ms)
                for limit, amount in used.items():
                    if amount:
                        values[limit][(tenant,)] = amount
                for limit, allowed in limits_of(partition.tenants.config_of(tenant)).items():
                    ratios[tenant, limit] = used[limit] / allowed
        for limit, gauge in _GAUGES.items():
            self._metrics.set_gauge(gauge, values[limit])
        self._metrics.set_gauge(of.TENANT_LIMIT_USED, ratios, max)
        self._metrics.set_state_entries("tenants", sum(len(one.tenants.tenants) for one in partitions.values()))
