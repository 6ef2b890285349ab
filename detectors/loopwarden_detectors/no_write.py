"""A long stretch of reading: nothing is changed, in a run that may have been asked to change something."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from loopwarden_detectors.base import MILESTONE, MILESTONE_CALLS, OBSERVE, Call, Finding
from loopwarden_detectors.ladder_state import is_news
from loopwarden_detectors.rings import GUARDED, POLLS, UNDECLARED, WAITS
from loopwarden_models.hashes import stable_key

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState
    from loopwarden_models.policy import Policy

LOOP_KEY: Final = stable_key("no_write")

_NO_READS: Final = UNDECLARED | POLLS | GUARDED | WAITS


class NoWrite:
    """`n` = 32 calls of declared reads without a new write, looked at with every 32nd call of a run.

    An audit reads for an hour and changes nothing, as it was told: this is for people to look at, and never more than
    observed. A run that makes undeclared calls is left alone, because any of them may have changed something, and so is
    one that polls or reports progress.

    Levels: observe 32 (`NoProgressConfig.observe_without_write`, judgement; the handbook says 12, which every run that
    begins by reading reaches).
    Cost: nothing but at every 32nd call, then 4 µs.
    """

    name: ClassVar[str] = "no_progress"
    pattern: ClassVar[str] = "no_progress"
    signs: ClassVar[int] = MILESTONE

    def observe(self, run: RunState, call: Call, policy: Policy) -> Finding | None:
        """Judge one call. See the class."""
        if not policy.no_progress.observe_without_write or len(run.ring) < MILESTONE_CALLS:
            return None
        if run.write_call > run.calls - MILESTONE_CALLS:
            return None
        if any(kind & _NO_READS for kind in run.ring.kinds(MILESTONE_CALLS)):
            return None
        seq, offset, ms, _ = run.ring.call_at(MILESTONE_CALLS - 1, seq=call.step.seq, offset=call.offset)
        if run.progress_seq >= seq or not is_news(run, policy, self.name, LOOP_KEY, OBSERVE, MILESTONE_CALLS, seq):
            return None
        return Finding(
            detector=self.name,
            pattern=self.pattern,
            level=OBSERVE,
            loop_key=LOOP_KEY,
            count=MILESTONE_CALLS,
            threshold=MILESTONE_CALLS,
            first_seq=seq,
            first_ms=run.started_ms + ms,
            first_offset=offset,
            tools=(call.tool,),
            note=f"the last {MILESTONE_CALLS} calls only read: nothing was written",
        )
