"""Fixtures and settings of all tests."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from tests._support.kafka import ApacheKafka, Broker, apache_obstacle, available, start_best

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# The same examples in every run, and no deadline: a slow machine is no bug. `--hypothesis-profile=explore` looks for
# new failures.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("explore", derandomize=False, deadline=None, max_examples=2_000)
settings.load_profile("ci")

BROKER_FIXTURES = frozenset({"kafka", "apache_kafka", "own_apache_kafka"})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the marker `kafka` to every test that needs a broker, and run these last.

    What is shared until the end of the session, as the stage of the lifecycle, has threads whose Kafka clients draw
    random numbers. Hypothesis takes that for a strategy that does, and 15 properties failed of 4,621 tests. Besides,
    what is quick fails first.
    """
    for item in items:
        if isinstance(item, pytest.Function) and not BROKER_FIXTURES.isdisjoint(item.fixturenames):
            item.add_marker(pytest.mark.kafka)
    items.sort(key=lambda item: item.get_closest_marker("kafka") is not None)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One broker for the session, the best there is. Tests share it: take names from `unique_prefix()`."""
    broker = start_best(tmp_path_factory.mktemp("kafka"))
    yield broker
    broker.close()


@pytest.fixture(scope="session")
def apache_kafka(kafka: Broker) -> ApacheKafka:
    """The broker of the session, for tests that the embedded one would pass or fail for reasons of its own."""
    if not isinstance(kafka, ApacheKafka):
        pytest.skip(f"needs Apache Kafka, but {apache_obstacle()}")
    return kafka


@pytest.fixture
def own_apache_kafka(tmp_path: Path) -> Iterator[Callable[..., ApacheKafka]]:
    """Makes started brokers for one test, which may stop and kill them. Arguments as for `ApacheKafka`; 3 s each."""
    if available() != "apache":
        pytest.skip(f"needs Apache Kafka, but {apache_obstacle()}")
    with contextlib.ExitStack() as running:
        numbers = itertools.count(1)

        def start(**arguments: Any) -> ApacheKafka:
            return running.enter_context(ApacheKafka(tmp_path / f"kafka-{next(numbers)}", **arguments))

        yield start
