"""A paused run that nobody says anything about: for how long it waits, and how it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from loopwarden_detectors.base import KILL
from loopwarden_detectors.ladder import Decision, Order
from loopwarden_detectors.questions import end_of_pause
from loopwarden_detectors.stops import StopState, bind
from loopwarden_models.commands import ANY_INCARNATION, Reason
from loopwarden_models.hashes import derived_id
from loopwarden_models.ids import command_id
from loopwarden_models.verdicts import Evidence, Verdict

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState, TreeState
    from loopwarden_models.policy import Policy


def is_held(run: RunState, stop: StopState) -> bool:
    """Return whether a run waits because of an order to pause that was carried out. Cost: 0.1 µs."""
    return stop.level < KILL and stop.applied_ms >= 0 and stop.incarnation == run.incarnations and not run.is_over


def end_of_wait(
    tree: TreeState, run_id: str, run: RunState, stop: StopState, policy: Policy, now_ms: int
) -> list[Decision]:
    """End a paused run whose time is over (`ladder.pause_timeout_ms`): a kill, and the end of its question.

    Args:
        tree: The order is noted with every run that it binds.
        run_id: The run that the pause names; asked of another of its tree, nothing is done.
        run: Its state.
        stop: The pause, carried out.
        policy: In force for the run.
        now_ms: Time of the partition's clock, in Unix milliseconds.
    """
    timeout_ms = policy.ladder.pause_timeout_ms
    waited_ms = now_ms - stop.heard_ms
    if timeout_ms is None or waited_ms < timeout_ms or not stop.is_named:
        return []
    named_id, named = (tree.root_run_id, tree.subject(run)) if stop.is_of_tree else (run_id, run)
    # Hangs on the pause alone: the tick that finds it due may be another one after a crash.
    own_id = command_id(
        tree.tenant, run_id, run.incarnation, stop.detector, stop.command_id[:16], f"after_pause:{stop.command_id}"
    )
    note = f"nobody said for {waited_ms // 1_000} s what is to become of the paused run: it ends, and can be resumed"
    order = Order(
        command_id=own_id,
        type="kill_run",
        tenant=tree.tenant,
        run_id=named_id,
        root_run_id=tree.root_run_id,
        incarnation=ANY_INCARNATION if stop.is_any else named.incarnation or ANY_INCARNATION,
        scope="tree" if stop.is_of_tree else "run",
        reason=Reason(pattern=stop.pattern, detector=stop.detector, count=stop.count, note=note),
        message_id=None,
        ttl_ms=policy.ladder.command_ttl_ms,
        grace_ms=policy.ladder.kill_grace_ms,
        is_after_pause=True,
    )
    verdict = Verdict(
        v=1,
        verdict_id=derived_id("ordered", own_id),
        tenant=tree.tenant,
        run_id=run_id,
        root_run_id=tree.root_run_id,
        incarnation=run.incarnation,
        at_ms=now_ms,
        detector=stop.detector,
        pattern=stop.pattern,
        level="kill",
        mode="enforce",
        loop_id=stop.command_id[:16],
        episode=0,
        evidence=Evidence(
            count=stop.count,
            first_seq=max(run.seq, 0),
            last_seq=max(run.seq, 0),
            window_ms=max(0, now_ms - stop.ordered_ms),
            note=note,
        ),
        command_id=own_id,
    )
    # The newest event of a run that waits is long past.
    ended = msgspec.structs.replace(end_of_pause(tree, run, run_id, stop, "expired"), at_ms=now_ms)
    kill = StopState(
        command_id=own_id,
        incarnation=0,
        level=int(KILL),
        ordered_ms=now_ms,
        is_of_tree=stop.is_of_tree,
        pattern=stop.pattern,
        detector=stop.detector,
        count=stop.count,
        is_any=stop.is_any,
        ttl_ms=policy.ladder.command_ttl_ms,
    )
    bind(tree.runs.values() if stop.is_of_tree else (run,), kill, run)
    return [Decision(verdict=verdict, order=order, question=ended)]
