"""Partitions change hands: each has one owner, nothing is lost on the way, and what came too late is let go."""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from faust.types import TP
from tests._support.detectors import applied, counted, running, until
from tests._support.fleet import Event, differences, fleet, heard, judged, records, shuffled
from tests._support.kafka import ApacheKafka
from tests._support.workers import Deployment

from loopwarden_detectors.run_state import TreeState
from loopwarden_models.policy import DEFAULT_POLICY, Policy
from loopwarden_streams.checkpoints import Checkpointer
from loopwarden_streams.detector import Detector
from loopwarden_streams.partition import ACKS, STEPS, Partition
from loopwarden_streams.settings import Settings
from loopwarden_streams.shared_out import SharedOut

ENFORCE = Policy(mode="enforce")


def in_parts(runs: int, seed: int, parts: int) -> list[list[Event]]:
    """Return the events of a fleet in parts, cut through the middle of its runs."""
    events = shuffled(fleet(runs, seed=seed), random.Random(seed))
    size = -(-len(events) // parts)
    return [events[start : start + size] for start in range(0, len(events), size)]


async def write(deployment: Deployment, events: list[Event]) -> None:
    """Write step events."""
    await asyncio.to_thread(deployment.write, records(events, deployment.partitions))


@pytest.mark.slow
def test_joins_and_leaves_lose_nothing_and_double_nothing(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """A fleet of workers grows and shrinks every day; each rebalance takes all partitions from all of them."""
    parts = in_parts(200, seed=31, parts=5)

    async def scenario(deployment: Deployment) -> None:
        async with running(deployment) as first:
            await write(deployment, parts[0])
            async with running(deployment) as second:
                # Written while the partitions move.
                await write(deployment, parts[1])
                await until(lambda: len(first.partitions) == len(second.partitions) == 2, "each to have its half")
                await write(deployment, parts[2])
                async with running(deployment) as third:
                    await write(deployment, parts[3])
                    await applied(deployment, first, second, third)
                    owned = [number for detector in (first, second, third) for number in detector.partitions]
                    assert sorted(owned) == list(range(deployment.partitions))
            await write(deployment, parts[4])
            await applied(deployment, first)

    with Deployment(apache_kafka.bootstrap, tmp_path, mode="enforce", max_action_age_ms=0) as deployment:
        asyncio.run(scenario(deployment))

        said = heard(deployment.messages("verdicts"), deployment.messages("control.commands"))
        assert differences(judged([event for part in parts for event in part], ENFORCE), said) == ""


def test_steps_and_answers_of_a_partition_go_to_the_same_worker(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """They feed the same runs, as do their snapshots: an assignor that splits them would split the state."""

    async def scenario(deployment: Deployment) -> None:
        async with running(deployment) as first, running(deployment) as second, running(deployment) as third:
            workers = (first, second, third)
            await until(lambda: sum(len(each.partitions) for each in workers) == 5, "all partitions to be owned")
            for worker in workers:
                owned: dict[str, set[int]] = {}
                for tp in worker.app.consumer.assignment():
                    owned.setdefault(tp.topic, set()).add(tp.partition)
                assert owned[deployment.topic("steps")] == owned[deployment.topic("acks")] == set(worker.partitions)
                assert owned[deployment.topic("changelog")] == set(worker.partitions)

    with Deployment(apache_kafka.bootstrap, tmp_path, partitions=5) as deployment:
        asyncio.run(scenario(deployment))


def test_a_worker_without_a_partition_is_ready_and_takes_over(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """A spare is what fail-over goes to; it must not count as broken while it has nothing to do."""
    parts = in_parts(20, seed=32, parts=2)

    async def scenario(deployment: Deployment) -> None:
        async with contextlib.AsyncExitStack() as first_ends, contextlib.AsyncExitStack() as second_ends:
            first = await first_ends.enter_async_context(running(deployment))
            second = await second_ends.enter_async_context(running(deployment))
            await until(lambda: first.is_ready and second.is_ready, "both to be ready")
            is_first = bool(first.partitions)
            busy, spare = (first, second) if is_first else (second, first)
            assert (len(busy.partitions), len(spare.partitions)) == (1, 0)
            assert not spare.stuck()
            await write(deployment, parts[0])
            await applied(deployment, busy)

            await (first_ends if is_first else second_ends).aclose()

            await write(deployment, parts[1])
            await applied(deployment, spare)

    with Deployment(apache_kafka.bootstrap, tmp_path, partitions=1) as deployment:
        asyncio.run(scenario(deployment))


def test_a_recovery_that_was_overtaken_by_a_revoke_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faust does not wait for it: without a look, a worker would go on with partitions that belong to another."""

    async def scenario() -> None:
        with tempfile.TemporaryDirectory() as data_dir:
            detector = Detector(Settings(), DEFAULT_POLICY, Path(data_dir))
            may_go_on = asyncio.Event()

            async def slow(_: Any) -> dict[int, Partition]:
                await may_go_on.wait()
                return {0: Partition(number=0, epoch=1, next_offset={STEPS: 0, ACKS: 0})}

            monkeypatch.setattr(detector.recovery, "rebuild", slow)
            recovering = asyncio.create_task(detector._on_recovered())
            await asyncio.sleep(0)

            await detector._on_revoked(detector.app, {TP("loopwarden.steps", 0)})
            may_go_on.set()
            await recovering

            assert (detector.partitions, detector.is_ready) == ({}, False)
            await detector._on_recovered()
            assert (list(detector.partitions), detector.is_ready) == ([0], True)

    asyncio.run(scenario())


def test_what_a_stop_cuts_off_is_saved_by_the_stop(
    apache_kafka: ApacheKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint that is cancelled between its picture and its write must not take the picture's runs with it."""
    parts = in_parts(60, seed=33, parts=2)

    async def scenario(deployment: Deployment) -> None:
        async with running(deployment, checkpoint_ms=600_000) as detector:
            await write(deployment, parts[0])
            await applied(deployment, detector)
            held = asyncio.Event()

            async def never(*_: Any) -> None:
                held.set()
                await asyncio.Event().wait()

            with monkeypatch.context() as patch:
                patch.setattr(detector.outbox, "drained", never)
                saving = asyncio.create_task(detector.checkpointer.save())
                await held.wait()
                saving.cancel()
                await asyncio.gather(saving, return_exceptions=True)
        async with running(deployment) as detector:
            assert counted(detector, "loopwarden_events_replayed_total") == 0
            await write(deployment, parts[1])
            await applied(deployment, detector)

    with Deployment(apache_kafka.bootstrap, tmp_path, mode="enforce", max_action_age_ms=0) as deployment:
        asyncio.run(scenario(deployment))

        said = heard(deployment.messages("verdicts"), deployment.messages("control.commands"))
        assert differences(judged(parts[0] + parts[1], ENFORCE), said) == ""


def test_a_run_whose_decision_is_on_its_way_is_not_saved_as_if_it_had_been_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A crash between the snapshot and the producer would lose the decision: the heir's state says that it was said."""
    #  checkpoint   picture | 256 runs |                     | 44 runs | write
    #  ingest                          | judge ... hand over |
    order: list[str] = []

    def encode(*_: Any) -> bytes:
        order.append("encoded")
        return b""

    async def scenario() -> None:
        partition = Partition(number=0, epoch=1, next_offset={STEPS: 300, ACKS: 0})
        for number in range(300):
            key = b"acme|r%d" % number
            partition.trees[key] = TreeState(tenant="acme", root_run_id=f"r{number}")
            partition.dirty.add(key)
        handed_over = asyncio.Event()

        async def chunk_in_work() -> None:
            async with partition.lock:
                order.append("judged")
                await handed_over.wait()
                order.append("handed over")

        async def write(*_: Any) -> list[Any]:
            return []

        monkeypatch.setattr("loopwarden_streams.checkpoints.encode_snapshot", encode)
        monkeypatch.setattr("loopwarden_streams.checkpoints.write_batch", write)
        outbox = AsyncMock()
        checkpointer = Checkpointer(
            Mock(), Settings(), {0: partition}, outbox, SharedOut(Settings(), outbox, {}), Mock(), Mock()
        )
        saving = asyncio.create_task(checkpointer._save_partition(partition))
        working = asyncio.create_task(chunk_in_work())
        for _ in range(10):
            await asyncio.sleep(0)
        handed_over.set()
        await asyncio.gather(saving, working)

    asyncio.run(scenario())

    judged_at = order.index("judged")
    assert 0 < judged_at < 300
    assert order[judged_at + 1] == "handed over"
    assert order.count("encoded") == 300
