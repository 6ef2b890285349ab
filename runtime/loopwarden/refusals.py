"""What the model reads instead of a result when a tool call is refused."""

from __future__ import annotations

from msgspec import Struct
from msgspec.json import encode as encode_json

from loopwarden.decisions import Action, Decision
from loopwarden_models.events import ToolError


class Refusal(Struct, frozen=True):
    """A refused call: what the agent gets, and what the event says of who refused."""

    decision: Decision
    error: ToolError | None = None


def unavailable(tool: str, reason: str, *, retry_after_ms: int | None, why: str) -> Decision:
    """Return a refusal whose text is short, alike each time, and says what to do.

    Args:
        tool: The tool.
        reason: A word for the model: `breaker_open`, `blocked_for_this_run`.
        retry_after_ms: Milliseconds until it may be tried again, if that is known.
        why: For logs and people.
    """
    answer = {
        "error": "tool_unavailable",
        "tool": tool,
        "reason": reason,
        "retry_after_ms": retry_after_ms,
        "hint": "Do not call this tool again. Answer with what you have, or ask the user.",
    }
    return Decision(Action.BLOCK, reason=why, retry_after_ms=retry_after_ms, message=encode_json(answer).decode())
