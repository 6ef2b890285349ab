"""Workers that die, hang or lag behind: their partitions are served again, and they themselves do no harm."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from pathlib import Path

import pytest
from tests._support.fleet import Event, differences, fleet, heard, judged, records, shuffled
from tests._support.kafka import ApacheKafka
from tests._support.workers import Deployment, Worker, paused, wait_until

from loopwarden_models.policy import Policy
from loopwarden_streams.snapshots import epoch_of

pytestmark = pytest.mark.slow

ENFORCE = Policy(mode="enforce")
FAIL_OVER_S = 30.0


def parts(events: list[Event], count: int) -> list[list[Event]]:
    """Return events in `count` parts of equal size, in order."""
    size = -(-len(events) // count)
    return [events[start : start + size] for start in range(0, len(events), size)]


def share(workers: list[Worker], partitions: int) -> list[set[int]]:
    """Wait until every worker owns something and all partitions are owned once, and return who owns what."""

    def look() -> bool:
        owned = [worker.owned() for worker in workers]
        return all(owned) and sorted(number for own in owned for number in own) == list(range(partitions))

    wait_until(look, "all partitions to be owned once", context=lambda: "\n".join(worker.log() for worker in workers))
    return [worker.owned() for worker in workers]


def test_partitions_of_a_dead_worker_are_served_again_within_thirty_seconds(
    apache_kafka: ApacheKafka, tmp_path: Path
) -> None:
    """The promise to operators, with the default session timeout of 12 s and no stable ids."""
    runs = fleet(100, seed=11)
    before, after = parts(shuffled(runs, random.Random(11)), 2)

    with Deployment(apache_kafka.bootstrap, tmp_path, mode="enforce", max_action_age_ms=0) as deployment:
        dying, staying = deployment.start(), deployment.start()
        share([dying, staying], deployment.partitions)
        deployment.write(records(before, deployment.partitions))
        deployment.wait_applied()

        started = time.monotonic()
        dying.kill()
        deployment.write(records(after, deployment.partitions))
        deployment.wait_applied(timeout_s=90)
        took_s = time.monotonic() - started

        print(f"fail-over without stable ids: {took_s:.1f} s from the kill until all partitions were applied again")
        assert staying.owned() == set(range(deployment.partitions))
        assert took_s < FAIL_OVER_S
        said = heard(deployment.messages("verdicts"), deployment.messages("control.commands"))
        assert differences(judged(before + after, ENFORCE), said) == ""


def test_a_worker_with_a_stable_id_comes_back_to_its_partitions(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """A pod that is restarted in place must not make the others give up what they hold."""
    runs = fleet(100, seed=12)
    before, after = parts(shuffled(runs, random.Random(12)), 2)

    # The session outlives the test, so that nobody gets the partitions by its end.
    with Deployment(
        apache_kafka.bootstrap, tmp_path, mode="enforce", max_action_age_ms=0, session_timeout_ms=60_000
    ) as deployment:
        dying, staying = deployment.start(instance="one"), deployment.start(instance="two")
        owned = share([dying, staying], deployment.partitions)
        rebalances = staying.metric("loopwarden_recovery_seconds_count")
        deployment.write(records(before, deployment.partitions))
        deployment.wait_applied()

        started = time.monotonic()
        dying.kill()
        deployment.write(records(after, deployment.partitions))
        again = deployment.start(instance="one").ready()
        deployment.wait_applied()

        print(f"fail-over with a stable id: {time.monotonic() - started:.1f} s from the kill until all was applied")
        assert [again.owned(), staying.owned()] == owned
        assert staying.metric("loopwarden_recovery_seconds_count") == rebalances
        said = heard(deployment.messages("verdicts"), deployment.messages("control.commands"))
        assert differences(judged(before + after, ENFORCE), said) == ""


@pytest.mark.parametrize("checkpoint_ms", [300, 600_000])
def test_a_worker_that_slept_through_its_removal_does_no_harm(
    apache_kafka: ApacheKafka, tmp_path: Path, checkpoint_ms: int
) -> None:
    """A paused host wakes up with old state and a fresh clock: the newer snapshots of the new owner must stay."""
    runs = fleet(150, seed=13)
    first, second, third, last = parts(shuffled(runs, random.Random(13)), 4)

    with Deployment(
        apache_kafka.bootstrap, tmp_path, mode="enforce", max_action_age_ms=0, session_timeout_ms=6_000
    ) as deployment:
        # The long interval: it falls asleep with everything unsaved. The short one: its timer is what wakes up first.
        sleeper = deployment.start(checkpoint_ms=checkpoint_ms).ready()
        deployment.write(records(first, deployment.partitions))
        wait_until(
            lambda: sleeper.metric("loopwarden_steps_consumed_total") == len(first),
            "the first part",
            context=sleeper.log,
        )
        with paused(sleeper):
            # What came in meanwhile lies in its sockets when it wakes up.
            deployment.write(records(second, deployment.partitions))
            successor = deployment.start().ready()
            deployment.wait_applied()
        share([sleeper, successor], deployment.partitions)
        deployment.write(records(third, deployment.partitions))
        assert sleeper.stop() == 0
        deployment.wait_applied()

        # Everything again from what is in the changelog.
        successor.kill()
        heir = deployment.start().ready()
        deployment.write(records(last, deployment.partitions))
        deployment.wait_applied()

        assert stale_snapshots(deployment) == {}
        assert heir.metric("loopwarden_recovery_faults_total") == 0
        said = heard(deployment.messages("verdicts"), deployment.messages("control.commands"))
        assert differences(judged(first + second + third + last, ENFORCE), said) == ""


def stale_snapshots(deployment: Deployment) -> dict[int, list[tuple[int, int]]]:
    """Return, by partition, offset and epoch of each snapshot that an owner wrote after a newer one had begun to."""
    newest: dict[int, int] = defaultdict(int)
    stale: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for record in deployment.read("changelog"):
        if record.value is None:
            continue
        epoch = epoch_of(record.value)
        if epoch < newest[record.partition]:
            stale[record.partition].append((record.offset, epoch))
        newest[record.partition] = max(epoch, newest[record.partition])
    return dict(stale)
