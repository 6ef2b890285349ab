"""What the simulated agents of `loopwarden demo` are made of: turns of a model, tool calls, and a script of both."""

from __future__ import annotations

from collections.abc import Callable, Generator
from random import Random
from typing import Any

from msgspec import Struct

from loopwarden_models.events import ToolError


class Call(Struct, frozen=True):
    """One tool call, and what the world answers.

    Attributes:
        tool: Name of the tool; `demo_policy.yaml` says what it does to the world.
        args: Its arguments.
        result: Its answer; `None` is no answer.
        error: Why it failed, if it did.
        ms: How long it takes.
    """

    tool: str
    args: dict[str, Any]
    result: Any = None
    error: ToolError | None = None
    ms: int = 110


class Turn(Struct, frozen=True):
    """One answer of the simulated model and the calls that it asks for, which run side by side.

    Attributes:
        text: What the model says.
        calls: What it asks for; none in an answer to a person.
        ms: How long it thinks.
        asked: A person spoke before it.
        progress: What the runtime reports as done after the calls.
    """

    text: str
    calls: tuple[Call, ...] = ()
    ms: int = 260
    asked: bool = False
    progress: str | None = None


# Each turn is asked for with whether a nudge stands in the prompt. Most of these models do not care.
Talk = Generator[Turn, bool, None]
Script = Callable[[Random], Talk]


def turn(text: str, tool: str, args: dict[str, Any], result: Any, *, ms: int = 260, tool_ms: int = 110) -> Turn:
    """Return a turn with one call that goes well."""
    return Turn(text, (Call(tool, args, result, ms=tool_ms),), ms=ms)


def failing(
    text: str, tool: str, args: dict[str, Any], kind: str, message: str, status: int | None = None, *, ms: int = 260
) -> Turn:
    """Return a turn with one call that fails."""
    return Turn(text, (Call(tool, args, error=ToolError(kind, message, status), ms=140),), ms=ms)
