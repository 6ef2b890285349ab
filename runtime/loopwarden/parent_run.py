"""The part of a run's guard that starts other runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from loopwarden.decisions import RunKey
from loopwarden.run_questions import RunQuestions
from loopwarden.safety_net import RunNet
from loopwarden.spawning import Spawns, WaitingCall
from loopwarden.tool_calls import ToolCalls
from loopwarden_models.events import Limits

if TYPE_CHECKING:
    from loopwarden.run_guard import RunGuard


class ParentRun(RunQuestions):
    """Children of a run, and the calls in which it waits for them. Thread-safe."""

    def __init__(
        self,
        key: RunKey,
        *,
        calls: ToolCalls,
        net: RunNet | None,
        spawns: Spawns,
        start_child: Callable[..., RunGuard],
        **control: Any,
    ) -> None:
        super().__init__(**control)
        self.key = key
        self._calls = calls
        self._net = net
        self._spawns = spawns
        self._start_child = start_child

    def child(
        self,
        run_id: str,
        *,
        agent: str | None = None,
        goal: str | None = None,
        attended: bool = False,
        limits: Limits | None = None,
        call_id: str | None = None,
        cancel: Callable[[str], object] | None = None,
    ) -> RunGuard:
        """Return the guard of a run that this one starts: it draws on this run's limits and falls with its tree.

        See `Guard.run`, also for the `SpawnRefusedError` that it raises.
        """
        return self._start_child(
            run_id, agent=agent, goal=goal, attended=attended, limits=limits, parent=self.key, call_id=call_id,
            cancel=cancel,
        )  # fmt: skip

    def user_input(self) -> None:
        """Report that a person spoke: repetition and children are counted afresh from here."""
        super().user_input()
        self._spawns.forget(self.key)

    def waits_in(self, call_id: str | None) -> WaitingCall | None:
        """Return the call in which this run starts a child: the one named, else the only one that is out."""
        call_id = call_id or self._calls.only_open()
        return None if call_id is None else WaitingCall(self._calls, self._gate, call_id)

    def refuse_child(self, call_id: str | None, reason: str) -> None:
        """Report a child that was refused, as the end of the call that was to start it."""
        self._counters.add("spawns_refused")
        if (call := self.waits_in(call_id)) is not None:
            call.refuse(reason)
        if self._net is not None and (limit := self._net.refused()) is not None:
            self._limit(limit)
