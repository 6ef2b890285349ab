"""Vectors of one byte a number, and their cosine."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests._support.meanings import WordMeaning

from loopwarden_detectors.meaning import DIMENSIONS, MAX_CHARS, cosine_percent, key_of

VECTORS = st.binary(min_size=DIMENSIONS, max_size=DIMENSIONS)


@given(VECTORS, VECTORS)
def test_the_cosine_is_a_symmetric_percentage(one: bytes, other: bytes) -> None:
    """Whatever the bytes are."""
    assert 0 <= cosine_percent(one, other) == cosine_percent(other, one) <= 100


@given(VECTORS.filter(any))
def test_a_vector_is_like_itself(one: bytes) -> None:
    """And like nothing that points the other way."""
    assert cosine_percent(one, one) == 100
    opposite = bytes((256 - byte) % 256 if byte != 128 else 127 for byte in one)
    assert cosine_percent(one, opposite) == 0


def test_zeros_are_like_nothing() -> None:
    """Not even like zeros: a text that means nothing to the model repeats nothing."""
    assert cosine_percent(bytes(DIMENSIONS), bytes(DIMENSIONS)) == 0


def test_rewordings_are_nearer_than_other_texts() -> None:
    """The model of the tests does what it is for."""
    vector = WordMeaning().vector
    same = cosine_percent(vector("the list ends here now"), vector("here the list ends"))

    assert same > 80 > cosine_percent(vector("the list ends here now"), vector("a cat sat on my mat"))


def test_the_key_is_that_of_what_models_read() -> None:
    """Two texts that differ after that are one to a model."""
    assert key_of("a" * MAX_CHARS + "b") == key_of("a" * MAX_CHARS + "c") != key_of("b")
