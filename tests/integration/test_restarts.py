"""One task that is started again and again, on a broker: its runs lie in several partitions, and workers die."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests._support.clients import OutRecord
from tests._support.fleet import Event, Run, records
from tests._support.kafka import ApacheKafka
from tests._support.workers import Deployment, wait_until

from loopwarden_models.ids import control_partition

pytestmark = pytest.mark.kafka


def task_run(number: int, *, fails: bool, tenant: str = "acme") -> list[Event]:
    """Return a run a second ago: it fails, or finds just what the one before it did."""
    run = Run(f"r{number}", tenant=tenant, start_ms=0)
    run.events.clear()
    run.add("run_start", goal=f"Address the feedback of 2026-01-02T10:11:{number:02}Z", agent="solver")
    run.call("list", {"page": 1}, f"remark {number}" if fails else "no remarks")
    run.add("run_end", status="failed" if fails else "completed")
    now_ms = time.time_ns() // 1_000_000 - 1_000
    return [{**event, "seq": seq, "ts_ms": now_ms + seq} for seq, event in enumerate(run.events)]


class Task:
    """The task of one deployment, whose runs begin one after the other."""

    def __init__(self, deployment: Deployment, *, fails: bool = True) -> None:
        self._deployment = deployment
        self._fails = fails
        self._runs = 0

    def begin(self, runs: int) -> None:
        """Let so many runs begin and end, each after the one before it was reported."""
        deployment = self._deployment
        for number in range(self._runs, self._runs + runs):
            deployment.write(records(task_run(number, fails=self._fails), deployment.partitions))
            wait_until(lambda ended=f"r{number}": ended in self._ended(), "the end of a run to be sent")  # type: ignore[misc]  # bound at once
        self._runs += runs

    def _ended(self) -> set[str]:
        sent = self._deployment.messages("tool-health")
        return {one["run_id"] for one in sent if one.get("type") == "run_turn" and one["turn"] == "end"}

    def verdicts(self) -> list[dict[str, Any]]:
        """Return what was said of tasks, each id once."""
        said = [one for one in self._deployment.messages("verdicts") if one["detector"] == "restart_loop"]
        return list({one["verdict_id"]: one for one in said}.values())

    def told(self) -> list[tuple[str, str]]:
        """Return run and level of it."""
        return [(one["run_id"], one["level"]) for one in self.verdicts()]


@pytest.mark.parametrize("fails", [True, False])
def test_a_task_is_told_of_at_its_sixth_start(apache_kafka: ApacheKafka, tmp_path: Path, fails: bool) -> None:
    """Its runs fail, or find the same again; no two need lie in one partition, and each verdict names its evidence."""
    with Deployment(apache_kafka.bootstrap, tmp_path) as deployment:
        worker = deployment.start().ready()
        task = Task(deployment, fails=fails)
        task.begin(6)
        deployment.wait_applied("steps", "tool-health")
        wait_until(lambda: len(task.told()) == 2, "the verdicts")

        assert task.told() == [("r3", "observe"), ("r5", "nudge")]
        starts = {
            (record.partition, record.offset)
            for record in deployment.read("steps")
            if record.value is not None and b'"run_start"' in record.value and b'"r5"' in record.value
        }
        [place] = [(one["source"]["partition"], one["source"]["offsets"][0]) for one in task.verdicts()[1:]]
        assert starts == {place}
        assert worker.metric("loopwarden_loops_detected_total", detector="restart_loop", level="nudge") == 1
        wait_until(lambda: worker.metric("loopwarden_state_entries", table="tasks") == 1, "the gauge")
        assert worker.metric("loopwarden_dead_letters_total") == 0
        assert worker.stop() == 0


@pytest.mark.parametrize("checkpoint_ms", [300, 600_000])
def test_a_worker_that_is_killed_in_between_changes_nothing(
    apache_kafka: ApacheKafka, tmp_path: Path, checkpoint_ms: int
) -> None:
    """From the snapshot, or from the beginning: a turn that is sent again counts once."""
    with Deployment(apache_kafka.bootstrap, tmp_path, session_timeout_ms=60_000) as deployment:
        dying = deployment.start(instance="one", checkpoint_ms=checkpoint_ms).ready()
        task = Task(deployment)
        task.begin(4)
        wait_until(lambda: task.told() == [("r3", "observe")], "the first verdict")
        dying.kill()
        heir = deployment.start(instance="one").ready()
        task.begin(7)
        deployment.wait_applied("steps", "tool-health")
        wait_until(lambda: len(task.told()) == 3, "the verdicts")

        assert task.told() == [("r3", "observe"), ("r5", "nudge"), ("r10", "nudge")]
        assert [one["evidence"]["count"] for one in task.verdicts()] == [3, 5, 10]
        assert heir.metric("loopwarden_recovery_faults_total") == 0


def test_what_is_no_turn_and_what_is_of_tomorrow(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """A turn that cannot be read is a dead letter; a kind that this version does not know is passed over."""
    with Deployment(apache_kafka.bootstrap, tmp_path) as deployment:
        worker = deployment.start().ready()
        number = control_partition("acme", deployment.partitions)
        wrong = [
            OutRecord(number, b"acme|task|00000000000007", b'{"v":1,"type":"run_turn"}'),
            OutRecord(number, b"acme|moon", b'{"v":1,"type":"moon_phase"}'),
        ]
        deployment.write(wrong, topic="tool-health")
        deployment.wait_applied("tool-health")

        assert [record.key for record in deployment.read("dead-letter")] == [b"acme|task|00000000000007"]
        wait_until(lambda: worker.metric("loopwarden_dead_letters_total") == 1, "it to be counted")
