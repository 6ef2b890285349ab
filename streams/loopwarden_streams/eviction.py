"""Who loses run trees when a worker holds more than it may: whoever holds the most, so that nobody is pushed out."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from loopwarden_streams.partition import Partition


class Evicted(NamedTuple):
    """One tree that goes: its partition and its key."""

    partition: int
    key: bytes


def choose(partitions: Mapping[int, Partition], surplus: int) -> list[Evicted]:
    """Return `surplus` trees, or all that there are: of the tenants that hold the most, each one's idlest.

    What is left is shared out like water: every tenant keeps what it has up to one level, the same for all. A tenant
    with a million runs loses its own before one with ten loses any.

    Cost: two passes over all trees.
    """
    held = Counter(tree.tenant for partition in partitions.values() for tree in partition.trees.values())
    level = _level(list(held.values()), sum(held.values()) - surplus)
    quotas = {tenant: count - level for tenant, count in held.items() if count > level}
    candidates: dict[str, list[tuple[int, int, bytes]]] = {tenant: [] for tenant in quotas}
    for number, partition in partitions.items():
        for key, tree in partition.trees.items():
            if tree.tenant in quotas:
                candidates[tree.tenant].append((tree.now_ms, number, key))
    # The last tenant's share may be more than is left to take: the level is a whole number.
    chosen: list[Evicted] = []
    for tenant, quota in sorted(quotas.items(), key=lambda one: -one[1]):
        idlest = heapq.nsmallest(min(quota, surplus - len(chosen)), candidates[tenant])
        chosen += [Evicted(number, key) for _, number, key in idlest]
    return chosen


def _level(counts: list[int], room: int) -> int:
    """Return the highest level up to which every count fits into `room`, by itself or cut off there."""
    left = max(room, 0)
    waiting = sorted(counts)
    for at, count in enumerate(waiting):
        share = left // (len(waiting) - at)
        if count > share:
            return share
        left -= count
    return waiting[-1] if waiting else 0
