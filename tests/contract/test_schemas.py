"""Schemas and code agree: what one accepts the other accepts, message by message, fault by fault."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from tests.contract.wire import KINDS, VALIDATORS, decode, json_values, messages

from loopwarden_models.codec import encode
from loopwarden_models.errors import InvalidEvent
from loopwarden_models.schema import json_schemas

# The reader of verdicts is a person; our code never refuses one, so there is nothing to agree with.
READ_BY_CODE = [kind for kind in KINDS if kind != "verdict"]
BULKY = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


def accepts(kind: str, message: Any) -> bool:
    """Whether our decoder takes `message`."""
    try:
        decode(kind, json.dumps(message).encode())
    except InvalidEvent:
        return False
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_schema_is_valid_and_says_what_every_field_means(kind: str) -> None:
    """The schema is the documentation that tools show: a field without a sentence helps nobody."""
    schema = json_schemas()[kind]
    Draft202012Validator.check_schema(schema)
    objects = [schema, *schema.get("$defs", {}).values()]
    bare = [
        name for part in objects for name, field in part.get("properties", {}).items() if "description" not in field
    ]

    assert bare == []
    assert all(part["description"] for part in objects)


@pytest.mark.parametrize("kind", KINDS)
def test_schema_lets_unknown_fields_pass_at_every_level(kind: str) -> None:
    """Fields are only ever added: a reader that refuses what it does not know breaks at the next release."""
    schema = json_schemas()[kind]
    objects = [part for part in [schema, *schema.get("$defs", {}).values()] if "properties" in part]

    assert all(part["additionalProperties"] is True for part in objects)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, deadline=None, suppress_health_check=BULKY)
@given(data=st.data())
def test_what_a_correct_writer_sends_is_valid_and_readable(kind: str, data: st.DataObject) -> None:
    """Instances are drawn from the structs; the schema was built from them: both must still mean the same."""
    sent = data.draw(messages(kind))
    message = decode(kind, json.dumps(sent).encode())

    assert list(VALIDATORS[kind].iter_errors(sent)) == []
    assert message is not None
    assert list(VALIDATORS[kind].iter_errors(json.loads(encode(message)))) == []


# Values of a wrong type, out of range or impossible somewhere. No integral floats: `1.0` is an integer to JSON Schema
# and none to us, the one difference that the contract states.
FAULTS = st.sampled_from(
    [
        None,
        True,
        False,
        -1,
        0,
        1,
        2,
        2**53 - 1,
        2**53,
        -(2**53),
        10**30,
        -1.5,
        0.5,
        1e300,
        "",
        "x",
        "x" * 17,
        "x" * 33,
        "x" * 65,
        "x" * 129,
        "x" * 257,
        "x" * 5000,
        "acme|b",
        "acme\n",
        "ümlaut",
        "tool_end",
        "heartbeat",
        [],
        [1],
        [1, -1],
        [1, 2, 3],
        [None, "x"],
        {},
        {"x": 1},
    ]
)


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (container, key or index) of every value in `node`."""
    for key, value in list(node.items() if isinstance(node, dict) else enumerate(node)):
        yield node, key
        if isinstance(value, dict | list):
            yield from places(value)


@st.composite
def damaged(draw: st.DrawFn, kind: str) -> Any:
    """A message with one to three faults; by chance none of them may matter."""
    message = deepcopy(draw(messages(kind)))
    for _ in range(draw(st.integers(1, 3))):
        spots = list(places(message))
        if not spots:
            break
        container, key = spots[draw(st.integers(0, len(spots) - 1))]
        match draw(st.sampled_from(["remove", "replace", "replace", "add"])):
            case "remove":
                del container[key]
            case "replace":
                container[key] = deepcopy(draw(FAULTS))
            case "add" if isinstance(container, dict):
                container[draw(st.sampled_from(["zone", "x-trace", "", "V"]))] = draw(json_values())
    return message


@pytest.mark.parametrize("kind", READ_BY_CODE)
@settings(max_examples=120, deadline=None, suppress_health_check=BULKY)
@given(data=st.data())
def test_decoder_and_schema_refuse_the_same_messages(kind: str, data: st.DataObject) -> None:
    """A runtime that checks itself against the schema must not end in our dead letters, nor the reverse."""
    message = data.draw(damaged(kind))

    assert accepts(kind, message) == VALIDATORS[kind].is_valid(message)


@settings(max_examples=30, deadline=None, suppress_health_check=BULKY)
@given(message=damaged("verdict"))
def test_a_verdict_that_the_schema_refuses_cannot_be_read(message: Any) -> None:
    """One way only: the schema leaves the level open for readers, our writer knows its levels."""
    if VALIDATORS["verdict"].is_valid(message):
        return
    with pytest.raises(InvalidEvent):
        decode("verdict", json.dumps(message).encode())


@pytest.mark.parametrize("text", ["1.0", "1e3", "10e-1"])
def test_integer_with_a_fraction_or_exponent_is_the_one_difference(text: str) -> None:
    """The schema cannot say it, so the contract does: integers are written as integers."""
    value = '{"v":1,"type":"user_input","tenant":"acme","run_id":"r","ts_ms":0,"seq":SEQ}'.replace("SEQ", text)

    assert VALIDATORS["step-event"].is_valid(json.loads(value))
    with pytest.raises(InvalidEvent) as refused:
        decode("step-event", value.encode())
    assert (refused.value.reason, refused.value.field) == ("wrong_type", "seq")


@pytest.mark.parametrize("field", ["effect", "outcome", "fidelity"])
def test_open_vocabulary_names_its_words_and_lets_others_pass(field: str) -> None:
    """A generator of code sees the known words; a reader built from it survives a new one."""
    words = json_schemas()["step-event"]["$defs"]["ToolEnd"]["properties"][field]["anyOf"]

    assert {"type": "string", "maxLength": 256} in words
    assert any("enum" in branch for branch in words)
