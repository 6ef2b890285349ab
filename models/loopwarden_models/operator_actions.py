"""What a person did, and why: the audit of every order that did not come from the detector, on `loopwarden.verdicts`.

Beside the verdicts, because whoever reads later what became of a run asks for both. A record of this kind has a `type`,
which a verdict has not.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from loopwarden_models.commands import CommandId
from loopwarden_models.control_state import StateVersion
from loopwarden_models.events import Incarnation, RunId, ShortText, Tenant, TimestampMs, ToolName, Version

ActionName = Literal[
    "kill_run", "pause_run", "resume_run", "set_enforcement", "set_breaker", "set_policy", "answer_question"
]

Person = Annotated[str, Meta(min_length=1, max_length=128)]
Why = Annotated[str, Meta(max_length=256)]


class OperatorAction(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A person gave an order or set a state. Written before it takes effect, so that nothing happens unrecorded.

    Attributes:
        type: Tells it from a verdict, which has no `type`.
        action_id: Its own id; of an order to a run, that of the command.
        action: What was done; open on the wire.
        at_ms: When, in Unix milliseconds by the clock of the operator's machine.
        who: Who did it, as that machine says.
        why: In that person's words.
        key: The key that was written on `control.state` or on `policies`.
        state: What it says from now on.
        before: What it said before, if anything.
        version: Of what was written.
        tenant: Whose it is; none = of all tenants.
        run_id: The run that is meant.
        root_run_id: Root of the run's tree, where it was known.
        incarnation: The incarnation that is meant; `*` is any.
        scope: `tree` means the run and its descendants.
        tool: The tool whose breaker was set.
        expires_at_ms: Until when the order stands if nothing comes of it, in Unix milliseconds.
        policy: Version of the policy document that was written.
    """

    v: Version
    type: Literal["operator_action"]
    action_id: CommandId
    action: ShortText
    at_ms: TimestampMs
    who: Person
    why: Why
    key: Annotated[str, Meta(min_length=1, max_length=512)]
    state: ShortText | None = None
    before: ShortText | None = None
    version: StateVersion | None = None
    tenant: Tenant | None = None
    run_id: RunId | None = None
    root_run_id: RunId | None = None
    incarnation: Incarnation | None = None
    scope: ShortText | None = None
    tool: ToolName | None = None
    expires_at_ms: TimestampMs | None = None
    policy: ShortText | None = None
