"""One worker and two runtimes for all modules of this folder: each test has runs of its own."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from tests._support.hosts import Host
from tests._support.kafka import ApacheKafka
from tests._support.stage import Stage
from tests._support.workers import BOUNDLESS, Deployment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Tenants whose times and limits are short enough to wait for them. And room for loops: on a busy machine they go round
# for long before they are answered, and none is to be ended for its steps.
POLICY = (
    BOUNDLESS
    + """
mode: enforce
budget: {observe_steps: 700, nudge_steps: 800, max_steps_if_stuck: 900}
tenants:
  brief: {ladder: {command_ttl_ms: 1500, receive_timeout_ms: 1000}}
  watched: {mode: shadow}
  frugal: {budget: {limits: {max_steps: 6}}}
  shaky: {fleet_breaker: {pause_ms: 1000, max_pause_ms: 1000, probe_share: 0.5, lease_ms: 15000}}
  quiet: {silent_run: {observe_ms: 1000, kill_ms: 600000}}
"""
)

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def stage(apache_kafka: ApacheKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A worker that judges, and everything that is written."""
    directory = tmp_path_factory.mktemp("lifecycle")
    with Deployment(apache_kafka.bootstrap, directory, policy=POLICY) as deployment:
        made = Stage(deployment, directory)
        yield made
        made.close()


@pytest.fixture(scope="session")
def host(stage: Stage) -> Host:
    """The runtime of most runs."""
    return stage.host("rt-1").guard()


@pytest.fixture(scope="session")
def other_host(stage: Stage) -> Host:
    """The runtime to which runs move, and where children live."""
    return stage.host("rt-2").guard()


@pytest.fixture
def own_host(stage: Stage) -> Iterator[Callable[..., Host]]:
    """Makes runtimes for one test, which may kill them. Argument: the runtime's id."""
    made: list[Host] = []

    def start(runtime_id: str = "rt-own") -> Host:
        made.append(stage.host(runtime_id))
        return made[-1]

    yield start
    for each in made:
        each.kill()


@pytest.fixture
def run_id(request: pytest.FixtureRequest) -> str:
    """Return the id of a run that no other test has: the number of the case, and one more."""
    number = request.node.name.split("_")[1]
    return f"r-{number}-{next(_numbers)}"
