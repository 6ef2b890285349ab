"""Is a tool asked in words?"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw
from tests._support.steps import Run

from loopwarden_detectors.asked_in_words import is_asked_in_words, question_of
from loopwarden_models.events import ToolEnd


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"instruction": "Please scroll further and tell me what you see."}, True),
        ({"query": "zarzuelas con un farero entre los personajes"}, True),
        ({"status": "No blockers on my side."}, True),
        ({"prompt": "Qual è l'articolo sul recesso anticipato?", "limit": 5}, True),
        ("please go on with the search", True),
        ({"query": "请继续向下滚动页面并告诉我结果"}, True),
        ({"query": "もう一度検索してください"}, True),
        ({"command": "sed -n 1,60p e2e/checkout.spec.ts"}, False),
        ({"command": "grep -rn 'Thank you' web/src"}, False),
        ({"path": "docs/a b c d.md"}, False),
        ({"key": "dark_mode", "value": True}, False),
        ({"path": "a.md", "content": "A long text of many words that goes to a file."}, False),
        ({"to": ["a"], "text": "This is told to many people."}, False),
        ({"query": "short query"}, False),
        ({}, False),
        (None, False),
        (7, False),
    ],
)
def test_sentences_and_everything_else(args: Any, expected: bool) -> None:
    """One text, and that a sentence, in whatever language."""
    step = Run().call("ask", args)
    assert isinstance(step, ToolEnd)

    assert is_asked_in_words(step) is expected


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"instruction": "Please scroll further down."}, ("Please scroll further down.", "")),
        ("please go on with the search", ("please go on with the search", "")),
        ({"agent": "web", "request": "open the list of bridges"}, ("open the list of bridges", "[('agent', 'web')]")),
        ({"a": "two sentences of four words", "b": "are no question at all"}, None),
        ({"to": ["a"], "text": "This is told to many people."}, None),
        ({"command": "ls", "description": "List what is in this folder"}, None),
        ({"content": "import os\nimport re as regex\nfrom a import b\nprint the lines"}, None),
        ({"command": "grep -rn x src"}, None),
        ({"sql": "SELECT name FROM teacher WHERE age"}, None),
        ({"query": "请继续向下滚动页面并告诉我结果"}, ("请继续向下滚动页面并告诉我结果", "")),
        ({"query": "short"}, None),
        ([], None),
        (None, None),
    ],
)
def test_the_sentence_and_what_it_is_about(args: Any, expected: tuple[str, str] | None) -> None:
    """Other arguments are part of what is asked; two sentences are no one question."""
    step = Run().call("ask", args)
    assert isinstance(step, ToolEnd)

    assert question_of(step) == expected


def test_arguments_that_are_no_json_ask_nothing() -> None:
    """A runtime may cut them."""
    step = Run().call("ask", "x")
    assert isinstance(step, ToolEnd)
    step.args = Raw(b'"please go on with the sea')

    assert question_of(step) is None
