"""What a text says that can be new."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwarden_detectors.new_facts import (
    FACT_BYTES,
    MAX_FACTS,
    MAX_FACTS_BYTES,
    MAX_WORDS,
    facts_of,
    gaps,
    is_known,
    remember,
    words_of,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The list ends here. There is nothing below.", []),
        ("In view: Toy Museum, the House of Silk.", ["toy", "museum", "house", "silk"]),
        ("7 failed, 61 passed", ["7", "61"]),
        (
            "see src/app/main.py:33 and foo_bar, or camelCase",
            ["src/app/main.py:33", "main.py:33", "foo_bar", "camelcase"],
        ),
        ("write to info@museum.example.", ["info@museum.example"]),
        ("Il treno di Pisa non c'è, dice «Trenitalia».", ["pisa", "trenitalia"]),
        ("Ich habe den Drucker und die Verbindung nicht gefunden.", []),
        ("Ich habe den Drucker 7 und die Verbindung nicht gefunden.", ["7"]),
        ("1. Collect the news\n2. Draft it\n(3) Send it", []),
        ("Page 3. Nothing else", ["3"]),
        ("请继续向下滚动页面 12", ["12"]),
        ("", []),
    ],
)
def test_numbers_names_paths_and_nothing_else(text: str, expected: list[str]) -> None:
    """Whole sentences of several languages, as agents write them."""
    assert list(facts_of(text).values()) == expected


def test_case_and_marks_around_do_not_count() -> None:
    """A name is the same in quotes and at the end of a sentence."""
    assert facts_of("It is in Oslo.") == facts_of('it was "OSLO", they say') != {}


def test_a_page_of_figures_is_cut() -> None:
    """The work is bounded by a line more."""
    assert len(facts_of("\n".join(f"n{k}" for k in range(1_000)))) == MAX_FACTS


def test_gaps_are_the_words_in_which_a_template_differs() -> None:
    """One or two of them; more, or another length, is another wording."""
    before = words_of("the room is booked for monday")

    assert gaps(words_of("the room is booked for friday"), before) == words_of("friday")
    assert gaps(words_of("The room, is BOOKED for monday!"), before) == []
    assert gaps(words_of("a hall was booked for friday"), before) == []
    assert gaps(words_of("the room is now booked for monday"), before) == []
    assert gaps(words_of("so be it"), words_of("so be that")) == []
    assert len(words_of("word " * 1_000)) == MAX_WORDS


def test_what_is_remembered_is_bounded_and_the_oldest_leaves() -> None:
    """A run that is told ever new things keeps the newest."""
    known = remember(b"", range(2 * MAX_FACTS_BYTES))

    assert len(known) == MAX_FACTS_BYTES
    assert is_known(known, 2 * MAX_FACTS_BYTES - 1)
    assert not is_known(known, 0)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=40), st.integers(0, 2**32 - 1))
def test_a_fact_is_found_where_it_is_and_not_between_two_others(facts: list[int], wanted: int) -> None:
    """Bytes of neighbours may spell a third one."""
    known = remember(b"", facts)

    assert len(known) == len(facts) * FACT_BYTES
    assert is_known(known, wanted) == (wanted in facts)


@given(st.text(max_size=400))
def test_any_text_has_facts_and_words(text: str) -> None:
    """Total, and equal for equal texts."""
    assert facts_of(text) == facts_of(text)
    assert all(0 <= fact < 2**32 for fact in [*facts_of(text), *words_of(text)])
