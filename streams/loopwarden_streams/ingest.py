"""From a batch of raw records to changed state: the continuity rule, and the loop over the records.

Around a rebalance Faust loses whole fetches and delivers others twice. The next expected offset of each partition
decides: what lies below it was seen, a batch that begins above it means that something was lost on the way and is
read again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import compress, islice

import faust
from faust.types import TP, EventT

from loopwarden_detectors.answers import acknowledge, is_confirmed
from loopwarden_detectors.ladder import Decision
from loopwarden_detectors.restart_loop import turn_of
from loopwarden_detectors.run_state import TreeState
from loopwarden_detectors.savings import saved_usd
from loopwarden_detectors.watch import observe
from loopwarden_models.acks import Ack
from loopwarden_models.codec import decode_message, decode_step
from loopwarden_models.commands import Reason
from loopwarden_models.errors import InvalidEvent
from loopwarden_models.events import AnyStep, ModelEnd, RunEnd, RunStart, ToolEnd, step_key
from loopwarden_models.patterns import Level
from loopwarden_streams.batch_writer import Out
from loopwarden_streams.dead_letters import BrokenShare, Refused, dead_letter, summary_letter
from loopwarden_streams.dispatch import Dispatch
from loopwarden_streams.early_answers import Answer
from loopwarden_streams.holes import Holes
from loopwarden_streams.metrics import Metrics
from loopwarden_streams.model_watch import ModelWatch
from loopwarden_streams.outbox import Outbox
from loopwarden_streams.partition import ACKS, STEPS, TOOLS, Partition
from loopwarden_streams.policy_follower import PolicyInForce
from loopwarden_streams.reporting import StepCounts
from loopwarden_streams.settings import Settings
from loopwarden_streams.shared import Shared
from loopwarden_streams.shared_out import SharedOut
from loopwarden_streams.transport import Batch, Record

log = logging.getLogger(__name__)

# Records between two breaths of the event loop, which also carries commands, health and rebalances.
CHUNK = 256
FAULT_LOG_EVERY_S = 1.0


class Ingest:
    """Applies batches to the partitions of one worker. One event loop owns it; one batch at a time per source."""

    def __init__(
        self,
        app: faust.App,
        settings: Settings,
        rules: PolicyInForce,
        partitions: Mapping[int, Partition],
        outbox: Outbox,
        shared: Shared,
        shared_out: SharedOut,
        metrics: Metrics,
        dispatch: Dispatch,
        models: ModelWatch,
    ) -> None:
        """Apply to `partitions`, which recovery fills and a revoke empties."""
        self._app = app
        self._settings = settings
        self._rules = rules
        self._partitions = partitions
        self._outbox = outbox
        self._shared = shared
        self._shared_out = shared_out
        self._metrics = metrics
        self._holes = Holes(app, settings, metrics)
        self._dispatch = dispatch
        self._models = models
        self._shares: dict[int, BrokenShare] = {}
        self._counts = StepCounts()
        self._fault_logged_at = 0.0
        self.broken: set[int] = set()

    async def steps(self, event: EventT[Batch]) -> None:
        """Apply one batch of step events. See `_handle`."""
        await self._handle(event, STEPS, self._apply_steps)

    async def acks(self, event: EventT[Batch]) -> None:
        """Apply one batch of acknowledgements. See `_handle`."""
        await self._handle(event, ACKS, self._apply_acks)

    async def tools(self, event: EventT[Batch]) -> None:
        """Apply one batch of partial sums, and of beginnings and ends of runs. See `_handle`."""
        await self._handle(event, TOOLS, self._apply_tools)

    async def _handle(
        self, event: EventT[Batch], source: str, apply: Callable[[Partition, list[Record]], Awaitable[None]]
    ) -> None:
        """Apply the records of a batch that are due, chunk by chunk.

        Raises:
            TypeError: The batch was delivered record by record: with acknowledgements off it would never commit.
            TransportError: A decision could not be published. The process must end; the partition is replayed.
        """
        batch = event.value
        if type(batch) is not Batch:
            raise TypeError(f"{source} was delivered record by record: the batched transport is not in use")
        message = event.message
        partition = self._partitions.get(message.partition)
        if partition is None or not self._is_ours(partition, message.generation_id):
            return
        if batch.last_offset < partition.next_offset[source]:
            self._metrics.count_replayed("position", sum(1 for _ in batch))
            return
        records = iter(batch)
        is_begun = False
        while chunk := list(islice(records, CHUNK)):
            first = chunk[0].offset
            if not is_begun:
                expected = partition.next_offset[source]
                if first > expected and not await self._holes.may_pass(partition, source, expected, first):
                    return
                is_begun = True  # what one fetch brought holds together
            due = partition.next_offset[source]
            if first < due:
                seen = len(chunk)
                chunk = [record for record in chunk if record.offset >= due]
                self._metrics.count_replayed("position", seen - len(chunk))
                if not chunk:
                    continue
            async with partition.lock:
                if not self._is_ours(partition, message.generation_id):
                    return
                await apply(partition, chunk)
                partition.progress_at = time.monotonic()
            await asyncio.sleep(0)

    def _is_ours(self, partition: Partition, generation_id: int | None) -> bool:
        return (
            self._partitions.get(partition.number) is partition
            and generation_id == self._app.consumer_generation_id
            and self._app.flow_control.is_active()
        )

    async def _apply_steps(self, partition: Partition, records: list[Record]) -> None:
        decisions, refused = self._judge(partition, records)
        partition.next_offset[STEPS] = records[-1].offset + 1
        is_watched = partition.number in self._shares
        letters = self._letters(partition, STEPS, records, refused) if refused or is_watched else ()
        if decisions or letters:
            await self._dispatch.send(partition, decisions, letters)
        if partition.early:
            await self._settle_early(partition, decisions)
        if partition.must_send:
            await self._shared_out.send(partition)

    def _judge(  # noqa: C901, PLR0912, PLR0915 - the loop over all events of a fleet: each call more in it is felt
        self, partition: Partition, records: list[Record]
    ) -> tuple[list[tuple[Decision, int]], Refused]:
        """Put each record through the detectors. No await: a chunk is applied as a whole or not at all."""
        trees = partition.trees
        find_tree = trees.get
        mark_dirty = partition.dirty.add
        dirty_from = partition.dirty_from
        early = partition.early
        policy = self._rules.policy
        meaning = self._models.meaning
        max_bytes = self._settings.max_step_bytes
        ahead_ms = self._settings.max_clock_ahead_ms
        act_from_ms = self._act_from_ms()
        decisions: list[tuple[Decision, int]] = []
        refused: Refused = []
        counts = self._counts
        count = counts.add
        is_told = partition.was_owned and partition.is_replaying
        add_load = partition.loads.add_again if is_told else partition.loads.add
        add_up = partition.sums.add_again if is_told else partition.sums.add
        newest_ms = partition.watermark_ms
        step: AnyStep | None = None
        for record in records:
            key = record.key or b""
            offset = record.offset
            tree = find_tree(key)
            if tree is not None and offset <= tree.steps_offset:
                counts.stamped += 1
                continue
            try:
                step = decode_step(record.value, max_bytes=max_bytes)
                if step is None:
                    counts.unknown += 1
                    continue
                if tree is None or tree.root_run_id != (step.root_run_id or step.run_id) or tree.tenant != step.tenant:
                    tree = _new_tree(key, step)
                # -1: a producer of the oldest formats gave no time.
                appended_ms = record.timestamp
                latest_ms = None if appended_ms is None or appended_ms < 0 else appended_ms + ahead_ms
                act = step.ts_ms >= act_from_ms
                calls, cost = tree.calls, tree.cost_usd
                found = observe(tree, step, policy, offset=offset, latest_ms=latest_ms, act=act, meaning=meaning)
            except InvalidEvent as error:
                refused.append((record, error))
                continue
            except Exception as error:  # noqa: BLE001 - the one broad catch: a fault of ours must not stop the partition
                self._log_fault(partition, offset, error)
                refused.append((record, InvalidEvent("unhandled", repr(error)[:500])))
                continue
            if tree.steps_offset < 0:
                trees[key] = tree
            if tree.steps_offset < dirty_from:
                mark_dirty(key)
            tree.steps_offset = offset
            if tree.now_ms > newest_ms:  # noqa: PLR1730 - max() costs three times as much, once per event
                newest_ms = tree.now_ms
            count(tree.tenant, step)
            if type(step) is ToolEnd:
                if tree.calls > calls:
                    add_up(tree.tenant, step, offset)
                    add_load(tree.tenant, step.ts_ms, 1, step.cost_usd or 0.0, offset)
            elif type(step) is ModelEnd:
                if tree.cost_usd > cost and step.cost_usd:
                    add_load(tree.tenant, step.ts_ms, 0, step.cost_usd, offset)
            elif type(step) is RunStart or type(step) is RunEnd:
                _note_turn(partition, tree, step, key, offset)
            if found:
                for decision in found:
                    if decision.is_violation:
                        counts.add_violation(step)
                    else:
                        decisions.append((decision, offset))
                early.give(tree, found)
        if newest_ms > partition.watermark_ms:
            partition.watermark_ms = newest_ms
            partition.watermark_at = time.monotonic()
        if step is not None:
            counts.newest_ms = step.ts_ms
        return decisions, refused

    def report(self) -> None:
        """Move what was counted since the last call into the metrics.

        Once a second, not once a chunk: a chunk of a fleet names a hundred tools, and a metric costs a microsecond.
        """
        counts, self._counts = self._counts, StepCounts()
        counts.report(self._metrics)
        for partition in self._partitions.values():
            crowded, partition.sums.crowded = partition.sums.crowded, 0
            if crowded:
                self._metrics.count_sum_dropped("crowded", crowded)
        for number in list(self.broken):
            if number in self._partitions:
                # A producer that was stopped instead of mended sends nothing that would show it.
                self._is_broken(number, 0, 0)
            else:
                self.broken.discard(number)
                del self._shares[number]

    def _log_fault(self, partition: Partition, offset: int, error: Exception) -> None:
        """Log a fault of ours, at most one a second: it can hit every record of a fleet."""
        now = time.monotonic()
        if now - self._fault_logged_at >= FAULT_LOG_EVERY_S:
            self._fault_logged_at = now
            what = "record at offset %d of partition %d cannot be judged; each such is in the dead-letter topic"
            log.error(what, offset, partition.number, exc_info=error)

    def _act_from_ms(self) -> int:
        """Return the age from which on steps are judged in shadow, as Unix milliseconds; 0 = none."""
        oldest = self._settings.max_action_age_ms
        return int(time.time() * 1000) - oldest if oldest else 0

    async def _apply_acks(self, partition: Partition, records: list[Record]) -> None:
        refused: Refused = []
        for record in records:
            tree = partition.trees.get(record.key) if record.key else None
            if tree is not None and record.offset <= tree.acks_offset:
                continue
            try:
                ack = decode_message(record.value, Ack, max_bytes=self._settings.max_step_bytes)
                _check_key(record.key or b"", ack.tenant, ack.root_run_id or ack.run_id)
            except InvalidEvent as error:
                refused.append((record, error))
                continue
            self._metrics.count_ack(ack.status, ack.latency_ms)
            answer = Answer(record.key or b"", ack, record.offset)
            if partition.is_replaying:
                partition.early.add(answer)
            try:
                await self._acknowledge(partition, answer)
            except InvalidEvent as error:
                refused.append((record, error))
        partition.next_offset[ACKS] = records[-1].offset + 1
        if refused:
            await self._outbox.publish(partition, (), self._letters(partition, ACKS, records, refused))

    async def _apply_tools(self, partition: Partition, records: list[Record]) -> None:
        refused = await self._shared.apply(partition, records, self._act_from_ms())
        if refused:
            await self._outbox.publish(partition, (), self._letters(partition, TOOLS, records, refused))

    async def _acknowledge(self, partition: Partition, answer: Answer) -> None:
        tree = partition.trees.get(answer.key)
        if tree is None or answer.offset <= tree.acks_offset:
            return
        try:
            stop = acknowledge(tree, answer.ack, partition.clock_ms())
        except Exception as error:
            # As in `_judge`: one answer must not end the worker, and end it again at every start.
            self._log_fault(partition, answer.offset, error)
            raise InvalidEvent("unhandled", repr(error)[:500]) from error
        if answer.ack.status == "confirmed_dead" and is_confirmed(tree, answer.ack.command_id):
            self._metrics.count_kill_confirmed()
        partition.dirty.add(answer.key)
        if not partition.is_replaying:
            # The same answer again changes nothing: until the replay is over, it may have to come again.
            tree.acks_offset = answer.offset
        if stop is not None:
            partition.landing.add(answer.key)  # a pause that landed has a time after which it ends
        if stop is not None and stop.level >= Level.KILL:
            if stop.is_named and not partition.is_replaying:
                run = tree.runs[answer.ack.run_id]
                self._metrics.count_saved_cost(
                    tree.tenant, saved_usd(tree, self._rules.policy.of(tree.tenant, run.agent))
                )
            reason = Reason(pattern=stop.pattern, detector=stop.detector, count=stop.count)
            await self._outbox.confirm_kill(partition, answer.ack.tenant, answer.ack.run_id, stop.command_id, reason)

    async def _settle_early(self, partition: Partition, decisions: Sequence[tuple[Decision, int]]) -> None:
        """Say what early answers to commands that were just given again mean, and let go of them after the replay."""
        for decision, _ in decisions:
            order = decision.order
            if order is None or order.type != "kill_run":
                continue
            for _, ack, _ in partition.early.to(order.command_id):
                if ack.status == "applied":
                    await self._outbox.confirm_kill(partition, ack.tenant, ack.run_id, order.command_id, order.reason)
        if not partition.is_replaying:
            for answer in partition.early.release():
                await self._acknowledge(partition, answer)

    def _letters(self, partition: Partition, source: str, records: list[Record], refused: Refused) -> list[Out]:
        """Return the dead letters of a chunk; if the stream is broken, most are one that names positions only."""
        is_broken = self._is_broken(partition.number, len(records), len(refused))
        if not refused:
            return []
        tp = TP(self._settings.topic(source), partition.number)
        kept, dropped = refused, []
        if is_broken:
            spared = [self._shares[partition.number].spares(record.key) for record, _ in refused]
            kept = list(compress(refused, spared))
            dropped = [one for one, is_kept in zip(refused, spared, strict=True) if not is_kept]
        for reason, n in Counter(error.reason for _, error in kept).items():
            self._metrics.count_dead_letter(reason, n)
        letters = [dead_letter(tp, record, error) for record, error in kept]
        if dropped:
            self._metrics.count_dead_letters_dropped(len(dropped))
            letters.append(summary_letter(tp, dropped))
        return letters

    def _is_broken(self, number: int, records: int, refused: int) -> bool:
        """Count a chunk, and return whether most of what came lately was refused."""
        share = self._shares.get(number)
        if share is None:
            share = self._shares[number] = BrokenShare(self._settings.dead_letter_max_ratio)
        is_broken = share.count(records, refused)
        if is_broken != (number in self.broken):
            self._metrics.set_broken(self._settings.topic(STEPS), number, is_broken)
            if is_broken:
                self.broken.add(number)
                log.error("partition %d is mostly unreadable: positions are kept, not records, until that ends", number)
            else:
                self.broken.discard(number)
        return is_broken


def _new_tree(key: bytes, step: AnyStep) -> TreeState:
    root = step.root_run_id or step.run_id
    _check_key(key, step.tenant, root)
    return TreeState(tenant=step.tenant, root_run_id=root)


def _check_key(key: bytes, tenant: str, root_run_id: str) -> None:
    if not key:
        raise InvalidEvent("empty_key", "the record has no key; it must be tenant|root_run_id")
    expected = step_key(tenant, root_run_id)
    if key != expected:
        raise InvalidEvent("key_mismatch", f"the key is {key[:200]!r}, the event says {expected!r}")


def _note_turn(partition: Partition, tree: TreeState, step: AnyStep, key: bytes, offset: int) -> None:
    """Note what hangs on a run that began or ended: its limit of time, and its task."""
    if type(step) is RunStart and step.limits is not None and step.limits.max_duration_ms is not None:
        partition.timed.add(key)
    turn = turn_of(tree, step, partition=partition.number, epoch=partition.epoch, offset=offset)
    if turn is not None:
        partition.turns.append(turn)
