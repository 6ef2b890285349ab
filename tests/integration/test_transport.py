"""The batched transport on a real broker: what a release of Faust or of its client must not change.

Both are pinned because private methods of theirs are overridden. These tests are what a newer release has to pass.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.protocol.group import LeaveGroupRequest
from faust.types import TP
from tests._support.detectors import applied, counted, running, until
from tests._support.fleet import differences, fleet, heard, judged, records, shuffled
from tests._support.kafka import ApacheKafka
from tests._support.workers import Deployment

from loopwarden_models.policy import Policy
from loopwarden_streams.detector import Detector
from loopwarden_streams.transport import Batch, BatchConsumer

if TYPE_CHECKING:
    from faust.types import EventT

ENFORCE = Policy(mode="enforce")


def consumer_of(detector: Detector) -> BatchConsumer:
    """Return the consumer of a running detector."""
    consumer = detector.app.consumer
    assert isinstance(consumer, BatchConsumer)
    return consumer


def some_events(runs: int = 60, seed: int = 5) -> list[dict[str, Any]]:
    """Return the events of a fleet, its runs mixed."""
    return shuffled(fleet(runs, seed=seed), random.Random(seed))


def test_a_hot_topic_comes_in_batches_in_order_and_without_a_hole(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """One message for each partition and fetch is what carries a hundred thousand events a second."""
    events = some_events()
    seen: dict[int, list[int]] = defaultdict(list)
    sizes: list[int] = []

    async def scenario(deployment: Deployment) -> None:
        async with running(deployment) as detector:
            handle = detector.ingest.steps

            async def spy(event: EventT[Batch]) -> None:
                batch = event.value
                assert type(batch) is Batch
                assert event.message.offset == batch.last_offset
                expected = detector.partitions[event.message.partition].next_offset["steps"]
                await handle(event)
                applied = detector.partitions[event.message.partition].next_offset["steps"]
                assert applied == batch.last_offset + 1
                seen[event.message.partition] += range(expected, applied)
                sizes.append(applied - expected)

            detector.ingest.steps = spy  # type: ignore[method-assign]  # a spy
            await asyncio.to_thread(deployment.write, records(events, deployment.partitions))
            await applied(deployment, detector)

    with Deployment(apache_kafka.bootstrap, tmp_path) as deployment:
        asyncio.run(scenario(deployment))

    assert sum(sizes) == len(events)
    assert len(sizes) < len(events) / 10
    assert all(offsets == list(range(len(offsets))) for offsets in seen.values())


def test_only_a_checkpoint_moves_the_committed_offset(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """Faust acknowledges what failed or was skipped, too; what is committed must be what was saved."""
    events = some_events()

    async def scenario(deployment: Deployment) -> None:
        async with running(deployment, checkpoint_ms=600_000) as detector:
            await asyncio.to_thread(deployment.write, records(events, deployment.partitions))
            await applied(deployment, detector)
            # The client's own commit, as its timer makes it every second.
            await consumer_of(detector).commit()
            assert await asyncio.to_thread(deployment.committed) == [0] * deployment.partitions

            assert await detector.checkpointer.save()

            assert await asyncio.to_thread(deployment.is_applied)

    with Deployment(apache_kafka.bootstrap, tmp_path) as deployment:
        asyncio.run(scenario(deployment))


def test_a_covered_offset_is_committed_once_and_never_backwards(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """`cover` is called with the newest offset each time: the highest counts, and the list does not grow."""
    events = some_events()

    async def scenario(deployment: Deployment) -> None:
        async with running(deployment, save=False, checkpoint_ms=600_000) as detector:
            await asyncio.to_thread(deployment.write, records(events, deployment.partitions))
            await applied(deployment, detector)
            consumer = consumer_of(detector)
            tp = TP(deployment.topic("steps"), 0)
            for offset in (3, 9, 5):
                consumer.cover(tp, offset)
            await consumer.commit_covered()
            assert (await asyncio.to_thread(deployment.committed))[0] == 10

            consumer.cover(tp, 4)
            await consumer.commit_covered()

            assert (await asyncio.to_thread(deployment.committed))[0] == 10
            assert not consumer._acked[tp]

    with Deployment(apache_kafka.bootstrap, tmp_path) as deployment:
        asyncio.run(scenario(deployment))


def test_a_removed_member_is_told_so_by_a_commit(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """The fence of a checkpoint: a worker that lost its partitions and does not know it must not write."""
    events = some_events()

    async def scenario(deployment: Deployment) -> None:
        # The heartbeat, which would tell it too, is three seconds away at least.
        async with running(deployment, save=False, checkpoint_ms=600_000) as detector:
            await asyncio.to_thread(deployment.write, records(events, deployment.partitions))
            await applied(deployment, detector)
            consumer = consumer_of(detector)
            offsets = {TP(deployment.topic("steps"), number): 0 for number in range(deployment.partitions)}
            assert await consumer.commit_exactly(offsets)
            changelog = await asyncio.to_thread(deployment.ends, "changelog")

            generation = detector.app.consumer_generation_id

            await leave_behind_its_back(deployment, consumer)

            assert not await detector.checkpointer.save()
            assert not await consumer.commit_exactly(offsets)
            assert await asyncio.to_thread(deployment.ends, "changelog") == changelog
            # It comes back by itself, under a new id, and reads again what was never committed.
            await until(
                lambda: detector.is_ready and detector.app.consumer_generation_id > generation, "the detector to return"
            )
            await applied(deployment, detector)
            assert await detector.checkpointer.save()
            assert not detector.failed.done()

    with Deployment(apache_kafka.bootstrap, tmp_path, mode="enforce", max_action_age_ms=0) as deployment:
        asyncio.run(scenario(deployment))
        said = heard(deployment.messages("verdicts"), deployment.messages("control.commands"))
        assert differences(judged(events, ENFORCE), said) == ""


def test_a_commit_for_partitions_of_others_is_no_proof(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """Faust leaves out what is not assigned, and ends itself over a commit of nothing: the fence must not ask that."""

    async def scenario(deployment: Deployment) -> None:
        async with running(deployment) as detector:
            consumer = consumer_of(detector)
            assert await consumer.commit_exactly({TP(deployment.topic("steps"), 0): 0})
            assert not await consumer.commit_exactly({TP(deployment.topic("steps"), 99): 0})
            assert not detector.failed.done()
            assert detector.app.crash_reason is None

    with Deployment(apache_kafka.bootstrap, tmp_path) as deployment:
        asyncio.run(scenario(deployment))


def test_what_a_revoke_saves_is_not_read_again(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """Apache Kafka takes commits of the old generation until the new one is formed: a rebalance costs no replay."""
    events = some_events(200)

    async def scenario(deployment: Deployment) -> tuple[float, float]:
        # No checkpoint by the clock: what is committed was committed by a revoke.
        async with running(deployment, checkpoint_ms=600_000) as first:
            await asyncio.to_thread(deployment.write, records(events, deployment.partitions))
            await applied(deployment, first)
            assert sum(await asyncio.to_thread(deployment.committed)) == 0

            async with running(deployment, checkpoint_ms=600_000) as second:
                await until(lambda: first.is_ready and len(first.partitions) == 2, "the rebalance")
                assert await asyncio.to_thread(deployment.is_applied)
                assert len(second.partitions) == 2
                assert not first.partitions.keys() & second.partitions.keys()
                for detector in (first, second):
                    detector.ingest.report()
                read = counted(first, "loopwarden_steps_consumed_total")
                again = counted(first, "loopwarden_events_replayed_total")
                return read, again + counted(second, "loopwarden_events_replayed_total")

    with Deployment(apache_kafka.bootstrap, tmp_path) as deployment:
        assert asyncio.run(scenario(deployment)) == (len(events), 0)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.05, 0.2])
def test_lost_fetches_are_read_again(
    apache_kafka: ApacheKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    """Around a rebalance Faust loses whole fetches; without the rule of the next offset the loss would be silent."""
    draw = random.Random(share)
    events = some_events(300)
    fetch = BatchConsumer._getmany
    lost: list[TP] = []

    async def lossy(self: BatchConsumer, active_partitions: set[TP] | None, timeout: float) -> dict[TP, Any]:  # noqa: ASYNC109 - as the method
        fetched = await fetch(self, active_partitions=active_partitions, timeout=timeout)
        # Not of the changelog: recovery counts its records, and a lost one is another test's matter.
        doomed = [tp for tp in fetched if "changelog" not in tp.topic and draw.random() < share]
        lost.extend(doomed)
        return {tp: batches for tp, batches in fetched.items() if tp not in doomed}

    monkeypatch.setattr(BatchConsumer, "_getmany", lossy)
    # Ten times as eager as in production: a hundred losses are to be made good.
    monkeypatch.setattr("loopwarden_streams.holes.SEEK_EVERY_S", 0.05)
    monkeypatch.setattr("loopwarden_streams.detector.LAG_EVERY_S", 0.5)

    async def scenario(deployment: Deployment) -> float:
        # Small batches, so that there are many fetches to lose.
        async with running(deployment, max_fetch_bytes=1) as detector:
            await asyncio.to_thread(deployment.write, records(events, deployment.partitions))
            await applied(deployment, detector, timeout_s=120)
            return counted(detector, "loopwarden_source_holes_total", kind="sought")

    with Deployment(apache_kafka.bootstrap, tmp_path, mode="enforce", max_action_age_ms=0) as deployment:
        sought = asyncio.run(scenario(deployment))
        said = heard(deployment.messages("verdicts"), deployment.messages("control.commands"))
        assert differences(judged(events, ENFORCE), said) == ""

    assert lost
    assert sought > 0


def test_offsets_that_do_not_exist_are_passed(
    apache_kafka: ApacheKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction ends with a marker that takes an offset and is no record: to wait for it would be for ever."""
    monkeypatch.setattr("loopwarden_streams.holes.SEEK_EVERY_S", 0.05)
    events = some_events(10)

    async def write_in_transactions(deployment: Deployment) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=deployment.bootstrap, transactional_id=deployment.app_id)
        await producer.start()
        try:
            for half in (events[::2], events[1::2]):
                async with producer.transaction():
                    for record in records(half, deployment.partitions):
                        await producer.send(deployment.topic("steps"), record.value, record.key, record.partition)
        finally:
            await producer.stop()

    async def scenario(deployment: Deployment) -> tuple[float, float]:
        # One record a batch, so that a hole lies between two batches.
        async with running(deployment, max_fetch_bytes=1) as detector:
            await write_in_transactions(deployment)
            await until(
                lambda: counted(detector, "loopwarden_steps_consumed_total") == len(events), "all steps to be applied"
            )
            return (
                counted(detector, "loopwarden_source_holes_total", kind="real"),
                counted(detector, "loopwarden_dead_letters_total"),
            )

    with Deployment(apache_kafka.bootstrap, tmp_path) as deployment:
        real, dead = asyncio.run(scenario(deployment))

    assert real > 0
    assert dead == 0


async def leave_behind_its_back(deployment: Deployment, consumer: BatchConsumer) -> None:
    """Take a member out of the group as the coordinator does after the session timeout, and tell it nothing."""
    thread = consumer._thread
    coordinator = thread._ensure_consumer()._coordinator

    async def leave() -> None:
        await coordinator._send_req(LeaveGroupRequest(deployment.app_id, coordinator.member_id))

    await thread.call_thread(leave)
