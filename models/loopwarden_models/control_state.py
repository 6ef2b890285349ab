"""Records of the compacted topic `loopwarden.control.state`: breakers, runs, fences and the global switch.

State is level-triggered: a runtime reads it from the beginning, and the highest version of a key wins,
whatever the order of arrival.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from loopwarden_models.commands import CommandId, KeyId, Reason, Signature
from loopwarden_models.events import Count, Incarnation, ShortText, TimestampMs, ToolName, Version

StateVersion = Annotated[list[Count], Meta(min_length=2, max_length=2, description="`[epoch, seq]`, compared in order")]
StateKey = Annotated[str, Meta(min_length=3, max_length=512, description="The key of the Kafka record, once more.")]

BreakerStateName = Literal["closed", "open", "half_open", "forced_open", "disabled", "observe_only"]
RunStateName = Literal["open", "kill_wanted", "killed", "paused", "released"]


class Probe(Struct, frozen=True):
    """Which runs may try a half-open tool: those whose hash with `epoch` lies below `share`.

    Attributes:
        epoch: Goes up with each half-opening, so that other runs get a turn.
        share: Part of all runs that may try, from 0 to 1.
    """

    epoch: Count
    share: Annotated[float, Meta(ge=0, le=1)]


class BreakerState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State of one tool of one tenant. Key `tenant|breaker|tool`. An open breaker whose lease is over is closed.

    Attributes:
        state: Whether calls pass; `half_open` lets the probes through.
        opened_at_ms: When it opened last, in Unix milliseconds.
        lease_until_ms: Until when an open breaker binds unless it is renewed. `forced_open` and `disabled` have none.
        reopen_count: How often a probe sent it back to `open`.
        retry_after_ms: How long a caller should wait before it tries again.
        probe: Which runs may try while it is half open.
        reason: Why it opened.
        writer: Who wrote it; what an operator ordered is lifted by an operator only.
    """

    v: Version
    key: StateKey
    version: StateVersion
    state: ShortText
    opened_at_ms: TimestampMs | None = None
    lease_until_ms: TimestampMs | None = None
    reopen_count: Count = 0
    retry_after_ms: Count | None = None
    probe: Probe | None = None
    reason: Reason | None = None
    kid: KeyId | None = None
    sig: Signature | None = None
    writer: ShortText = "detector"


class BlockedTool(Struct, frozen=True):
    """A tool that one run may not use until `until_ms`.

    Attributes:
        tool: Name of the tool, as the steps have it.
        until_ms: The end of the block in Unix milliseconds.
        verdict_id: The verdict that led to it.
    """

    tool: ToolName
    until_ms: TimestampMs
    verdict_id: CommandId


class RunRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What binds a run beyond the life of a command. Key `tenant|run|run_id`.

    `open`: only `blocked_tools` binds. `kill_wanted`: binds the named incarnation until it expires. `killed`:
    binds every later incarnation until a person releases it. `paused`, `released`: as they say.

    Attributes:
        state: What binds the run, see above.
        incarnation: The incarnation that `kill_wanted` is meant for; `*` is any.
        command_id: The command that says the same to whoever listens now.
        expires_at_ms: End of `kill_wanted` or `paused`, in Unix milliseconds by the broker's clock.
        reason: Why.
        blocked_tools: Tools that this run alone may not use.
        writer: Who ordered it; what an operator ordered is lifted by an operator only.
    """

    v: Version
    key: StateKey
    version: StateVersion
    state: ShortText
    incarnation: Incarnation = "*"
    command_id: CommandId | None = None
    expires_at_ms: TimestampMs | None = None
    reason: Reason | None = None
    blocked_tools: list[BlockedTool] = []
    writer: ShortText = "detector"
    kid: KeyId | None = None
    sig: Signature | None = None


class FenceRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A new owner of a steps partition announces its epoch. Key `*|fence|<partition>`.

    Attributes:
        epoch: What an older writer's commands are refused by.
        owner: Name of the worker, for people.
        at_ms: When it took over, in Unix milliseconds.
    """

    v: Version
    key: StateKey
    epoch: Count
    owner: ShortText
    at_ms: TimestampMs
    kid: KeyId | None = None
    sig: Signature | None = None


class EnforcementRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The big switch. Key `*|enforcement|global`; `observe_only` turns every command into advice.

    Attributes:
        state: `enforce` or `observe_only`.
        reason: Why it was switched, and by whom.
    """

    v: Version
    key: StateKey
    version: StateVersion
    state: ShortText
    kid: KeyId | None = None
    sig: Signature | None = None
    reason: Reason | None = None


def run_record_key(tenant: str, run_id: str) -> str:
    """Return the key of a run's record on `control.state`."""
    return f"{tenant}|run|{run_id}"


def breaker_key(tenant: str, tool: str) -> str:
    """Return the key of a tool's breaker on `control.state`."""
    return f"{tenant}|breaker|{tool}"


def fence_key(steps_partition: int) -> str:
    """Return the key of the fence record of one partition of the steps topic."""
    return f"*|fence|{steps_partition}"


ENFORCEMENT_KEY = "*|enforcement|global"
