"""The embedded broker holds a fetch until a record comes, thanks to the proxy in front of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from tests._support.kafka import NewTopicSpec, create_topics

from loopwarden_streams.embedded_broker import EmbeddedBroker

WAIT_MS = 2_000


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    """One embedded broker for this file, also where Apache Kafka is present."""
    with EmbeddedBroker() as running:
        yield running


def topics(broker: EmbeddedBroker, *names: str) -> None:
    """Create topics of one partition."""
    create_topics(broker.bootstrap, {name: NewTopicSpec() for name in names})


async def seconds_until_read(
    broker: EmbeddedBroker, topic: str, *, written: str | None, timeout_s: float, **options: object
) -> float | None:
    """Wait for a record of `topic`, write one to `written` after half a second, and return how long it then took."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest", fetch_max_wait_ms=WAIT_MS, **options
    )
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, linger_ms=0)
    await consumer.start()
    await producer.start()
    try:
        consumer.assign([TopicPartition(topic, 0)])
        reading = asyncio.ensure_future(consumer.getmany(timeout_ms=int(timeout_s * 1000)))
        await asyncio.sleep(0.5)
        if written is not None:
            await producer.send_and_wait(written, b"x")
        begin = time.monotonic()
        return time.monotonic() - begin if await reading else None
    finally:
        await producer.stop()
        await consumer.stop()


def test_a_record_ends_the_wait_at_once(broker: EmbeddedBroker) -> None:
    """Well before the two seconds that the client would wait: the latency of a command hangs on it."""
    topics(broker, "awaited")

    took_s = asyncio.run(seconds_until_read(broker, "awaited", written="awaited", timeout_s=10.0))

    assert took_s is not None
    assert took_s < WAIT_MS / 1000 / 2


def test_an_idle_consumer_asks_rarely(broker: EmbeddedBroker) -> None:
    """Without the proxy it asked five thousand times a second: all cores were busy with nothing."""
    topics(broker, "idle")
    asked = 0

    async def idle() -> None:
        nonlocal asked
        consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, fetch_max_wait_ms=500)
        await consumer.start()
        try:
            consumer.assign([TopicPartition("idle", 0)])
            fetcher = consumer._fetcher
            ask = fetcher._proc_fetch_request

            async def count(*arguments: object) -> object:
                nonlocal asked
                asked += 1
                return await ask(*arguments)

            fetcher._proc_fetch_request = count
            await consumer.getmany(timeout_ms=2_000)
        finally:
            await consumer.stop()

    asyncio.run(idle())

    assert 1 <= asked <= 10


def test_a_transaction_is_seen_when_it_is_committed(broker: EmbeddedBroker) -> None:
    """The record was there before; it is the commit that makes it readable."""
    topics(broker, "committed")

    async def commit() -> float:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=broker.bootstrap,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            fetch_max_wait_ms=WAIT_MS,
        )
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id="one")
        await consumer.start()
        await producer.start()
        try:
            consumer.assign([TopicPartition("committed", 0)])
            await producer.begin_transaction()
            await producer.send_and_wait("committed", b"x")
            reading = asyncio.ensure_future(consumer.getmany(timeout_ms=10_000))
            await asyncio.sleep(0.5)
            assert not reading.done()
            begin = time.monotonic()
            await producer.commit_transaction()
            assert await reading
            return time.monotonic() - begin
        finally:
            await producer.stop()
            await consumer.stop()

    assert asyncio.run(commit()) < WAIT_MS / 1000 / 2


def test_a_producer_that_wants_no_answer_gets_none(broker: EmbeddedBroker) -> None:
    """A proxy that waited for one would hold the connection for ever."""
    topics(broker, "careless")

    async def write() -> int:
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, acks=0)
        consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest")
        await producer.start()
        await consumer.start()
        try:
            consumer.assign([TopicPartition("careless", 0)])
            for _ in range(3):
                await producer.send("careless", b"x")
                await producer.flush()
            read = 0
            async with asyncio.timeout(20):
                while read < 3:
                    batches = await consumer.getmany(timeout_ms=1_000)
                    read += sum(map(len, batches.values()))
            return read
        finally:
            await consumer.stop()
            await producer.stop()

    assert asyncio.run(write()) == 3
