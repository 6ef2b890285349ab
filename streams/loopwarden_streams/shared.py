"""What the runs of a tenant share: the messages of `tool-health`, each kind to what it is about."""

from __future__ import annotations

from collections.abc import Mapping

from loopwarden_models.codec import Health, decode_health
from loopwarden_models.errors import InvalidEvent
from loopwarden_models.run_turns import RunTurn, task_key
from loopwarden_models.tenant_load import TenantLoad, load_key
from loopwarden_models.tool_health import tool_key
from loopwarden_models.verdicts import Verdict
from loopwarden_streams.breakers import Breakers, Said
from loopwarden_streams.dead_letters import Refused
from loopwarden_streams.metrics import Metrics
from loopwarden_streams.partition import TOOLS, Partition
from loopwarden_streams.restarts import Restarts
from loopwarden_streams.tenants import Tenants
from loopwarden_streams.transport import Record


class Shared:
    """The tools, tasks and tenants of one worker. Call it under the partition's lock."""

    def __init__(
        self, breakers: Breakers, restarts: Restarts, tenants: Tenants, metrics: Metrics, *, max_bytes: int
    ) -> None:
        """Refuse messages of more than `max_bytes`."""
        self._breakers = breakers
        self._restarts = restarts
        self._tenants = tenants
        self._metrics = metrics
        self._max_bytes = max_bytes

    async def apply(self, partition: Partition, records: list[Record], act_from_ms: int) -> Refused:
        """Count a chunk of messages, publish what comes of it, and return what cannot be read.

        Args:
            partition: Owner of what they are about.
            records: In order, at least one.
            act_from_ms: What happened before, in Unix milliseconds, is too old to act on.

        Raises:
            TransportError: The broker refused something, now or since the last call.
        """
        refused: Refused = []
        of_tools: Said = []
        of_tasks: list[Verdict] = []
        of_tenants: list[Verdict] = []
        for record in records:
            try:
                message = decode_health(record.value, max_bytes=self._max_bytes)
                if message is None:
                    self._metrics.count_ignored("unknown_type", 1)
                    continue
                _check_key(record.key or b"", message)
            except InvalidEvent as error:
                refused.append((record, error))
                continue
            if isinstance(message, TenantLoad):
                of_tenants += self._tenants.count(partition, message, record.offset, act_from_ms)
            elif isinstance(message, RunTurn):
                of_tasks += self._restarts.count(partition, message, record.offset, act_from_ms)
            else:
                of_tools += self._breakers.count(partition, message, record.offset, act_from_ms)
        partition.next_offset[TOOLS] = records[-1].offset + 1
        if of_tools:
            await self._breakers.publish(partition, of_tools)
        if of_tasks:
            await self._restarts.publish(partition, of_tasks)
        if of_tenants:
            await self._tenants.publish(partition, of_tenants)
        return refused

    async def tick(self, partition: Partition) -> None:
        """Let time pass.

        Raises:
            TransportError: The broker refused something, now or since the last call.
        """
        await self._breakers.tick(partition)
        self._restarts.tick(partition)
        self._tenants.tick(partition)

    def report(self, partitions: Mapping[int, Partition]) -> None:
        """Set the gauges."""
        self._breakers.report(partitions)
        self._restarts.report(partitions)
        self._tenants.report(partitions)


def _check_key(key: bytes, message: Health) -> None:
    if isinstance(message, TenantLoad):
        expected = load_key(message.tenant)
    elif isinstance(message, RunTurn):
        expected = task_key(message.tenant, message.fingerprint)
    else:
        expected = tool_key(message.tenant, message.tool)
    if key != expected:
        raise InvalidEvent("key_mismatch", f"the key is {key[:200]!r}, the message says {expected[:200]!r}")
