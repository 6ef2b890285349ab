"""Who loses run trees when a worker holds too many."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from loopwarden_detectors.run_state import TreeState
from loopwarden_streams.eviction import choose
from loopwarden_streams.partition import Partition


def holding(**trees: int) -> dict[int, Partition]:
    """Return two partitions that hold so many trees of each tenant; of each, the first are the idlest."""
    partitions = {number: Partition(number=number, epoch=0, next_offset={}) for number in (0, 1)}
    for tenant, count in trees.items():
        for number in range(count):
            tree = TreeState(tenant=tenant, root_run_id=f"r{number}")
            tree.now_ms = number
            partitions[number % 2].trees[f"{tenant}|r{number}".encode()] = tree
    return partitions


def taken(surplus: int, **trees: int) -> Counter[str]:
    """Return how many trees each tenant loses."""
    return Counter(key.decode().partition("|")[0] for _, key in choose(holding(**trees), surplus))


def test_a_flood_pushes_out_its_own_runs_alone() -> None:
    """Though all of the other tenant's have been idle for longer."""
    partitions = holding(small=10, flood=1_000)
    for partition in partitions.values():
        for tree in partition.trees.values():
            tree.now_ms += 10**6 * (tree.tenant == "flood")
    gone = choose(partitions, 200)

    assert {key for _, key in gone} == {f"flood|r{number}".encode() for number in range(200)}
    assert all(key in partitions[number].trees for number, key in gone)


def test_equals_lose_alike() -> None:
    """And one tenant alone loses its idlest, as it must."""
    assert taken(30, a=100, b=100, c=100) == {"a": 10, "b": 10, "c": 10}
    assert taken(5, a=8) == {"a": 5}
    assert taken(60, a=100, b=50, c=10) == {"a": 55, "b": 5}


@given(
    counts=st.lists(st.integers(0, 30), min_size=1, max_size=5),
    surplus=st.integers(1, 200),
)
def test_as_many_go_as_must_and_nobody_below_the_others(counts: list[int], surplus: int) -> None:
    """No tenant that loses one keeps less than a tenant that had less, but for one."""
    before = {f"t{at}": count for at, count in enumerate(counts)}
    lost = taken(surplus, **before)
    after = {tenant: count - lost[tenant] for tenant, count in before.items()}

    assert lost.total() == min(surplus, sum(counts))
    losers = [after[tenant] for tenant in before if lost[tenant]]
    assert not losers or min(losers) >= max(after.values()) - len(counts)
