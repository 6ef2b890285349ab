"""The tasks of many tenants, each with its state: where beginnings and ends of a whole fleet's runs come in."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from typing import Final

from loopwarden_detectors.restart_loop import NAME, TaskState, observe
from loopwarden_models.policy import Policy
from loopwarden_models.run_turns import RunTurn
from loopwarden_models.verdicts import Verdict

# Tasks of one tenant that are remembered: where every goal is another one nothing is started again. Beyond it the
# tenant's own idlest go, a few at once: finding them costs a pass over all its tasks. judgement
MAX_TASKS: Final = 5_000
_EVICTED_AT_ONCE: Final = 100

TaskId = tuple[str, int]


class TaskFleet:
    """The tasks of many tenants. Not thread-safe.

    Attributes:
        tasks: By (tenant, fingerprint).
        changed: Tasks that changed or were forgotten since somebody last emptied it.
        now_ms: Newest time of a turn, of any task.
    """

    def __init__(self, policy: Policy) -> None:
        """Judge by `policy`, with the layers of tenants and agents."""
        self.policy = policy
        self.tasks: dict[TaskId, TaskState] = {}
        self.changed: set[TaskId] = set()
        self.now_ms = 0
        self._known: Counter[str] = Counter()

    def turn(self, turn: RunTurn, offset: int = -1, *, act: bool = True) -> Verdict | None:
        """Count one beginning or end, unless it came before, and return what is to be said of it.

        Args:
            turn: As it was sent.
            offset: Its own in `tool-health`, where it comes from there: what is included already is left out.
            act: False says it in shadow: it is too old to do something about.

        Cost: 2 µs.
        """
        key = (turn.tenant, turn.fingerprint)
        task = self.tasks.get(key)
        if task is None:
            if turn.turn == "start":
                return None  # nothing is known of it, so nothing is remembered of its first start
            if self._known[turn.tenant] >= MAX_TASKS:
                self._make_room(turn.tenant)
            task = self.tasks[key] = TaskState(*key)
            self._known[turn.tenant] += 1
        if 0 <= offset <= task.offset or not task.admit(turn):
            return None
        task.offset = offset
        self.changed.add(key)
        self.now_ms = max(self.now_ms, turn.at_ms)
        rules = self.policy.of(turn.tenant, turn.agent) if self.policy.is_layered else self.policy
        mode = rules.mode_of(NAME, turn.at_ms)
        return observe(task, turn, rules.restart_loop, mode if act or mode == "off" else "shadow")

    def restore(self, tasks: Iterable[TaskState]) -> None:
        """Take in tasks that were saved."""
        for task in tasks:
            self.tasks[task.tenant, task.fingerprint] = task
            self._known[task.tenant] += 1
            self.now_ms = max(self.now_ms, task.now_ms)

    def forgettable(self, task: TaskState, now_ms: int) -> bool:
        """Return whether nothing is lost with a task: no run of it ended within its window."""
        rules = self.policy.of(task.tenant, "") if self.policy.is_layered else self.policy
        return now_ms - task.now_ms > rules.restart_loop.window_ms

    def forget(self, task: TaskState) -> None:
        """Drop a task."""
        key = (task.tenant, task.fingerprint)
        del self.tasks[key]
        self.changed.add(key)
        self._known[task.tenant] -= 1

    def _make_room(self, tenant: str) -> None:
        own = (task for task in self.tasks.values() if task.tenant == tenant)
        for task in heapq.nsmallest(_EVICTED_AT_ONCE, own, key=lambda task: (task.now_ms, task.fingerprint)):
            self.forget(task)
