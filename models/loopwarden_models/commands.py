"""Commands: what the detector or an operator orders a runtime to do, on `loopwarden.control.commands`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from loopwarden_models.events import Count, Incarnation, RunId, ShortText, Tenant, TimestampMs, ToolName, Version

ANY_INCARNATION = "*"

CommandId = Annotated[str, Meta(min_length=1, max_length=64)]
KeyId = Annotated[str, Meta(max_length=256, description="Which key the signature was made with.")]
Signature = Annotated[
    str, Meta(max_length=256, description="Base64 of Ed25519 over the canonical JSON of the object without `sig`.")
]
CommandType = Literal["nudge", "pause_run", "resume_run", "kill_run"]
COMMAND_TYPES: tuple[CommandType, ...] = ("nudge", "pause_run", "resume_run", "kill_run")


class Reason(Struct, frozen=True, omit_defaults=True):
    """Why: the pattern, the detector that saw it, how often, in which time, with which tool.

    Attributes:
        pattern: Public name of what is wrong, such as `tool_oscillation`.
        detector: The rule that saw it.
        count: Repetitions, laps, errors or units of a budget, as the detector defines them.
        window_ms: Event time in which they happened.
        tool: The tool it is about, if it is about one.
        note: One sentence for people.
    """

    pattern: ShortText
    detector: ShortText
    count: Count = 0
    window_ms: Count | None = None
    tool: ToolName | None = None
    note: ShortText | None = None


class EvidenceRange(Struct, frozen=True):
    """Where the steps lie that a decision rests on: names records, never content.

    Attributes:
        topic: The topic as it is called on this cluster.
        partition: Partition of that topic.
        offsets: First and last offset, both included.
    """

    topic: ShortText
    partition: Count
    offsets: Annotated[list[Count], Meta(min_length=2, max_length=2)]


class Command(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One order to one run, or to its tree. Idempotent by `command_id`, fenced by `(epoch, seq)` per writer.

    `type`, `scope`, `mode` and `writer` are open on the wire: a runtime answers what it does not know with
    `unsupported` instead of failing to read it.

    Attributes:
        command_id: Derived from what caused it: the same events give the same id, and it is applied once.
        type: What to do.
        run_id: The run that is meant.
        issued_at_ms: When the writer decided, in Unix milliseconds.
        expires_at_ms: End of its life, in Unix milliseconds by the clock of `issued_at_ms`.
        epoch: The writer's ownership of the steps partition; with `seq` it fences out a stale writer.
        seq: Rises with every command of this writer; the detector takes the offset of the step that caused it.
        incarnation: The incarnation that is meant; `*` is any.
        root_run_id: Root of the run's tree: the key of the acknowledgement.
        scope: `tree` means the run and its descendants.
        mode: Anything but `enforce` is not carried out, and acknowledged `noop`.
        writer: Who gave the order. Fencing compares within one writer.
        reason: Why.
        message_id: Template of the message that a nudge shows to the model.
        message: Free text instead of a template; only if signed and allowed by policy.
        grace_ms: How long running code may go on after the gate is shut.
        evidence: The records that the decision rests on.
    """

    v: Version
    command_id: CommandId
    type: ShortText
    tenant: Tenant
    run_id: RunId
    issued_at_ms: TimestampMs
    expires_at_ms: TimestampMs
    epoch: Count
    seq: Count
    incarnation: Incarnation = ANY_INCARNATION
    root_run_id: RunId | None = None
    scope: ShortText = "run"
    mode: ShortText = "enforce"
    writer: ShortText = "detector"
    reason: Reason | None = None
    message_id: ShortText | None = None
    message: Annotated[str, Meta(max_length=4096)] | None = None
    grace_ms: Count | None = None
    evidence: EvidenceRange | None = None
    kid: KeyId | None = None
    sig: Signature | None = None
