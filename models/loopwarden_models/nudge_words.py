"""Texts of nudges in a policy's own words: which are allowed, and what is put into them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import Formatter
from typing import Final

# As long as a message that a model reads beside its own work; a runtime cuts at 2,000 characters.
MAX_CHARS: Final = 1_000
FIELDS: Final = ("tool", "count")


def check_nudges(nudges: Mapping[str, str], rules: Mapping[str, object]) -> None:
    """Refuse a text that cannot be shown.

    Args:
        nudges: By the name of a rule.
        rules: Names of all rules.

    Raises:
        ValueError: The message names the path, the value and the remedy.
    """
    for rule, text in nudges.items():
        if rule not in rules:
            raise ValueError(f"nudges.{rule} is no rule: write one of {', '.join(sorted(rules))}")
        if not text.strip() or len(text) > MAX_CHARS:
            raise ValueError(f"nudges.{rule} has {len(text)} characters: write 1 to {MAX_CHARS}")
        try:
            parts = list(Formatter().parse(text))
        except ValueError as error:
            raise ValueError(f"nudges.{rule} = {text[:80]!r}: {error}; write {{{{ for a brace") from None
        for _, name, spec, conversion in parts:
            if name is not None and (name not in FIELDS or spec or conversion):
                asked = f"nudges.{rule} = {text[:80]!r} asks for {{{name}}}"
                raise ValueError(f"{asked}: only {{tool}} and {{count}} are known, as they are")


def words_of(nudges: Mapping[str, str], rule: str, tools: Sequence[str], count: int) -> str | None:
    """Return what a policy says at a nudge of `rule`, filled in; `None`: the runtime's own text. Cost: 1 µs."""
    text = nudges.get(rule)
    return None if text is None else text.format(tool=tools[0] if tools else "the tool", count=count)
