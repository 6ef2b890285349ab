"""What a runtime did with a command, noted where the ladder looks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loopwarden_detectors import lifecycle
from loopwarden_detectors.base import KILL
from loopwarden_detectors.ladder_state import APPLIED, UNDELIVERED, StopState, command_key

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState, TreeState
    from loopwarden_models.acks import Ack


def acknowledge(tree: TreeState, ack: Ack) -> StopState | None:
    """Note what a runtime did with a command.

    Returns:
        The stop of a run when this acknowledgement says for the first time that its gate is shut, else `None`.

    Cost: O(loops) of the run; acknowledgements are as rare as commands.
    """
    run = tree.runs.get(ack.run_id)
    if run is not None and run.stop is not None and run.stop.command_id == ack.command_id:
        return _answer_stop(tree, run, run.stop, ack)
    key = command_key(ack.command_id)
    for loop in (*(tree.loops or ()), *((run.loops or ()) if run is not None else ())):
        if loop.nudge_key == key and loop.answer != APPLIED:
            if ack.status == "applied":
                loop.answer, loop.returns = APPLIED, 0
            elif ack.status not in ("received", "confirmed_dead"):
                loop.answer = UNDELIVERED
    return None


def _answer_stop(tree: TreeState, run: RunState, stop: StopState, ack: Ack) -> StopState | None:
    if ack.status in ("expired", "stale", "unsupported", "failed"):
        stop.is_undelivered = True
    stop.is_dead = stop.is_dead or ack.status == "confirmed_dead"
    if ack.status not in ("applied", "confirmed_dead") or stop.applied_ms >= 0:
        return None
    stop.applied_ms = ack.at_ms
    if stop.level < KILL:
        lifecycle.pause(tree, run)
    return stop
