"""Closed vocabularies of the step event: what a tool does to the world, and what became of a call.

A value that is unknown on the wire is folded, never refused: an unknown effect means `unknown`, an unknown
outcome means an attempt whose result proves nothing.
"""

from __future__ import annotations

from typing import Final

READ: Final = "read"
WRITE: Final = "write"
POLL: Final = "poll"
CLOCK: Final = "clock"
UNKNOWN: Final = "unknown"

EFFECTS: Final = frozenset({READ, WRITE, POLL, CLOCK, UNKNOWN})

OUTCOMES: Final = frozenset(
    {"ok", "error", "timeout", "denied", "unknown_tool", "invalid_args", "blocked", "cached", "cancelled"}
)

# The call ran, or was sent, and something went wrong (detectors 2.6).
FAILED: Final = frozenset({"error", "timeout", "invalid_args"})

# The guard or the framework answered instead of the tool: an attempt, never a new result.
NOT_RUN: Final = frozenset({"denied", "unknown_tool", "blocked", "cached", "cancelled"})

# Of these, the guard's own: attempts that lengthen a streak, because it refused, or knew the answer.
GUARD_ANSWERS: Final = frozenset({"blocked", "cached"})

# Tools that only let time pass. Between two equal steps they neither prove nor disprove a repetition.
WAIT_TOOLS: Final = frozenset({"sleep", "wait"})

# Tools that write down a thought or a plan and change nothing else, as agents and servers of tools name them. A call of
# one is no action (detectors.md, reflection). What asks a person to agree to a plan is not among them.
THOUGHT_TOOLS: Final = frozenset(
    {
        "Think",
        "TodoRead",
        "TodoWrite",
        "SetTodoList",
        "create_plan",
        "manage_todo_list",
        "mcp__sequential-thinking__sequentialthinking",
        "plan",
        "reflect",
        "sequential_thinking",
        "sequentialthinking",
        "task_tracker",
        "think",
        "thinking",
        "todo",
        "todo_read",
        "todo_write",
        "todoread",
        "todowrite",
        "update_plan",
        "update_todo_list",
        "write_todos",
    }
)
