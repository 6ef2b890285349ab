"""Near-duplicate texts, told by the smallest hashes of their 3-grams."""

from __future__ import annotations

import pytest

from loopwarden_detectors.sketch import gram_hashes, likeness, sketch

TEXT = (
    "The upload to the bucket failed because the token has expired. I will renew the token and start the upload of "
    "the remaining files again, beginning with the largest one, then compare the checksums."
)


def alike(one: str, other: str, kept: int = 64) -> int:
    """Return how alike two texts are by their sketches, in per cent."""
    own, others = (sketch(text, kept=kept, half_chars=1_000) for text in (one, other))
    assert likeness(own, others, kept=kept) == likeness(others, own, kept=kept)
    return likeness(own, others, kept=kept)


def exact(one: str, other: str) -> int:
    """Return the Dice coefficient of the whole sets of 3-grams, in per cent."""
    mine, others = (gram_hashes(text, half_chars=1_000) for text in (one, other))
    return int(200 * len(mine & others) / (len(mine) + len(others)))


@pytest.mark.parametrize(
    ("other", "least", "most"),
    [
        (TEXT, 100, 100),
        (f"  {TEXT.upper()}\n\n", 100, 100),
        (TEXT.replace("largest", "smallest"), 90, 99),
        (TEXT.replace("expired", "run out").replace("upload", "transfer"), 60, 90),
        ("A harbour in the north counts the ships that come in, by weight, flag and berth, for every week.", 0, 40),
    ],
)
def test_a_sketch_tells_what_the_whole_texts_tell(other: str, least: int, most: int) -> None:
    """White space and case do not count; a word does, by as much as it is of the text."""
    assert least <= alike(TEXT, other) <= most
    assert abs(alike(TEXT, other) - exact(TEXT, other)) <= 8


def test_a_short_text_is_compared_as_a_whole() -> None:
    """It has fewer 3-grams than a sketch holds."""
    assert alike("renew the token", "renew the tokens") == exact("renew the token", "renew the tokens")


def test_the_bytes_are_the_same_everywhere() -> None:
    """They are compared after a restart, by another process: this is what one worker wrote, once and for all."""
    assert sketch("renew it", kept=3, half_chars=100).hex() == "0f155a991ab4b691245bfa39"


def test_of_a_long_text_head_and_tail_count() -> None:
    """The work is bounded, and what is in between is not looked at."""
    long = TEXT * 20
    assert alike(long[:1_000] + "x" * 90_000 + long[-1_000:], long[:1_000] + "y" * 50_000 + long[-1_000:]) == 100
    assert alike(long, "y" + long[1:1_000] + TEXT[::-1] * 9) < 90


@pytest.mark.parametrize("text", ["", " ", "\ud83d", "a\ud83db", "a"])
def test_a_text_without_grams_is_like_itself_alone(text: str) -> None:
    """Nothing is in common with nothing but the same nothing; a lone surrogate is no reason to fall over."""
    assert alike(text, text) == 100
    assert alike(text, TEXT) < 10
