"""Runs that start runs: how deep and how wide a tree may grow, and the calls that wait for a child."""

from __future__ import annotations

import threading
from collections import OrderedDict

from loopwarden.decisions import RunKey, StopCause
from loopwarden.gate import Gate
from loopwarden.tool_calls import ToolCalls
from loopwarden_models.events import ToolError

# Parents whose children are counted; those of another process are never seen to end.
MAX_PARENTS = 10_000


class Spawns:
    """Limits of depth and width, obeyed in the process that starts the child. Thread-safe."""

    def __init__(self, *, max_depth: int | None, max_children: int | None) -> None:
        self._max_depth = max_depth
        self._max_children = max_children
        self._children: OrderedDict[tuple[str, str], set[str]] = OrderedDict()
        self._lock = threading.Lock()

    def claim(self, parent: RunKey, run_id: str) -> str | None:
        """Count a child, or return the limit that forbids it. Neither a refused child nor a resumed one is counted.

        Args:
            parent: The run that starts it.
            run_id: Of the child.
        """
        # The parent's ancestors, the parent, and the child.
        depth = len(parent.ancestors) + 2
        if self._max_depth is not None and depth > self._max_depth:
            return f"limit max_depth reached: level {depth} of {self._max_depth}"
        if self._max_children is None:
            return None
        key = (parent.run_id, parent.incarnation)
        with self._lock:
            children = self._children.setdefault(key, set())
            self._children.move_to_end(key)
            if len(self._children) > MAX_PARENTS:
                self._children.popitem(last=False)
            if run_id not in children and len(children) >= self._max_children:
                return f"limit max_children reached: {len(children)} of {self._max_children}"
            children.add(run_id)
        return None

    def forget(self, parent: RunKey) -> None:
        """The parent has ended, or a person spoke to it: its children are counted afresh."""
        with self._lock:
            self._children.pop((parent.run_id, parent.incarnation), None)


class WaitingCall:
    """A tool call of a run in this process that waits for a child. Thread-safe.

    Args:
        calls: Of the parent.
        gate: Of the parent.
        call_id: The call.
    """

    def __init__(self, calls: ToolCalls, gate: Gate, call_id: str) -> None:
        self._calls = calls
        self._gate = gate
        self._call_id = call_id

    def refuse(self, reason: str) -> None:
        """The child must not be: the call ends as `blocked`."""
        self._calls.settle(self._call_id, "blocked", ToolError(error_class="spawn_refused", message=reason))

    def end(self, cause: StopCause) -> None:
        """The child was stopped: the call, if it is still out, ends with what stopped it.

        Where the parent was stopped as well, its calls end with it.
        """
        if self._gate.cause is None:
            error = ToolError(error_class=cause.status, message=cause.reason, status=cause.command_id)
            self._calls.settle(self._call_id, "error", error)
