"""What `control.state` has to say because of a decision: of the run, and of what people are asked."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from loopwarden_detectors.ladder import Decision
from loopwarden_detectors.questions import Question
from loopwarden_models.commands import Command, EvidenceRange, Reason
from loopwarden_models.control_state import BlockedTool, RunRecord, run_record_key
from loopwarden_models.events import MAX_INT
from loopwarden_models.questions import QuestionRecord, question_key
from loopwarden_streams.partition import ACKS, STEPS, Partition


def run_record(partition: Partition, decision: Decision, issued: Mapping[str, Command]) -> RunRecord | None:
    """Return what the record of a run has to say because of a decision, if anything."""
    block, change, order = decision.block, decision.record, decision.order
    if block is not None:
        return RunRecord(
            v=1,
            key=run_record_key(block.tenant, block.run_id),
            version=version_of(partition),
            state="open",
            incarnation=block.incarnation,
            reason=cut(block.reason),
            blocked_tools=[BlockedTool(one.tool, one.until_ms, one.verdict_id) for one in block.tools],
        )
    if change is not None:
        return RunRecord(
            v=1,
            key=run_record_key(change.tenant, change.run_id),
            version=version_of(partition),
            state=change.state,
            command_id=change.command_id,
        )
    if order is None or order.type != "kill_run":
        return None
    command = issued[order.command_id]
    return RunRecord(
        v=1,
        key=run_record_key(command.tenant, command.run_id),
        version=version_of(partition),
        state="killed" if order.is_in_force else "kill_wanted",
        incarnation=command.incarnation,
        command_id=command.command_id,
        expires_at_ms=None if order.is_in_force else command.expires_at_ms,
        reason=command.reason,
    )


def version_of(partition: Partition) -> list[int]:
    """Return the version of what is written for a partition now."""
    # Both sources move a run's record, so both count: the sum only rises within an epoch.
    return [partition.epoch, partition.next_offset[STEPS] + partition.next_offset[ACKS]]


def question_record(partition: Partition, asked: Question, source: EvidenceRange) -> QuestionRecord:
    """Return what `control.state` says of a question."""
    is_open = asked.state == "open"
    # Whatever a runtime says, the record must be one that its readers take.
    expires_ms = None if asked.timeout_ms is None else min(asked.at_ms + asked.timeout_ms, MAX_INT)
    return QuestionRecord(
        v=1,
        key=question_key(asked.tenant, asked.question_id),
        version=version_of(partition),
        kind=asked.kind,
        state=asked.state,
        run_id=asked.run_id,
        root_run_id=asked.root_run_id,
        incarnation=asked.incarnation,
        agent=asked.agent or None,
        opened_at_ms=asked.at_ms if is_open else None,
        expires_at_ms=expires_ms if is_open else None,
        closed_at_ms=None if is_open else asked.at_ms,
        tool=asked.tool,
        action_hash=asked.action_hash,
        call_id=asked.call_id,
        command_id=asked.question_id[:64] if asked.kind == "pause" else None,
        reason=None if asked.reason is None else cut(asked.reason),
        source=source,
    )


def cut(reason: Reason) -> Reason:
    """Return a reason whose note fits into a command and into a record."""
    note = reason.note
    return reason if note is None or len(note) <= 256 else msgspec.structs.replace(reason, note=note[:256])  # noqa: PLR2004 - ShortText
