"""A new incarnation counts its steps from 0 again: what a run remembers of the one before is older than all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loopwarden_detectors import semantic_repeat
from loopwarden_detectors.near_text import renumbered

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState


def renumber(run: RunState) -> None:
    """Date what is remembered before the first step: `seq` begins anew, and what comes now is later. Cost: 2 µs."""
    for error in run.same_error or ():
        error.first_seq = 0
    for sweep in run.resweep or ():
        sweep.first_seq, sweep.progress_seq = 0, -1
    if run.self_append is not None:
        run.self_append.first_seq = run.self_append.last_seq = 0
    for walk in run.param_walk or ():
        walk.first_seq = 0
    for state in (*(run.same_error_raw or ()), *(run.retry_storm or ())):
        state.first_seq = 0
    for refusals in (run.unknown_tool, *(run.denied.policies if run.denied is not None else ())):
        if refusals is not None:
            refusals.renumber()
    for poll in run.frozen_poll or ():
        poll.first_seq = 0
    run.texts = renumbered(run.texts)
    streaks = (run.exact_repeat, run.changing_repeat, run.same_output)
    for known in (*streaks, run.sleep_only, run.reflection, run.text_chant, run.near_text, run.goal_drift):
        if known is not None:
            known.first_seq = 0
    if run.semantic is not None:
        semantic_repeat.renumber(run.semantic)
    if run.context_rot is not None:
        run.context_rot.first_seq = run.context_rot.seq = 0
