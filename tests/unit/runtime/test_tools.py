"""Declared effects."""

from __future__ import annotations

import pytest

from loopwarden.tools import declared_effect, tool


def test_the_function_stays_what_it_was() -> None:
    """Frameworks inspect a tool's signature; a wrapper would hide it."""

    def search_in_test(query: str) -> str:
        return query

    assert tool(effect="read")(search_in_test) is search_in_test
    assert tool(search_in_test) is search_in_test
    assert declared_effect("search_in_test") == "unknown"


def test_an_effect_is_known_by_the_tools_name() -> None:
    """The model calls tools by name, and that is all that a hook sees."""

    @tool(name="web_search_in_test", effect="poll")
    def function() -> None: ...

    assert declared_effect("web_search_in_test") == "poll"
    assert declared_effect("function") == "unknown"


def test_an_effect_that_does_not_exist_is_refused_while_the_program_loads() -> None:
    """A typing error would leave the tool undeclared without a word."""
    with pytest.raises(ValueError, match="'reads' is none of"):
        tool(effect="reads")
