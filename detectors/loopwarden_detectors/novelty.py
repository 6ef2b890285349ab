"""Has anything new come lately? What a rule about standing still asks before it asks for more than advice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loopwarden_detectors.base import NUDGE

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState
    from loopwarden_models.patterns import Level

# One answer in four that was not there before: whoever learns at that pace is not stuck. judgement
RECENT_CALLS = 4


def is_learning(run: RunState) -> bool:
    """Return whether one of the last `RECENT_CALLS` calls, the newest included, was a read that brought something new.

    Only tools that are declared to read count: the answer of a tool that nobody declared may be new because of a clock,
    and a stream of commands that do nothing must not protect a loop. Cost: 0.1 µs.
    """
    return run.novel_call >= 0 and run.calls - run.novel_call < RECENT_CALLS


def after_novelty(run: RunState, level: Level) -> Level:
    """Return the level after this veto: what is above a nudge becomes one, and is never hidden."""
    return NUDGE if level > NUDGE and is_learning(run) else level
