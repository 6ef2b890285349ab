"""Declare what a tool does to the world, next to the tool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from loopwarden_models.effects import EFFECTS, UNKNOWN

_F = TypeVar("_F", bound=Callable[..., Any])

# Names are few (a program's tools) and only ever added; reads and writes of a dict are atomic in CPython.
_effects: dict[str, str] = {}


@overload
def tool(function: _F) -> _F: ...
@overload
def tool(*, name: str | None = None, effect: str | None = None) -> Callable[[_F], _F]: ...
def tool(function: _F | None = None, *, name: str | None = None, effect: str | None = None) -> _F | Callable[[_F], _F]:
    """Declare the effect of a tool: `before_tool` then knows it by the tool's name.

    The effect matters more than any threshold: only a declared `read`, `write` or `poll` is judged by the rules that
    may act early. The function is returned as it is; nothing is wrapped.

        @loopwarden.tool(effect="read")
        def search(query: str) -> str: ...

    Args:
        function: The tool, when used without parentheses.
        name: Name under which the model calls it; the function's own by default.
        effect: `read`, `write`, `poll`, `clock` or `unknown`.

    Raises:
        ValueError: `effect` is none of the five. Raised while the program is loading, not while an agent runs.

    Thread safety: safe. Two tools of one name share the effect that was declared last.
    """
    if effect is not None and effect not in EFFECTS:
        raise ValueError(f"effect {effect!r} is none of {', '.join(sorted(EFFECTS))}")

    def declare(target: _F) -> _F:
        _effects[name or target.__name__] = effect or UNKNOWN
        return target

    return declare if function is None else declare(function)


def declared_effect(name: str) -> str:
    """Return the effect declared for the tool `name`, or `unknown`. Cost: 0.1 µs."""
    return _effects.get(name, UNKNOWN)
