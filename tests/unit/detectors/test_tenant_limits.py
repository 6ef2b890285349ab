"""What all runs of a tenant do and spend, against what they may."""

from __future__ import annotations

from typing import Any

import pytest

from loopwarden_detectors import tenant_fleet
from loopwarden_detectors.tenant_fleet import TenantFleet
from loopwarden_detectors.tenant_limits import DAY_S, LIVE_MS, TenantState
from loopwarden_models.errors import StateCorrupt
from loopwarden_models.policy import Policy
from loopwarden_models.tenant_load import LoadSecond, TenantLoad
from loopwarden_models.verdicts import Verdict

T0_S = 1_760_000_000


class Tenant:
    """One tenant under limits, and the loads of its partitions."""

    def __init__(self, **limits: Any) -> None:
        self.fleet = TenantFleet(Policy.from_builtins({"tenant_limits": limits} if limits else {}))
        self._offset = self._step = 0

    def says(
        self,
        at_s: int,
        *,
        calls: int = 0,
        usd: float = 0.0,
        live: int | None = None,
        partition: int = 0,
        tenant: str = "acme",
        **more: Any,
    ) -> list[Verdict]:
        """Return what is said of one load, sent at once."""
        self._offset += 1
        self._step += 100
        second = LoadSecond(at_ms=(T0_S + at_s) * 1000, calls=calls, cost_usd=usd)
        place = {"first_offset": self._step, "last_offset": self._step + 9} | more
        load = TenantLoad(
            v=1,
            type="tenant_load",
            tenant=tenant,
            at_ms=(T0_S + at_s) * 1000,
            partition=partition,
            epoch=place.pop("epoch", 1),
            seconds=[second] if calls or usd else [],
            live_runs=live,
            **place,
        )
        return self.fleet.load(load, self._offset, busiest=lambda: ["search"])


def told(said: list[Verdict]) -> list[tuple[str, str, str | None]]:
    """Return level, pattern and limit."""
    return [(one.level, one.pattern, one.evidence.limit) for one in said]


def test_nothing_is_said_where_nothing_is_set() -> None:
    """What is much for one tenant is little for another."""
    assert Tenant().says(0, calls=10**6, usd=10**6, live=10**6) == []


def test_calls_of_all_partitions_add_up() -> None:
    """Said at 80 %, and at the limit; for people, with the tools that are called most."""
    tenant = Tenant(max_calls_per_min=100)
    assert tenant.says(0, calls=50) == []
    (first,) = tenant.says(1, calls=35, partition=1)
    assert tenant.says(2, calls=10) == []
    (second,) = tenant.says(3, calls=5, partition=2)

    assert told([first, second]) == [
        ("observe", "rate_runaway", "max_calls_per_min"),
        ("nudge", "rate_runaway", "max_calls_per_min"),
    ]
    assert (second.run_id, second.recovery, second.evidence.tools) == ("*", "ask_a_person", ["search"])
    assert (second.evidence.used, second.evidence.allowed, second.evidence.count) == (100, 100, 100)
    assert first.verdict_id != second.verdict_id


def test_it_is_said_again_after_it_was_below() -> None:
    """A minute slides; of a long excess nothing more is said."""
    tenant = Tenant(max_calls_per_min=100)
    levels = [(at, one.level) for at in range(0, 300, 20) for one in tenant.says(at, calls=50)]
    assert levels == [(20, "nudge")]
    assert told(tenant.says(400, calls=120)) == [("nudge", "rate_runaway", "max_calls_per_min")]


def test_money_is_counted_by_minute_and_by_day() -> None:
    """A day slides by ten minutes."""
    tenant = Tenant(max_cost_usd_per_min=10.0, max_cost_usd_per_day=30.0)
    assert told(tenant.says(0, usd=9.0)) == [("observe", "budget_exceeded", "max_cost_usd_per_min")]
    assert tenant.says(3_600, usd=7.0) == []
    assert told(tenant.says(7_200, usd=7.5)) == []
    assert told(tenant.says(10_800, usd=7.0)) == [("nudge", "budget_exceeded", "max_cost_usd_per_day")]
    assert tenant.says(DAY_S + 4_800, usd=1.0) == []  # the first two are out of it
    state = tenant.fleet.tenants["acme"]
    assert state.used(state.now_ms, state.sent_ms)["max_cost_usd_per_day"] == pytest.approx(15.5)


def test_live_runs_are_a_level_of_each_partition() -> None:
    """The newest word of a partition counts, that of a former owner does not, and it holds for a minute."""
    tenant = Tenant(max_live_runs=10)
    assert tenant.says(0, live=6) == []
    assert told(tenant.says(1, live=4, partition=1, epoch=3)) == [("nudge", "rate_runaway", "max_live_runs")]
    assert tenant.says(2, live=9, partition=1, epoch=2) == []
    assert tenant.says(3, live=1, partition=1, epoch=3) == []
    state = tenant.fleet.tenants["acme"]
    assert state.used(0, (T0_S + 3) * 1000)["max_live_runs"] == 7
    assert state.used(0, (T0_S + 4) * 1000 + LIVE_MS)["max_live_runs"] == 0


def test_what_was_counted_before_is_left_out() -> None:
    """Sent again by a new owner, or by a former one that does not know."""
    tenant = Tenant()
    tenant.says(0, calls=5, first_offset=10, last_offset=20, epoch=2)
    for place in ((10, 20, 3), (15, 20, 3), (15, 30, 3), (31, 40, 2)):
        tenant.says(1, calls=100, first_offset=place[0], last_offset=place[1], epoch=place[2])
    tenant.says(1, calls=2, first_offset=31, last_offset=40, epoch=3)

    state = tenant.fleet.tenants["acme"]
    assert state.used(state.now_ms, 0)["max_calls_per_min"] == 7


def test_a_snapshot_is_the_state() -> None:
    """And bytes that are none are refused."""
    tenant = Tenant(max_calls_per_min=10)
    tenant.says(0, calls=10, usd=0.5, live=3)
    state = tenant.fleet.tenants["acme"]
    data = state.to_bytes()

    assert TenantState.from_bytes(data) == state
    with pytest.raises(StateCorrupt, match="checksum"):
        TenantState.from_bytes(data[:-1])


def test_a_day_of_a_busy_tenant_is_small() -> None:
    """It is saved with every checkpoint."""
    tenant = Tenant()
    for at in range(0, 2 * DAY_S, 30):
        tenant.says(at, calls=3, usd=0.01, live=2)

    assert len(tenant.fleet.tenants["acme"].to_bytes()) < 5_000


def test_made_up_tenants_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were not heard of for longest go, and what is silent for a day."""
    monkeypatch.setattr(tenant_fleet, "MAX_TENANTS", 300)
    tenant = Tenant()
    for number in range(1_000):
        tenant.says(number, calls=1, tenant=f"t{number}")
        tenant.says(number, calls=1)

    assert 100 <= len(tenant.fleet.tenants) <= 300
    assert {"acme", "t999"} <= tenant.fleet.tenants.keys()
    assert "t0" in tenant.fleet.changed
    tenant.fleet.forget_old((T0_S + 999 + DAY_S + 3_601) * 1000)
    assert not tenant.fleet.tenants
