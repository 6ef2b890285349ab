"""The public names of what can be wrong with a run, and how strongly it is answered."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Literal


class Level(IntEnum):
    """How strongly a verdict asks to act. Ordered: a stronger level compares greater."""

    NONE = 0
    OBSERVE = 1
    NUDGE = 2
    BREAK = 3
    PAUSE = 4
    KILL = 5


LevelName = Literal["none", "observe", "nudge", "break", "pause", "kill"]
LEVEL_NAMES: Final[tuple[LevelName, ...]] = ("none", "observe", "nudge", "break", "pause", "kill")

Mode = Literal["off", "shadow", "warn", "enforce"]
MODES: Final[tuple[Mode, ...]] = ("off", "shadow", "warn", "enforce")

# Patterns are what users see and filter by; a detector is the rule that found one. Names are only ever added.
PATTERNS: Final = frozenset(
    {
        "tool_repetition",
        "tool_oscillation",
        "frozen_poll",
        "error_loop",
        "param_walk",
        "tool_hallucination",
        "guardrail_loop",
        "retry_storm",
        "no_progress",
        "rate_runaway",
        "budget_exceeded",
        "agent_ping_pong",
        "idle",
        "restart_loop",
        "text_loop",
        "reflection_paralysis",
        "context_rot",
        "order_unanswered",
        "kill_unconfirmed",
        "kill_failed",
        "step_after_kill",
    }
)
