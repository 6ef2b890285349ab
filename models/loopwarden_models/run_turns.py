"""Beginnings and ends of runs on `loopwarden.tool-health`: what whoever watches for restarts is told.

The starts of one task lie in as many partitions as it has runs, for each is the root of a tree of its own. They are
keyed by the task instead, so that one worker sees them all.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from loopwarden_models.events import Count, RunId, ShortText, Tenant, TimestampMs, Version

RunTurnName = Literal["start", "end"]


class RunTurn(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One root run began or ended. Key `tenant|task|<fingerprint>`, partition by the tenant.

    A turn is known by its place in `steps`: what does not lie beyond the last one of its partition was counted before.

    Attributes:
        type: `run_turn`.
        turn: `start` or `end`.
        run_id: The root run.
        fingerprint: Of the task: tenant, agent and goal, without what is new each time. 53 bits.
        at_ms: Event time in Unix milliseconds.
        status: How it ended, as its `run_end` says.
        calls: Tool calls that it had made.
        findings: Of its last calls, as a set: what it asked and what it was told, 53 bits; of a declared write only
            what it asked. 0 = it made none.
        partition: Partition of the steps topic that the event lies in.
        epoch: Of that partition's owner.
        offset: Place of the event in it.
        agent: Which agent it is, `""` = not known.
    """

    v: Version
    type: Literal["run_turn"]
    turn: RunTurnName
    tenant: Tenant
    run_id: RunId
    fingerprint: Count
    at_ms: TimestampMs
    partition: Count
    epoch: Count
    offset: Count
    agent: ShortText = ""
    status: ShortText | None = None
    calls: Count = 0
    findings: Count = 0


def task_key(tenant: str, fingerprint: int) -> bytes:
    """Return the key of a task's turns."""
    return f"{tenant}|task|{fingerprint:014x}".encode()
