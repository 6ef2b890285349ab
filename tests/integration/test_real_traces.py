"""Recorded runs of real agents through Kafka and a worker: the verdicts of a replay of the same files."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests._support.fleet import Said, differences, heard, key_of, plain
from tests._support.kafka import ApacheKafka, NewTopicSpec, OutRecord
from tests._support.workers import Deployment

from loopwarden_detectors import fleet_breaker, restart_loop, tenant_limits
from loopwarden_models.policy import Policy
from loopwarden_streams.replay_core import Replay, Source, SourceRecord

TRACES = Path(__file__).parents[3] / "shared" / "traces"
FOLDERS = sorted(path.parent for path in TRACES.glob("*/steps.jsonl.gz"))


def lines() -> Iterator[bytes]:
    """Yield every recorded event as it was written down."""
    for folder in FOLDERS:
        with gzip.open(folder / "steps.jsonl.gz") as file:
            yield from (line.rstrip(b"\n") for line in file)


@pytest.mark.slow
@pytest.mark.skipif(not FOLDERS, reason="the recorded traces are not beside this repository (../shared/traces)")
@pytest.mark.parametrize(("mode", "max_action_age_ms"), [("enforce", 0), ("enforce", 60_000)])
def test_recorded_agents_are_judged_as_in_a_replay(
    apache_kafka: ApacheKafka, tmp_path: Path, mode: str, max_action_age_ms: int
) -> None:
    """Thresholds are tuned on replays; that is worth something only if a worker says the same, word for word."""
    expected = replayed(Policy(mode="enforce"))
    assert len(expected.verdicts) > 1_000

    with Deployment(
        apache_kafka.bootstrap,
        tmp_path,
        mode=mode,
        max_action_age_ms=max_action_age_ms,
        # Records carry the time of their event, as a runtime writes them, and that is longer ago than they are kept.
        topics={"steps": NewTopicSpec(partitions=4)},
    ) as deployment:
        deployment.write(
            OutRecord(deployment.partition_of(key), key, line, event["ts_ms"])
            for line in lines()
            for event in (msgspec.json.decode(line),)
            for key in (key_of(event),)
        )
        worker = deployment.start()
        deployment.wait_applied(timeout_s=120)

        assert worker.metric("loopwarden_dead_letters_total") == 0
        # What runs share is judged as it arrives, by whoever owns it, and a replay does it in order of time.
        verdicts = [one for one in deployment.messages("verdicts") if one["detector"] not in SHARED]
        said = heard(verdicts, deployment.messages("control.commands"))
        if max_action_age_ms:
            # All of it is long over: told, and nothing is ordered.
            assert said.orders == {}
            assert {verdict["mode"] for verdict in said.verdicts.values()} == {"shadow"}
            assert said.verdicts.keys() == {own for own, verdict in expected.verdicts.items() if verdict["episode"]}
        else:
            assert differences(expected, said) == ""


SHARED = {fleet_breaker.NAME, restart_loop.NAME, tenant_limits.NAME}


def replayed(policy: Policy) -> Said:
    """Return what a replay of the files says and would order."""
    replay = Replay(policy)
    source = Source("traces")
    said = Said({}, {})
    for offset, line in enumerate(lines()):
        for decision in replay.feed(SourceRecord(line, source, offset)):
            if decision.verdict is not None:
                verdict: dict[str, Any] = plain(msgspec.to_builtins(decision.verdict))
                said.verdicts[decision.verdict.verdict_id] = verdict
            if decision.order is not None:
                said.orders[decision.order.command_id] = decision.order.type
    return said
