"""Hashes: the identity on which every verdict about a repetition rests."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwarden_models.hashes import content_hash, derived_id, stable_key

PARTS = st.lists(st.text(max_size=6) | st.integers(), max_size=5)


def test_equal_arguments_have_equal_hashes() -> None:
    """Key order and number spelling differ between turns of one model; the call is the same."""
    assert content_hash({"q": "x", "limit": 10}) == content_hash({"limit": 10.0, "q": "x"})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"page": 1}, {"page": 2}),
        ({"q": "a"}, {"q": "a "}),
        ({"q": "é"}, {"q": "e\u0301"}),
        ({}, None),
        ({}, []),
        ("", None),
        ("1", 1),
        (1, True),
        (0, False),
        ([1, 2], [2, 1]),
        ({"id": 12345678901234567891}, {"id": 12345678901234567892}),
    ],
)
def test_different_values_have_different_hashes(one: Any, other: Any) -> None:
    """A page walk, a padded text, two ids beyond 2^53: healthy work that must not look like a loop."""
    assert content_hash(one) != content_hash(other)


def test_hash_is_sixteen_hex_digits() -> None:
    """The wire's limit: a longer one is refused at the edge."""
    digest = content_hash({"q": "x"})

    assert len(digest) == 16
    assert set(digest) <= set("0123456789abcdef")


@pytest.mark.parametrize("value", [float("nan"), "\ud800", [[[float("inf")]]]])
def test_value_without_a_canonical_form_has_no_hash(value: Any) -> None:
    """No hash means that it equals nothing, which is right for what cannot be compared."""
    with pytest.raises(ValueError, match=r".+"):
        content_hash(value)


def test_stable_key_is_the_same_in_another_process() -> None:
    """`hash()` of a text changes with every start; snapshots outlive processes."""
    script = "from loopwarden_models.hashes import stable_key; print(stable_key('acme|r-42'))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)

    assert int(done.stdout) == stable_key("acme|r-42")


@given(text=st.text(alphabet=st.characters()))
def test_stable_key_exists_for_every_text(text: str) -> None:
    """Keys are made from texts that only passed the edge, lone surrogates of a program's own making included."""
    assert 0 <= stable_key(text) < 2**64


def test_stable_key_takes_a_lone_surrogate() -> None:
    """It cannot come off the wire, but an adapter may pass a cut text."""
    assert stable_key("\ud800") != stable_key("")


@given(one=PARTS, other=PARTS)
def test_ids_are_equal_only_for_equal_parts(one: list[str | int], other: list[str | int]) -> None:
    """Parts are framed: nobody can choose a run name that makes his command look like another's."""
    same = [str(part) for part in one] == [str(part) for part in other]

    assert (derived_id(*one) == derived_id(*other)) == same


def test_moving_a_border_between_parts_changes_the_id() -> None:
    """Joined with a separator, these would be one id."""
    ids = {derived_id("a", "b|c"), derived_id("a|b", "c"), derived_id("a|b|c"), derived_id("a", "b", "c")}

    assert len(ids) == 4


def test_id_is_thirty_two_hex_digits() -> None:
    """Fits the wire's limit of 64 and is too long to collide by chance."""
    assert len(bytes.fromhex(derived_id("acme", "r", 1))) == 16
