"""The policy in force in a worker: read from the topic `policies` at the start, and followed from then on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Final

from loopwarden_models.errors import LoopwardenError
from loopwarden_models.policy import Policy
from loopwarden_models.policy_version import stamp
from loopwarden_streams.metrics import Metrics
from loopwarden_streams.partition import Partition
from loopwarden_streams.policy_documents import EVERYONE, Change, PolicyDocuments
from loopwarden_streams.settings import Settings
from loopwarden_streams.topic_tail import TopicTail

log = logging.getLogger(__name__)

POLICIES: Final = "policies"
_POLL_S: Final = 1.0
_FIRST_BACKOFF_S: Final = 1.0
_MAX_BACKOFF_S: Final = 30.0


class PolicyInForce:
    """Holds the policy that the parts of a worker judge by. It is replaced as a whole, between two batches.

    Attributes:
        policy: Read it once for a batch, and judge all of the batch by it.
    """

    __slots__ = ("policy",)

    def __init__(self, policy: Policy) -> None:
        self.policy = policy


class PolicyFollower:
    """Lets the documents of the topic take effect. One event loop owns it."""

    def __init__(
        self,
        settings: Settings,
        base: Policy,
        in_force: PolicyInForce,
        partitions: Mapping[int, Partition],
        metrics: Metrics,
    ) -> None:
        """Lay documents over `base`, and put what comes out into `in_force`."""
        self._settings = settings
        self._documents = PolicyDocuments(base, settings.mode)
        self._in_force = in_force
        self._partitions = partitions
        self._metrics = metrics
        self._tail = self._new_tail()
        self._task: asyncio.Task[None] | None = None
        in_force.policy = self._documents.policy

    async def start(self) -> None:
        """Read the topic to its end, and begin to follow it.

        Raises:
            ConfigError: The topic does not exist.
            TransportError: The brokers cannot be reached.
        """
        await self._tail.open()
        await self._take([(record.key, record.value) for record in await self._tail.to_end()])
        self._task = asyncio.get_running_loop().create_task(self._follow())

    async def stop(self) -> None:
        """Follow no more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._tail.close()

    async def _follow(self) -> None:
        backoff_s = _FIRST_BACKOFF_S
        is_open = True
        while True:
            try:
                if not is_open:
                    await self._reopen()
                    is_open = True
                records = await self._tail.next(_POLL_S)
                if records:
                    await self._take([(record.key, record.value) for record in records])
                backoff_s = _FIRST_BACKOFF_S
            except LoopwardenError as error:
                # The policy in force stays so; what was written meanwhile is read after the reconnect.
                log.warning("the topic of policies cannot be read, the policy in force stays: %s", error)
                is_open = False
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)

    async def _reopen(self) -> None:
        await self._tail.close()
        self._tail = self._new_tail()
        await self._tail.open()
        await self._take([(record.key, record.value) for record in await self._tail.to_end()])

    async def _take(self, changes: list[Change]) -> None:
        before = self._in_force.policy
        # In a thread: hundreds of tenants with layers take a second to check, and events must not wait for it.
        await asyncio.to_thread(self._documents.apply, changes)
        policy = self._documents.policy
        if policy is not before:
            await between_batches(self._partitions, lambda: self._put(policy))
            self._metrics.count_policy_change("applied")
        if self._documents.refused:
            self._metrics.count_policy_change("refused")
        self._metrics.set_policies_refused(len(self._documents.refused))
        self._metrics.set_policies({key: stamp(policy, "" if key == EVERYONE else key) for key in self._keys()})

    def _put(self, policy: Policy) -> None:
        self._in_force.policy = policy
        for partition in self._partitions.values():
            partition.tools.policy = partition.tasks.policy = partition.tenants.policy = policy
        log.info("policy in force: %s", ", ".join(f"{key} {stamp(policy, key)}" for key in self._keys()))

    def _keys(self) -> list[str]:
        return [EVERYONE, *sorted(self._documents.documents.keys() - {EVERYONE})]

    def _new_tail(self) -> TopicTail:
        return TopicTail(self._settings, {self._settings.topic(POLICIES): "beginning"})


async def between_batches(partitions: Mapping[int, Partition], change: Callable[[], object]) -> None:
    """Call `change` while no partition is in the middle of a chunk of records or of a tick.

    What was judged by the old policy is handed over, and stamped with its version, before the new one is there.
    """
    while True:
        owned = list(partitions.values())
        async with contextlib.AsyncExitStack() as held:
            # Everybody else holds one at a time, so the order alone keeps two of these from each other.
            for partition in sorted(owned, key=lambda one: one.number):
                await held.enter_async_context(partition.lock)
            if owned == list(partitions.values()):
                change()
                return
