"""The tables of patterns, recoveries and causes."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from loopwarden.nudge_texts import TEMPLATES
from loopwarden_models.causes import CAUSES, CauseName
from loopwarden_models.patterns import PATTERNS, PatternName, advice_of
from loopwarden_models.policy import DEFAULT_POLICY
from loopwarden_models.recoveries import RECOVERIES, RECOVERY_LEVELS, RecoveryName
from loopwarden_streams.rule_catalogue import rules

# What a text must say to be of its recovery, and what only that one may say.
SAYS = {
    "state_latch": r"settled|as it is",
    "objective_anchor": r"the goal",
    "force_action": r"[Ff]inish|final answer|do the part that is yours now",
    "tool_schema": r"exact names",
    "explain_refusal": r"rule behind it will not change",
    "one_blocking_wait": r"(?:one single wait|wait once)",
    "change_approach": r"another|not part of the circle|look up single places|one command that does what you|Leave out",
}
RULES = {rule.name: rule for rule in rules()}


def test_the_tables_hold_every_name_and_no_other() -> None:
    """Types and tables are written apart."""
    assert tuple(PATTERNS) == get_args(PatternName)
    assert tuple(RECOVERIES) == get_args(RecoveryName)
    assert tuple(CAUSES) == get_args(CauseName)
    taxonomy = {name for name, pattern in PATTERNS.items() if pattern.is_taxonomy}
    assert len(taxonomy) == 6
    assert {level for recovery in RECOVERIES.values() for level in recovery.levels} == set(RECOVERY_LEVELS)


@pytest.mark.parametrize("text", [
    *(pattern.text for pattern in PATTERNS.values()),
    *(recovery.text for recovery in RECOVERIES.values()),
    *(text for cause in CAUSES.values() for text in (cause.evidence, cause.countermeasure)),
])  # fmt: skip
def test_each_is_told_in_a_sentence_that_fits_into_a_table(text: str) -> None:
    """A bar or a line break would tear the generated tables apart."""
    assert text[0].isupper()
    assert text.endswith(".")
    assert not {"|", "\n"} & set(text)


def test_advice_is_of_a_level_that_advises() -> None:
    """Nobody is advised to be killed."""
    for pattern in PATTERNS.values():
        for name in (pattern.advice, *pattern.other_advice.values()):
            assert name is None or RECOVERIES[name].levels == ("L1", "L2")


def test_a_pattern_breaks_if_one_of_its_rules_does() -> None:
    """The page of patterns must not promise a circuit breaker that no rule has."""
    breaking = {rule.pattern for rule in RULES.values() if hasattr(getattr(DEFAULT_POLICY, rule.name), "break_at")}

    assert {name for name, pattern in PATTERNS.items() if pattern.breaks} == breaking


def test_what_a_rule_advises_otherwise_is_a_rule_of_that_pattern() -> None:
    """A misspelt name would be a rule that advises what its pattern does."""
    for name, pattern in PATTERNS.items():
        assert {RULES[rule].pattern for rule in pattern.other_advice} <= {name}


def test_a_pattern_of_another_version_has_no_advice() -> None:
    """Verdicts of a newer detector are read as well."""
    assert advice_of("pattern_of_tomorrow", "cycle") is None
    assert advice_of("text_loop", "rule_of_tomorrow") == "objective_anchor"


def advised() -> list[str]:
    """Return the names of the rules that have a text."""
    return [rule.name for rule in RULES.values() if rule.advice is not None]


def test_every_text_is_of_a_rule() -> None:
    """A text whose rule is gone is never told."""
    assert {message_id.removeprefix("nudge.") for message_id in TEMPLATES} == set(advised())


@pytest.mark.parametrize("name", advised())
def test_the_text_of_a_nudge_does_what_the_table_says(name: str) -> None:
    """The verdict tells people what the model was told."""
    text = RULES[name].advice
    recovery = advice_of(RULES[name].pattern, name)
    assert text is not None
    assert recovery is not None
    assert re.search(SAYS[recovery], text), (recovery, text)


@pytest.mark.parametrize("name", [n for n in advised() if advice_of(RULES[n].pattern, n) == "one_blocking_wait"])
def test_who_waits_is_never_told_to_try_something_else(name: str) -> None:
    """Other arguments make a poller poll faster."""
    text = RULES[name].advice

    assert text is not None
    assert "different arguments" not in text
    assert "another" not in text
