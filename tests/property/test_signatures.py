"""Signatures over whatever the contract can carry: one change anywhere breaks them, another spelling does not."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests._support.keys import DETECTOR

from loopwarden_models.codec import decode_message, encode
from loopwarden_models.commands import Command, EvidenceRange, Reason
from loopwarden_models.signing import is_signed_by, parse_signed

Fields = dict[str, Any]

COUNTS = st.integers(0, 2**53 - 1)
WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)
COMMANDS = st.builds(
    Command,
    v=st.just(1),
    command_id=WORDS,
    type=st.sampled_from(["nudge", "kill_run", "of a later version"]),
    tenant=st.sampled_from(["acme", "globex"]),
    run_id=WORDS,
    issued_at_ms=COUNTS,
    expires_at_ms=COUNTS,
    epoch=COUNTS,
    seq=COUNTS,
    incarnation=WORDS,
    message=st.none() | WORDS,
    reason=st.none() | st.builds(Reason, pattern=WORDS, detector=WORDS, count=COUNTS, window_ms=COUNTS),
    evidence=st.none()
    | st.builds(EvidenceRange, topic=WORDS, partition=COUNTS, offsets=st.lists(COUNTS, min_size=2, max_size=2)),
)


def is_ours(value: bytes) -> bool:
    """Return whether the bytes are signed by the detector."""
    return is_signed_by(parse_signed(value), DETECTOR.public_key)


@given(order=COMMANDS)
def test_every_command_survives_its_signature(order: Command) -> None:
    """Whatever the order says: it verifies, and reads as what was signed."""
    wire = DETECTOR.encode(order)
    read = decode_message(wire, Command)

    assert is_ours(wire)
    assert (read.command_id, read.run_id, read.reason, read.evidence) == (
        order.command_id,
        order.run_id,
        order.reason,
        order.evidence,
    )


@given(order=COMMANDS, later=st.dictionaries(WORDS, JSON, max_size=4))
def test_fields_that_we_do_not_know_are_covered_and_any_spelling_verifies(order: Command, later: Fields) -> None:
    """A newer sender's signature holds at an older reader, whatever its JSON library does with order and escapes."""
    signed = DETECTOR.sign({**later, **json.loads(encode(order))})
    spellings = [
        json.dumps(signed, ensure_ascii=True, indent=2),
        json.dumps(signed, ensure_ascii=False, sort_keys=True),
        json.dumps(dict(reversed(signed.items()))),
    ]

    assert all(is_ours(text.encode()) for text in spellings)
    for name in later.keys() - json.loads(encode(order)).keys() - {"kid", "sig"}:
        assert not is_ours(json.dumps({key: value for key, value in signed.items() if key != name}).encode())


def places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Return the paths of all values in a JSON object."""
    inner: list[tuple[str | int, ...]] = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        inner += places(each, (*path, key))
    return inner


def changed(fields: Fields, path: tuple[str | int, ...], new: Any) -> Fields:
    """Return a copy with another value at `path`."""
    made = copy.deepcopy(fields)
    at: Any = made
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = new
    return made


@given(data=st.data(), order=COMMANDS)
def test_any_changed_field_breaks_the_signature(data: st.DataObject, order: Command) -> None:
    """At any depth, the name of the key and the signature itself included."""
    signed: Fields = json.loads(DETECTOR.encode(order))
    path = data.draw(st.sampled_from(places(signed)))
    new = data.draw(JSON)
    forged = changed(signed, path, new)
    # 1 and 1.0 are the same JSON number, true is not 1: compared as the canonical form does.
    same = [json.dumps(one, sort_keys=True) for one in (forged, signed)]

    assert is_ours(json.dumps(forged).encode()) is (same[0] == same[1] or _is_same_number(forged, signed, path))


def _is_same_number(forged: Fields, signed: Fields, path: tuple[str | int, ...]) -> bool:
    one: Any = forged
    other: Any = signed
    for key in path:
        one, other = one[key], other[key]
    return isinstance(one, float) and type(other) is int and one == other


@given(data=st.data(), order=COMMANDS)
def test_any_flipped_bit_of_the_signature_breaks_it(data: st.DataObject, order: Command) -> None:
    """No bit of it is idle, and no second spelling is taken."""
    wire = DETECTOR.encode(order)
    at = data.draw(st.integers(wire.rindex(b'"sig":"') + 7, len(wire) - 3))
    other = data.draw(st.sampled_from(b"ABCXYZabcxyz0189+/="))
    forged = wire[:at] + bytes([other]) + wire[at + 1 :]

    assert is_ours(forged) is (forged == wire)


@given(value=st.binary(max_size=200) | st.builds(lambda tree: json.dumps(tree).encode(), JSON))
def test_whatever_is_written_has_an_answer(value: bytes) -> None:
    """A forger chooses every byte: there is no other outcome than unreadable or not ours."""
    try:
        fields = parse_signed(value)
    except ValueError:
        return
    assert not is_signed_by(fields, DETECTOR.public_key)
