"""Kills, joins, leaves, repeats and another order: the verdicts and commands of an undisturbed run, each once."""

from __future__ import annotations

import random
import signal
import threading
import time
from pathlib import Path

import pytest
from tests._support.crashing_worker import EXIT, FAULT, POINTS
from tests._support.fleet import Event, Judge, differences, doubled, fleet, heard, judged, looping, records, shuffled
from tests._support.kafka import ApacheKafka
from tests._support.workers import Deployment, Worker, ack_of, wait_until

from loopwarden_models.policy import Policy

pytestmark = pytest.mark.slow

ENFORCE = Policy(mode="enforce")
FEED_S = 20.0
SLICES = 60
# The broker's own lower bound is 6 s; every kill of a member without an instance costs this long.
SESSION_MS = 6_000


class Feeder(threading.Thread):
    """Writes events little by little, so that a kill finds a worker at work."""

    def __init__(self, deployment: Deployment, events: list[Event], *, seconds: float = FEED_S) -> None:
        super().__init__(name="feeder", daemon=True)
        self._deployment = deployment
        self._events = events
        self._seconds = seconds
        self.error: BaseException | None = None

    def run(self) -> None:
        """Write `SLICES` slices, evenly spread over the time."""
        try:
            size = -(-len(self._events) // SLICES)
            started = time.monotonic()
            for number in range(SLICES):
                own = self._events[number * size : (number + 1) * size]
                self._deployment.write(records(own, self._deployment.partitions))
                time.sleep(max(0.0, started + (number + 1) * self._seconds / SLICES - time.monotonic()))
        except BaseException as error:  # noqa: BLE001 - a thread's exception would be lost otherwise
            self.error = error

    def finish(self) -> None:
        """Wait until everything is written.

        Raises:
            AssertionError: Something was not.
        """
        self.join(120)
        assert not self.is_alive(), "the feeder hangs"
        if self.error is not None:
            raise AssertionError("not all events were written") from self.error


def disturb(deployment: Deployment, draw: random.Random, workers: list[Worker], *, until: float) -> list[str]:
    """Kill, stop and start workers at random moments; one is always there or on its way. Returns what was done."""
    done: list[str] = []
    while time.monotonic() < until:
        time.sleep(draw.uniform(0.5, 4.0))
        action = draw.choice(["kill", "kill", "stop", "start"])
        running = [worker for worker in workers if worker.is_running()]
        if action == "start" or not running:
            if len(running) < 2:
                workers.append(deployment.start())
                done.append(f"start {workers[-1].name}")
            continue
        victim = draw.choice(running)
        done.append(f"{action} {victim.name}")
        if action == "kill":
            victim.kill()
        else:
            # One that has just begun does not know the signal yet, and ends as everybody does.
            assert victim.stop() in (0, -signal.SIGTERM), victim.log()
        if len(running) == 1 or draw.random() < 0.5:
            workers.append(deployment.start())
            done.append(f"start {workers[-1].name}")
    return done


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_disturbances_change_no_verdict_and_no_command(apache_kafka: ApacheKafka, tmp_path: Path, seed: int) -> None:
    """The proof of the delivery guarantee: nothing lost, nothing that a receiver who knows ids would see twice."""
    draw = random.Random(seed)
    runs = fleet(300, seed=seed)
    expected = judged([event for run in runs for event in run], ENFORCE)
    # Another order across runs than that of the expectation, and one event in twenty comes again.
    events = doubled(shuffled(runs, draw), draw, share=0.05)

    with Deployment(
        apache_kafka.bootstrap, tmp_path, mode="enforce", max_action_age_ms=0, session_timeout_ms=SESSION_MS
    ) as deployment:
        workers = [deployment.start(), deployment.start()]
        workers[0].ready()
        feeder = Feeder(deployment, events)
        feeder.start()
        done = disturb(deployment, draw, workers, until=time.monotonic() + FEED_S)
        feeder.finish()
        if not any(worker.is_running() for worker in workers):
            workers.append(deployment.start())
        deployment.wait_applied(timeout_s=90)

        said = heard(deployment.messages("verdicts"), deployment.messages("control.commands"))
        assert differences(expected, said) == "", done


@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_any_point_changes_no_verdict_and_no_command(
    apache_kafka: ApacheKafka, tmp_path: Path, point: str
) -> None:
    """Each gap between two steps of a checkpoint is one where a process can end, and random kills rarely find it."""
    runs = fleet(120, seed=7)
    expected = judged([event for run in runs for event in run], ENFORCE)
    events = shuffled(runs, random.Random(7))

    with Deployment(
        apache_kafka.bootstrap,
        tmp_path,
        mode="enforce",
        max_action_age_ms=0,
        # A stable id: whoever comes after the crash gets the partitions without a wait.
        instance="one",
        # Few records at a time, so that there is something before and after the crash.
        max_fetch_bytes=1,
    ) as deployment:
        deployment.write(records(events[: len(events) // 2], deployment.partitions))
        # The second time: a state that was saved before is there too. Recovery comes once for each start.
        if point == "inside recovery":
            deployment.start().ready()
            deployment.wait_applied()
            deployment.workers[0].kill()
        nth = "1" if point == "inside recovery" else "3"
        crashing = deployment.start(words=("-m", "tests._support.crashing_worker", point, nth))
        deployment.write(records(events[len(events) // 2 :], deployment.partitions))
        assert crashing.wait_exit() == EXIT, crashing.log()

        deployment.start().ready()
        deployment.wait_applied()

        said = heard(deployment.messages("verdicts"), deployment.messages("control.commands"))
        assert differences(expected, said) == ""


def test_a_fault_inside_faust_ends_the_worker(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """Its own services crash and are not started again: a process that lives on and reads nothing is the worst case."""
    runs = fleet(60, seed=8)
    events = [event for run in runs for event in run]

    with Deployment(
        apache_kafka.bootstrap, tmp_path, mode="enforce", max_action_age_ms=0, instance="one", max_fetch_bytes=1
    ) as deployment:
        deployment.write(records(events, deployment.partitions))
        faulty = deployment.start(words=("-m", "tests._support.crashing_worker", FAULT, "3"))
        # An orchestrator starts it again: 70 is a fault of the program, not of its settings.
        assert faulty.wait_exit() == 70, faulty.log()

        deployment.start().ready()
        deployment.wait_applied()

        said = heard(deployment.messages("verdicts"), deployment.messages("control.commands"))
        assert differences(judged(events, ENFORCE), said) == ""


def test_answers_that_came_before_a_crash_still_count(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """Steps and answers are two topics: after a crash, an answer must not be read before the step that it answers."""
    # Laps of one second: without its answer, a nudge is not given up before the runs end, and nobody is killed.
    runs = [[{**event, "ts_ms": event["seq"] * 1_000} for event in run] for run in loops(40)]
    # Seven laps bring two nudges, and no kill is due before the eighth.
    first = [event for run in runs for event in run[:8]]
    second = [event for run in runs for event in run[8:]]
    judge = Judge(ENFORCE)
    judge.feed(first)
    judge.answer()
    judge.feed(second)
    expected = judge.said
    assert set(expected.orders.values()) == {"nudge", "kill_run"}

    with Deployment(
        apache_kafka.bootstrap, tmp_path, mode="enforce", max_action_age_ms=0, instance="one", checkpoint_ms=600_000
    ) as deployment:
        dying = deployment.start().ready()
        deployment.write(records(first, deployment.partitions))
        wait_until(lambda: len(nudges(deployment)) == 2 * len(runs), "the nudges", context=dying.log)
        deployment.write([ack_of(deployment, nudge, "applied") for nudge in nudges(deployment)], topic="acks")
        wait_until(
            lambda: dying.metric("loopwarden_command_acks_total") == 2 * len(runs), "the answers", context=dying.log
        )
        dying.kill()

        deployment.start(checkpoint_ms=300).ready()
        deployment.write(records(second, deployment.partitions))
        deployment.wait_applied()

        said = heard(deployment.messages("verdicts"), deployment.messages("control.commands"))
        # The same ids. Whether a tool is blocked first, or the end comes a lap earlier, hangs on when the answer is
        # read again: then it is there as soon as the nudge is.
        blocked = {
            own for own, verdict in said.verdicts.items() if verdict["level"] == "break" and not verdict["episode"]
        }
        assert said.verdicts.keys() - blocked == expected.verdicts.keys()
        assert said.orders == expected.orders


def loops(runs: int) -> list[list[Event]]:
    """Return runs that all ask the same question twelve times."""
    return [looping(f"r{number}", 12, start_ms=0) for number in range(runs)]


def nudges(deployment: Deployment) -> list[Event]:
    """Return the nudges that were ordered, each id once."""
    found = {command["command_id"]: command for command in deployment.messages("control.commands")}
    return [command for command in found.values() if command["type"] == "nudge"]
