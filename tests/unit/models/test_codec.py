"""The edge: every record is an event, a type to skip, or a refusal with one reason and one field. Nothing else."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwarden_models import codec
from loopwarden_models.acks import Ack
from loopwarden_models.codec import MAX_STEP_BYTES, decode_message, decode_step, encode
from loopwarden_models.commands import Command
from loopwarden_models.control_state import BreakerState, EnforcementRecord, FenceRecord, RunRecord
from loopwarden_models.errors import REASONS, InvalidEvent
from loopwarden_models.events import RunStart, ToolEnd, ToolStart, root_of, step_key

STEP = (
    b'{"v":1,"type":"tool_end","tenant":"acme","run_id":"r","seq":1,"ts_ms":1760000000000,"tool":"search",'
    b'"call_id":"c","args":{"q":"x"},"effect":"read","outcome":"ok","result":"text","duration_ms":12.5}'
)
COMMAND = (
    b'{"v":1,"command_id":"c","type":"kill_run","tenant":"acme","run_id":"r","issued_at_ms":1,"expires_at_ms":2,'
    b'"epoch":1,"seq":2,"evidence":{"topic":"t","partition":0,"offsets":[1,2]}}'
)
DEEP = 100_000


def changed(old: bytes, new: bytes, value: bytes = STEP) -> bytes:
    """Return `value` with its one occurrence of `old` replaced."""
    assert value.count(old) == 1
    return value.replace(old, new)


def refusal(value: bytes | None, **limits: int) -> InvalidEvent:
    """Return how `value` is refused as a step."""
    with pytest.raises(InvalidEvent) as refused:
        decode_step(value, **limits)
    return refused.value


NOT_AN_EVENT = {
    "no value": (None, "tombstone", ""),
    "empty value": (b"", "not_json", ""),
    "white space alone": (b" \n", "not_json", ""),
    "truncated": (STEP[:-1], "not_json", ""),
    "truncated within a text": (STEP[:40], "not_json", ""),
    "two objects": (STEP + STEP, "not_json", ""),
    "an array": (b"[" + STEP + b"]", "wrong_type", ""),
    "a text": (b'"tool_end"', "wrong_type", ""),
    "null": (b"null", "wrong_type", ""),
    "not JSON at all": (b"<step/>", "not_json", ""),
    "comment": (changed(b'{"v"', b'{/* */"v"'), "not_json", ""),
    "single quotes": (STEP.replace(b'"', b"'"), "not_json", ""),
    "trailing comma": (changed(b"12.5}", b"12.5,}"), "not_json", ""),
    "byte order mark": (b"\xef\xbb\xbf" + STEP, "not_json", ""),
    "UTF-16 with a mark": (STEP.decode().encode("utf-16"), "not_utf8", ""),
    "UTF-16 without a mark": (STEP.decode().encode("utf-16-le"), "not_json", ""),
    "Latin-1 in a text that is kept": (changed(b'"search"', b'"\xe9t\xe9"'), "not_utf8", ""),
    "Latin-1 in a text that is skipped": (changed(b'"text"', b'"\xe9t\xe9"'), "not_utf8", ""),
    "Latin-1 in an unknown field": (changed(b'{"v"', b'{"zone":"\xe9t\xe9","v"'), "not_utf8", ""),
    "a surrogate as bytes": (changed(b'"text"', b'"\xed\xa0\x80"'), "not_utf8", ""),
    "half of a character": (changed(b'"text"', b'"\xc3"'), "not_utf8", ""),
    "raw NUL in a text that is kept": (changed(b'"search"', b'"a\x00"'), "not_json", ""),
    "raw NUL in a text that is skipped": (changed(b'"text"', b'"a\x00"'), "not_json", ""),
    "NUL between tokens": (changed(b',"effect"', b'\x00,"effect"'), "not_json", ""),
    "raw newline in a text": (changed(b'"search"', b'"a\n"'), "not_json", ""),
    "unknown escape": (changed(b'"text"', rb'"\x41"'), "not_json", ""),
    "lone surrogate in a text that is kept": (changed(b'"search"', rb'"a\ud800 cut"'), "not_json", ""),
    "lone surrogate in a text that is skipped": (changed(b'"text"', rb'"a\ud800 cut"'), "not_json", ""),
    "low surrogate first": (changed(b'"text"', rb'"\ude00\ud83d"'), "not_json", ""),
    "lone surrogate as the last thing": (changed(b'"text"', rb'"\ud83d"'), "not_json", ""),
    "NaN in a field": (changed(b"12.5", b"NaN"), "not_json", ""),
    "NaN in the arguments": (changed(b'{"q":"x"}', b'{"q":NaN}'), "not_json", ""),
    "Infinity": (changed(b"12.5", b"Infinity"), "not_json", ""),
    "minus Infinity in the result": (changed(b'"text"', b"-Infinity"), "not_json", ""),
    "leading zero": (changed(b'"seq":1', b'"seq":01'), "not_json", ""),
    "plus sign": (changed(b'"seq":1', b'"seq":+1'), "not_json", ""),
    "no digit": (changed(b'{"q":"x"}', b"-"), "not_json", ""),
}

TOO_DEEP = {
    "arrays in the arguments": changed(b'{"q":"x"}', b"[" * DEEP + b"]" * DEEP),
    "arrays that never close": changed(b'{"q":"x"}', b"[" * DEEP),
    "objects in the result": changed(b'"text"', b'{"a":' * DEEP + b"1" + b"}" * DEEP),
    "arrays in an unknown field": changed(b'{"v"', b'{"zone":' + b"[" * DEEP + b"]" * DEEP + b',"v"'),
    "arrays where a number belongs": changed(b'"seq":1', b'"seq":' + b"[" * DEEP + b"]" * DEEP),
    "arrays in a step of an unknown type": changed(b'"tool_end"', b'"zzz"').replace(b'"text"', b"[" * DEEP),
    "nothing but arrays": b"[" * DEEP,
}

BAD_FIELD = {
    "no version": (changed(b'"v":1,', b""), "missing_field", "v"),
    "no type": (changed(b'"type":"tool_end",', b""), "missing_field", "type"),
    "no tenant": (changed(b'"tenant":"acme",', b""), "missing_field", "tenant"),
    "no run": (changed(b'"run_id":"r",', b""), "missing_field", "run_id"),
    "no seq": (changed(b'"seq":1,', b""), "missing_field", "seq"),
    "no time": (changed(b'"ts_ms":1760000000000,', b""), "missing_field", "ts_ms"),
    "no tool": (changed(b'"tool":"search",', b""), "missing_field", "tool"),
    "version 2": (changed(b'"v":1', b'"v":2'), "unsupported_version", "v"),
    "version 0": (changed(b'"v":1', b'"v":0'), "unsupported_version", "v"),
    "version of 30 digits": (changed(b'"v":1', b'"v":' + b"9" * 30), "unsupported_version", "v"),
    "version 2 behind other faults": (
        b'{"tenant":5,"seq":-1,"type":"tool_end","v":2}',
        "unsupported_version",
        "v",
    ),
    "version 2 of an unknown type": (b'{"v":2,"type":"heartbeat"}', "unsupported_version", "v"),
    "version as a text": (changed(b'"v":1', b'"v":"1"'), "wrong_type", "v"),
    "version true": (changed(b'"v":1', b'"v":true'), "wrong_type", "v"),
    "version null": (changed(b'"v":1', b'"v":null'), "wrong_type", "v"),
    "version 1.0": (changed(b'"v":1', b'"v":1.0'), "wrong_type", "v"),
    "version beyond a double": (changed(b'"v":1', b'"v":1e400'), "out_of_range", "v"),
    "type is a number": (changed(b'"tool_end"', b"5"), "wrong_type", "type"),
    "type null": (changed(b'"tool_end"', b"null"), "wrong_type", "type"),
    "two types": (changed(b'{"v"', b'{"type":"run_end","v"'), "bad_value", "type"),
    "unknown type, version true": (b'{"v":true,"type":"heartbeat"}', "bad_value", "type"),
    "unknown type, no version": (b'{"type":"heartbeat"}', "bad_value", "type"),
    "negative seq": (changed(b'"seq":1', b'"seq":-1'), "out_of_range", "seq"),
    "seq of 2^53": (changed(b'"seq":1', b'"seq":9007199254740992'), "out_of_range", "seq"),
    "seq of 20 digits": (changed(b'"seq":1', b'"seq":' + b"9" * 20), "out_of_range", "seq"),
    "seq of 30 digits": (changed(b'"seq":1', b'"seq":' + b"9" * 30), "out_of_range", "seq"),
    "seq of 5,000 digits": (changed(b'"seq":1', b'"seq":' + b"9" * 5000), "out_of_range", "seq"),
    "seq beyond a double": (changed(b'"seq":1', b'"seq":1e400'), "out_of_range", "seq"),
    "seq as a float": (changed(b'"seq":1', b'"seq":1.0'), "wrong_type", "seq"),
    "seq with an exponent": (changed(b'"seq":1', b'"seq":1e2'), "wrong_type", "seq"),
    "seq with a fraction": (changed(b'"seq":1', b'"seq":1.5'), "wrong_type", "seq"),
    "seq true": (changed(b'"seq":1', b'"seq":true'), "wrong_type", "seq"),
    "seq as a text": (changed(b'"seq":1', b'"seq":"1"'), "wrong_type", "seq"),
    "seq null": (changed(b'"seq":1', b'"seq":null'), "wrong_type", "seq"),
    "time before 1970": (changed(b"1760000000000", b"-1"), "out_of_range", "ts_ms"),
    "tenant with a bar": (changed(b'"acme"', b'"ac|me"'), "bad_value", "tenant"),
    "tenant with a newline": (changed(b'"acme"', rb'"acme\n"'), "bad_value", "tenant"),
    "tenant with NUL": (changed(b'"acme"', rb'"\u0000acme"'), "bad_value", "tenant"),
    "tenant with an umlaut": (changed(b'"acme"', '"käse"'.encode()), "bad_value", "tenant"),
    "the tenant of all": (changed(b'"acme"', b'"*"'), "bad_value", "tenant"),
    "empty tenant": (changed(b'"acme"', b'""'), "out_of_range", "tenant"),
    "tenant of 65 characters": (changed(b'"acme"', b'"' + b"a" * 65 + b'"'), "out_of_range", "tenant"),
    "tenant is a number": (changed(b'"acme"', b"7"), "wrong_type", "tenant"),
    "empty run": (changed(b'"r"', b'""'), "out_of_range", "run_id"),
    "run of 129 characters": (changed(b'"r"', b'"' + b"r" * 129 + b'"'), "out_of_range", "run_id"),
    "root of 129 characters": (
        changed(b'{"v"', b'{"root_run_id":"' + b"r" * 129 + b'","v"'),
        "out_of_range",
        "root_run_id",
    ),
    "incarnation of 33 characters": (
        changed(b'{"v"', b'{"incarnation":"' + b"i" * 33 + b'","v"'),
        "out_of_range",
        "incarnation",
    ),
    "tool null": (changed(b'"search"', b"null"), "wrong_type", "tool"),
    "tool of 257 characters": (changed(b'"search"', b'"' + b"t" * 257 + b'"'), "out_of_range", "tool"),
    "effect is a number": (changed(b'"read"', b"1"), "wrong_type", "effect"),
    "effect of 257 characters": (changed(b'"read"', b'"' + b"e" * 257 + b'"'), "out_of_range", "effect"),
    "hash of 17 characters": (changed(b'{"v"', b'{"args_hash":"' + b"0" * 17 + b'","v"'), "out_of_range", "args_hash"),
    "duration as a text": (changed(b"12.5", b'"12.5"'), "wrong_type", "duration_ms"),
    "duration true": (changed(b"12.5", b"true"), "wrong_type", "duration_ms"),
    "negative duration": (changed(b"12.5", b"-0.1"), "out_of_range", "duration_ms"),
    "duration beyond a double": (changed(b"12.5", b"1e400"), "out_of_range", "duration_ms"),
    "duration of 400 digits": (changed(b"12.5", b"9" * 400), "out_of_range", "duration_ms"),
    "error is a text": (changed(b'{"v"', b'{"error":"boom","v"'), "wrong_type", "error"),
    "class of the error is a number": (changed(b'{"v"', b'{"error":{"class":5},"v"'), "wrong_type", "error.class"),
    "status is a list": (changed(b'{"v"', b'{"error":{"status":[]},"v"'), "wrong_type", "error.status"),
    "status true": (changed(b'{"v"', b'{"error":{"status":true},"v"'), "wrong_type", "error.status"),
    "status of 30 digits": (
        changed(b'{"v"', b'{"error":{"status":' + b"9" * 30 + b'},"v"'),
        "out_of_range",
        "error.status",
    ),
}


@pytest.mark.parametrize(("value", "reason", "field"), NOT_AN_EVENT.values(), ids=NOT_AN_EVENT)
def test_what_is_no_json_object_is_refused_as_a_whole(value: bytes | None, reason: str, field: str) -> None:
    """One broken record goes to the dead letters with its reason; the partition goes on."""
    fault = refusal(value)

    assert (fault.reason, fault.field) == (reason, field)


@pytest.mark.parametrize("value", TOO_DEEP.values(), ids=TOO_DEEP)
def test_deep_nesting_is_refused_and_the_interpreter_survives(value: bytes) -> None:
    """A hundred thousand brackets cost an attacker 100 KB; they must not cost a worker its stack."""
    fault = refusal(value)

    assert (fault.reason, fault.field) == ("too_deep", "")


@pytest.mark.parametrize(("value", "reason", "field"), BAD_FIELD.values(), ids=BAD_FIELD)
def test_bad_field_is_refused_with_its_name(value: bytes, reason: str, field: str) -> None:
    """Whoever runs the runtime must see from the dead letter what to mend."""
    fault = refusal(value)

    assert (fault.reason, fault.field) == (reason, field)
    assert field in str(fault)


def test_every_table_speaks_in_the_published_reasons() -> None:
    """Reasons are metric labels: a new one would be a new series on every dashboard."""
    used = {reason for _, reason, _ in [*NOT_AN_EVENT.values(), *BAD_FIELD.values()]}

    assert used | {"too_deep", "too_large"} <= set(REASONS)


def test_record_above_the_limit_is_refused_unread() -> None:
    """Five megabytes of result would be copied to the dead letters; it is refused by its length alone."""
    fault = refusal(changed(b'"text"', b'"' + b"x" * 5_000_000 + b'"'))

    assert fault.reason == "too_large"
    assert str(MAX_STEP_BYTES) in fault.detail


def test_record_at_the_limit_is_read() -> None:
    """The limit is inclusive."""
    assert decode_step(STEP, max_bytes=len(STEP)) is not None
    assert refusal(STEP, max_bytes=len(STEP) - 1).reason == "too_large"


def test_refusal_quotes_no_more_than_a_line() -> None:
    """The detail goes to a log: a megabyte in a field must not end there."""
    long = b"x" * 500_000
    two_types = changed(b'{"v"', b'{"type":"' + long + b'","v"')
    fault = refusal(two_types)

    assert fault.reason == "bad_value"
    assert len(str(fault)) < 300
    assert len(refusal(changed(b'"v":1', b'"v":' + b"9" * 4000)).detail) < 300


def test_refusal_shows_where_the_json_breaks() -> None:
    """In a kilobyte of JSON, "malformed" alone helps nobody."""
    fault = refusal(changed(b"12.5", b"NaN"))

    assert "NaN" in fault.detail


def test_order_of_the_fields_does_not_change_the_reason() -> None:
    """The decoder stops at the first fault; a reason that depends on field order is noise in the metrics."""
    fields = json.loads(STEP) | {"v": 2, "seq": -1, "tool": 5}
    for turn in range(len(fields)):
        names = [*fields][turn:] + [*fields][:turn]
        fault = refusal(json.dumps({name: fields[name] for name in names}).encode())

        assert (fault.reason, fault.field) == ("unsupported_version", "v")


def test_broken_json_is_that_wherever_another_fault_stands() -> None:
    """A record that was cut in transport must not look like a runtime that sends wrong types."""
    wrong_type_first = changed(b'"seq":1', b'"seq":"1"')

    assert refusal(wrong_type_first).reason == "wrong_type"
    assert refusal(wrong_type_first[:-1]).reason == "not_json"


TOLERATED = {
    "unknown field": changed(b'{"v"', b'{"zone":{"a":[1]},"v"'),
    "unknown effect": changed(b'"read"', b'"teleport"'),
    "unknown outcome": changed(b'"ok"', b'"half_done"'),
    "effect null": changed(b'"read"', b"null"),
    "arguments that are no object": changed(b'{"q":"x"}', b'"x"'),
    "number of 5,000 digits in the arguments": changed(b'{"q":"x"}', b"9" * 5000),
    "number beyond a double in the arguments": changed(b'{"q":"x"}', b"1e400"),
    "arrays within reason": changed(b'{"q":"x"}', b"[" * 100 + b"]" * 100),
    "white space": b" \r\n\t" + STEP + b"\n",
    "minus zero": changed(b'"seq":1', b'"seq":-0'),
    "duration as an integer": changed(b"12.5", b"12"),
    "error without anything": changed(b'{"v"', b'{"error":{},"v"'),
    "escaped NUL in a text": changed(b'"search"', rb'"a\u0000b"'),
    "bar and newline in the run": changed(b'"r"', rb'"a|b\n"'),
    "astral text": changed(b'"text"', '"\U0001f600 ünï"'.encode()),
    "escaped pair of surrogates": changed(b'"text"', rb'"\ud83d\ude00"'),
    "128 characters of four bytes": changed(b'"r"', ('"' + "\U0001f600" * 128 + '"').encode()),
}


@pytest.mark.parametrize("value", TOLERATED.values(), ids=TOLERATED)
def test_odd_but_legal_record_is_an_event(value: bytes) -> None:
    """Strict about what we need, tolerant of the rest: a run whose events are refused is not watched."""
    assert isinstance(decode_step(value), ToolEnd)


def test_last_of_two_equal_fields_counts() -> None:
    """JSON leaves it open; we must not read one value and pass on another."""
    step = decode_step(changed(b'"ts_ms"', b'"seq":7,"ts_ms"'))

    assert step is not None
    assert step.seq == 7


@pytest.mark.parametrize("kind", ["heartbeat", "", "TOOL_END", "tool_end "])
def test_unknown_type_is_skipped_not_refused(kind: str) -> None:
    """A newer runtime may report more than this detector understands; that is no fault of its events."""
    assert decode_step(json.dumps({"v": 1, "type": kind, "tenant": 5}).encode()) is None


def test_unknown_type_in_broken_json_is_refused() -> None:
    """Only a well-formed event can be of an unknown type."""
    assert refusal(b'{"v":1,"type":"heartbeat","x":').reason == "not_json"


def test_missing_fields_are_none_and_contents_unset() -> None:
    """A missing result must be told from `null`: it equals nothing, not even another missing one."""
    step = decode_step(b'{"v":1,"type":"tool_start","tenant":"a","run_id":"r","seq":0,"ts_ms":0,"tool":"t"}')

    assert isinstance(step, ToolStart)
    assert step.args is msgspec.UNSET
    assert (step.root_run_id, step.effect, step.args_hash) == (None, None, None)


def test_encoded_step_leaves_out_what_is_not_there() -> None:
    """Thirteen nulls per event are a quarter of a small step on the wire."""
    step = RunStart(v=1, tenant="acme", run_id="r", seq=0, ts_ms=0)

    assert json.loads(encode(step)) == {
        "type": "run_start",
        "v": 1,
        "tenant": "acme",
        "run_id": "r",
        "seq": 0,
        "ts_ms": 0,
    }


def test_memo_of_tenants_lets_no_bad_one_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memo saves a regular expression per event; it is bounded and must not change an answer."""
    monkeypatch.setattr(codec, "_known_tenants", set())
    monkeypatch.setattr(codec, "_MAX_KNOWN_TENANTS", 3)
    for n in range(10):
        assert decode_step(changed(b'"acme"', b'"t%d"' % n)) is not None
        assert refusal(changed(b'"acme"', b'"t|%d"' % n)).field == "tenant"
        assert len(codec._known_tenants) <= 3


def test_root_of_a_step_is_its_own_run_unless_told_otherwise() -> None:
    """State and partition are keyed by it: a child under its own key would have a budget of its own."""
    alone = decode_step(STEP)
    child = decode_step(changed(b'{"v"', b'{"root_run_id":"top","v"'))

    assert alone is not None
    assert child is not None
    assert [root_of(step) for step in (alone, child)] == ["r", "top"]
    assert step_key("acme", "top") == b"acme|top"


RECORDS: dict[str, tuple[type[Any], bytes]] = {
    "command": (Command, COMMAND),
    "acknowledgement": (Ack, b'{"v":1,"command_id":"c","tenant":"acme","run_id":"r","status":"applied","at_ms":1}'),
    "breaker": (BreakerState, b'{"v":1,"key":"acme|breaker|x","version":[1,2],"state":"open"}'),
    "run record": (RunRecord, b'{"v":1,"key":"acme|run|r","version":[1,2],"state":"killed"}'),
    "fence": (FenceRecord, b'{"v":1,"key":"*|fence|3","epoch":4,"owner":"w","at_ms":5}'),
    "switch": (EnforcementRecord, b'{"v":1,"key":"*|enforcement|global","version":[1,2],"state":"observe_only"}'),
}


@pytest.mark.parametrize(("kind", "value"), RECORDS.values(), ids=RECORDS)
def test_record_survives_a_round_trip(kind: type[Any], value: bytes) -> None:
    """What the detector writes the runtime reads, field by field."""
    message: msgspec.Struct = decode_message(value, kind)

    assert json.loads(encode(message)) == json.loads(value)


@pytest.mark.parametrize(("kind", "value"), RECORDS.values(), ids=RECORDS)
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda _: None, "tombstone"),
        (lambda _: b"", "not_json"),
        (lambda value: value[:-1], "not_json"),
        (lambda value: value.replace(b'"v":1', b'"v":2'), "unsupported_version"),
        (lambda value: value.replace(b'"v":1,', b""), "missing_field"),
        (lambda value: value.replace(b'"v":1', b'"v":true'), "wrong_type"),
        (lambda value: value.replace(b'"v":1', b'"v":1,"x":"\xff"'), "not_utf8"),
        (lambda value: value.replace(b'"v":1', b'"v":1,"x":' + b"[" * DEEP), "too_deep"),
        (lambda value: value.replace(b'"v":1', b'"v":1,"x":"' + b"x" * MAX_STEP_BYTES + b'"'), "too_large"),
    ],
    ids=["tombstone", "empty", "truncated", "version", "no version", "bool", "utf8", "deep", "large"],
)
def test_broken_record_is_refused_like_a_broken_step(kind: type[Any], value: bytes, damage: Any, reason: str) -> None:
    """Whoever may write to a control topic must not be able to end a runtime's reader."""
    with pytest.raises(InvalidEvent) as refused:
        decode_message(damage(value), kind)

    assert refused.value.reason == reason


@pytest.mark.parametrize(
    ("old", "new", "reason", "field"),
    [
        (b'"acme"', b'"ac|me"', "bad_value", "tenant"),
        (b'"acme"', b'"*"', "bad_value", "tenant"),
        (b'"epoch":1', b'"epoch":-1', "out_of_range", "epoch"),
        (b'"offsets":[1,2]', b'"offsets":[1]', "out_of_range", "evidence.offsets"),
        (b'"offsets":[1,2]', b'"offsets":[1,-2]', "out_of_range", "evidence.offsets[1]"),
        (b'"offsets":[1,2]', b'"offsets":[1.5,2]', "wrong_type", "evidence.offsets[0]"),
        (b'"topic":"t",', b"", "missing_field", "evidence.topic"),
        (b'"command_id":"c"', b'"command_id":""', "out_of_range", "command_id"),
        (b'"epoch":1', b'"epoch":1,"scope":null', "wrong_type", "scope"),
        (b'"epoch":1', b'"epoch":1,"message":"' + b"m" * 4097 + b'"', "out_of_range", "message"),
    ],
)
def test_bad_field_of_a_command_is_refused_with_its_name(old: bytes, new: bytes, reason: str, field: str) -> None:
    """Nested fields and places in lists are named too."""
    with pytest.raises(InvalidEvent) as refused:
        decode_message(changed(old, new, COMMAND), Command)

    assert (refused.value.reason, refused.value.field) == (reason, field)


@pytest.mark.parametrize("version", [b"[-1,2]", b"[1,-2]", b"[1,9007199254740992]", b"[1]", b"[1,2,3]", b"[]"])
def test_impossible_version_of_a_state_is_refused(version: bytes) -> None:
    """The highest version wins for ever: one record with an endless number would lock the key."""
    kind, value = RECORDS["breaker"]
    with pytest.raises(InvalidEvent) as refused:
        decode_message(changed(b"[1,2]", version, value), kind)

    assert refused.value.reason == "out_of_range"


def outcome(value: bytes, kind: type[Any] | None) -> str:
    """Return the reason why `value` is refused as a step (`None`) or a record, or `read`."""
    try:
        if kind is None:
            decode_step(value)
        else:
            decode_message(value, kind)
    except InvalidEvent as fault:
        return fault.reason
    return "read"


def check_total(value: bytes) -> None:
    """Assert that decoding `value` ends in a message or a published refusal, whatever it is taken for."""
    for kind in (None, *(kind for kind, _ in RECORDS.values())):
        assert outcome(value, kind) in {"read", *REASONS}


@settings(max_examples=200, deadline=None)
@given(value=st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_but_a_refusal(value: bytes) -> None:
    """Any other exception would leave the agent body, and Faust would drop the batch."""
    check_total(value)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damaged_event_raises_nothing_but_a_refusal(data: st.DataObject) -> None:
    """Bit rot, cut records and doubled pieces of valid events, as a broken proxy makes them."""
    value = bytearray(data.draw(st.sampled_from([STEP, COMMAND, *(record for _, record in RECORDS.values())])))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(value)))
        stop = data.draw(st.integers(start, min(len(value), start + 20)))
        value[start:stop] = data.draw(st.binary(max_size=6) | st.just(bytes(value[start:stop]) * 2))
    check_total(bytes(value))


@settings(max_examples=200, deadline=None)
@given(
    fields=st.dictionaries(
        st.sampled_from(
            ["v", "type", "tenant", "run_id", "seq", "ts_ms", "tool", "args", "error", "limits", "usage", "x"]
        ),
        st.sampled_from(
            [1, 2, -1, 0.5, None, True, "tool_end", "run_start", "acme", "", "x" * 300, [], {}, {"status": {}}]
        ),
    )
)
def test_any_object_raises_nothing_but_a_refusal(fields: dict[str, Any]) -> None:
    """Well-formed JSON with the right names and the wrong contents."""
    check_total(json.dumps(fields).encode())
