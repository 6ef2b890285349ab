"""Content on its way to the wire."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loopwarden.content import cut_result, cut_text, freeze
from loopwarden_models.hashes import content_hash


def frozen_hash(value: Any) -> str:
    """Return the hash that an event would carry."""
    content = freeze(value)
    assert content is not None
    return content.hash()


@pytest.mark.parametrize(
    "value",
    [{"b": 1, "a": [1.5, None, "é"]}, "text", 7, 2**70, [], {}, {"n": {"deep": [True]}}],
)
def test_the_hash_is_that_of_the_published_vectors(value: Any) -> None:
    """A runtime and the detector must agree on what is equal, byte for byte."""
    assert frozen_hash(value) == content_hash(value)


def test_later_changes_do_not_reach_the_event() -> None:
    """Agents reuse and edit their argument objects while our thread has not looked at them yet."""
    args = {"query": "a", "pages": [1]}
    content = freeze(args)
    args["pages"].append(2)  # type: ignore[attr-defined]  # the agent's own object

    assert content is not None
    assert json.loads(content.data) == {"query": "a", "pages": [1]}


def test_equal_sets_are_equal_whatever_their_order() -> None:
    """The order of a set differs between processes; the loop behind it is the same."""
    assert frozen_hash({"tags": {"a", "b", "c"}}) == frozen_hash({"tags": {"c", "b", "a"}})


def test_keys_that_are_no_text_are_carried_as_text() -> None:
    """`{5: "x"}` is what Python programs have where JSON has `{"5": "x"}`."""
    assert frozen_hash({5: "x"}) == content_hash({"5": "x"})


class Money:
    """An object with a text of its own."""

    def __init__(self, amount: int) -> None:
        self.amount = amount

    def __str__(self) -> str:
        return f"EUR {self.amount}"


class Handle:
    """An object whose text is its address."""


class Broken:
    """An object that has no text at all."""

    def __str__(self) -> str:
        raise RuntimeError("no text for you")


def test_objects_that_json_does_not_know_are_compared_by_their_text() -> None:
    """A tool may return anything; its text is the best that everybody has."""
    assert frozen_hash([Money(5)]) == content_hash(["EUR 5"])
    assert frozen_hash(Money(5)) != frozen_hash(Money(6))
    assert frozen_hash({("a", 1): 2}) == content_hash({"('a', 1)": 2})


@pytest.mark.parametrize("value", [Handle(), [Handle()], {Handle(): 1}, {Broken(): 1}, Broken(), lambda: None])
def test_an_address_is_no_content(value: Any) -> None:
    """Addresses are reused: two different results with one address would look like a loop. Missing equals nothing."""
    assert freeze(value) is None


def test_a_value_that_contains_itself_is_left_out() -> None:
    """Whatever a tool returns must not raise into the agent."""
    endless: list[Any] = []
    for _ in range(5_000):
        endless = [endless]

    assert freeze(endless) is None


def test_a_lone_surrogate_does_not_get_lost() -> None:
    """Text from file names may hold what UTF-8 cannot carry; different texts must stay different."""
    assert frozen_hash("a\ud800") != frozen_hash("a\ud801")


def test_what_has_no_canonical_form_is_hashed_as_text() -> None:
    """Nesting beyond the canonical depth is legal JSON, and may repeat like any other result."""
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep]

    assert frozen_hash(deep) == frozen_hash(json.loads(json.dumps(deep)))


def test_a_short_result_is_sent_as_it_is() -> None:
    """The wire keeps the type: a number stays a number."""
    assert cut_result(b'{"n":5}', 100) == b'{"n":5}'
    assert cut_result('"ééé"'.encode(), 5) == '"ééé"'.encode()


def test_a_long_result_is_cut_to_a_text() -> None:
    """Half an object is no JSON: the beginning of its text is."""
    assert json.loads(cut_result(b'"' + b"x" * 50 + b'"', 10)) == "x" * 10
    assert json.loads(cut_result(b'{"key":"' + b"v" * 50 + b'"}', 10)) == '{"key":"vv'
    assert json.loads(cut_result(json.dumps(["é" * 50], ensure_ascii=False).encode(), 10)) == '["' + "é" * 8


def test_a_long_message_keeps_both_ends() -> None:
    """The last lines of a stack trace name the error."""
    assert cut_text("a" * 50 + "Z" * 50, 20) == "a" * 10 + "\n…\n" + "Z" * 10
    assert cut_text("short", 20) == "short"
