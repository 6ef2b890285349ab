"""From reports to the bytes of step events."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from loopwarden.content import Content, freeze
from loopwarden.faults import Counters
from loopwarden.step_encoder import MAX_VALUE_BYTES, PendingStep, StepEncoder
from loopwarden_models.events import Message, ModelEnd, Progress, RunStart, Step, ToolEnd, ToolError, ToolStart, Usage
from loopwarden_models.hashes import content_hash

ENVELOPE: dict[str, Any] = {"v": 1, "tenant": "acme", "run_id": "r-42", "root_run_id": "r-0", "seq": 3, "ts_ms": 5}


def encoded(
    step: Step, args: Any = None, result: Any = None, *, counters: Counters | None = None, **options: Any
) -> dict[str, Any]:
    """Return the fields that an event has on the wire."""
    encode = StepEncoder(**{"fidelity": "full", "result_chars": 2_000, **options}, counters=counters or Counters())
    frozen = [None if value is None else freeze(value) for value in (args, result)]
    outgoing = encode(PendingStep(step, *frozen))
    assert outgoing is not None
    assert outgoing.key == b"acme|r-0"
    fields = json.loads(outgoing.value)
    return {name: value for name, value in fields.items() if value is not None}


def test_hash_and_size_are_of_the_whole_result_although_it_is_cut() -> None:
    """Two long outputs with one beginning are different answers; comparing prefixes merges them."""
    fields = encoded(ToolEnd(**ENVELOPE, tool="t"), result="x" * 5_000)

    assert fields["result"] == "x" * 2_000
    assert fields["result_hash"] == content_hash("x" * 5_000)
    assert fields["result_bytes"] == 5_002


def test_start_and_end_carry_the_arguments() -> None:
    """Either may be dropped when the queue is full; the other must still say what was called."""
    args = {"q": "kafka"}
    for step in (ToolStart(**ENVELOPE, tool="t"), ToolEnd(**ENVELOPE, tool="t")):
        fields = encoded(step, args)
        assert (fields["args"], fields["args_hash"]) == (args, content_hash(args))


def test_long_arguments_are_sent_once() -> None:
    """A file that is written is large; its hash is enough with the end."""
    args = {"content": "x" * 3_000}

    assert encoded(ToolStart(**ENVELOPE, tool="t"), args)["args"] == args
    end = encoded(ToolEnd(**ENVELOPE, tool="t"), args)
    assert "args" not in end
    assert end["args_hash"] == content_hash(args)


def test_missing_content_has_no_hash() -> None:
    """Missing arguments or results equal nothing, not even each other."""
    fields = encoded(ToolEnd(**ENVELOPE, tool="t"))

    assert not {"args", "args_hash", "result", "result_hash", "result_bytes"} & set(fields)


@pytest.mark.parametrize(
    ("step", "gone"),
    [
        (RunStart(**ENVELOPE, goal="secret"), "goal"),
        (ModelEnd(**ENVELOPE, text="secret", reasoning="secret"), "text"),
        (Message(**ENVELOPE, text="secret"), "text"),
        (Progress(**ENVELOPE, note="secret"), "note"),
        (ToolEnd(**ENVELOPE, tool="t", error=ToolError("E", "secret", 500)), "result"),
    ],
)
def test_with_hash_fidelity_no_content_leaves_the_process(step: Step, gone: str) -> None:
    """The promise that makes the library acceptable where content is confidential."""
    fields = encoded(step, {"a": "secret"}, "secret", fidelity="hash")

    assert "secret" not in json.dumps(fields)
    assert gone not in fields
    if isinstance(step, ToolEnd):
        assert fields["args_hash"] == content_hash({"a": "secret"})
        assert fields["result_hash"] == content_hash("secret")
        assert fields["error"] == {"class": "E", "status": 500}


def test_a_step_above_the_limit_loses_content_and_keeps_hashes() -> None:
    """Kafka refuses a record that is too large: the event would be lost, and with it the repetition."""
    counters = Counters()
    args = {"content": "x" * MAX_VALUE_BYTES}
    fields = encoded(ToolStart(**ENVELOPE, tool="t"), args, counters=counters)

    assert "args" not in fields
    assert fields["args_hash"] == content_hash(args)
    assert counters.snapshot() == {"events_cut": 1}


def test_a_text_above_the_limit_keeps_its_ends() -> None:
    """A chanting model is seen in a few thousand characters as well as in a million."""
    fields = encoded(ModelEnd(**ENVELOPE, text="ab" * MAX_VALUE_BYTES))

    assert fields["text"].startswith("abab")
    assert len(fields["text"]) < 20_000


def test_a_long_error_message_is_cut() -> None:
    """Some errors carry a whole page of HTML."""
    fields = encoded(ToolEnd(**ENVELOPE, tool="t", error=ToolError("E" * 999, "m" * 9_000)))

    assert len(fields["error"]["message"]) < 2_100
    assert len(fields["error"]["class"]) < 300


@pytest.mark.parametrize(
    ("step", "bad"),
    [
        (ModelEnd(**ENVELOPE, cost_usd=-1.0, text="kept"), "cost_usd"),
        (ModelEnd(**ENVELOPE, usage=Usage(input_tokens=-3), text="kept"), "usage"),
        (ModelEnd(**ENVELOPE, duration_ms="soon", text="kept"), "duration_ms"),  # type: ignore[arg-type]
        (ModelEnd(**ENVELOPE, model="m" * 500, tool_calls=-1, text="kept"), "model"),
    ],
)
def test_a_field_that_the_contract_does_not_allow_is_left_out(step: ModelEnd, bad: str) -> None:
    """The detector would refuse the whole event; a wrong number of a provider must not blind it."""
    fields = encoded(step)

    assert bad not in fields
    assert fields["text"] == "kept"


def test_an_event_that_cannot_be_repaired_is_counted() -> None:
    """One bad event must neither block the lane nor vanish unseen."""
    counters = Counters()
    encode = StepEncoder(fidelity="full", result_chars=10, counters=counters)

    assert encode(PendingStep(ToolStart(**ENVELOPE, tool=""))) is None
    assert counters.snapshot() == {"events_invalid": 1}


def test_a_lone_surrogate_in_a_text_is_replaced() -> None:
    """Models and file systems produce them; JSON cannot carry them."""
    assert encoded(ModelEnd(**ENVELOPE, text="a\ud800b"))["text"] == "a?b"


def test_arguments_are_hashed_once_for_start_and_end() -> None:
    """Hashing is the publisher's main cost: the end shares the work of the start."""
    content = freeze({"a": 1})
    assert content is not None
    encode = StepEncoder(fidelity="full", result_chars=10, counters=Counters())
    encode(PendingStep(ToolStart(**ENVELOPE, tool="t"), content))
    content.data = b"not json any more"
    outgoing = encode(PendingStep(ToolEnd(**ENVELOPE, tool="t"), Content(b"{}")))

    assert content.hash() == content_hash({"a": 1})
    assert outgoing is not None
    assert msgspec.json.decode(outgoing.value)["args_hash"] == content_hash({})
