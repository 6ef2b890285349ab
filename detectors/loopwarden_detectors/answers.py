"""What a runtime did with a command, noted where the ladder, and what waits for answers, look for it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from loopwarden_detectors import lifecycle
from loopwarden_detectors.base import KILL
from loopwarden_detectors.ladder_state import APPLIED, UNDELIVERED
from loopwarden_detectors.stops import MAX_HOSTS, StopState, command_key

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState, TreeState
    from loopwarden_models.acks import Ack


def acknowledge(tree: TreeState, ack: Ack, now_ms: int | None = None) -> StopState | None:
    """Note what a runtime did with a command.

    Args:
        tree: Changed in place.
        ack: Its times are the runtime's: they are compared with those of its steps, and with no other clock.
        now_ms: Time of the partition's clock, by which further answers are waited for; default: the tree's.

    Returns:
        The stop of a run when this acknowledgement says for the first time that its gate is shut, else `None`.

    Cost: O(loops) of the run; acknowledgements are as rare as commands.
    """
    run = tree.runs.get(ack.run_id)
    if run is not None and ack.runtime_id is not None:
        lifecycle.hear_host(run, ack.runtime_id)
    key = command_key(ack.command_id)
    stop = run.stop if run is not None else None
    if run is not None and stop is not None:
        if stop.command_id == ack.command_id:
            return _answer_stop(tree, run, stop, ack, tree.now_ms if now_ms is None else now_ms)
        if stop.former_key == key:
            _note_hosts(stop, ack)  # of the kill that was broken: whoever shut its gate may still confirm the end
            return None
    for loop in (*(tree.loops or ()), *((run.loops or ()) if run is not None else ())):
        if loop.nudge_key == key and loop.answer != APPLIED:
            if ack.status == "applied":
                loop.answer, loop.returns = APPLIED, 0
            elif ack.status not in ("received", "confirmed_dead"):
                loop.answer = UNDELIVERED
    return None


def is_confirmed(tree: TreeState, command_id: str) -> bool:
    """Return whether the last run that a kill was for is known to be dead. Cost: O(runs)."""
    is_dead = False
    for run in tree.runs.values():
        stop = run.stop
        if stop is None or stop.command_id != command_id:
            continue
        if stop.is_dead:
            is_dead = True
        elif stop.applied_ms >= 0 or not (run.is_over or stop.is_closed):
            return False
    return is_dead


def _answer_stop(tree: TreeState, run: RunState, stop: StopState, ack: Ack, now_ms: int) -> StopState | None:
    status = ack.status
    if stop.applied_ms < 0 or stop.is_wider:
        # A kill that failed is answered with a wider one, see `landing`; after that it is the ladder's turn again.
        is_over = status == "failed" and (stop.level < KILL or stop.is_wider)
        stop.is_undelivered = stop.is_undelivered or is_over or status in ("expired", "stale", "unsupported")
        stop.has_failed = stop.has_failed or status == "failed"
        stop.is_unsupported = stop.is_unsupported or status == "unsupported"
        stop.is_closed = stop.is_closed or status == "noop"
    if status in ("received", "applied", "confirmed_dead"):
        # It is out and heard of, whatever was thought of it: kept back in another life, or refused by a former host.
        stop.is_withheld = stop.is_closed = False
        if stop.heard_ms < 0:
            stop.heard_ms = now_ms
    _note_hosts(stop, ack)
    if status not in ("applied", "confirmed_dead") or stop.applied_ms >= 0:
        return None
    stop.applied_ms = ack.at_ms
    stop.heard_ms = now_ms
    if stop.level < KILL:
        lifecycle.pause(tree, run)
    return stop


def _note_hosts(stop: StopState, ack: Ack) -> None:
    """A run that is hosted twice is dead when both hosts have said so."""
    host = crc32(ack.runtime_id.encode("utf-8", "surrogatepass")) if ack.runtime_id is not None else 0
    hosts = [known for known in stop.hosts or () if known != host]
    if ack.status == "applied":
        hosts = [*hosts, host][-MAX_HOSTS:]
        stop.is_dead = False
    elif ack.status == "confirmed_dead":
        stop.is_dead = not hosts
    stop.hosts = hosts or None
