"""The breakers of the tools that a worker owns: sums and ticks go in, records on `control.state` and verdicts out."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Final

from loopwarden_detectors.fleet_breaker import HELD_OPEN, Transition, record_of
from loopwarden_detectors.tool_fleet import ToolId
from loopwarden_detectors.tool_state import ToolState
from loopwarden_models.control_state import breaker_key
from loopwarden_models.tool_health import PartialSum
from loopwarden_streams.manual_breakers import ManualBreakers
from loopwarden_streams.metrics import Metrics
from loopwarden_streams.outbox import Outbox
from loopwarden_streams.partition import TOOLS, Partition
from loopwarden_streams.settings import Settings

log = logging.getLogger("loopwarden.decisions")

# A lease is renewed when a third of it is over: two renewals may be lost before anybody closes it.
RENEWALS_A_LEASE: Final = 3
# What is out of use is looked for now and then: it counts hours.
SWEEP_EVERY_S: Final = 60.0

# Calls are dated to the second.
SECOND_MS: Final = 1_000

Said = list[tuple[ToolState, Transition]]


class Breakers:
    """Moves the breakers of one worker. Call it under the partition's lock."""

    def __init__(self, settings: Settings, outbox: Outbox, metrics: Metrics, manual: ManualBreakers) -> None:
        """Publish through `outbox`; what a person ordered is in `manual`."""
        self._settings = settings
        self._outbox = outbox
        self._metrics = metrics
        self._manual = manual
        self._swept: dict[int, float] = {}

    def count(self, partition: Partition, sums: PartialSum, offset: int, act_from_ms: int) -> Said:
        """Count one sum of the partition's tools, and return what is to be published of it.

        Args:
            partition: Owner of the tool.
            sums: As it was sent.
            offset: Its own.
            act_from_ms: As in `ToolFleet.count`.
        """
        fleet = partition.tools
        known = (sums.tenant, sums.tool)
        tool = fleet.tools.get(known)
        if tool is not None and tool.state == "half_open":
            self._count_probes(tool, sums)
        counted = fleet.count(sums, offset, act_from_ms=act_from_ms)
        if counted.admission != "new":
            self._metrics.count_sum_dropped(counted.admission)
        if counted.admission != "crowded":
            partition.dirty_tools.add(known)
        return [(fleet.tools[known], transition) for transition in counted.transitions]

    async def publish(self, partition: Partition, said: Sequence[tuple[ToolState, Transition]]) -> None:
        """Publish what was said: one record for each breaker that changed, and every verdict.

        Raises:
            TransportError: The broker refused something, now or since the last call.
        """
        changed: dict[ToolId, ToolState] = {}
        for tool, transition in said:
            known = (tool.tenant, tool.tool)
            partition.dirty_tools.add(known)
            if transition.is_change:
                changed[known] = tool
            self._report(transition)
        if changed:
            await self._write_records(partition, changed)
        await self._outbox.say(partition, [transition.verdict for _, transition in said])

    async def tick(self, partition: Partition) -> None:
        """Let time pass: what a person ordered, pauses, leases, and tools that are out of use.

        While sums are read that a former owner may have judged, time stands still; and before what people ordered is
        known, for a renewal would lie above it in the log.

        Raises:
            TransportError: The broker refused something, now or since the last call.
        """
        if partition.next_offset[TOOLS] < partition.tools_until or not self._manual.is_ready:
            return
        now_ms = int(time.time() * 1000)
        self._obey(partition)
        said = partition.tools.tick(now_ms)
        if said:
            await self.publish(partition, said)
        await self._renew(partition)
        if time.monotonic() - self._swept.get(partition.number, 0.0) >= SWEEP_EVERY_S:
            self._swept[partition.number] = time.monotonic()
            await self._sweep(partition, now_ms)

    def report(self, partitions: Mapping[int, Partition]) -> None:
        """Set the gauges of all breakers that are not closed. Cost: O(these)."""
        fleets = [partition.tools for partition in partitions.values()]
        open_ones = {known: tool.state for fleet in fleets for known, tool in (fleet.held | fleet.manual).items()}
        self._metrics.set_breakers(open_ones)
        self._metrics.set_state_entries("tools", sum(len(fleet.tools) for fleet in fleets))

    def _obey(self, partition: Partition) -> None:
        """Take over what people ordered, a level: whatever was missed is seen at the next tick."""
        fleet = partition.tools
        orders = self._manual.orders
        for known, order in orders.items():
            if order.partition != partition.number:
                continue
            held = fleet.held.get(known)
            if order.state == "closed" and held is not None and held.opened_ms + SECOND_MS > order.append_ms:
                continue  # it opened again since
            offset = max(partition.next_offset[TOOLS] - 1, 0)
            if fleet.set_by_hand(*known, order.state, offset) is not None:
                partition.dirty_tools.add(known)
                log.info("breaker of %s (tenant %s): %s by a person", known[1], known[0], order.state)
        for known, tool in list(fleet.manual.items()):
            if known not in orders:
                fleet.set_by_hand(*known, "closed", tool.offset)
                partition.dirty_tools.add(known)
                log.info("breaker of %s (tenant %s): given back by a person", known[1], known[0])

    async def _renew(self, partition: Partition) -> None:
        now = time.monotonic()
        leases = partition.leases
        fleet = partition.tools
        due = {}
        for known, tool in fleet.held.items():
            lease_s = fleet.config_of(*known).lease_ms / 1000
            if now - leases.get(known, float("-inf")) >= lease_s / RENEWALS_A_LEASE:
                due[known] = tool
        if due:
            await self._write_records(partition, due)
        for known in leases.keys() - fleet.held.keys():
            del leases[known]

    async def _write_records(self, partition: Partition, tools: Mapping[ToolId, ToolState]) -> None:
        now_ms = int(time.time() * 1000)
        records = []
        for known, tool in tools.items():
            config = partition.tools.config_of(*known)
            lease_until_ms = now_ms + config.lease_ms
            records.append(record_of(tool, config, epoch=partition.epoch, lease_until_ms=lease_until_ms))
            if tool.state in HELD_OPEN:
                partition.leases[known] = time.monotonic()
        await self._outbox.set_breakers(partition, records)

    async def _sweep(self, partition: Partition, now_ms: int) -> None:
        """Forget what is out of use; the record of a breaker that was open is deleted with it."""
        fleet = partition.tools
        gone = [(known, tool) for known, tool in fleet.tools.items() if fleet.forgettable(tool, now_ms)]
        for known, tool in gone:
            fleet.forget(tool)
            partition.dirty_tools.discard(known)
            partition.dead_tools.add(known)
        await self._outbox.delete_records(partition, [breaker_key(*known) for known, tool in gone if tool.episode])

    def _count_probes(self, tool: ToolState, sums: PartialSum) -> None:
        probes = [one for one in sums.seconds if one.at_ms // 1000 >= tool.counts_from]
        failed = sum(one.failures + one.slow for one in probes)
        self._metrics.count_probes(tool.tenant, ok=sum(one.calls for one in probes) - failed, failed=failed)

    def _report(self, transition: Transition) -> None:
        verdict = transition.verdict
        self._metrics.count_verdict(verdict)
        self._metrics.observe_detection(verdict.detector, time.time() - verdict.at_ms / 1000)
        if transition.held_back:
            self._metrics.count_held_back(verdict.tenant)
        if transition.is_change:
            self._metrics.count_transition(verdict.tenant, verdict.evidence.tools[0], transition.after)
            log.info("breaker (tenant %s): %s", verdict.tenant, verdict.evidence.note)
