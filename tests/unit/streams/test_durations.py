"""Spans of time as people type and read them."""

from __future__ import annotations

import argparse

import pytest

from loopwarden_streams.durations import parse_ms, shown


@pytest.mark.parametrize(
    ("text", "ms"), [("90s", 90_000), ("15m", 900_000), ("6h", 21_600_000), ("2d", 172_800_000), ("0.5", 500)]
)
def test_a_span_is_read(text: str, ms: int) -> None:
    """A bare number counts seconds, as `sleep` does."""
    assert parse_ms(text) == ms


@pytest.mark.parametrize("text", ["", "soon", "-5s", "5 minutes", "1w"])
def test_what_is_no_span_is_refused_with_the_remedy(text: str) -> None:
    """An order that waits for the wrong time is worse than none."""
    with pytest.raises(argparse.ArgumentTypeError, match="write 90s, 15m, 6h or 2d"):
        parse_ms(text)


@pytest.mark.parametrize(
    ("ms", "text"),
    [(-3, "0ms"), (14.6, "15ms"), (59_999, "59s"), (61_000, "1m 01s"), (7_500_000, "2h 05m"), (90_000_000, "1d 01h")],
)
def test_a_span_is_shown_in_two_units(ms: float, text: str) -> None:
    """Enough to act on, short enough for a column."""
    assert shown(ms) == text
