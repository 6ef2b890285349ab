"""Our producer while the broker is away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest
from tests._support.kafka import ApacheKafka, NewTopicSpec, create_topics

from loopwarden_streams.kafka_client import new_producer
from loopwarden_streams.settings import Settings

WATCHED_S = 1.0


def test_a_producer_that_knows_no_leader_asks_ten_times_a_second_and_delivers(
    own_apache_kafka: Callable[..., ApacheKafka], caplog: pytest.LogCaptureFixture
) -> None:
    """A broker in the middle of a restart has said that it leads nothing, and refuses connections now."""
    broker = own_apache_kafka()
    create_topics(broker.bootstrap, {"t": NewTopicSpec(1)})

    async def produce() -> tuple[int, int]:
        producer = new_producer(Settings(brokers=broker.bootstrap))
        await producer.start()
        try:
            await producer.send_and_wait("t", b"before", partition=0)
            await asyncio.to_thread(broker.kill)
            known = producer.client.cluster._partitions["t"]
            known[0] = known[0]._replace(leader=-1)
            waiting = await producer.send("t", b"meanwhile", partition=0)
            caplog.clear()
            await asyncio.sleep(WATCHED_S)
            asked = sum("Unable to update metadata" in record.message for record in caplog.records)
            await asyncio.to_thread(broker.start)
            sent = await asyncio.wait_for(waiting, 30)
            return asked, sent.offset
        finally:
            await producer.stop()

    with caplog.at_level(logging.ERROR, logger="aiokafka"):
        asked, offset = asyncio.run(produce())
    assert 1 <= asked <= 20
    assert offset == 1
