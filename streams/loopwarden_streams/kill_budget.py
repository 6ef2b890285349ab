"""How much may be killed by mistake: kills a minute, and the share of a tenant's live runs. No input, no output."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from math import ceil

from loopwarden_models.policy import BlastRadiusConfig

MINUTE_MS = 60_000
# In which the share of live runs is looked at: a tenth of a fleet may not go faster than people can see it. judgement
SHARE_WINDOW_MS = 600_000


class KillBudget:
    """Counts the kills of one worker. Limits are of the whole fleet; a worker has the share of its partitions.

    State: one time for each kill of the last ten minutes, which the limits themselves bound.
    """

    def __init__(self, limits: BlastRadiusConfig) -> None:
        """Allow what `limits` say of all tenants together; each tenant's own are given with the question."""
        self._limits = limits
        self._all: deque[int] = deque()
        self._of_tenant: dict[str, deque[int]] = {}
        self._live: Mapping[str, int] = {}

    def set_limits(self, limits: BlastRadiusConfig) -> None:
        """Allow what `limits` say of all tenants together, from now on."""
        self._limits = limits

    def set_live(self, live: Mapping[str, int]) -> None:
        """Set how many runs of each tenant are alive on this worker."""
        self._live = live

    def refusal(self, tenant: str, limits: BlastRadiusConfig, *, share: float, now_ms: int) -> str | None:
        """Return why no further run of the tenant may be killed now, `None` if one may.

        Args:
            tenant: Of the run.
            limits: In force for the tenant.
            share: This worker's part of the fleet, over 0 and at most 1.
            now_ms: Wall clock, Unix milliseconds. A clock that is put back frees nothing before its time comes again.

        Cost: 1 µs, and what has grown old since the last question.
        """
        _drop_old(self._all, now_ms - MINUTE_MS)
        killed = self._of_tenant.get(tenant)
        if killed is not None:
            _drop_old(killed, now_ms - SHARE_WINDOW_MS)
            if not killed:
                del self._of_tenant[tenant]
        killed = killed or deque()
        allowed = ceil(self._limits.kills_per_min_total * share)
        if len(self._all) >= allowed:
            return f"{len(self._all)} kills of all tenants within a minute, {allowed} are allowed on this worker"
        allowed = ceil(limits.kills_per_min * share)
        lately = sum(at_ms > now_ms - MINUTE_MS for at_ms in killed)
        if lately >= allowed:
            return f"{lately} kills within a minute, {allowed} are allowed on this worker"
        if limits.killed_percent < 100:  # noqa: PLR2004 - per cent
            # Those that were killed were alive as well.
            runs = self._live.get(tenant, 0) + len(killed)
            allowed = max(ceil(limits.killed_min * share), runs * limits.killed_percent // 100)
            if len(killed) >= allowed:
                return f"{len(killed)} of {runs} runs killed within ten minutes, {allowed} are allowed on this worker"
        return None

    def note(self, tenant: str, at_ms: int) -> None:
        """Count a kill that goes out at `at_ms`."""
        self._all.append(at_ms)
        self._of_tenant.setdefault(tenant, deque()).append(at_ms)


def _drop_old(times: deque[int], before_ms: int) -> None:
    while times and times[0] <= before_ms:
        times.popleft()
