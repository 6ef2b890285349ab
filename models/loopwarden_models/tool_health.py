"""Partial sums on `loopwarden.tool-health`: what one partition of steps saw of one tool in a quarter of a second.

The owners of runs add up, the owners of tools judge: traffic grows with the number of tools, not of calls.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from loopwarden_models.events import MAX_INT, Count, Tenant, TimestampMs, ToolName, Version
from loopwarden_models.hashes import stable_key

# "One run, or several?" is all that is asked of them; three are enough for every threshold (`BreakerConfig.min_runs`).
MAX_RUN_HASHES: Final = 3

_BITS: Final = 53

RunHashes = Annotated[
    list[Annotated[int, Meta(ge=0, le=MAX_INT, description="Of a run's id.")]], Meta(max_length=MAX_RUN_HASHES)
]


class SecondSum(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The calls that ended in one second of event time. Seconds are never mixed: a breaker's window slides by them.

    Attributes:
        at_ms: Beginning of the second, in Unix milliseconds.
        calls: Calls that say something about the tool: they succeeded, or failed through no fault of the caller.
        failures: Of these, the ones that failed: errors and time-outs.
        slow: Of the others, the ones that took longer than the tool's declared limit.
        failed_runs: Hashes of up to three different runs whose calls failed.
        slow_runs: The same of slow calls.
    """

    at_ms: TimestampMs
    calls: Count
    failures: Count = 0
    slow: Count = 0
    failed_runs: RunHashes = []
    slow_runs: RunHashes = []


class PartialSum(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one partition of steps saw of one tool since its last sum. Key `tenant|tool`, partition by the tenant.

    A sum is known by its source: of a partition, an epoch that is lower, or offsets that do not lie beyond those of the
    last sum of the tool, were counted before.

    Attributes:
        tool: Name of the tool, as the steps have it.
        partition: Partition of the steps topic that the calls lie in.
        epoch: Of that partition's owner.
        first_offset: Offset of the first call that was added up.
        last_offset: Offset of the last one.
        seconds: The sums, oldest second first, each second once.
    """

    v: Version
    tenant: Tenant
    tool: ToolName
    partition: Count
    epoch: Count
    first_offset: Count
    last_offset: Count
    seconds: Annotated[list[SecondSum], Meta(min_length=1)]


def tool_key(tenant: str, tool: str) -> bytes:
    """Return the key of a tool's sums: `tenant|tool`."""
    return f"{tenant}|{tool}".encode()


def run_hash(run_id: str) -> int:
    """Return 53 bits by which runs are told apart in a sum, equal on every machine. Cost: about 0.8 µs."""
    return stable_key(run_id) >> (64 - _BITS)
