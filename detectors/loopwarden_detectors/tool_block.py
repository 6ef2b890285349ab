"""Level break: a run may not use a tool for a while. Nothing else of it is touched, and it ends by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from loopwarden_detectors.causes import probable_cause
from loopwarden_detectors.stops import is_under_kill
from loopwarden_models.causes import CauseName
from loopwarden_models.commands import Reason

if TYPE_CHECKING:
    from loopwarden_detectors.base import Finding
    from loopwarden_detectors.run_state import RunState

# Tools of one run that are blocked at a time; the oldest leave.
MAX_BLOCKED = 4


class ToolBlock(Struct, array_like=True, frozen=True, gc=False):
    """One tool, when the block ends in Unix milliseconds of event time, and the verdict that led to it.

    `detector`, `pattern`, `count` and `cause` are what that verdict says, so that whoever is told of a blocked call is
    told why; `""` in a snapshot of a version that did not keep them.
    """

    tool: str
    until_ms: int
    verdict_id: str
    detector: str = ""
    pattern: str = ""
    count: int = 0
    cause: CauseName | None = None


class Block(Struct, frozen=True, kw_only=True, gc=False):
    """All that one run may not use now. It is state: a later one takes the place of this one."""

    tenant: str
    run_id: str
    incarnation: str
    tools: tuple[ToolBlock, ...]
    reason: Reason


def blocked_with(run: RunState, finding: Finding, until_ms: int, verdict_id: str, now_ms: int) -> list[ToolBlock]:
    """Note that the tools of `finding` are blocked, and return all blocks of the run that are in force.

    Cost: O(`MAX_BLOCKED`).
    """
    kept = [block for block in run.blocks or () if block.until_ms > now_ms and block.tool not in finding.tools]
    cause = probable_cause(run, finding)
    kept += [
        ToolBlock(tool, until_ms, verdict_id, finding.detector, finding.pattern, finding.count, cause)
        for tool in finding.tools
    ]
    run.blocks = kept[-MAX_BLOCKED:]
    return run.blocks


def block_of(run: RunState, tool: str) -> ToolBlock | None:
    """Return the newest block of a tool that is known, whether it is still in force or not. Cost: O(`MAX_BLOCKED`)."""
    return next((block for block in reversed(run.blocks or ()) if block.tool == tool), None)


def may_be_blocked(run: RunState) -> bool:
    """Return whether a tool may be blocked: the record of a run that was killed must not be written over."""
    return run.stop is None or not is_under_kill(run.stop)
