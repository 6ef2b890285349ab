"""Questions to people, and their answers, on `loopwarden.control.state`.

Two keys, because two write: the detector says what is asked and how it ended, a person says what is to be done. Under
one key compaction would keep whichever came last.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from loopwarden_models.commands import CommandId, EvidenceRange, KeyId, Reason, Signature
from loopwarden_models.control_state import StateKey, StateVersion
from loopwarden_models.events import (
    AgentName,
    CallId,
    ContentHash,
    Incarnation,
    RunId,
    ShortText,
    TimestampMs,
    ToolName,
    Version,
)
from loopwarden_models.hashes import content_hash, derived_id

QuestionKind = Literal["action", "pause"]
QuestionState = Literal["open", "approved", "rejected", "expired"]
AnswerDecision = Literal["approved", "rejected", "instructed"]
QUESTION_KINDS: Final[tuple[QuestionKind, ...]] = ("action", "pause")
QUESTION_STATES: Final[tuple[QuestionState, ...]] = ("open", "approved", "rejected", "expired")
ANSWER_DECISIONS: Final[tuple[AnswerDecision, ...]] = ("approved", "rejected", "instructed")

MAX_INSTRUCTION_CHARS: Final = 2_000


class QuestionRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A person is asked. Key `tenant|question|<question id>`. Names records, never content.

    `action`: may this call be made, with these arguments? `pause`: a run was paused; is it to go on, or to end?

    Attributes:
        kind: What is asked.
        state: `open`, or how it ended: `approved`, `rejected`, or `expired`, when nobody answered in time or the run
            ended first.
        run_id: The run that waits.
        root_run_id: Root of its tree.
        incarnation: The incarnation that asked last.
        agent: Which agent.
        opened_at_ms: When it was asked last, in Unix milliseconds; none once it is closed.
        expires_at_ms: When it counts as `expired`, in Unix milliseconds by the broker's clock; none = it waits for as
            long as it takes.
        closed_at_ms: When it ended, in Unix milliseconds.
        tool: The tool that is to be called.
        action_hash: Of the tool and the arguments; an answer is for this action and for no other.
        call_id: Of the call.
        command_id: The command that paused the run.
        reason: Why the run was paused.
        source: Where the step lies that asks: it has the question's words and the arguments, where content is sent.
    """

    v: Version
    key: StateKey
    version: StateVersion
    kind: ShortText
    state: ShortText
    run_id: RunId
    root_run_id: RunId
    incarnation: Incarnation
    agent: AgentName | None = None
    expires_at_ms: TimestampMs | None = None
    opened_at_ms: TimestampMs | None = None
    closed_at_ms: TimestampMs | None = None
    tool: ToolName | None = None
    action_hash: ContentHash | None = None
    call_id: CallId | None = None
    command_id: CommandId | None = None
    reason: Reason | None = None
    source: EvidenceRange | None = None
    kid: KeyId | None = None
    sig: Signature | None = None


class AnswerRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a person decided. Key `tenant|approval|<question id>`; of two the higher version counts until it is taken.

    Attributes:
        decision: `approved`: make the call. `rejected`: do not. `instructed`: do not, and do what `instruction` says.
        at_ms: When, in Unix milliseconds by the clock of the person's machine.
        expires_at_ms: Until when it may be taken up, in Unix milliseconds by the broker's clock: that of its question.
        action_hash: The action that was decided on; for another one it counts for nothing.
        instruction: Words for the model, which a runtime passes on only where free text is allowed.
        reason: Who, and why.
    """

    v: Version
    key: StateKey
    version: StateVersion
    decision: ShortText
    at_ms: TimestampMs
    expires_at_ms: TimestampMs | None = None
    action_hash: ContentHash | None = None
    instruction: Annotated[str, Meta(max_length=MAX_INSTRUCTION_CHARS)] | None = None
    reason: Reason | None = None
    kid: KeyId | None = None
    sig: Signature | None = None


def question_key(tenant: str, question_id: str) -> str:
    """Return the key of a question on `control.state`."""
    return f"{tenant}|question|{question_id}"


def answer_key(tenant: str, question_id: str) -> str:
    """Return the key of the answer to a question on `control.state`."""
    return f"{tenant}|approval|{question_id}"


def action_hash(tool: str, args_hash: str) -> str:
    """Return the hash of a call as a person approves it: `content_hash` of `[tool, args_hash]`. Cost: about 6 µs."""
    return content_hash([tool, args_hash])


def action_question_id(tenant: str, run_id: str, action: str, turn: int) -> str:
    """Return the id of a question about a call.

    The same in every incarnation, so that a run that was started again finds what was answered meanwhile.

    Args:
        tenant: Of the run.
        run_id: Of the run.
        action: From `action_hash`.
        turn: How often the same action was asked for, and settled, before.
    """
    return derived_id("question", tenant, run_id, action, turn)
