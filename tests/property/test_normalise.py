"""Normalisation on any input: total, deterministic, idempotent, and blind to nothing but the volatile."""

# ruff: noqa: S108 - paths in /tmp are texts here, no file is opened

from __future__ import annotations

import json

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from loopwarden_detectors.normalise import normalised_args, normalised_key, normalised_result
from loopwarden_models.volatile import VolatileRules

RULES = VolatileRules()
OWN = VolatileRules(patterns=(r"JOB-\d{1,9}",), wrappers=("untrusted",))

NUMBERS = st.integers(0, 99_999)
HEX = st.text("0123456789abcdef", min_size=12, max_size=12)
CLOCKS = st.times().map(lambda at: at.isoformat("seconds"))
# Each draws one kind of volatile text.
VOLATILE = {
    "date and time": st.datetimes().map(lambda at: f"{at:%H:%M:%S}".join([f"{at.year:04}-{at:%m-%d}T", "Z"])),
    "clock": CLOCKS,
    "duration": st.floats(0, 10**6).map(lambda seconds: f"{seconds:.2f}s"),
    "milliseconds": NUMBERS.map(lambda ms: f"{ms} ms"),
    "uuid": st.uuids().map(str),
    "ulid": st.text("0123456789ABCDEFGHJKMNPQRSTVWXYZ", min_size=23, max_size=23).map(lambda end: f"01K{end}"),
    "address": HEX.map(lambda digits: f"0x{digits}"),
    "tempfile": st.text("abcdefghijklmnopqrstuvwxyz0123456789_", min_size=8, max_size=8).map(
        lambda end: f"/tmp/tmp{end}"
    ),
    "epoch": st.integers(10**9, 2 * 10**9 - 1).map(lambda at: f"ts={at}"),
}
PATHS = st.sampled_from(
    ["/tmp/tmp", "/tmp/tmp.", "/tmp/a-b.", "/tmp/cc", "/tmp/go-build", "/tmp/pytest-of-a/pytest-", "AbC123", ".o"]
)
# What stands between, chosen so that tokens touch each other in every way.
GLUE = st.sampled_from(
    [" ", "\n", ",", ":", ".", "-", "_", "/", "T", "s", "0", "1x", '"', "\\n", "<", ">", "{", "[", "é", ""]
)
TOKENS = st.one_of(*VOLATILE.values(), PATHS, NUMBERS.map(str), st.text(max_size=4), GLUE)
TEXTS = st.lists(TOKENS, max_size=12).map("".join)
NAMES = st.sampled_from(
    ["a", "ts", "created_at", "requestId", "took", "nonce", "intent", "rows", "12:30:45"]
) | st.text(max_size=4)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.integers(10**9, 2 * 10**9) | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4) | inner.map(json.dumps)
    ),  # JSON as a text in JSON
    max_leaves=12,
)
RAW = (
    st.binary(max_size=200)
    | TEXTS.map(lambda text: text.encode("utf-8", "replace"))
    | VALUES.map(json.dumps).map(str.encode)
)


@example(raw=b"00:00:0s", cut=0)  # one token decides about its neighbour, here and below
@example(raw=b"/tmp/tmp00000_00000000-0000-0000-0000-000000000000", cut=0)
@example(raw=b"/tmp/00000000-0000-0000-0000-000000000000.AbC123", cut=0)
@example(raw=b"/tmp/go-build123456789012345:00:00", cut=0)
@given(raw=RAW, cut=st.integers(0, 200))
def test_any_bytes_have_a_normal_form_which_is_its_own(raw: bytes, cut: int) -> None:
    """Never raises, also not on what was cut; a runtime and the detector may both normalise."""
    for data in (raw, raw[:cut]):
        for rules in (RULES, OWN):
            once = normalised_result(data, rules)

            assert normalised_result(data, rules) == once
            assert normalised_result(once, rules) == once
            assert normalised_key(data, rules) == normalised_key(once, rules) != 0


@given(raw=RAW)
def test_arguments_are_taken_out_of_once(raw: bytes) -> None:
    """Whatever was taken out, nothing is left to take out of the rest; never raises."""
    left = normalised_args(raw, RULES)

    assert left == normalised_args(raw, VolatileRules())
    if left is not None:
        assert left != raw
        assert normalised_args(left, RULES) is None


@pytest.mark.parametrize("kind", list(VOLATILE))
@given(data=st.data(), before=TEXTS, after=TEXTS, edge=st.sampled_from([" ", "\n", ", ", "(", "'"]))
def test_another_volatile_token_leaves_the_key(
    kind: str, data: st.DataObject, before: str, after: str, edge: str
) -> None:
    """Whatever stands around a token that stands alone."""
    first, other = data.draw(VOLATILE[kind]), data.draw(VOLATILE[kind])

    def key(token: str) -> int:
        return normalised_key(json.dumps(f"{before}{edge}{token} | {after}").encode(), RULES)

    assert key(first) == key(other)


@given(
    first=NUMBERS, other=NUMBERS, before=TEXTS, after=TEXTS, word=st.sampled_from(["page", "rows:", "%", "failed ="])
)
def test_another_number_changes_the_key(first: int, other: int, before: str, after: str, word: str) -> None:
    """A count, a page, a percentage is data, whatever stands around it."""
    assume(first != other)

    def key(number: int) -> int:
        return normalised_key(json.dumps(f"{before} {word} {number} | {after}").encode(), RULES)

    assert key(first) != key(other)


@given(value=VALUES, indent=st.sampled_from([None, 1, 4]))
def test_the_way_json_is_written_does_not_matter(value: object, indent: int | None) -> None:
    """Key order, white space and escapes differ between runtimes."""
    raw = json.dumps(value)
    assume("NaN" not in raw and "Infinity" not in raw)

    assert normalised_key(raw.encode(), RULES) == normalised_key(json.dumps(value, indent=indent).encode(), RULES)
