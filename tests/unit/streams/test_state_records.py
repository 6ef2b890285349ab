"""What is written to `control.state` of a question can be read by everybody, whatever a runtime asked."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from tests.contract.wire import messages

from loopwarden_detectors.run_state import TreeState
from loopwarden_detectors.watch import observe
from loopwarden_models.codec import decode_message, decode_step, encode
from loopwarden_models.commands import EvidenceRange
from loopwarden_models.errors import InvalidEvent
from loopwarden_models.events import root_of
from loopwarden_models.policy import DEFAULT_POLICY
from loopwarden_models.questions import QuestionRecord
from loopwarden_streams.partition import Partition
from loopwarden_streams.state_records import question_record


@given(event=messages("step-event").filter(lambda event: event["type"] in ("approval_wait", "approval_end")))
def test_a_question_of_any_step_is_a_record_of_the_contract(event: dict[str, Any]) -> None:
    """Long ids, names and times: a record that nobody can read would be a question that nobody can answer."""
    step = decode_step(json.dumps(event).encode())
    assert step is not None
    try:
        decisions = observe(TreeState(tenant=step.tenant, root_run_id=root_of(step)), step, DEFAULT_POLICY, offset=7)
    except InvalidEvent:
        return
    for decision in decisions:
        if decision.question is None:
            continue
        source = EvidenceRange("loopwarden.steps", 3, [7, 7])
        record = question_record(
            Partition(number=3, epoch=42, next_offset={"steps": 8, "acks": 0}), decision.question, source
        )
        assert decode_message(encode(record), QuestionRecord) == record
        assert record.run_id == step.run_id
