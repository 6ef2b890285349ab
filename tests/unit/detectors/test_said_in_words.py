"""What a tool said, as a text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from loopwarden_detectors.said_in_words import MAX_BYTES, MAX_CHARS, text_of


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ("The list ends here.", "The list ends here."),
        ([{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}], "text\nOne.\ntext\nTwo."),
        ({"ok": True, "answer": "Nothing was found.", "hits": 0}, "Nothing was found.\n0"),
        (None, ""),
        ([], ""),
        ({"a": {"b": ["c"]}}, "c"),
    ],
)
def test_texts_without_the_names_of_fields(result: Any, expected: str) -> None:
    """A string, blocks of content, an object."""
    assert text_of(Raw(json.dumps(result).encode())) == expected


def test_what_is_not_reported_says_nothing() -> None:
    """Missing is empty here: nothing can be compared in meaning."""
    assert text_of(UNSET) == ""


def test_a_result_that_was_cut_is_read_as_it_stands() -> None:
    """Runtimes cut long results, and half a JSON text is none."""
    assert text_of(Raw(b'"The list ends he')) == '"The list ends he'
    assert text_of(Raw(b'"' + b"a" * (2 * MAX_BYTES))) == ('"' + "a" * MAX_CHARS)[:MAX_CHARS]


def test_what_is_nested_for_ever_ends() -> None:
    """A hostile result costs what a deep one costs."""
    assert text_of(Raw(b"[" * 200 + b'"x"' + b"]" * 200)) == ""


@given(st.binary(max_size=200))
def test_any_bytes_are_a_text(data: bytes) -> None:
    """Total."""
    assert len(text_of(Raw(data))) <= MAX_CHARS
