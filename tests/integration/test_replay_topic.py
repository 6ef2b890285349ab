"""`loopwarden replay --topic`: a topic replays as the file it was made from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests._support.kafka import NewTopicSpec, OutRecord, create_topics, produce, unique_prefix
from tests._support.replay_runs import START_MS, Event, example_events, jsonl, lines_of

from loopwarden_models.events import step_key
from loopwarden_models.ids import murmur2
from loopwarden_streams.cli import main

if TYPE_CHECKING:
    from tests._support.kafka import Broker

PARTITIONS = 3


@pytest.fixture
def topic(kafka: Broker) -> str:
    """The example of the guide as a topic, keyed and partitioned as runtimes do it."""
    name = unique_prefix() + "steps"
    create_topics(kafka.bootstrap, {name: NewTopicSpec(PARTITIONS)})
    produce(kafka.bootstrap, name, [_record(event) for event in example_events()])
    return name


def _record(event: Event) -> OutRecord:
    key = step_key(event["tenant"], event["run_id"])
    return OutRecord(murmur2(key) % PARTITIONS, key, next(lines_of([event])), event["ts_ms"])


def replay(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[set[str], dict[str, Any], list[dict[str, Any]]]:
    """Return the ids of the verdicts, the summary without what depends on the machine, and the verdicts."""
    assert main(["replay", "--json", *map(str, args)]) == 0
    *verdicts, last = map(json.loads, capsys.readouterr().out.splitlines())
    del last["summary"]["seconds"]
    return {verdict["verdict_id"] for verdict in verdicts}, last["summary"], verdicts


def test_a_topic_replays_as_its_file(
    kafka: Broker, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Same verdicts and sum, however the partitions are interleaved; and again, because nothing is committed."""
    file = tmp_path / "steps.jsonl"
    file.write_bytes(jsonl(example_events()))
    ids, summary, _ = replay(capsys, file)

    for _ in range(2):
        found, again, verdicts = replay(capsys, "--topic", topic, "--brokers", kafka.bootstrap)
        assert found == ids
        assert again == summary

    source = next(verdict["source"] for verdict in verdicts if verdict["run_id"] == "report-1")
    assert source["topic"] == topic
    assert source["partition"] == murmur2(b"acme|report-1") % PARTITIONS


def test_late_events_keep_their_own_time(kafka: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    """An old recording that is copied into a topic today: the sum speaks of when it happened."""
    name = unique_prefix() + "steps"
    create_topics(kafka.bootstrap, {name: NewTopicSpec(1)})
    events = example_events()
    produce(kafka.bootstrap, name, [_record(event)._replace(partition=0, timestamp_ms=None) for event in events])

    _, summary, _ = replay(capsys, "--topic", name, "--brokers", kafka.bootstrap)

    assert (summary["first_ms"], summary["last_ms"]) == (events[0]["ts_ms"], events[-1]["ts_ms"])


def test_from_and_to_select_by_the_brokers_time(kafka: Broker, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Both ends are included; what came before is not known, as for a worker that began there."""
    first_ms, last_ms = START_MS + 20_000, START_MS + 60_000
    expected = [event for event in example_events() if first_ms <= event["ts_ms"] <= last_ms]

    _, summary, _ = replay(
        capsys, "--topic", topic, "--brokers", kafka.bootstrap, "--from", "2026-01-05T09:00:20Z", "--to", last_ms
    )

    assert summary["events"] == len(expected)
    assert (summary["first_ms"], summary["last_ms"]) == (expected[0]["ts_ms"], expected[-1]["ts_ms"])


def test_broken_records_are_named_by_their_offset(kafka: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    """What a worker would have sent to the dead letters, with the place to look at."""
    name = unique_prefix() + "steps"
    create_topics(kafka.bootstrap, {name: NewTopicSpec(1)})
    good = [_record(event)._replace(partition=0) for event in example_events()[:3]]
    bad = [
        OutRecord(0, b"k", b"{"),
        OutRecord(0, None, good[0].value),
        OutRecord(0, b"k", None),
        good[0]._replace(key=b"k"),
    ]
    produce(kafka.bootstrap, name, [*good, *bad])

    assert main(["replay", "--topic", name, "--brokers", kafka.bootstrap, "--strict"]) == 1

    errors = [line.split(": ")[:2] for line in capsys.readouterr().err.splitlines()]
    assert errors == [
        [f"{name}/0/{offset}", reason]
        for offset, reason in enumerate(("not_json", "empty_key", "tombstone", "key_mismatch"), 3)
    ]


def test_an_empty_topic_ends_at_once(kafka: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    """There is nothing to wait for: a replay reads what was there when it began."""
    name = unique_prefix() + "steps"
    create_topics(kafka.bootstrap, {name: NewTopicSpec(2)})

    _, summary, verdicts = replay(capsys, "--topic", name, "--brokers", kafka.bootstrap)

    assert (summary["events"], verdicts) == (0, [])


def test_an_unknown_topic_is_said_and_not_created(kafka: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    """A typing mistake must not leave a topic behind."""
    name = unique_prefix() + "stepps"

    for _ in range(2):
        assert main(["replay", "--topic", name, "--brokers", kafka.bootstrap]) == 2
        assert f"topic {name!r} does not exist" in capsys.readouterr().err


def test_no_broker_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    """One line that names the address."""
    assert main(["replay", "--topic", "steps", "--brokers", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err.startswith("loopwarden replay: 127.0.0.1:1: ")
