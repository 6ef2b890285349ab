"""The last step before the topics: which kills may go out now, and what is remembered of those that did.

Everything is said as it was decided. A kill beyond the blast radius alone is kept back: its run goes on, may be blocked
from its tools, and is killed at a later lap if there is room again then, by the same command.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

from loopwarden_detectors.base import KILL
from loopwarden_detectors.ladder import Decision, Order
from loopwarden_detectors.landing import is_waited_for, note_sent, withhold
from loopwarden_detectors.run_state import TreeState
from loopwarden_models.events import step_key
from loopwarden_streams.batch_writer import Out
from loopwarden_streams.kill_budget import SHARE_WINDOW_MS, KillBudget
from loopwarden_streams.metrics import Metrics
from loopwarden_streams.outbox import Outbox
from loopwarden_streams.partition import Partition
from loopwarden_streams.policy_follower import PolicyInForce
from loopwarden_streams.reporting import report_decisions
from loopwarden_streams.settings import Settings

log = logging.getLogger("loopwarden.decisions")

# A storm of kills is one alarm, not a line for each run.
ALARM_EVERY_S = 60.0

Decisions = Sequence[tuple[Decision, int]]


class Dispatch:
    """Sends the decisions of the partitions of one worker. Call it under the partition's lock."""

    def __init__(
        self,
        settings: Settings,
        rules: PolicyInForce,
        partitions: Mapping[int, Partition],
        outbox: Outbox,
        metrics: Metrics,
    ) -> None:
        """Send through `outbox`; the share of this worker is that of `partitions`."""
        self._settings = settings
        self._rules = rules
        self._partitions = partitions
        self._outbox = outbox
        self._metrics = metrics
        self._budget = KillBudget(rules.policy.blast_radius)
        self._alarmed: dict[str, float] = {}

    async def send(self, partition: Partition, decisions: Decisions, letters: Sequence[Out] = ()) -> Decisions:
        """Publish what was decided, but for kills beyond the blast radius.

        Args:
            partition: Where the decisions come from.
            decisions: Each with the source offset of the step that decided it.
            letters: Records for the dead-letter topic.

        Returns:
            What went out.

        Raises:
            TransportError: The broker refused something.
        """
        allowed = [one for one in decisions if not self._is_kept_back(partition, one[0])]
        commands = await self._outbox.publish(partition, allowed, letters)
        for command in commands:
            key = step_key(command.tenant, command.root_run_id or command.run_id)
            tree = partition.trees.get(key)
            if tree is not None and command.type != "nudge":
                note_sent(tree, command.command_id, command.issued_at_ms, partition.clock_ms())
                partition.landing.add(key)
                partition.dirty.add(key)
        report_decisions(self._metrics, allowed, commands)
        return allowed

    def set_live(self, live: Mapping[str, int]) -> None:
        """Set how many runs of each tenant are alive on this worker."""
        self._budget.set_live(live)

    def recover(self, partitions: Mapping[int, Partition]) -> None:
        """Take up what a former owner sent: what is waited for, and what counts against the blast radius."""
        now_ms = int(time.time() * 1000)
        kills: dict[str, tuple[int, str]] = {}
        for partition in partitions.values():
            for key, tree in partition.trees.items():
                if is_waited_for(tree):
                    partition.landing.add(key)
                kills |= _kills_of(tree, now_ms - SHARE_WINDOW_MS)
        for at_ms, tenant in sorted(kills.values()):
            self._budget.note(tenant, at_ms)

    def _is_kept_back(self, partition: Partition, decision: Decision) -> bool:
        order = decision.order
        if order is None or order.type != "kill_run" or order.issued_at_ms is not None:
            return False
        if order.is_wider or order.is_after_pause:  # no run that works is hit by mistake
            return False
        tenant = order.tenant
        policy = self._rules.policy
        self._budget.set_limits(policy.blast_radius)
        if policy.is_layered:
            policy = policy.of(tenant, "")
        share = max(1, len(self._partitions)) / self._settings.partitions
        now_ms = int(time.time() * 1000)
        refusal = self._budget.refusal(tenant, policy.blast_radius, share=min(1.0, share), now_ms=now_ms)
        tree = partition.trees.get(step_key(tenant, order.root_run_id))
        if refusal is None or tree is None or not withhold(tree, order.command_id):
            self._budget.note(tenant, now_ms)
            return False
        partition.landing.add(step_key(tenant, order.root_run_id))
        self._metrics.count_suppressed("kill_budget")
        self._alarm(order, refusal)
        return True

    def _alarm(self, order: Order, refusal: str) -> None:
        now = time.monotonic()
        if now < self._alarmed.get(order.tenant, 0.0):
            return
        self._alarmed[order.tenant] = now + ALARM_EVERY_S
        log.error(
            "kills of tenant %s are kept back, such as that of run %s: %s (policy: blast_radius); they are decided in "
            "shadow until there is room",
            order.tenant,
            order.run_id,
            refusal,
        )


def _kills_of(tree: TreeState, after_ms: int) -> dict[str, tuple[int, str]]:
    """Return when each kill of a tree went out, of those after `after_ms`, by command: a tree's counts once."""
    return {
        run.stop.command_id: (run.stop.issued_at_ms, tree.tenant)
        for run in tree.runs.values()
        if run.stop is not None and run.stop.issued_at_ms > after_ms and run.stop.level >= KILL
    }
