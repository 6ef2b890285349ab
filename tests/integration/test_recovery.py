"""What a worker takes over: everything that was saved, nothing of a former owner's, and loudly what is missing."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from faust.types import TP
from tests._support.detectors import applied, counted, running, until
from tests._support.fleet import Event, differences, fleet, heard, judged, looping, records, shuffled
from tests._support.kafka import ApacheKafka, OutRecord
from tests._support.workers import Deployment

from loopwarden_detectors.tool_faults import has_failed
from loopwarden_models.codec import decode_step
from loopwarden_models.events import ToolEnd
from loopwarden_models.policy import Policy
from loopwarden_streams.detector import Detector
from loopwarden_streams.ingest import Ingest
from loopwarden_streams.landing_store import LandingStore, store_of
from loopwarden_streams.snapshots import HEADER_BYTES, POSITION_KEY, epoch_of
from loopwarden_streams.transport import BatchConsumer, Record

ENFORCE = Policy(mode="enforce")


def enforcing(broker: ApacheKafka, directory: Path, **settings: Any) -> Deployment:
    """Return a deployment that acts on every step, however old."""
    return Deployment(broker.bootstrap, directory, mode="enforce", max_action_age_ms=0, **settings)


def halves(runs: int, seed: int) -> tuple[list[Event], list[Event]]:
    """Return the events of a fleet in two parts, cut through the middle of its runs."""
    events = shuffled(fleet(runs, seed=seed), random.Random(seed))
    return events[: len(events) // 2], events[len(events) // 2 :]


async def write(deployment: Deployment, events: list[Event]) -> None:
    """Write step events."""
    await asyncio.to_thread(deployment.write, records(events, deployment.partitions))


def complaints(deployment: Deployment, events: list[Event]) -> str:
    """Return what differs between what was said and what an undisturbed process says of `events`."""
    said = heard(deployment.messages("verdicts"), deployment.messages("control.commands"))
    return differences(judged(events, ENFORCE), said)


def calls_told(deployment: Deployment) -> Counter[int]:
    """Return how many partial sums on tool-health hold how many calls."""
    sums = [one for one in deployment.messages("tool-health") if "seconds" in one and "tool" in one]
    return Counter(sum(second["calls"] for second in one["seconds"]) for one in sums)


def is_told(event: Event) -> bool:
    """Return whether an event is a call that says something about its tool."""
    step = decode_step(json.dumps(event).encode())
    return isinstance(step, ToolEnd) and has_failed(step) is not None


def test_a_loop_is_counted_on_across_a_restart(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """A deployment in the middle of a loop must not give it a second life."""
    before, after = halves(100, seed=21)

    async def scenario(deployment: Deployment) -> None:
        async with running(deployment) as detector:
            await write(deployment, before)
            await applied(deployment, detector)
            kept = {key: tree.to_bytes() for own in detector.partitions.values() for key, tree in own.trees.items()}
        async with running(deployment) as detector:
            found = {key: tree.to_bytes() for own in detector.partitions.values() for key, tree in own.trees.items()}
            assert found == kept
            assert counted(detector, "loopwarden_recovery_faults_total") == 0
            await write(deployment, after)
            await applied(deployment, detector)

    with enforcing(apache_kafka, tmp_path) as deployment:
        asyncio.run(scenario(deployment))

        assert complaints(deployment, before + after) == ""


def test_only_where_somebody_may_have_told_of_them_are_steps_told_of_one_by_one(
    apache_kafka: ApacheKafka, tmp_path: Path
) -> None:
    """A first owner adds up its backlog. One after it reads what was told of perhaps, and must not tell of it twice."""
    before, after = halves(60, seed=29)

    async def scenario(deployment: Deployment) -> None:
        await write(deployment, before)
        async with running(deployment) as detector:
            await applied(deployment, detector)
        added_up.update(await asyncio.to_thread(calls_told, deployment))
        await write(deployment, after)
        async with running(deployment) as detector:
            await applied(deployment, detector)

    added_up: Counter[int] = Counter()
    with enforcing(apache_kafka, tmp_path) as deployment:
        asyncio.run(scenario(deployment))

        told = calls_told(deployment)
        assert added_up.total() < sum(added_up.elements()) / 2
        assert set(told - added_up) == {1}
        assert sum(told.elements()) == sum(map(is_told, before + after))
        assert complaints(deployment, before + after) == ""


def test_an_exception_in_the_agent_commits_nothing(
    apache_kafka: ApacheKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faust acknowledges an event whose agent raised, and goes on without it: here the process ends, and replays."""
    before, after = halves(60, seed=22)
    judge = Ingest._judge

    def faulty(self: Ingest, partition: Any, records: list[Any]) -> Any:
        if partition.number == 1 and records[-1].offset > 20:
            raise RuntimeError("a fault of ours, outside the one broad catch")
        return judge(self, partition, records)

    async def scenario(deployment: Deployment) -> None:
        await write(deployment, before)
        monkeypatch.setattr(Ingest, "_judge", faulty)
        async with running(deployment, max_fetch_bytes=1) as detector:
            await until(detector.failed.done, "the detector to fail")
            assert isinstance(detector.failed.result(), RuntimeError)
        assert (await asyncio.to_thread(deployment.committed))[1] <= 20
        monkeypatch.setattr(Ingest, "_judge", judge)
        async with running(deployment) as detector:
            await write(deployment, after)
            await applied(deployment, detector)

    with enforcing(apache_kafka, tmp_path) as deployment:
        asyncio.run(scenario(deployment))

        assert complaints(deployment, before + after) == ""


def test_a_fault_in_recovery_ends_the_worker(
    apache_kafka: ApacheKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faust only logs an exception of the callback, and a worker without its state would look ready."""
    before, after = halves(60, seed=23)

    async def scenario(deployment: Deployment) -> None:
        async with running(deployment) as detector:
            await write(deployment, before)
            await applied(deployment, detector)
        with monkeypatch.context() as patch:
            patch.setattr("loopwarden_streams.recovery.decode_position", lambda value: value.nothing)
            with pytest.raises(AttributeError):
                async with running(deployment):
                    pass
        async with running(deployment) as detector:
            await write(deployment, after)
            await applied(deployment, detector)

    with enforcing(apache_kafka, tmp_path) as deployment:
        asyncio.run(scenario(deployment))

        assert complaints(deployment, before + after) == ""


def test_a_lost_fetch_of_the_changelog_is_read_again(
    apache_kafka: ApacheKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faust waits for the records of a lost fetch for ever: the worker would never be ready, and nobody would know."""
    before, after = halves(100, seed=24)
    fetch = BatchConsumer._getmany
    lost: list[TP] = []

    async def lossy(self: BatchConsumer, active_partitions: set[TP] | None, timeout: float) -> dict[TP, Any]:  # noqa: ASYNC109 - as the method
        fetched = await fetch(self, active_partitions=active_partitions, timeout=timeout)
        doomed = [tp for tp in fetched if "changelog" in tp.topic and tp not in lost]
        lost.extend(doomed)
        return {tp: batches for tp, batches in fetched.items() if tp not in doomed}

    async def scenario(deployment: Deployment) -> None:
        async with running(deployment) as detector:
            await write(deployment, before)
            await applied(deployment, detector)
        monkeypatch.setattr(BatchConsumer, "_getmany", lossy)
        async with running(deployment) as detector:
            assert counted(detector, "loopwarden_source_holes_total", kind="sought") >= 1
            await write(deployment, after)
            await applied(deployment, detector)

    with enforcing(apache_kafka, tmp_path) as deployment:
        asyncio.run(scenario(deployment))

        assert lost
        assert complaints(deployment, before + after) == ""


def test_a_snapshot_lost_on_the_way_is_missed_and_read_again(
    apache_kafka: ApacheKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hole in a recovery would be silent; count and XOR of the position record make it loud, and it is repaired."""
    before, after = halves(100, seed=25)
    apply = LandingStore._apply

    def forgetful(self: LandingStore, partition: int, records: Iterable[Record]) -> None:
        apply(self, partition, [record for record in records if record.key != b"acme|r0000"])

    async def scenario(deployment: Deployment) -> float:
        async with running(deployment) as detector:
            await write(deployment, before)
            await applied(deployment, detector)
        monkeypatch.setattr(LandingStore, "_apply", forgetful)
        async with running(deployment) as detector:
            await write(deployment, after)
            await applied(deployment, detector)
            return counted(detector, "loopwarden_recovery_faults_total", kind="repaired")

    before = [{**event, "tenant": "acme"} for event in before]
    after = [{**event, "tenant": "acme"} for event in after]
    with enforcing(apache_kafka, tmp_path) as deployment:
        assert asyncio.run(scenario(deployment)) == 1
        assert complaints(deployment, before + after) == ""


def test_a_snapshot_that_cannot_be_read_costs_its_run_alone(
    apache_kafka: ApacheKafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One damaged record must not keep a partition from being served; the run that it was starts afresh."""
    runs = [looping(f"r{number}", 12, start_ms=0) for number in range(8)]
    before = [event for run in runs for event in run[:6]]
    after = [event for run in runs for event in run[6:]]

    async def scenario(deployment: Deployment) -> None:
        async with running(deployment) as detector:
            await write(deployment, before)
            await applied(deployment, detector)
        key = b"acme|r3"
        own = [record for record in await changelog(deployment) if record.key == key]
        assert own[-1].value is not None
        garbage = own[-1].value[:HEADER_BYTES] + b"\x01\xc1 no such state"
        await asyncio.to_thread(deployment.write, [OutRecord(own[-1].partition, key, garbage)], topic="changelog")
        async with running(deployment) as detector:
            assert counted(detector, "loopwarden_recovery_faults_total", kind="corrupt") >= 1
            await write(deployment, after)
            await applied(deployment, detector)

    with enforcing(apache_kafka, tmp_path) as deployment, caplog.at_level(logging.ERROR, "loopwarden_streams"):
        asyncio.run(scenario(deployment))
        expected = judged([event for run in runs if run is not runs[3] for event in run], ENFORCE)
        verdicts = [verdict for verdict in deployment.messages("verdicts") if verdict["run_id"] != "r3"]
        orders = [command for command in deployment.messages("control.commands") if command["run_id"] != "r3"]
        assert differences(expected, heard(verdicts, orders)) == ""
        assert any("r3" in str(record.exc_info) for record in caplog.records)


def test_what_a_former_owner_wrote_late_is_ignored(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """The fence of a checkpoint cannot stop a worker that is paused between the question and the write."""
    before, after = halves(60, seed=26)

    async def scenario(deployment: Deployment) -> None:
        async with running(deployment) as detector:
            await write(deployment, before[: len(before) // 2])
            await applied(deployment, detector)
        stale = [record for record in await changelog(deployment) if record.value is not None]
        async with running(deployment) as detector:
            await write(deployment, before[len(before) // 2 :])
            await applied(deployment, detector)
            kept = {key: tree.to_bytes() for own in detector.partitions.values() for key, tree in own.trees.items()}
        late = [OutRecord(record.partition, record.key, record.value) for record in stale]
        await asyncio.to_thread(deployment.write, late, topic="changelog")
        async with running(deployment) as detector:
            assert store_of(detector._table).ignored == len(late)
            found = {key: tree.to_bytes() for own in detector.partitions.values() for key, tree in own.trees.items()}
            assert found == kept
            await write(deployment, after)
            await applied(deployment, detector)

    with enforcing(apache_kafka, tmp_path) as deployment:
        asyncio.run(scenario(deployment))

        assert complaints(deployment, before + after) == ""


def test_every_ownership_has_an_epoch_of_its_own(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """Generation numbers start again when a group was empty for long; an epoch that came twice would fence nobody."""
    epochs: list[set[int]] = []

    async def scenario(deployment: Deployment) -> None:
        # As if the coordinator had forgotten the group: the changelog knows a far higher epoch than any generation.
        async with running(deployment) as detector:
            for partition in detector.partitions.values():
                partition.epoch = 1_000
            await write(deployment, looping("r1", 3, start_ms=0))
            await applied(deployment, detector)
        for _ in range(3):
            async with running(deployment, checkpoint_ms=50) as detector:
                epochs.append({partition.epoch for partition in detector.partitions.values()})
                await until(partial(all_saved, detector), "the epoch to be saved")

    with enforcing(apache_kafka, tmp_path) as deployment:
        asyncio.run(scenario(deployment))
        stored = {epoch_of(record.value or b"") for record in deployment.read("changelog")}
        fences = [record["epoch"] for record in deployment.messages("control.state") if record["key"] == "*|fence|0"]

    assert epochs == [{1_001}, {1_002}, {1_003}]
    assert {1_000, 1_001, 1_002, 1_003} <= stored
    assert fences[-3:] == [1_001, 1_002, 1_003]


def test_a_new_group_begins_where_the_settings_say(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """`latest` by default: last week's loops in the topic are over; the first checkpoint pins the place."""
    before, after = halves(40, seed=27)

    async def scenario(deployment: Deployment) -> None:
        await write(deployment, before)
        async with running(deployment) as detector:
            assert counted(detector, "loopwarden_source_holes_total") == 0
            await write(deployment, after)
            await applied(deployment, detector)
        async with running(deployment) as detector:
            assert counted(detector, "loopwarden_events_replayed_total") == 0

    with enforcing(apache_kafka, tmp_path, start_at="latest") as deployment:
        asyncio.run(scenario(deployment))

        assert complaints(deployment, after) == ""


def test_the_position_record_comes_last_in_a_checkpoint(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """A crash between the snapshots and the position replays what stamps skip; the other way round it would lose."""
    before, _ = halves(60, seed=28)

    async def scenario(deployment: Deployment) -> None:
        async with running(deployment, checkpoint_ms=600_000) as detector:
            await write(deployment, before)
            await applied(deployment, detector)

    with enforcing(apache_kafka, tmp_path) as deployment:
        asyncio.run(scenario(deployment))
        for number in range(deployment.partitions):
            keys = [record.key for record in deployment.read("changelog") if record.partition == number]
            assert keys[-1] == POSITION_KEY
            assert POSITION_KEY not in keys[:-1]


async def changelog(deployment: Deployment) -> list[Any]:
    """Return the records of the changelog."""
    return await asyncio.to_thread(deployment.read, "changelog")


def all_saved(detector: Detector) -> bool:
    """Return whether the changelog knows the epoch of each partition."""
    return all(partition.is_saved for partition in detector.partitions.values())
