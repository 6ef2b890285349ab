"""The tasks of a replay: whether the recorded runs were started again and again.

Runs lie in their sources one file or partition after the other; a task sees them in order of time. So beginnings and
ends are kept, and judged at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, NamedTuple, TypeVar

from msgspec.structs import replace

from loopwarden_detectors.task_fleet import TaskFleet
from loopwarden_models.policy import Policy
from loopwarden_models.run_turns import RunTurn
from loopwarden_models.verdicts import Verdict

# Beginnings and ends held at most, 600 bytes each; beyond it the older half is judged, and what comes later for that
# time is left out.
MAX_HELD: Final = 1_000_000

P = TypeVar("P")


class TaskVerdict(NamedTuple, Generic[P]):
    """A verdict on a task, and the place of the event that began the run it names."""

    verdict: Verdict
    place: P


class ReplayTasks(Generic[P]):
    """Keeps the beginnings and ends of a replay, and judges them. A place is whatever names where one was recorded."""

    def __init__(self, policy: Policy, *, max_held: int = MAX_HELD) -> None:
        self._fleet = TaskFleet(policy)
        self._max_held = max_held
        self._held: list[tuple[RunTurn, P]] = []
        self._judged_ms = -1
        self._turns = 0
        self._said: list[TaskVerdict[P]] = []

    def add(self, turn: RunTurn, place: P) -> None:
        """Add one beginning or end. Cost: 0.2 µs."""
        if len(self._held) >= self._max_held:
            self._judge(len(self._held) // 2)
        self._held.append((turn, place))

    def finish(self) -> Iterator[TaskVerdict[P]]:
        """Judge what is left, and yield all verdicts in order of time. Cost: 3 µs for each beginning and end."""
        self._judge(len(self._held))
        yield from self._said

    def _judge(self, count: int) -> None:
        # Sorting keeps the order of what has the same time: a run's beginning comes before its end.
        self._held.sort(key=lambda held: held[0].at_ms)
        due, self._held = self._held[:count], self._held[count:]
        for turn, place in due:
            if turn.at_ms < self._judged_ms:
                continue
            self._judged_ms = turn.at_ms
            # Their places do not rise in this order, and each is read once.
            verdict = self._fleet.turn(replace(turn, partition=0, offset=self._turns))
            self._turns += 1
            if verdict is not None:
                self._said.append(TaskVerdict(verdict, place))
