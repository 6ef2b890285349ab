"""Acknowledgements: what a runtime did with a command, on `loopwarden.acks`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from loopwarden_models.commands import CommandId
from loopwarden_models.events import RunId, ShortText, Tenant, TimestampMs, Version

AckStatus = Literal["received", "applied", "noop", "expired", "stale", "unsupported", "failed", "confirmed_dead"]
ACK_STATUSES: tuple[AckStatus, ...] = (
    "received",
    "applied",
    "noop",
    "expired",
    "stale",
    "unsupported",
    "failed",
    "confirmed_dead",
)


class Ack(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One answer to one command.

    Attributes:
        command_id: The command that is answered.
        run_id: The run that answers; a command for a tree is answered by each of its runs.
        status: What became of it.
        at_ms: When, in Unix milliseconds.
        root_run_id: Root of the run's tree; default `run_id`.
        runtime_id: Which process answers, for people.
        latency_ms: From the append of the command to the answer, measured at the runtime.
        detail: Why, for `failed` and `noop`.
    """

    v: Version
    command_id: CommandId
    tenant: Tenant
    run_id: RunId
    status: ShortText
    at_ms: TimestampMs
    root_run_id: RunId | None = None
    runtime_id: ShortText | None = None
    latency_ms: Annotated[float, Meta(ge=0)] | None = None
    detail: Annotated[str, Meta(max_length=1024)] | None = None
