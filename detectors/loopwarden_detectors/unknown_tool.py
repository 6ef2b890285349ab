"""Calls of tools that do not exist: the agent invents one, is told so, and invents the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from loopwarden_detectors.base import REFUSED, WATCHED, WATCHES_UNKNOWN, Call, Finding
from loopwarden_detectors.refusals import RefusalState, count_refusal, finding_of, forgive
from loopwarden_models.hashes import stable_key

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState
    from loopwarden_models.policy import Policy

_KEY: Final = stable_key("unknown_tool") or 1


class UnknownTool:
    """`n` = calls with outcome `unknown_tool` in the segment, of any name, whatever lies between.

    Ten productive calls in a row forget one; a round counts once. A runtime has to report the calls that it rejects,
    or nothing is seen.

    Levels: observe 1, nudge 2, kill 5 (`UnknownToolConfig`, with sources). Progress since the first turns the kill
    into a nudge, until as many came without any.
    Cost: 0.1 µs; 0.3 µs for every call after an unknown one, until it is forgiven.
    """

    name: ClassVar[str] = "unknown_tool"
    pattern: ClassVar[str] = "tool_hallucination"
    signs: ClassVar[int] = REFUSED | WATCHED

    def observe(self, run: RunState, call: Call, policy: Policy) -> Finding | None:
        """Judge one call. See the class."""
        state = run.unknown_tool
        config = policy.unknown_tool
        if call.outcome != "unknown_tool":
            if state is not None and forgive(state, call, config.forgive_after):
                forget_unknown_tools(run)
            return None
        if state is None:
            state = run.unknown_tool = RefusalState(_KEY)
            run.watched |= WATCHES_UNKNOWN
        if not count_refusal(state, run, call.round, call.step.seq, call.offset):
            return None
        names = self.name, self.pattern
        note = f"{call.tool} does not exist; calls of tools that do not exist: " + "{count}"
        return finding_of(run, policy, config, state, names, (call.tool,), note)


def forget_unknown_tools(run: RunState) -> None:
    """Forget what was counted."""
    run.unknown_tool = None
    run.watched &= ~WATCHES_UNKNOWN
