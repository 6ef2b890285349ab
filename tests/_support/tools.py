"""Tools under test: sums of their calls, and a breaker with short numbers."""

from __future__ import annotations

from typing import Any

from loopwarden_models.breaker_config import BreakerConfig
from loopwarden_models.tool_health import PartialSum, SecondSum, run_hash

T0 = 1_760_000_000_000
CONFIG = BreakerConfig(mode="enforce")


def second(at_s: int, *, ok: int = 0, failed: int = 0, slow: int = 0, runs: tuple[str, ...] = ("a", "b", "c")) -> Any:
    """Return the calls of the second `at_s` after the beginning; the first three of `runs` failed, or were slow."""
    hashes = [run_hash(run) for run in runs][:3]
    return SecondSum(
        at_ms=T0 + at_s * 1000,
        calls=ok + failed + slow,
        failures=failed,
        slow=slow,
        failed_runs=hashes if failed else [],
        slow_runs=hashes if slow else [],
    )


def sums(*seconds: SecondSum, first: int, last: int, partition: int = 0, epoch: int = 1, **other: Any) -> PartialSum:
    """Return a sum of `seconds` of the tool `search` of `acme`, of the given offsets."""
    named = {"tenant": "acme", "tool": "search"} | other
    return PartialSum(
        v=1, partition=partition, epoch=epoch, first_offset=first, last_offset=last, seconds=list(seconds), **named
    )
