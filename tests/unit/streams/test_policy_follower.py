"""When a policy takes effect in a worker."""

from __future__ import annotations

import asyncio

from loopwarden_streams.partition import Partition
from loopwarden_streams.policy_follower import between_batches


def partition(number: int) -> Partition:
    """Return an empty partition."""
    return Partition(number=number, epoch=1, next_offset={})


def test_a_policy_is_replaced_while_no_partition_is_in_the_middle_of_a_chunk() -> None:
    """What was judged by the old one is handed over, and says so, before the new one is there."""
    order: list[str] = []

    async def scene() -> None:
        owned = {number: partition(number) for number in (0, 1)}
        begun = asyncio.Event()

        async def chunk() -> None:
            async with owned[1].lock:
                begun.set()
                await asyncio.sleep(0.02)
                order.append("chunk is published")

        judging = asyncio.create_task(chunk())
        await begun.wait()
        await between_batches(owned, lambda: order.append("policy"))
        await judging
        assert not any(one.lock.locked() for one in owned.values())

    asyncio.run(scene())
    assert order == ["chunk is published", "policy"]


def test_a_partition_that_comes_meanwhile_is_waited_for_as_well() -> None:
    """A rebalance must not leave one that judges in the middle of the change."""
    changed_under: list[set[int]] = []

    async def scene() -> None:
        owned = {0: partition(0)}
        begun = asyncio.Event()

        async def rebalance() -> None:
            async with owned[0].lock:
                begun.set()
                await asyncio.sleep(0.02)
                owned[1] = partition(1)

        moving = asyncio.create_task(rebalance())
        await begun.wait()
        await between_batches(
            owned, lambda: changed_under.append({number for number, one in owned.items() if one.lock.locked()})
        )
        await moving

    asyncio.run(scene())
    assert changed_under == [{0, 1}]
