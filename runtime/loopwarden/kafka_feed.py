"""The control topics of one tenant, read through kafka-python without a consumer group."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from loopwarden.kafka_client import kafka_python
from loopwarden.records import EVERYONE, ControlRecord, Inlet
from loopwarden_models.errors import TransportError
from loopwarden_models.ids import control_partition

# The longest life of a command that is not also a run record, and the retention of its topic (control-plane 2).
LONGEST_LIFE_MS = 3_600_000

# A consumer that is quiet this long is asked whether it is quiet or deaf.
_PROBE_S = 30.0
_PROBE_TIMEOUT_MS = 5_000
_MAX_POLL_RECORDS = 500


class KafkaFeed:
    """The control topics of one tenant. `positions` outlives the feed: the next one goes on from there."""

    def __init__(
        self, consumer: Any, *, state: str, commands: str, tenant: str, positions: dict[tuple[str, int], int]
    ) -> None:
        self._consumer = consumer
        self._state = state
        self._positions = positions
        self._deaf_probes = 0
        try:
            self._wrap(lambda: self._assign(state, commands, tenant))
        except BaseException:
            self.close()
            raise

    def _assign(self, state: str, commands: str, tenant: str) -> None:
        topic_partition = kafka_python().TopicPartition

        def partitions(topic: str, tenants: Iterable[str]) -> set[Any]:
            known = self._consumer.partitions_for_topic(topic)
            if not known:
                raise TransportError(f"topic {topic} does not exist")
            return {topic_partition(topic, control_partition(name, len(known))) for name in tenants}

        state_partitions = partitions(state, (tenant, EVERYONE))
        command_partitions = partitions(commands, (tenant,))
        everything = sorted(state_partitions | command_partitions)
        self._consumer.assign(everything)
        ends = self._consumer.end_offsets(everything, timeout_ms=_PROBE_TIMEOUT_MS)
        begins = self._consumer.beginning_offsets(everything, timeout_ms=_PROBE_TIMEOUT_MS)
        # By the host's clock. If that is fast by more than an hour nothing is "since then": read all, the checks of
        # each command know the broker's time.
        since_ms = max(0, time.time_ns() // 1_000_000 - LONGEST_LIFE_MS)
        recent = self._consumer.offsets_for_times(
            dict.fromkeys(command_partitions, since_ms), timeout_ms=_PROBE_TIMEOUT_MS
        )
        for partition in everything:
            position = self._positions.get((partition.topic, partition.partition))
            if position is None or not begins[partition] <= position <= ends[partition]:
                found = recent.get(partition)
                position = begins[partition] if found is None else found.offset
            self._consumer.seek(partition, position)
        self._ends: dict[Any, int] = dict(ends)
        self._behind = {partition for partition in everything if self._consumer.position(partition) < ends[partition]}
        self._heard_s = time.monotonic()

    @property
    def is_caught_up(self) -> bool:
        """True once everything was delivered that was there when the feed was opened."""
        return not self._behind

    def poll(self, timeout_s: float) -> Sequence[ControlRecord]:
        """Return new records, state before commands; none after `timeout_s` seconds.

        Raises:
            TransportError: The connection is of no more use.
        """
        batches: dict[Any, list[Any]] = self._wrap(
            lambda: self._consumer.poll(timeout_ms=int(timeout_s * 1_000), max_records=_MAX_POLL_RECORDS)
        )
        found: list[ControlRecord] = []
        # State first: a fence or the big switch that arrived together with a command counts for it.
        for partition, records in sorted(batches.items(), key=lambda item: item[0].topic != self._state):
            inlet: Inlet = "state" if partition.topic == self._state else "commands"
            found.extend(ControlRecord(inlet, record.key, record.value, record.timestamp) for record in records)
            self._positions[partition.topic, partition.partition] = records[-1].offset + 1
        if self._behind:
            # The position and not the last record: the end of a partition may be a hole.
            self._behind = {p for p in self._behind if (self._consumer.position(p, timeout_ms=0) or 0) < self._ends[p]}
        if found:
            self._heard_s = time.monotonic()
        elif time.monotonic() - self._heard_s > _PROBE_S:
            self._wrap(self._probe)
        return found

    def _probe(self) -> None:
        """Make sure that silence is silence; a fetch loop of a client library that is stuck looks just the same."""
        ends = self._consumer.end_offsets(list(self._ends), timeout_ms=_PROBE_TIMEOUT_MS)
        is_deaf = any(end > (self._consumer.position(p, timeout_ms=0) or 0) for p, end in ends.items())
        self._deaf_probes = self._deaf_probes + 1 if is_deaf else 0
        self._heard_s = time.monotonic()
        if self._deaf_probes > 1:
            raise TransportError("the consumer does not deliver records that exist")

    def close(self) -> None:
        """Let go of the connection."""
        # Nothing can be done about a connection that does not close.
        with contextlib.suppress(Exception):
            self._consumer.close(autocommit=False, timeout_ms=1_000)

    def _wrap(self, call: Callable[[], Any]) -> Any:
        errors = kafka_python().errors

        try:
            return call()
        except (errors.KafkaError, OSError, RuntimeError, AssertionError) as error:
            raise TransportError(f"control topics: {error!r}") from error
