"""Whose signatures are believed: names, roles, times, withdrawal, and the files of a ring."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests._support.keys import DETECTOR, NEXT_DETECTOR, OPERATOR, STRANGER, public, ring, write_ring

from loopwarden.testing import answer, enforcement, fence, kill, run_record
from loopwarden_models.control_state import BreakerState
from loopwarden_models.errors import ConfigError
from loopwarden_models.key_ring import REFUSALS, KeyRing, RingKey, SignatureRefused
from loopwarden_models.questions import QuestionRecord, question_key
from loopwarden_models.signing import SigningKey, parse_signed

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
QUESTION = QuestionRecord(
    v=1,
    key=question_key("acme", "q1"),
    version=[42, 1],
    kind="action",
    state="open",
    run_id="r",
    root_run_id="r",
    incarnation="a",
)
NOON_MS = int(NOON.timestamp() * 1_000)


def breaker(state: str, **fields: Any) -> BreakerState:
    """Return the state of a tool."""
    return BreakerState(v=1, key="acme|breaker|search", version=[1, 1], state=state, **fields)


def refusal(keys: KeyRing, value: bytes, *, at_ms: int = NOON_MS) -> str:
    """Return why the ring does not believe the bytes, or nothing if it does."""
    try:
        keys.check(parse_signed(value), at_ms=at_ms)
    except SignatureRefused as refused:
        return refused.reason if refused.reason in REFUSALS else f"{refused.reason} is not in the list"
    return ""


def test_only_a_key_of_the_ring_is_believed() -> None:
    """The name alone is worth nothing: everybody can write it."""
    order = kill("r-42")
    impostor = SigningKey(STRANGER._private, "detector-1")

    assert refusal(ring(), DETECTOR.encode(order)) == ""
    assert refusal(ring(), STRANGER.encode(order)) == "unknown_key"
    assert refusal(ring(), impostor.encode(order)) == "wrong"
    assert refusal(ring(), msgspec.json.encode(order)) == "missing"
    assert refusal(ring(), msgspec.json.encode(DETECTOR.sign({}) | {"kid": {"a": 1}})) == "unknown_key"
    assert refusal(ring(), msgspec.json.encode(DETECTOR.sign({}) | {"kid": None})) == "missing"


def test_during_a_rotation_two_keys_are_believed() -> None:
    """Workers are restarted one by one: both names are on the topic at the same time."""
    both = KeyRing([public(DETECTOR), public(NEXT_DETECTOR)])

    assert refusal(both, DETECTOR.encode(kill("r-42"))) == ""
    assert refusal(both, NEXT_DETECTOR.encode(kill("r-42"))) == ""


def test_a_withdrawn_key_is_believed_in_nothing() -> None:
    """Who got hold of it can write any time and any version."""
    assert refusal(ring(withdrawn=True), DETECTOR.encode(kill("r-42"))) == "withdrawn"


@pytest.mark.parametrize(
    ("at_ms", "expected"),
    [(NOON_MS - 1, "out_of_time"), (NOON_MS, ""), (NOON_MS + 3_599_999, ""), (NOON_MS + 3_600_000, "out_of_time")],
)
def test_a_key_is_valid_by_the_time_of_the_record(at_ms: int, expected: str) -> None:
    """A kill that was signed while the key was valid binds for ever; nothing new can be signed with it."""
    #  noon        13:00
    #  [-----------)        by the broker's append time
    keys = ring(not_before=NOON, not_after=NOON.replace(hour=13))

    assert refusal(keys, DETECTOR.encode(kill("r-42")), at_ms=at_ms) == expected


@pytest.mark.parametrize("at_ms", [0, -1])
def test_a_record_without_a_time_is_in_no_time(at_ms: int) -> None:
    """A topic whose records have no time cannot show that the key was still valid."""
    assert refusal(ring(not_after=NOON), DETECTOR.encode(kill("r-42")), at_ms=at_ms) == "out_of_time"
    assert refusal(ring(), DETECTOR.encode(kill("r-42")), at_ms=at_ms) == ""


@pytest.mark.parametrize(
    ("message", "role"),
    [
        (kill("r-42"), "detector"),
        (kill("r-42", writer="operator"), "operator"),
        (kill("r-42", writer="robot"), None),
        (run_record("r-42", "killed"), "detector"),
        (run_record("r-42", "released", writer="operator"), "operator"),
        (fence(3, 42), "detector"),
        (enforcement("observe_only"), "operator"),
        (answer("q1", "approved", action_hash="ab"), "operator"),
        (QUESTION, "detector"),
        (breaker("open"), "detector"),
        (breaker("closed"), "detector"),
        (breaker("forced_open"), "operator"),
        (breaker("disabled"), "operator"),
        (breaker("observe_only"), "operator"),
    ],
)
def test_a_key_speaks_in_its_own_role_only(message: msgspec.Struct, role: str | None) -> None:
    """A detector that was taken over must not release what a person has killed, nor switch enforcement off."""
    found = {
        "detector": refusal(ring(), DETECTOR.encode(message)),
        "operator": refusal(ring(), OPERATOR.encode(message)),
    }

    assert found == {each: "" if each == role else "wrong_role" for each in ("detector", "operator")}


def test_a_directory_and_a_file_are_the_same_ring(tmp_path: Path) -> None:
    """A mounted directory has one file a key; a deployment by hand may prefer one file."""
    keys = [public(DETECTOR, not_after=NOON), public(OPERATOR, "operator", withdrawn=True)]
    directory = write_ring(tmp_path / "ring", *keys)
    (directory / "detector-1.key").write_text("private, and none of a ring's business")
    (tmp_path / "ring.json").write_bytes(b'{"keys": ' + msgspec.json.encode(keys) + b"}")

    assert KeyRing.load(directory).keys == KeyRing.load(tmp_path / "ring.json").keys == keys
    assert KeyRing.load(directory / "detector-1.pub").keys == keys[:1]


GOOD = json.loads(msgspec.json.encode(public(DETECTOR)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "Input data was truncated"),
        ("[]", "Expected `object`"),
        (json.dumps({**GOOD, "role": "admin"}), r"Invalid enum value 'admin' - at `\$.role`"),
        (json.dumps({**GOOD, "kid": ""}), r"length >= 1 - at `\$.kid`"),
        (json.dumps({**GOOD, "public_key": "AAAA"}), "public_key: 3 bytes; an Ed25519 public key has 32"),
        (json.dumps({**GOOD, "not_after": "2026-12-01T00:00:00"}), "timezone"),
        (json.dumps({**GOOD, "notafter": 1}), "unknown field `notafter`"),
        (json.dumps({**GOOD, "not_before": NOON.isoformat(), "not_after": NOON.isoformat()}), "would never be valid"),
        (json.dumps({"keys": [GOOD, GOOD]}), "'detector-1' is there twice"),
        (json.dumps({"keys": []}), "has no key"),
    ],
)
def test_a_wrong_ring_is_refused_with_its_file(tmp_path: Path, content: str, message: str) -> None:
    """A field that is silently ignored here is a key that stays valid."""
    file = tmp_path / "ring.pub"
    file.write_text(content)

    with pytest.raises(ConfigError, match=message) as told:
        KeyRing.load(file)
    assert "ring.pub" in str(told.value)


def test_a_ring_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """An empty directory is a mount that failed, and must not mean: nobody is checked."""
    with pytest.raises(ConfigError, match="does not exist"):
        KeyRing.load(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="has no key"):
        KeyRing.load(tmp_path)


def test_keys_are_written_as_they_are_read() -> None:
    """What `keys generate` writes has no field that the reader does not know."""
    key = public(DETECTOR, not_before=NOON)

    assert msgspec.json.decode(msgspec.json.encode(key), type=RingKey) == key
