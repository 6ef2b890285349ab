"""Texts of nudges in a policy's own words."""

from __future__ import annotations

import pytest

from loopwarden_models.nudge_words import MAX_CHARS, check_nudges, words_of

RULES = {"exact_repeat": 0}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has 0 characters"),
        ("x" * (MAX_CHARS + 1), "has 1001 characters"),
        ("an open { brace", "write {{ for a brace"),
        ("who is {user}?", "only {tool} and {count} are known"),
        ("{tool.__class__}", "only {tool} and {count} are known"),
        ("{count:>99999999}", "only {tool} and {count} are known"),
        ("{}", "only {tool} and {count} are known"),
    ],
)
def test_what_cannot_be_shown_is_refused(text: str, says: str) -> None:
    """Neither a surprise at night nor a way to make a worker work."""
    with pytest.raises(ValueError, match=r"nudges\.exact_repeat") as caught:
        check_nudges({"exact_repeat": text}, RULES)

    assert says in str(caught.value)


def test_a_rule_that_does_not_exist_is_named() -> None:
    """A typing error must not be silence."""
    with pytest.raises(ValueError, match=r"nudges\.exact_repeats is no rule"):
        check_nudges({"exact_repeats": "x"}, RULES)


def test_words_are_filled_in() -> None:
    """Whatever the tool is called."""
    nudges = {"exact_repeat": "{tool}, {count} times. {{As told}}"}

    assert words_of(nudges, "exact_repeat", ("a{b}",), 3) == "a{b}, 3 times. {As told}"
    assert words_of(nudges, "exact_repeat", (), 3) == "the tool, 3 times. {As told}"
    assert words_of(nudges, "cycle", ("a",), 3) is None
