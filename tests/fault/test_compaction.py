"""The broker compacts the changelog while it is written: what is left is still the newest of each run."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests._support.fleet import Event, differences, fleet, heard, judged, records, shuffled
from tests._support.kafka import ApacheKafka, NewTopicSpec
from tests._support.workers import Deployment, wait_until

from loopwarden_models.policy import Policy

pytestmark = pytest.mark.slow

ENFORCE = Policy(mode="enforce")

# As often as the broker can be made to: a closed segment every tenth of a second, cleaned at once.
EAGER_BROKER = {"log.cleaner.backoff.ms": "100", "log.cleaner.threads": "1"}
EAGER_TOPIC = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "200",
    "delete.retention.ms": "100",
}


def test_recovery_from_a_changelog_that_is_compacted_under_load(
    own_apache_kafka: Callable[..., ApacheKafka], tmp_path: Path
) -> None:
    """In production the changelog is compacted all day; a worker must recover from any state of it."""
    broker = own_apache_kafka(settings=EAGER_BROKER)
    runs = fleet(120, seed=61)
    events = shuffled(runs, random.Random(61))
    parts = [events[start : start + 60] for start in range(0, len(events), 60)]

    with Deployment(
        broker.bootstrap,
        tmp_path,
        mode="enforce",
        max_action_age_ms=0,
        instance="one",
        checkpoint_ms=50,
        # Runs that end are deleted while others go on, so tombstones are compacted away, too.
        ended_run_ttl_ms=200,
        tick_ms=50,
        topics={"changelog": NewTopicSpec(partitions=4, config=EAGER_TOPIC)},
    ) as deployment:
        worker = deployment.start().ready()
        written: list[Event] = []
        for number, part in enumerate(parts, 1):
            deployment.write(records(part, deployment.partitions))
            written += part
            if number % 8 == 0:
                # Every time, the heir recovers from what the broker has left.
                deployment.wait_applied()
                worker.kill()
                worker = deployment.start().ready()
                assert worker.metric("loopwarden_recovery_faults_total") == 0, worker.log()
        deployment.wait_applied()

        left, ends = len(deployment.read("changelog")), sum(deployment.ends("changelog"))
        wait_until(lambda: len(deployment.read("changelog")) < ends / 2, "the broker to compact")
        worker.kill()
        last = deployment.start().ready()
        assert last.metric("loopwarden_recovery_faults_total") == 0, last.log()
        print(f"{ends} records were written to the changelog, {left} of them were there at the end of the load")
        said = heard(deployment.messages("verdicts"), deployment.messages("control.commands"))
        assert differences(judged(written, ENFORCE), said) == ""
