"""Adds up, per tenant and second, the calls and the cost of one partition of steps, until they are sent."""

from __future__ import annotations

from collections.abc import Mapping

from loopwarden_models.codec import encode
from loopwarden_models.events import MAX_COST_USD
from loopwarden_models.ids import control_partition
from loopwarden_models.tenant_load import LoadSecond, TenantLoad, load_key
from loopwarden_streams.batch_writer import Out
from loopwarden_streams.tool_sums import MAX_SECONDS, MAX_SINGLE


class _Load:
    __slots__ = ("calls", "cost", "first_offset", "last_offset")

    def __init__(self, first_offset: int) -> None:
        self.first_offset = self.last_offset = first_offset
        self.calls: dict[int, int] = {}
        self.cost: dict[int, float] = {}


class TenantLoads:
    """The loads that were not sent yet. Owned by one event loop.

    Attributes:
        is_full: Something is to be sent before its time.
        live: Live runs by tenant, as last counted and not sent yet.
    """

    def __init__(self) -> None:
        self._loads: dict[str, _Load] = {}
        self._single: list[tuple[str, _Load]] = []
        self._single_left = MAX_SINGLE
        self.is_full = False
        self.live: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._loads or self._single or self.live)

    def add(self, tenant: str, at_ms: int, calls: int, cost_usd: float, offset: int) -> None:
        """Add one step that was applied; offsets must rise. Cost: 0.25 µs."""
        load = self._loads.get(tenant)
        if load is None:
            load = self._loads[tenant] = _Load(offset)
        load.last_offset = offset
        second = at_ms // 1000
        load.calls[second] = load.calls.get(second, 0) + calls
        if cost_usd:
            load.cost[second] = load.cost.get(second, 0.0) + cost_usd
        if len(load.calls) >= MAX_SECONDS:
            self.is_full = True

    def add_again(self, tenant: str, at_ms: int, calls: int, cost_usd: float, offset: int) -> None:
        """Add a step that a former owner may have sent, as a load of its own: see `ToolSums.add_again`."""
        self.add(tenant, at_ms, calls, cost_usd, offset)
        if self._single_left:
            self._single_left -= 1
            self._single.append((tenant, self._loads.pop(tenant)))
            if len(self._single) >= MAX_SECONDS:
                self.is_full = True

    def take(self, partition: int, epoch: int, partitions: int, now_ms: int) -> dict[int, list[Out]]:
        """Return what is to be sent, by partition of `tool-health`, and begin anew. Arguments as `ToolSums.take`."""
        # The single ones lie before all others in the source.
        taken: list[tuple[str, _Load | None]] = [*self._single, *self._loads.items()]
        live, self.live = self.live, {}
        taken += [(tenant, None) for tenant in live.keys() - self._loads.keys()]
        self._single, self._loads = [], {}
        self.is_full = False
        out: dict[int, list[Out]] = {}
        for tenant, load in taken:
            message = TenantLoad(
                v=1,
                type="tenant_load",
                tenant=tenant,
                at_ms=now_ms,
                partition=partition,
                epoch=epoch,
                first_offset=load.first_offset if load else 0,
                last_offset=load.last_offset if load else 0,
                seconds=_seconds(load.calls, load.cost, now_ms // 1000) if load else [],
                live_runs=live.get(tenant),
            )
            out.setdefault(control_partition(tenant, partitions), []).append(Out(load_key(tenant), encode(message)))
        return out


def _seconds(calls: Mapping[int, int], cost: Mapping[int, float], now: int) -> list[LoadSecond]:
    """Return the seconds, oldest first. Nothing happens in the future, whatever the clock of its host says."""
    joined: dict[int, tuple[int, float]] = {}
    for second, n in calls.items():
        at = min(second, now)
        before = joined.get(at, (0, 0.0))
        joined[at] = (before[0] + n, before[1] + cost.get(second, 0.0))
    return [
        LoadSecond(at_ms=at * 1000, calls=n, cost_usd=min(usd, MAX_COST_USD)) for at, (n, usd) in sorted(joined.items())
    ]
