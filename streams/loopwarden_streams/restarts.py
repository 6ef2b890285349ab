"""The tasks that a worker owns: beginnings and ends of runs go in, verdicts on tasks come out."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from loopwarden_models.commands import EvidenceRange
from loopwarden_models.run_turns import RunTurn
from loopwarden_models.verdicts import Verdict
from loopwarden_streams.metrics import Metrics
from loopwarden_streams.outbox import Outbox
from loopwarden_streams.partition import STEPS, TOOLS, Partition
from loopwarden_streams.settings import Settings

# Tasks rest for an hour before they are forgotten: now and then is soon enough.
SWEEP_EVERY_S: Final = 60.0


class Restarts:
    """Judges the tasks of one worker. Call it under the partition's lock."""

    def __init__(self, settings: Settings, outbox: Outbox, metrics: Metrics) -> None:
        """Publish through `outbox`."""
        self._steps_topic = settings.topic(STEPS)
        self._outbox = outbox
        self._metrics = metrics
        self._swept: dict[int, float] = {}

    def count(self, partition: Partition, turn: RunTurn, offset: int, act_from_ms: int) -> list[Verdict]:
        """Count one turn of the partition's tasks, and return what is to be published of it.

        Args:
            partition: Owner of the task.
            turn: As it was sent.
            offset: Its own.
            act_from_ms: What began before, in Unix milliseconds, is said in shadow.
        """
        tasks = partition.tasks
        newest_ms = tasks.now_ms
        verdict = tasks.turn(turn, offset, act=turn.at_ms >= act_from_ms)
        if tasks.now_ms > newest_ms:
            partition.tasks_moved_at = time.monotonic()
        if verdict is None:
            return []
        source = EvidenceRange(self._steps_topic, turn.partition, [turn.offset, turn.offset])
        return [msgspec.structs.replace(verdict, source=source)]

    async def publish(self, partition: Partition, said: Sequence[Verdict]) -> None:
        """Publish what was said.

        Raises:
            TransportError: The broker refused something since the last call.
        """
        for verdict in said:
            self._metrics.count_verdict(verdict)
            self._metrics.observe_detection(verdict.detector, time.time() - verdict.at_ms / 1000)
        await self._outbox.say(partition, said)

    def tick(self, partition: Partition) -> None:
        """Forget the tasks that rest, by the time of the turns and what has passed since.

        While turns are read that a former owner may have judged, time stands still.
        """
        now = time.monotonic()
        is_replaying = partition.next_offset[TOOLS] < partition.tools_until
        if is_replaying or now - self._swept.get(partition.number, 0.0) < SWEEP_EVERY_S:
            return
        self._swept[partition.number] = now
        tasks = partition.tasks
        now_ms = tasks.now_ms + int((now - partition.tasks_moved_at) * 1000)
        for task in [task for task in tasks.tasks.values() if tasks.forgettable(task, now_ms)]:
            tasks.forget(task)

    def report(self, partitions: Mapping[int, Partition]) -> None:
        """Set the gauge of the tasks that are held."""
        self._metrics.set_state_entries("tasks", sum(len(one.tasks.tasks) for one in partitions.values()))
