"""What a run remembers of an order to stop or to wait: whom it binds, who has answered, and how far it has landed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from zlib import crc32

from msgspec import Struct

from loopwarden_detectors.base import KILL
from loopwarden_models.patterns import Level

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState, TreeState
    from loopwarden_models.policy import Policy

# Runtimes that shut a gate of one run and have not confirmed its end: a run is hosted twice at most after a split.
MAX_HOSTS = 4


class StopState(Struct, array_like=True, gc=False):
    """An order to stop or to wait that was decided for a run. Fields are only ever appended.

    Attributes:
        command_id: Of the order; every run of a tree that it binds has the same.
        incarnation: Number of the run's incarnation that it binds, see `RunState.incarnations`.
        level: `Level.PAUSE` or `Level.KILL`.
        applied_ms: Source time at which the gate shut, -1 until then.
        is_dead: Every runtime that shut a gate has confirmed that the code has returned.
        steps_after: Steps that began after `applied_ms`. Must stay 0.
        ordered_ms: Event time of the order.
        is_undelivered: The runtime said that it did not carry it out.
        is_of_tree: The order is for the whole tree: a run that is born later is bound as well.
        last_ms: Event time of the run's newest event that was looked at since.
        pattern: Why, with `detector` and `count`: what the command says when it is sent once more.
        is_named: The command names this run; the others of its tree are bound through it.
        is_any: It names any incarnation.
        is_wider: It answers a kill that was broken or failed; there is none beyond it.
        former_key: `command_key` of the kill that it answers, 0 if none.
        issued_at_ms: When it went out, in Unix milliseconds of the wall clock, -1 until then. `ttl_ms`: its life.
        sent_ms: The same on the partition's clock, by which answers are waited for. `sends`: how often it went out.
        heard_ms: When the newest answer that promised anything was read, by that clock; -1 = none.
        is_closed: Answered `noop`: there was nothing to do.
        is_withheld: Decided, and kept back: too many runs were killed lately. Nothing is out.
        has_failed: Answered `failed`. `is_unsupported`: the runtime cannot do it.
        told: Alarms that were raised, one bit each.
        hosts: Keys of the runtimes that shut a gate and have not confirmed the end.
    """

    command_id: str
    incarnation: int
    level: int
    applied_ms: int = -1
    is_dead: bool = False
    steps_after: int = 0
    ordered_ms: int = 0
    is_undelivered: bool = False
    is_of_tree: bool = False
    last_ms: int = 0
    pattern: str = ""
    detector: str = ""
    count: int = 0
    is_named: bool = False
    is_any: bool = False
    is_wider: bool = False
    former_key: int = 0
    issued_at_ms: int = -1
    ttl_ms: int = 0
    sent_ms: int = -1
    sends: int = 0
    heard_ms: int = -1
    is_closed: bool = False
    is_withheld: bool = False
    has_failed: bool = False
    is_unsupported: bool = False
    told: int = 0
    hosts: list[int] | None = None


def command_key(command_id: str) -> int:
    """Return the first 64 bits of a command id of ours: what is kept to recognise its acknowledgement.

    -1 for an id of another make: an operator's may be any text.
    """
    try:
        return int(command_id[:16], 16) or -1
    except ValueError:
        return -1


def is_under_kill(stop: StopState) -> bool:
    """Return whether the newest order was to end the run, in whatever incarnation, and went out."""
    return stop.level >= KILL and not stop.is_withheld


def is_killed_now(run: RunState) -> bool:
    """Return whether the run's current incarnation is under a kill, whatever became of it."""
    stop = run.stop
    return stop is not None and is_under_kill(stop) and stop.incarnation == run.incarnations


def is_stopped(run: RunState, policy: Policy, level: Level = KILL) -> bool:
    """Return whether an order of `level` or above is out for this incarnation and may still be carried out."""
    stop = run.stop
    if stop is None or stop.level < level or stop.incarnation != run.incarnations or stop.is_withheld:
        return False
    if stop.applied_ms >= 0:
        return True
    return not stop.is_undelivered and run.now_ms - stop.ordered_ms < policy.ladder.command_ttl_ms


def waiting_kill(run: RunState, *, is_of_tree: bool) -> StopState | None:
    """Return the kill that was decided for this incarnation and kept back, if it is one of this scope."""
    stop = run.stop
    if stop is None or not stop.is_withheld or stop.incarnation != run.incarnations or stop.is_of_tree != is_of_tree:
        return None
    return stop


def bind(runs: Iterable[RunState], stop: StopState, named: RunState) -> None:
    """Note an order with every run that it binds, but for those whose gate is shut by a kill already.

    Args:
        runs: Whom it binds.
        stop: The order; each run gets a copy.
        named: The run that the command names. A wider kill takes over what is known of the kill that it answers.
    """
    for run in runs:
        known = run.stop
        is_shut = known is not None and known.applied_ms >= 0 and is_killed_now(run)
        if is_shut and not (stop.is_wider and run is named):
            continue
        mine = run.stop = copy_of(stop, run)
        mine.is_named = run is named
        if is_shut and known is not None:
            mine.applied_ms, mine.last_ms, mine.steps_after = known.applied_ms, known.last_ms, known.steps_after
            mine.told = known.told


def copy_of(stop: StopState, run: RunState) -> StopState:
    """Return the same order as it binds `run`, with nothing heard yet."""
    return StopState(
        command_id=stop.command_id,
        incarnation=run.incarnations,
        level=stop.level,
        ordered_ms=stop.ordered_ms,
        is_of_tree=stop.is_of_tree,
        last_ms=run.now_ms,
        pattern=stop.pattern,
        detector=stop.detector,
        count=stop.count,
        is_any=stop.is_any,
        is_wider=stop.is_wider,
        former_key=stop.former_key,
        issued_at_ms=stop.issued_at_ms,
        ttl_ms=stop.ttl_ms,
        sent_ms=stop.sent_ms,
        sends=stop.sends,
        is_withheld=stop.is_withheld,
    )


def family_of(tree: TreeState, run_id: str) -> dict[str, RunState]:
    """Return a run and its descendants by id. Cost: O(runs x levels); only what has news is asked for its family."""
    if run_id == tree.root_run_id:
        return dict(tree.runs)
    keys, found = {crc32(run_id.encode())}, dict[str, "RunState"]()
    if run_id in tree.runs:
        found[run_id] = tree.runs[run_id]
    while grown := {i: run for i, run in tree.runs.items() if i not in found and run.parent_key in keys}:
        found |= grown
        keys |= {crc32(own_id.encode()) for own_id in grown}
    return found
