"""What leaves the detector: verdicts, commands, records of runs and breakers, fences, sums and dead letters.

Everything is handed to the producer at once. The broker's word is awaited before a checkpoint makes the state durable
that the decision came from, so that no crash loses a decision; and a bounded number of answers may be outstanding.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from loopwarden_detectors.ladder import Decision, Order
from loopwarden_models.codec import encode
from loopwarden_models.commands import Command, EvidenceRange, Reason
from loopwarden_models.control_state import (
    BreakerState,
    FenceRecord,
    RunRecord,
    fence_key,
    run_record_key,
)
from loopwarden_models.errors import TransportError
from loopwarden_models.events import step_key
from loopwarden_models.ids import control_partition
from loopwarden_models.policy_version import stamp
from loopwarden_models.verdicts import Verdict
from loopwarden_streams.batch_writer import Out, write_batch
from loopwarden_streams.partition import STEPS, TOOLS, Partition
from loopwarden_streams.policy_follower import PolicyInForce
from loopwarden_streams.settings import Settings
from loopwarden_streams.signing import control_encoder
from loopwarden_streams.state_records import cut, question_record, run_record, version_of

log = logging.getLogger(__name__)

# Producer batches whose answer is outstanding, per partition of steps. More would only hide a slow broker.
MAX_OUTSTANDING = 32
# Verdicts are gathered this long, commands never: people read verdicts, and a request costs the loop a tenth of a
# millisecond, whether it carries one or a hundred.
VERDICT_LINGER_S = 0.02

# How long the next sums wait for the answer to the last ones, before they are added up with those after them.
SHARED_WAIT_S = 0.2

FENCE_TENANT = "*"


class Outbox:
    """Publishes on behalf of the partitions of one worker. Not thread-safe: one event loop owns it."""

    def __init__(
        self, settings: Settings, rules: PolicyInForce, bulk: AIOKafkaProducer, control: AIOKafkaProducer
    ) -> None:
        """Use `bulk` for verdicts and dead letters and `control`, a producer without linger, for the control topics.

        Raises:
            ConfigError: The key that orders are to be signed with cannot be used.
        """
        self._settings = settings
        self._rules = rules
        self._bulk = bulk
        self._control = control
        # For all that goes to the control topics; the rest is nobody's order and stays unsigned.
        self._encode_control = control_encoder(settings)
        self._steps_topic = settings.topic(STEPS)
        self._outstanding: defaultdict[int, deque[asyncio.Future[Any]]] = defaultdict(deque)
        self._verdicts: defaultdict[int, list[Out]] = defaultdict(list)
        self._lingering: set[asyncio.Task[None]] = set()
        self._shared: list[asyncio.Future[Any]] = []
        self._failed: TransportError | None = None

    async def publish(
        self, partition: Partition, decisions: Sequence[tuple[Decision, int]], letters: Sequence[Out]
    ) -> list[Command]:
        """Hand over what a chunk of records led to; commands first.

        Args:
            partition: Where the decisions come from.
            decisions: Each with the source offset of the step that decided it.
            letters: Records for the dead-letter topic.

        Returns:
            The commands that were issued.

        Raises:
            TransportError: The broker refused something, now or since the last call.
        """
        commands = [
            self._command(partition, decision.order, decision.first_offset, offset)
            for decision, offset in decisions
            if decision.order is not None
        ]
        waiting = self._outstanding[partition.number]
        try:
            await self._issue(partition, decisions, commands, waiting)
            if letters:
                topic = self._settings.topic("dead-letter")
                waiting.extend(await write_batch(self._bulk, topic, partition.number, letters))
            while len(waiting) > MAX_OUTSTANDING or (waiting and waiting[0].done()):
                await _settle(waiting[0], waiting)
        except KafkaError as error:
            raise _refused(partition.number, error) from error
        self._gather(partition, decisions)
        if self._failed is not None:
            raise self._failed
        return commands

    async def _hand_over(
        self, partition: Partition, producer: AIOKafkaProducer, topic: str, out: Mapping[int, Sequence[Out]]
    ) -> None:
        waiting = self._outstanding[partition.number]
        try:
            for number, records in out.items():
                waiting.extend(await write_batch(producer, self._settings.topic(topic), number, records))
            while len(waiting) > MAX_OUTSTANDING or (waiting and waiting[0].done()):
                await _settle(waiting[0], waiting)
        except KafkaError as error:
            raise _refused(partition.number, error) from error

    def _gather(self, partition: Partition, decisions: Sequence[tuple[Decision, int]]) -> None:
        said = [self._verdict(partition, decision, offset) for decision, offset in decisions if decision.verdict]
        self._add_verdicts(partition.number, said)

    def _add_verdicts(self, number: int, said: Sequence[Out]) -> None:
        verdicts = self._verdicts[number]
        was_empty = not verdicts
        verdicts += said
        if was_empty and verdicts:
            task = asyncio.get_running_loop().create_task(self._linger(number))
            self._lingering.add(task)
            task.add_done_callback(self._lingering.discard)

    async def _linger(self, number: int) -> None:
        await asyncio.sleep(VERDICT_LINGER_S)
        try:
            await self._write_verdicts(number)
        except KafkaError as error:
            self._failed = _refused(number, error)

    async def _write_verdicts(self, number: int) -> None:
        verdicts = self._verdicts.pop(number, [])
        if verdicts:
            topic = self._settings.topic("verdicts")
            self._outstanding[number].extend(await write_batch(self._bulk, topic, number, verdicts))

    async def drained(self, partition: Partition) -> None:
        """Wait until the broker has everything that was published for `partition` up to now.

        Raises:
            TransportError: It refused something.
        """
        number = partition.number
        try:
            # Tasks first: one may have taken verdicts and not handed them over yet.
            await asyncio.gather(*self._lingering)
            await self._write_verdicts(number)
            waiting = self._outstanding[number]
            for future in list(waiting):
                await _settle(future, waiting)
        except KafkaError as error:
            raise _refused(number, error) from error
        if self._shared:
            await asyncio.wait(self._shared)
            self._settle_shared()
        if self._failed is not None:
            raise self._failed

    async def announce(self, partition: Partition) -> None:
        """Announce the epoch of a new ownership, and wait for the broker's word: nothing is judged before.

        Raises:
            TransportError: The broker refused it.
        """
        fence = FenceRecord(
            v=1,
            key=fence_key(partition.number),
            epoch=partition.epoch,
            owner=self._settings.instance_id(),
            at_ms=int(time.time() * 1000),
        )
        try:
            await self._control.send_and_wait(
                self._settings.topic("control.state"),
                key=fence.key.encode(),
                value=self._encode_control(fence),
                partition=self._partition_of(FENCE_TENANT),
            )
        except KafkaError as error:
            raise TransportError(f"the fence of partition {partition.number} was refused: {error!r}") from error

    async def share(self, out: Mapping[int, Sequence[Out]]) -> None:
        """Hand over messages of `tool-health`, by its partitions.

        What the broker does not take is lost: a breaker that opens a little later is no reason to end a worker, with
        all the runs that it watches, because a broker was away.
        """
        try:
            for number, records in out.items():
                self._shared += await write_batch(self._bulk, self._settings.topic(TOOLS), number, records)
        except KafkaError as error:
            log.warning("sums of tools and tenants are lost, the broker does not take them: %r", error)

    async def has_shared(self) -> bool:
        """Return whether the broker has answered to what was shared last, within a moment: else more can wait."""
        if self._shared:
            await asyncio.wait(self._shared, timeout=SHARED_WAIT_S)
        self._settle_shared()
        return not self._shared

    def _settle_shared(self) -> None:
        answered = [future for future in self._shared if future.done()]
        self._shared = [future for future in self._shared if not future.done()]
        lost = [future.exception() for future in answered if not future.cancelled() and future.exception()]
        if lost:
            log.warning("%d batches of sums are lost: %r", len(lost), lost[0])

    async def set_breakers(self, partition: Partition, records: Sequence[BreakerState]) -> None:
        """Hand over records of breakers.

        Raises:
            TransportError: The broker refused something.
        """
        out: defaultdict[int, list[Out]] = defaultdict(list)
        for record in records:
            tenant = record.key.partition("|")[0]
            out[self._partition_of(tenant)].append(Out(record.key.encode(), self._encode_control(record)))
        await self._hand_over(partition, self._control, "control.state", out)

    async def delete_records(self, partition: Partition, keys: Sequence[str]) -> None:
        """Delete records of `control.state` that have bound nothing for long.

        Raises:
            TransportError: The broker refused something.
        """
        out: defaultdict[int, list[Out]] = defaultdict(list)
        for key in keys:
            out[self._partition_of(key.partition("|")[0])].append(Out(key.encode(), None))
        await self._hand_over(partition, self._control, "control.state", out)

    async def say(self, partition: Partition, verdicts: Sequence[Verdict]) -> None:
        """Say verdicts on what runs share. One that names no source is of the sums that were read up to now.

        Raises:
            TransportError: The broker refused something since the last call.
        """
        offset = max(partition.next_offset[TOOLS] - 1, 0)
        source = EvidenceRange(self._settings.topic(TOOLS), partition.number, [offset, offset])
        located = [
            msgspec.structs.replace(
                verdict, source=verdict.source or source, policy=stamp(self._rules.policy, verdict.tenant)
            )
            for verdict in verdicts
        ]
        self._add_verdicts(
            partition.number, [Out(step_key(one.tenant, one.root_run_id), encode(one)) for one in located]
        )
        if self._failed is not None:
            raise self._failed

    async def confirm_kill(
        self, partition: Partition, tenant: str, run_id: str, command_id: str, reason: Reason
    ) -> None:
        """Put a run's kill in force for every later incarnation: its gate is known to be shut.

        A start that is refused tomorrow tells `reason` to whoever wonders.

        Raises:
            KafkaError: The producer is closed or the topic unknown.
        """
        record = RunRecord(
            v=1,
            key=run_record_key(tenant, run_id),
            version=version_of(partition),
            state="killed",
            command_id=command_id,
            reason=reason,
        )
        await self._send_record(tenant, record, self._outstanding[partition.number])

    async def _issue(
        self,
        partition: Partition,
        decisions: Sequence[tuple[Decision, int]],
        commands: Sequence[Command],
        waiting: deque[asyncio.Future[Any]],
    ) -> None:
        """Hand commands over at once, those of one control partition in one request.

        The level goes before the edge: a runtime that takes a run up in this moment finds its kill, one way or the
        other.
        """
        records: defaultdict[int, list[Out]] = defaultdict(list)
        orders: defaultdict[int, list[Out]] = defaultdict(list)
        issued = {command.command_id: command for command in commands}
        for found, offset in decisions:
            # In their order: of two records of one run the later one binds.
            record = run_record(partition, found, issued)
            if record is not None:
                tenant = record.key.partition("|")[0]
                records[self._partition_of(tenant)].append(Out(record.key.encode(), self._encode_control(record)))
            asked = found.question
            if asked is not None:
                question = question_record(partition, asked, self._range(partition, offset, offset))
                number = self._partition_of(asked.tenant)
                records[number].append(Out(question.key.encode(), self._encode_control(question)))
        for command in commands:
            number = self._partition_of(command.tenant)
            orders[number].append(Out(f"{command.tenant}|{command.run_id}".encode(), self._encode_control(command)))
        for topic, outgoing in (("control.state", records), ("control.commands", orders)):
            for number, out in outgoing.items():
                waiting.extend(await write_batch(self._control, self._settings.topic(topic), number, out))

    async def _send_record(self, tenant: str, record: RunRecord, waiting: deque[asyncio.Future[Any]]) -> None:
        waiting.append(
            await self._control.send(
                self._settings.topic("control.state"),
                key=record.key.encode(),
                value=self._encode_control(record),
                partition=self._partition_of(tenant),
            )
        )

    def _command(self, partition: Partition, order: Order, first_offset: int, offset: int) -> Command:
        # Sent once more, it is the same command, and dies when the first one does.
        now_ms = int(time.time() * 1000) if order.issued_at_ms is None else order.issued_at_ms
        return Command(
            v=1,
            command_id=order.command_id,
            type=order.type,
            tenant=order.tenant,
            run_id=order.run_id,
            root_run_id=order.root_run_id,
            incarnation=order.incarnation,
            scope=order.scope,
            mode="enforce",
            writer="detector",
            issued_at_ms=now_ms,
            expires_at_ms=now_ms + order.ttl_ms,
            epoch=partition.epoch,
            seq=max(offset, 0),
            reason=cut(order.reason),
            message_id=order.message_id,
            message=order.message,
            grace_ms=order.grace_ms,
            evidence=self._range(partition, first_offset, offset),
        )

    def _verdict(self, partition: Partition, decision: Decision, offset: int) -> Out:
        verdict = decision.verdict
        assert verdict is not None  # noqa: S101 - the caller filtered
        located = msgspec.structs.replace(
            verdict,
            source=self._range(partition, decision.first_offset, offset),
            # Its partition's lock is held since it was judged, and the policy is replaced under all of them.
            policy=stamp(self._rules.policy, verdict.tenant),
        )
        return Out(step_key(verdict.tenant, verdict.root_run_id), encode(located))

    def _range(self, partition: Partition, first_offset: int, offset: int) -> EvidenceRange:
        first = first_offset if first_offset >= 0 else offset
        return EvidenceRange(topic=self._steps_topic, partition=partition.number, offsets=[first, offset])

    def _partition_of(self, tenant: str) -> int:
        return control_partition(tenant, self._settings.control_partitions)


async def _settle(future: asyncio.Future[Any], waiting: deque[asyncio.Future[Any]]) -> None:
    # It stays in line until it is answered: a checkpoint that looks meanwhile must see that it is outstanding.
    await future
    if waiting and waiting[0] is future:
        waiting.popleft()


def _refused(number: int, error: KafkaError) -> TransportError:
    return TransportError(f"a decision of partition {number} could not be published: {error!r}")
