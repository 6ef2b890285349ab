"""The detector service: wires the parts of one worker together and holds its life cycle."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import faust
from faust.types import TP

from loopwarden_models.errors import ConfigError, TransportError
from loopwarden_models.policy import Policy
from loopwarden_streams.app import changelog_name, hot_topic, make_app, runs_table
from loopwarden_streams.breakers import Breakers
from loopwarden_streams.checkpoints import Checkpointer
from loopwarden_streams.dispatch import Dispatch
from loopwarden_streams.ingest import Ingest
from loopwarden_streams.kafka_client import new_producer
from loopwarden_streams.lag import LagWatch
from loopwarden_streams.landing_store import store_of
from loopwarden_streams.manual_breakers import ManualBreakers
from loopwarden_streams.metrics import Metrics
from loopwarden_streams.model_watch import ModelWatch
from loopwarden_streams.outbox import Outbox
from loopwarden_streams.partition import ACKS, STEPS, TOOLS, Partition
from loopwarden_streams.persons_records import PersonsRecords, write_again
from loopwarden_streams.policy_follower import PolicyFollower, PolicyInForce
from loopwarden_streams.question_board import QuestionBoard
from loopwarden_streams.recovery import Recovery
from loopwarden_streams.recovery_watch import RecoveryWatch
from loopwarden_streams.restarts import Restarts
from loopwarden_streams.settings import Settings
from loopwarden_streams.shared import Shared
from loopwarden_streams.shared_out import SharedOut
from loopwarden_streams.spent_records import SpentRecords
from loopwarden_streams.tenants import Tenants
from loopwarden_streams.ticks import Ticker
from loopwarden_streams.topics import find_obstacles
from loopwarden_streams.transport import BatchConsumer
from loopwarden_streams.webhooks import Webhooks, load_webhooks

log = logging.getLogger(__name__)

LAG_EVERY_S = 2.0
RECOVERY_EVERY_S = 1.0
REPORT_EVERY_S = 1.0
SWEEP_EVERY_S = 60.0
RESTORE_EVERY_S = 1.0
QUESTIONS_EVERY_S = 1.0
# A quarter of a second: what a breaker that opens is late by. Traffic grows with the number of tools. judgement
SUMS_EVERY_S = 0.25
# Limits of tenants count minutes and days.
LOADS_EVERY_S = 1.0
# How long a stop waits for a checkpoint or a tick under way; the worker's own limit for all of a stop is 25 s.
TIMERS_END_S = 10.0
# How long one is waited for that may still hold records.
PRODUCER_END_S = 3.0
MAX_BUFFERED_MESSAGES = 10_000


class Detector:
    """One worker. Create it inside a running event loop; `start`, wait for `failed` or a signal, `stop`.

    Attributes:
        rules: The policy in force.
        partitions: What this worker owns and has recovered.
        is_ready: Recovery is done and no rebalance is under way.
        failed: Done as soon as something happened after which the state cannot be trusted; the process must end
            without a further checkpoint, and what it owned is replayed by the next owner.
    """

    def __init__(self, settings: Settings, policy: Policy, data_dir: Path, metrics: Metrics | None = None) -> None:
        """Prepare everything; nothing connects yet."""
        self.settings = settings
        self.metrics = Metrics() if metrics is None else metrics
        self.partitions: dict[int, Partition] = {}
        self.is_ready = False
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self._tasks: list[asyncio.Task[None]] = []
        self._manual_task: asyncio.Task[None] | None = None
        self._models_task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._ownership = 0
        self._bulk = new_producer(settings)
        self._control = new_producer(settings)
        self.app = make_app(settings, data_dir)
        self.rules = PolicyInForce(policy)
        self.policies = PolicyFollower(settings, policy, self.rules, self.partitions, self.metrics)
        self.outbox = Outbox(settings, self.rules, self._bulk, self._control)
        self.spent = SpentRecords(settings.run_record_ttl_ms)
        self.persons = PersonsRecords()
        self.webhooks = Webhooks(load_webhooks(settings.webhooks), self.metrics)
        self.questions = QuestionBoard(
            self.metrics,
            partitions=settings.partitions,
            ttl_ms=settings.run_record_ttl_ms,
            tell=self.webhooks.tell,
        )
        self.manual = ManualBreakers(settings, self.spent, self.persons, self.questions)
        self.breakers = Breakers(settings, self.outbox, self.metrics, self.manual)
        self.shared_out = SharedOut(settings, self.outbox, self.partitions)
        restarts = Restarts(settings, self.outbox, self.metrics)
        tenants = Tenants(self.outbox, self.metrics)
        self.shared = Shared(self.breakers, restarts, tenants, self.metrics, max_bytes=settings.max_step_bytes)
        self.dispatch = Dispatch(settings, self.rules, self.partitions, self.outbox, self.metrics)
        self.models = ModelWatch(settings, self.metrics)
        self.ingest = Ingest(
            self.app,
            settings,
            self.rules,
            self.partitions,
            self.outbox,
            self.shared,
            self.shared_out,
            self.metrics,
            self.dispatch,
            self.models,
        )
        self.checkpointer = Checkpointer(
            self.app, settings, self.partitions, self.outbox, self.shared_out, self._bulk, self.metrics
        )
        self.recovery = Recovery(
            self.app, settings, self.rules, self.outbox, self.metrics, changelog=changelog_name(settings)
        )
        self.ticker = Ticker(settings, self.rules, self.partitions, self.dispatch, self.shared, self.metrics)
        self.lag = LagWatch(self.app, settings, self.partitions, self.metrics)
        self.recovery_watch = RecoveryWatch(self.app, settings, lambda: self.is_ready, self.metrics)
        self._declare(self.app)

    def _declare(self, app: faust.App) -> None:
        self._table = runs_table(app, self.settings)
        self._table.on_recover(self._on_recovered)
        app.on_partitions_revoked.connect(cast("Any", self._on_revoked), weak=False)
        app.on_before_shutdown.connect(cast("Any", self._on_before_shutdown), weak=False)

        @app.agent(hot_topic(app, self.settings, STEPS), name="steps", concurrency=1)
        async def watch_steps(stream: faust.StreamT[Any]) -> None:
            async for event in stream.events():
                await self._guarded(self.ingest.steps, event)

        @app.agent(hot_topic(app, self.settings, ACKS), name="acks", concurrency=1)
        async def watch_acks(stream: faust.StreamT[Any]) -> None:
            async for event in stream.events():
                await self._guarded(self.ingest.acks, event)

        @app.agent(hot_topic(app, self.settings, TOOLS), name="tools", concurrency=1)
        async def watch_tools(stream: faust.StreamT[Any]) -> None:
            async for event in stream.events():
                await self._guarded(self.ingest.tools, event)

    async def start(self) -> None:
        """Connect, join the group, take over what it gives us, and begin to watch. Returns when that is done.

        Raises:
            KafkaError: No broker can be reached.
            TransportError: A topic is missing or has another number of partitions.
            ConfigError: The batched transport is not in use.
        """
        await self._bulk.start()
        await self._control.start()
        # Faust passes over what is missing: the worker would own nothing, and call itself ready.
        obstacles = await find_obstacles(self.settings)
        if obstacles:
            raise TransportError(f"{'; '.join(obstacles)}: run `loopwarden topics`, which creates them or says more")
        # Before the first event: no run is judged by the file alone where a document says otherwise.
        await self.policies.start()
        # Before the app, whose start ends when the first recovery has.
        self._every(RECOVERY_EVERY_S, self.recovery_watch.look)
        await self.app.start()
        if not isinstance(self.app.consumer, BatchConsumer):
            raise ConfigError(f"the app's consumer is {type(self.app.consumer).__name__}, not the batched one")
        self.app.producer.buffer.max_messages = MAX_BUFFERED_MESSAGES
        self._manual_task = asyncio.get_running_loop().create_task(self.manual.follow())
        self._models_task = asyncio.get_running_loop().create_task(self.models.load())
        self._every(self.settings.checkpoint_ms / 1000, self._checkpoint)
        self._every(SUMS_EVERY_S, self.shared_out.sums)
        self._every(LOADS_EVERY_S, self.shared_out.loads)
        self._every(self.settings.tick_ms / 1000, self.ticker.tick)
        self._every(LAG_EVERY_S, self.lag.look)
        self._every(REPORT_EVERY_S, self._report)
        self._every(REPORT_EVERY_S, self.models.look)
        self._every(min(SWEEP_EVERY_S, self.settings.run_record_ttl_ms / 1000 + 1), self._sweep_records)
        self._every(RESTORE_EVERY_S, self._restore_persons)
        self._every(QUESTIONS_EVERY_S, self._look_at_questions)

    async def stop(self, *, save: bool = True) -> None:
        """Save, commit, leave the group, and close the connections.

        Args:
            save: False after a failure: the state in memory is not to be trusted.
        """
        self._stopping.set()
        if save and self._tasks:
            # A tick that was cut off between a decision and its publication would be saved as if it had been said.
            await asyncio.wait(self._tasks, timeout=TIMERS_END_S)
        for task in self._tasks:
            task.cancel()
        for own in (self._manual_task, self._models_task):
            if own is not None:
                own.cancel()
                self._tasks.append(own)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if not save:
            self.partitions.clear()
        self.models.close()
        await self.webhooks.close()
        await self.policies.stop()
        await self.app.stop()
        for producer in (self._control, self._bulk):
            # What is saved is on the broker. Without one, what is left (sums of tools, four times a second) would be
            # waited for until it expires, and an orchestrator would kill the process long before.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(producer.stop(), PRODUCER_END_S)

    def fail(self, error: BaseException) -> None:
        """Say that the state cannot be trusted any more."""
        self.is_ready = False
        if not self.failed.done():
            log.critical("the worker must end: %r", error, exc_info=error)
            self.failed.set_result(error)

    async def _guarded(self, work: Callable[..., Awaitable[object]], *args: Any) -> None:
        """Run one piece of work. No exception may leave an agent: Faust would acknowledge and go on without it."""
        if self.failed.done():
            return
        try:
            await work(*args)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it was, the state is not to be trusted after it
            self.fail(error)

    def stuck(self) -> list[str]:
        """Return what should move and has not for longer than allowed: partitions with lag, or the recovery."""
        return [*self.lag.stuck(), *self.recovery_watch.stuck()]

    async def _checkpoint(self) -> None:
        if self.is_ready:
            await self.checkpointer.save()

    async def _sweep_records(self) -> None:
        # One worker of the fleet does it, whoever owns the first partition.
        partition = self.partitions.get(0)
        now_ms = int(time.time() * 1000)
        keys = [*self.spent.due(now_ms), *self.questions.due(now_ms)] if partition is not None else []
        if partition is not None and keys:
            await self.outbox.delete_records(partition, keys)
            log.info("%d records of runs and questions that bind nothing any more are deleted", len(keys))

    async def _look_at_questions(self) -> None:
        if self.is_ready and self.manual.is_ready:
            self.questions.look(self.partitions, int(time.time() * 1000))

    async def _restore_persons(self) -> None:
        if not self.is_ready or not self.manual.is_ready:
            return
        due = self.persons.due(int(time.time() * 1000))
        await write_again(due, self.settings, self._control, self.partitions)

    async def _report(self) -> None:
        self.metrics.set_enforcing(self.persons.is_enforcing)
        self.ingest.report()

    async def _on_recovered(self) -> None:
        # An exception here is only logged by Faust, and the worker would go on without its state.
        try:
            self.partitions.clear()
            ownership = self._ownership
            rebuilt = await self.recovery.rebuild(store_of(self._table))
            if ownership != self._ownership:
                # Faust does not wait for this when the group rebalances again: what was rebuilt is not ours any more.
                log.info("the partitions were revoked while they were rebuilt")
                return
            self.dispatch.recover(rebuilt)
            self.partitions.update(rebuilt)
            # A hundred thousand runs are a million objects that live for hours: no collection needs to look at them.
            gc.collect()
            gc.freeze()
            self.is_ready = True
        except Exception as error:  # noqa: BLE001 - as in `_guarded`
            self.fail(error)

    async def _on_revoked(self, _app: Any, revoked: set[TP], **_: Any) -> None:
        self.is_ready = False
        self._ownership += 1
        if self.partitions and not self.failed.done():
            # The client asks for the partitions also when it finds that the group has removed this member long ago.
            await self._guarded(self.checkpointer.save)
        log.info("%d partitions revoked", len(revoked))
        self.partitions.clear()
        self.metrics.set_owned(())

    async def _on_before_shutdown(self, _app: Any, *_: Any, **__: Any) -> None:
        if self.partitions and not self.failed.done():
            await self._guarded(self.checkpointer.save)
        self.is_ready = False

    def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        async def loop() -> None:
            while not self._stopping.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), seconds)
                    return
                await self._guarded(work)

        self._tasks.append(asyncio.get_running_loop().create_task(loop()))
