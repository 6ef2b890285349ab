"""The brokers for the tests, and the choice among them. Import from here."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from tests._support.apache import FAST_START, THROUGHPUT, ApacheKafka
from tests._support.apache_jars import KafkaUnavailableError, apache_obstacle, fetch_kafka_jars
from tests._support.broker import Broker
from tests._support.clients import (
    NewTopicSpec,
    OutRecord,
    Record,
    consume_all,
    create_topics,
    produce,
    topic_config,
    unique_prefix,
)
from tests._support.embedded import EmbeddedKafka

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "FAST_START",
    "THROUGHPUT",
    "ApacheKafka",
    "Broker",
    "EmbeddedKafka",
    "KafkaUnavailableError",
    "NewTopicSpec",
    "OutRecord",
    "Record",
    "apache_obstacle",
    "available",
    "consume_all",
    "create_topics",
    "fetch_kafka_jars",
    "produce",
    "start_best",
    "topic_config",
    "unique_prefix",
]

REQUIRE = "LOOPWARDEN_TEST_REQUIRE_KAFKA"


def available() -> Literal["apache", "embedded"]:
    """Return which broker the tests run against on this machine: Apache Kafka where Java and Maven are.

    Raises:
        KafkaUnavailableError: `LOOPWARDEN_TEST_REQUIRE_KAFKA=1` is set, and Apache Kafka cannot run. Continuous
            integration sets it, so that a lost Java does not turn its tests into weaker ones.
    """
    obstacle = apache_obstacle()
    if obstacle is None:
        return "apache"
    if os.environ.get(REQUIRE) == "1":
        raise KafkaUnavailableError(f"{REQUIRE}=1 asks for Apache Kafka, but {obstacle}")
    return "embedded"


def start_best(data_dir: Path | None = None) -> Broker:
    """Return a running broker, Apache Kafka if possible. The caller closes it.

    Raises:
        KafkaUnavailableError: As for `available()`, or the jars could not be fetched.
        RuntimeError: It did not start.
    """
    broker: Broker = ApacheKafka(data_dir) if available() == "apache" else EmbeddedKafka(data_dir)
    try:
        broker.start()
    except BaseException:
        broker.close()
        raise
    return broker
