"""What a person's order is made of: the command, the record that binds whoever comes later, and the audit of it.

Everything here is pure; `operator_desk` sends it. An order fences by `[epoch, seq]`, the epoch in Unix milliseconds:
higher than everything that operators have said of the key, also where their clocks differ.
"""

from __future__ import annotations

import uuid
from typing import Final, Literal, NamedTuple

from msgspec import Struct

from loopwarden.fencing import OPERATOR
from loopwarden_models.codec import TENANT_PATTERN
from loopwarden_models.commands import ANY_INCARNATION, Command, Reason
from loopwarden_models.control_state import (
    ENFORCEMENT_KEY,
    BreakerState,
    BreakerStateName,
    EnforcementRecord,
    RunRecord,
    RunStateName,
    breaker_key,
    run_record_key,
)
from loopwarden_models.errors import ConfigError
from loopwarden_models.events import MAX_INT
from loopwarden_models.operator_actions import OperatorAction

OrderType = Literal["kill_run", "pause_run", "resume_run"]
EnforcementState = Literal["enforce", "observe_only"]

PATTERN: Final = "operator_order"
MAX_WHY: Final = 256
MAX_WHO: Final = 128
MAX_RUN_ID: Final = 128
MAX_TOOL: Final = 256

# For an incarnation that runs: time enough to be read, as a detector's kill (control-plane 9). For any: a run that has
# not begun may wait in its queue for hours.
NAMED_TTL_MS: Final = 120_000
ANY_TTL_MS: Final = 21_600_000
GRACE_MS: Final = 5_000

_STATES: Final[dict[OrderType, RunStateName]] = {
    "kill_run": "kill_wanted",
    "pause_run": "paused",
    "resume_run": "released",
}


class Person(NamedTuple):
    """Who gives an order, and why."""

    who: str
    why: str

    def reason(self, tool: str | None = None) -> Reason:
        """Return what commands and states carry of it: the words, and then the name."""
        note = f"{self.why} ({self.who})" if self.why else self.who
        return Reason(pattern=PATTERN, detector=OPERATOR, tool=tool, note=note[:MAX_WHY])


class RunOrder(Struct, frozen=True):
    """An order to a run in its three forms."""

    action: OperatorAction
    record: RunRecord
    command: Command


def check_names(tenant: str, *, who: str, why: str, run_id: str = "-", tool: str = "-") -> None:
    """Refuse what no record may hold.

    Raises:
        ConfigError: Names the argument, its value and what it may be.
    """
    if TENANT_PATTERN.fullmatch(tenant) is None:
        raise ConfigError(f"tenant {tenant!r}: 1 to 64 characters out of letters, digits and ._-")
    texts = (("run", run_id, MAX_RUN_ID), ("tool", tool, MAX_TOOL), ("--who", who, MAX_WHO))
    for name, value, longest in texts:
        if not 0 < len(value) <= longest:
            raise ConfigError(f"{name} {value!r}: must have 1 to {longest} characters")
    if len(why) > MAX_WHY:
        raise ConfigError(f"--why has {len(why)} characters, at most {MAX_WHY} fit: put the rest into your ticket")


def next_version(newest: list[int] | None, now_ms: int) -> list[int]:
    """Return a version above `newest`: the time, or one more where a clock was ahead of ours.

    Raises:
        ConfigError: There is none left: somebody wrote the highest there can be.
    """
    if newest is None or newest[0] < now_ms:
        return [now_ms, 0]
    if newest[1] < MAX_INT:
        return [newest[0], newest[1] + 1]
    if newest[0] < MAX_INT:
        return [newest[0] + 1, 0]
    raise ConfigError(f"version {newest} is the highest there can be: delete the key from control.state first")


def order_run(
    kind: OrderType,
    tenant: str,
    run_id: str,
    person: Person,
    *,
    version: list[int],
    now_ms: int,
    incarnation: str = ANY_INCARNATION,
    scope: str = "run",
    root_run_id: str | None = None,
    ttl_ms: int | None = None,
    grace_ms: int = GRACE_MS,
    before: str | None = None,
) -> RunOrder:
    """Return an order to a run.

    Args:
        kind: What to do.
        tenant: Whose run.
        run_id: Which.
        person: Who, and why.
        version: From `next_version`.
        now_ms: Unix milliseconds.
        incarnation: `*` = any, now or later.
        scope: `run`, or `tree`: its descendants too.
        root_run_id: Of its tree, if known.
        ttl_ms: Life of the order. By default that of a running incarnation, or six hours for any. A pause without one
            stands until it is released; only its command has a life.
        grace_ms: How long code that runs may go on after a kill.
        before: What the run's record says now.
    """
    life_ms = ttl_ms if ttl_ms is not None else ANY_TTL_MS if incarnation == ANY_INCARNATION else NAMED_TTL_MS
    expires_at_ms = now_ms + life_ms
    record_expires = expires_at_ms if kind == "kill_run" or (kind == "pause_run" and ttl_ms is not None) else None
    command_id = uuid.uuid4().hex
    reason = person.reason()
    key = run_record_key(tenant, run_id)
    command = Command(
        v=1,
        command_id=command_id,
        type=kind,
        tenant=tenant,
        run_id=run_id,
        root_run_id=root_run_id,
        incarnation=incarnation,
        scope=scope,
        mode="enforce",
        writer=OPERATOR,
        issued_at_ms=now_ms,
        expires_at_ms=expires_at_ms,
        epoch=version[0],
        seq=version[1],
        reason=reason,
        grace_ms=grace_ms if kind == "kill_run" else None,
    )
    record = RunRecord(
        v=1,
        key=key,
        version=version,
        state=_STATES[kind],
        incarnation=incarnation,
        command_id=command_id,
        expires_at_ms=record_expires,
        reason=reason,
        writer=OPERATOR,
    )
    action = OperatorAction(
        v=1,
        type="operator_action",
        action_id=command_id,
        action=kind,
        at_ms=now_ms,
        who=person.who,
        why=person.why,
        key=key,
        state=record.state,
        before=before,
        version=version,
        tenant=tenant,
        run_id=run_id,
        root_run_id=root_run_id,
        incarnation=incarnation,
        scope=scope,
        expires_at_ms=record_expires if kind != "resume_run" else None,
    )
    return RunOrder(action, record, command)


def in_force(order: RunOrder) -> RunRecord:
    """Return the record of a kill that was applied: it binds every later incarnation until a person releases it."""
    record = order.record
    return RunRecord(
        v=1,
        key=record.key,
        version=[record.version[0], record.version[1] + 1],
        state="killed",
        incarnation=record.incarnation,
        command_id=record.command_id,
        reason=record.reason,
        writer=OPERATOR,
    )


def switch_enforcement(
    state: EnforcementState, person: Person, *, version: list[int], now_ms: int, before: str | None = None
) -> tuple[OperatorAction, EnforcementRecord]:
    """Return the big switch in a new position, and its audit."""
    record = EnforcementRecord(v=1, key=ENFORCEMENT_KEY, version=version, state=state, reason=person.reason())
    return _audit("set_enforcement", record.key, state, before, version, person, now_ms), record


def set_breaker(
    tenant: str,
    tool: str,
    state: BreakerStateName,
    person: Person,
    *,
    version: list[int],
    now_ms: int,
    before: str | None = None,
) -> tuple[OperatorAction, BreakerState]:
    """Return a breaker in a state that a person wants, and its audit. None of them has a lease."""
    record = BreakerState(
        v=1,
        key=breaker_key(tenant, tool),
        version=version,
        state=state,
        opened_at_ms=now_ms if state == "forced_open" else None,
        reason=person.reason(tool),
        writer=OPERATOR,
    )
    action = _audit("set_breaker", record.key, state, before, version, person, now_ms, tenant=tenant, tool=tool)
    return action, record


def _audit(
    name: str,
    key: str,
    state: str,
    before: str | None,
    version: list[int],
    person: Person,
    now_ms: int,
    *,
    tenant: str | None = None,
    tool: str | None = None,
) -> OperatorAction:
    return OperatorAction(
        v=1,
        type="operator_action",
        action_id=uuid.uuid4().hex,
        action=name,
        at_ms=now_ms,
        who=person.who,
        why=person.why,
        key=key,
        state=state,
        before=before,
        version=version,
        tenant=tenant,
        tool=tool,
    )
