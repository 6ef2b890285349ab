"""Has anything new come lately? What a rule about standing still asks before it asks for more than advice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from loopwarden_detectors.base import NUDGE
from loopwarden_detectors.rings import GUARDED, OTHER_TOOL, POLLS, SILENT, UNPRODUCTIVE, WAITS

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState
    from loopwarden_models.patterns import Level

# One answer in four that was not there before: whoever learns at that pace is not stuck. judgement
RECENT_CALLS: Final = 4

# A loop over one answer begins with that answer, which was new.
FIRST_TIME: Final = 1

_LOW: Final = 0xFFFF_FFFF
_NOTHING_NEW: Final = UNPRODUCTIVE | GUARDED | SILENT


def is_learning(run: RunState) -> bool:
    """Return whether one of the last `RECENT_CALLS` calls, the newest included, was a read that brought something new.

    Only tools that are declared to read count: the answer of a tool that nobody declared may be new because of a clock,
    and a stream of commands that do nothing must not protect a loop. Cost: 0.1 µs.
    """
    return run.novel_call >= 0 and run.calls - run.novel_call < RECENT_CALLS


def after_novelty(run: RunState, level: Level) -> Level:
    """Return the level after this veto: what is above a nudge becomes one, and is never hidden."""
    return NUDGE if level > NUDGE and is_learning(run) else level


def has_moved_lately(run: RunState) -> bool:
    """Return whether one of the last calls, by its declared effect, brought or wrote something new. Cost: 0.1 µs."""
    return is_learning(run) or (run.write_call >= 0 and run.calls - run.write_call < RECENT_CALLS)


def calls_since(run: RunState, seq: int) -> int:
    """Return how many of the calls that the ring holds came after the step `seq`. Cost: 5 µs."""
    return sum(run.seq - (run.seq - low_seq & _LOW) > seq for _, _, low_seq, _ in run.ring.newest_rows(len(run.ring)))


def news_of_last(run: RunState, last: int, *, but_of: int = -1, are_tries_news: bool = False) -> tuple[bool, int]:
    """Return what the newest `last` calls of the ring brought.

    Args:
        run: Whose calls.
        last: How many; none of them is news to those after it.
        but_of: Number of a tool whose answers do not count.
        are_tries_news: Whether a call that was not made before may be news whatever came of it: not its answers are
            judged, but what is said beside it.

    Returns:
        Whether one of them waited or polled, and how many brought what may be new: an answer that is not reported may
        be. No effect need be declared.

    Cost: 10 µs.
    """
    rows = run.ring.newest_rows(len(run.ring))
    known: set[int] = set()
    made: set[int] = set()
    waits, news = False, 0
    for at, (result, call, _, kind) in enumerate(rows, last - len(rows)):
        if at >= 0:
            waits = waits or kind & (POLLS | WAITS) != 0
            if are_tries_news:
                is_old = kind & GUARDED or (call in made and result in known)
            else:
                is_old = kind & _NOTHING_NEW or result in known
            news += not (is_old or kind & OTHER_TOOL == but_of)
        if result:
            known.add(result)
        if call:
            made.add(call)
    return waits, news
