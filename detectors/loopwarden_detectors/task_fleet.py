"""The tasks of many tenants, each with its state: where beginnings and ends of a whole fleet's runs come in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from loopwarden_detectors.restart_loop import NAME, TaskState, observe
from loopwarden_models.policy import Policy
from loopwarden_models.run_turns import RunTurn
from loopwarden_models.verdicts import Verdict

# Tasks of one tenant that are remembered: where every goal is another one nothing is started again. judgement
MAX_TASKS: Final = 5_000

TaskId = tuple[str, int]


class TaskFleet:
    """The tasks of many tenants. Not thread-safe.

    Attributes:
        tasks: By (tenant, fingerprint).
    """

    def __init__(self, policy: Policy) -> None:
        """Judge by `policy`, with the layers of tenants and agents."""
        self.policy = policy
        self.tasks: dict[TaskId, TaskState] = {}
        self._known: Counter[str] = Counter()

    def turn(self, turn: RunTurn) -> Verdict | None:
        """Count one beginning or end, unless it came before, and return what is to be said of it. Cost: 2 µs."""
        key = (turn.tenant, turn.fingerprint)
        task = self.tasks.get(key)
        if task is None:
            if turn.turn == "start" or self._known[turn.tenant] >= MAX_TASKS:
                return None  # nothing is known of it, so nothing is remembered of its first start
            task = self.tasks[key] = TaskState(*key)
            self._known[turn.tenant] += 1
        if not task.admit(turn):
            return None
        rules = self.policy.of(turn.tenant, turn.agent) if self.policy.is_layered else self.policy
        return observe(task, turn, rules.restart_loop, rules.mode_of(NAME, turn.at_ms))

    def restore(self, tasks: Iterable[TaskState]) -> None:
        """Take in tasks that were saved."""
        for task in tasks:
            self.tasks[task.tenant, task.fingerprint] = task
            self._known[task.tenant] += 1

    def forgettable(self, task: TaskState, now_ms: int) -> bool:
        """Return whether nothing is lost with a task: no run of it ended within its window."""
        rules = self.policy.of(task.tenant, "") if self.policy.is_layered else self.policy
        return now_ms - task.now_ms > rules.restart_loop.window_ms

    def forget(self, task: TaskState) -> None:
        """Drop a task."""
        del self.tasks[task.tenant, task.fingerprint]
        self._known[task.tenant] -= 1
