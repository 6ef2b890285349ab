"""The broker goes away and comes back: workers reconnect by themselves, and what was acknowledged counts once."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests._support.fleet import differences, fleet, heard, judged, looping, records, shuffled
from tests._support.kafka import ApacheKafka
from tests._support.workers import Deployment, wait_until

from loopwarden_models.policy import Policy

pytestmark = pytest.mark.slow

ENFORCE = Policy(mode="enforce")
AWAY_S = 5.0


def restart(broker: ApacheKafka) -> None:
    """Stop in good order, stay away, and start again."""
    broker.stop()
    time.sleep(AWAY_S)
    broker.start()


def crash(broker: ApacheKafka) -> None:
    """Die at once, stay away, and start again."""
    broker.kill()
    time.sleep(AWAY_S)
    broker.start()


def freeze(broker: ApacheKafka) -> None:
    """Stand still with all connections open, as behind a cut network, for longer than a session lasts."""
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        time.sleep(2 * AWAY_S)
    finally:
        os.kill(broker.pid, signal.SIGCONT)


@pytest.mark.parametrize("go_away", [restart, crash, freeze])
def test_a_worker_survives_the_broker(
    own_apache_kafka: Callable[..., ApacheKafka], tmp_path: Path, go_away: Callable[[ApacheKafka], None]
) -> None:
    """Brokers are restarted every week; a fleet of workers that ends with them would have to recover all at once."""
    broker = own_apache_kafka()
    events = shuffled(fleet(150, seed=51), random.Random(51))
    before, after = events[: len(events) // 2], events[len(events) // 2 :]

    with Deployment(
        broker.bootstrap, tmp_path, mode="enforce", max_action_age_ms=0, session_timeout_ms=6_000
    ) as deployment:
        worker = deployment.start().ready()
        deployment.write(records(before, deployment.partitions))
        # Not waited for: it is in the middle of its work.
        go_away(broker)
        deployment.write(records(after, deployment.partitions))
        deployment.wait_applied(timeout_s=120)

        assert worker.is_running(), worker.log()
        wait_until(lambda: worker.get("/livez").status == 200, "the worker to call itself alive", context=worker.log)
        assert worker.owned() == set(range(deployment.partitions))
        said = heard(deployment.messages("verdicts"), deployment.messages("control.commands"))
        assert differences(judged(events, ENFORCE), said) == ""


def test_a_worker_that_waits_for_the_broker_can_be_stopped(
    own_apache_kafka: Callable[..., ApacheKafka], tmp_path: Path
) -> None:
    """An orchestrator that takes everything down does not do it in order, and must not have to wait for a kill."""
    broker = own_apache_kafka()

    with Deployment(broker.bootstrap, tmp_path) as deployment:
        worker = deployment.start().ready()
        deployment.write(records(looping("r1", 3, start_ms=0), deployment.partitions))
        broker.kill()

        # 0 if everything was saved by then, 70 if something could not be: the next owner replays it.
        assert worker.stop() in (0, 70), worker.log()
