"""Whatever a model writes is judged: chants and sketches are total, deterministic and bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests._support.steps import Run, decide, only

from loopwarden_detectors import near_text
from loopwarden_detectors.chant import LAST_TOKENS, MIN_TOKENS, longest_chant
from loopwarden_detectors.sketch import gram_hashes, likeness, sketch

# Pieces of structure in any order find more than arbitrary characters do.
PIECES = st.sampled_from(
    [
        "```",
        "~~~",
        "\n",
        "\n\n",
        "    ",
        "\t",
        "- ",
        "1. ",
        "> ",
        "# ",
        "|",
        ",",
        ";",
        "</p>",
        "再",
        "。",
        ". ",
        "go ",
        "\r",
        "\0",
    ]
)
ANY_TEXT = st.one_of(
    st.text(),
    st.text(st.characters(codec=None)),
    st.lists(st.one_of(PIECES, st.text(max_size=4)), max_size=80).map("".join),
    st.tuples(st.lists(PIECES, min_size=1, max_size=30).map("".join), st.integers(1, 3_000)).map(
        lambda it: it[0] * it[1]
    ),
)
WORDS = st.text("abcdeéßñжшध", min_size=1, max_size=6).filter(str.isalpha)


@given(text=ANY_TEXT, min_repeats=st.integers(2, 12))
def test_any_text_is_looked_at(text: str, min_repeats: int) -> None:
    """No text brings a worker down, and a chant keeps what it promises."""
    chant = longest_chant(text, min_repeats=min_repeats)

    assert chant == longest_chant(text, min_repeats=min_repeats)
    if chant is not None:
        assert chant.repeats >= min_repeats
        assert chant.repeats * chant.period_tokens > MIN_TOKENS - chant.period_tokens
        assert 0 <= chant.block_key < 2**64


@given(
    block=st.lists(WORDS, min_size=3, max_size=10),
    before=st.lists(WORDS, max_size=9),
    after=st.lists(WORDS, max_size=9),
)
def test_a_block_six_times_is_found(block: list[str], before: list[str], after: list[str]) -> None:
    """Whatever stands around it, in whatever script, on one line."""
    chant = longest_chant(" ".join(["so", "then", *before, *block * 6, *after]))

    assert chant is not None
    assert chant.repeats >= 6


@given(block=st.lists(WORDS, min_size=3, max_size=10))
def test_a_block_six_times_is_not_found_in_a_fence(block: list[str]) -> None:
    """Code repeats by nature, closed or cut off."""
    code = " ".join(block * 6)

    assert longest_chant(f"Look:\n```\n{code}\n```\n") is None
    assert longest_chant(f"Look:\n```\n{code}") is None


@given(numbers=st.lists(st.integers(0, 10**6), unique=True, max_size=2 * LAST_TOKENS))
def test_a_text_that_never_says_a_word_twice_is_no_chant(numbers: list[int]) -> None:
    """However alike its words are."""
    assert longest_chant(" ".join(f"word{number}" for number in numbers)) is None


@given(one=ANY_TEXT, other=ANY_TEXT, kept=st.integers(1, 80), half_chars=st.integers(3, 500))
def test_any_two_texts_are_compared(one: str, other: str, kept: int, half_chars: int) -> None:
    """In whichever order, and the work and the bytes are bounded."""
    mine, others = (sketch(text, kept=kept, half_chars=half_chars) for text in (one, other))

    assert likeness(mine, others, kept=kept) == likeness(others, mine, kept=kept)
    assert 0 <= likeness(mine, others, kept=kept) <= 100
    assert likeness(mine, mine, kept=kept) == 100
    assert len(mine) <= 4 * kept
    assert len(gram_hashes(one, half_chars=half_chars)) <= 6 * half_chars + 8  # a lower case may be three characters


@given(
    texts=st.lists(
        st.tuples(
            st.sampled_from(["Let me look at ", "3. ", "再", ""]), st.sampled_from("abc再"), st.integers(0, 200)
        ).map(lambda it: it[0] + it[1] * it[2] + " and then go on with what is left to be done here"),
        max_size=30,
    )
)
def test_a_message_is_looked_into_once_at_most(texts: list[str]) -> None:
    """The worst that can come: whatever begins, ends and is as long as what was said, is still one sketch each."""
    looked: list[str] = []

    def counted(text: str, **sizes: int) -> bytes:
        looked.append(text)
        return sketch(text, **sizes)

    run = Run()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("loopwarden_detectors.near_text.sketch", counted)
        decide([run.model(text=text) for text in texts if text], only("near_text"))

    assert len(looked) <= max(0, sum(len(text) >= near_text.MIN_CHARS for text in texts) - 2)
