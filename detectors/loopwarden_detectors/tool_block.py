"""Level break: a run may not use a tool for a while. Nothing else of it is touched, and it ends by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from loopwarden_detectors.stops import is_under_kill
from loopwarden_models.commands import Reason

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState

# Tools of one run that are blocked at a time; the oldest leave.
MAX_BLOCKED = 4


class ToolBlock(Struct, array_like=True, frozen=True, gc=False):
    """One tool, when the block ends in Unix milliseconds of event time, and the verdict that led to it."""

    tool: str
    until_ms: int
    verdict_id: str


class Block(Struct, frozen=True, kw_only=True, gc=False):
    """All that one run may not use now. It is state: a later one takes the place of this one."""

    tenant: str
    run_id: str
    incarnation: str
    tools: tuple[ToolBlock, ...]
    reason: Reason


def blocked_with(run: RunState, tools: tuple[str, ...], until_ms: int, verdict_id: str, now_ms: int) -> list[ToolBlock]:
    """Note that `tools` are blocked, and return all blocks of the run that are in force. Cost: O(`MAX_BLOCKED`)."""
    kept = [block for block in run.blocks or () if block.until_ms > now_ms and block.tool not in tools]
    kept += [ToolBlock(tool, until_ms, verdict_id) for tool in tools]
    run.blocks = kept[-MAX_BLOCKED:]
    return run.blocks


def may_be_blocked(run: RunState) -> bool:
    """Return whether a tool may be blocked: the record of a run that was killed must not be written over."""
    return run.stop is None or not is_under_kill(run.stop)
