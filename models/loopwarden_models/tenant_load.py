"""What a tenant's runs do and spend, on `loopwarden.tool-health`: the share of one partition of steps in one second.

One key for a tenant, so that one worker sees all of it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from loopwarden_models.events import CostUsd, Count, Tenant, TimestampMs, Version


class LoadSecond(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The calls that ended, and what was spent, in one second of event time.

    Attributes:
        at_ms: Beginning of the second, in Unix milliseconds.
        calls: Tool calls that ended, however.
        cost_usd: US dollars, of tools and models.
    """

    at_ms: TimestampMs
    calls: Count = 0
    cost_usd: CostUsd = 0.0


class TenantLoad(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one partition of steps saw of one tenant since its last message. Key `tenant|load`, partition by the tenant.

    What was counted before is known as for a partial sum. `live_runs` is a level instead, and the newest of each
    partition holds for a minute.

    Attributes:
        type: `tenant_load`.
        at_ms: When it was sent, by the sender's clock, in Unix milliseconds.
        partition: Partition of the steps topic.
        epoch: Of that partition's owner.
        first_offset: Offset of the first step that was added up.
        last_offset: Offset of the last one.
        seconds: The sums, oldest second first, each second once.
        live_runs: Runs of the partition that have begun and not ended.
    """

    v: Version
    type: Literal["tenant_load"]
    tenant: Tenant
    at_ms: TimestampMs
    partition: Count
    epoch: Count
    first_offset: Count = 0
    last_offset: Count = 0
    seconds: list[LoadSecond] = []
    live_runs: Annotated[int, Meta(ge=0, le=2**53 - 1)] | None = None


def load_key(tenant: str) -> bytes:
    """Return the key of a tenant's loads."""
    return f"{tenant}|load".encode()
