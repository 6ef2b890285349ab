"""Thresholds of the rule over meaning, with where each number comes from.

*public* = a named system ships it, *measured* = counted on sequences of ours and on recorded runs (docs/semantic.md),
*judgement* = ours, and the first thing to re-tune. Percentages hold for the models that they were measured with:
`loopwarden calibrate --semantic` finds those of another one.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from loopwarden_models.rule_config import Percent, Repeats, RuleConfig

# Of a channel the newest exchange and those before it that it is compared with.
WINDOW = 6


class SemanticRepeatConfig(RuleConfig, frozen=True):
    """The same asked, told or thought again in other words, and nothing new in it (`semantic_repeat`)."""

    rising: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("observe", "nudge", "kill"),
        ("observe", "nudge_text"),
        ("maybe_percent", "same_percent"),
    )

    # Of the last six exchanges with one tool, or one agent. public: AgentSight 3.
    observe: Annotated[int, Meta(ge=2, le=WINDOW)] = 3
    # measured: see docs/semantic.md
    nudge: Annotated[int, Meta(ge=2, le=WINDOW)] = 4
    # Thoughts and messages have no answer that could say otherwise. judgement
    nudge_text: Annotated[int, Meta(ge=2, le=WINDOW)] = 4
    # In a row, each confirmed by the second model, and nothing has moved. judgement
    kill: Repeats = 8
    # Two questions whose answers are alike may still be about two things. measured: docs/semantic.md
    same_question_percent: Percent = 50
    # Two texts say the same by the first model alone. measured: docs/semantic.md
    same_percent: Percent = 85
    # ... or may, and the second model is asked. measured: docs/semantic.md
    maybe_percent: Percent = 65
    # What the second model must say of two answers to questions that are alike. measured: docs/semantic.md
    confirmed_percent: Percent = 55
    # The same of texts that stand alone. measured: docs/semantic.md
    confirmed_text_percent: Percent = 55
    # A text with no more facts (numbers, names, paths) than these brings something new if one of them was not told
    # before. judgement
    few_facts: Annotated[int, Meta(ge=0, le=96)] = 20
    # ... and a longer one if more of the others were not: a counter of visitors, a word misread. judgement
    max_new_percent: Annotated[int, Meta(ge=0, le=100)] = 20
