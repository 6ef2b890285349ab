"""Many tools: whose breaker opens, how many may, and under which policy."""

from __future__ import annotations

from typing import Any

from tests._support.tools import T0, second, sums

from loopwarden_detectors.tool_fleet import IDLE_MS, KEPT_MS, MAX_TOOLS, ToolFleet, breaker_mode
from loopwarden_models.events import ToolEnd, ToolError
from loopwarden_models.policy import DEFAULT_POLICY, Policy


def fail(fleet: ToolFleet, tool: str, *, tenant: str = "acme", at_s: int = 0, offset: int = 0) -> list[tuple[str, str]]:
    """Let a tool fail everywhere, and return what became of its breaker."""
    said = fleet.second(tenant, tool, second(at_s, failed=12), offset)
    return [(one.before, one.after) for one in said if one.is_change]


def test_one_tenants_trouble_is_its_own() -> None:
    """Its account is suspended; the others' is not."""
    fleet = ToolFleet(DEFAULT_POLICY)

    assert fail(fleet, "search", tenant="borealis") == [("closed", "open")]
    fleet.second("acme", "search", second(0, ok=12), 1)
    assert list(fleet.held) == [("borealis", "search")]


def test_no_more_than_a_tenth_of_the_tools_is_held_open() -> None:
    """At least one may be; and when one closes there is room for another."""
    fleet = ToolFleet(DEFAULT_POLICY)
    for number in range(29):
        fleet.second("acme", f"tool-{number}", second(0, ok=1), number)

    opened = [tool for tool in ("tool-0", "tool-1", "tool-2") if fail(fleet, tool)]
    assert opened == ["tool-0", "tool-1"]
    fleet.second("acme", "tool-29", second(0, ok=1), 29)
    assert fail(fleet, "tool-3", at_s=1) == [("closed", "open")]


def test_a_policy_that_warns_lets_breakers_act() -> None:
    """They hold one tool back for a while; what a policy shadows or switches off, it does for them as well."""
    modes = {mode: breaker_mode(Policy(mode=mode), 0) for mode in ("off", "shadow", "warn", "enforce")}
    own = Policy.from_builtins({"mode": "enforce", "fleet_breaker": {"mode": "warn"}})

    assert modes == {"off": "off", "shadow": "shadow", "warn": "enforce", "enforce": "enforce"}
    assert breaker_mode(own, 0) == "warn"


def test_a_tenant_and_a_tool_have_numbers_of_their_own() -> None:
    """The layers that exist, without the agents'."""
    policy = Policy.from_builtins(
        {
            "tenants": {"acme": {"tools": {"search": {"fleet_breaker": {"mode": "shadow"}}}}},
            "tools": {"flaky": {"fleet_breaker": {"min_failures": 13, "failures_in_a_row": 50}}},
        }
    )
    fleet = ToolFleet(policy)

    assert fail(fleet, "search") == []
    assert fail(fleet, "search", tenant="borealis") == [("closed", "open")]
    assert fail(fleet, "flaky") == []


def test_a_sum_that_was_read_before_is_not_counted_again() -> None:
    """Neither by its own offset, nor by the offsets that it adds up."""
    fleet = ToolFleet(DEFAULT_POLICY)
    failing = sums(second(0, failed=6), first=0, last=5)

    assert fleet.count(failing, 10).admission == "new"
    assert fleet.count(failing, 10).admission == "duplicate"
    assert fleet.count(failing, 11).admission == "duplicate"
    assert fleet.tools["acme", "search"].failures == 6
    assert fleet.count(sums(second(0, failed=6), first=6, last=11), 12).transitions[-1].after == "open"


def test_a_tenant_cannot_fill_the_memory_with_names() -> None:
    """What makes up ever new names is left out, and the tools that are known go on."""
    fleet = ToolFleet(DEFAULT_POLICY)
    for number in range(MAX_TOOLS):
        fleet.second("acme", f"tool-{number}", second(0, ok=1), number)

    assert fleet.count(sums(second(0, ok=1), first=0, last=0, tool="one-more"), 1).admission == "crowded"
    assert fleet.count(sums(second(0, ok=1), first=0, last=0, tool="tool-7"), MAX_TOOLS).admission == "new"


def test_a_single_call_is_weighed_like_a_sum() -> None:
    """As a replay counts: errors of the arguments left out, slow by the tool's own limit."""
    policy = Policy.from_builtins({"tools": {"search": {"fleet_breaker": {"slow_ms": 1_000}}}})
    fleet = ToolFleet(policy)

    def call(outcome: str, number: int, **more: Any) -> None:
        step = ToolEnd(v=1, tenant="acme", run_id=f"r{number}", seq=1, ts_ms=T0, tool="search", outcome=outcome, **more)
        fleet.call("acme", step, number)

    call("error", 0)
    call("error", 1, error=ToolError(status=404))
    call("ok", 2, duration_ms=1_001)
    call("ok", 3, duration_ms=1_000)
    call("blocked", 4)
    tool = fleet.tools["acme", "search"]

    assert (tool.calls, tool.failures, tool.slow) == (3, 1, 1)


def test_a_person_takes_the_breaker_and_gives_it_back() -> None:
    """Or closes it by hand; what stands so already is left as it is."""
    fleet = ToolFleet(DEFAULT_POLICY)
    fail(fleet, "search")

    assert fleet.set_by_hand("acme", "unseen", "closed", 1) is None
    assert fleet.set_by_hand("acme", "search", "closed", 1) is not None
    assert not fleet.held
    assert fleet.set_by_hand("acme", "search", "closed", 1) is None
    assert fleet.set_by_hand("acme", "search", "forced_open", 1) is not None
    assert not fleet.held
    assert fail(fleet, "search", at_s=5) == []
    assert fleet.set_by_hand("acme", "search", "closed", 1) is not None
    assert fail(fleet, "search", at_s=6) == [("closed", "open")]
    assert fleet.set_by_hand("acme", "unseen", "disabled", 2) is not None


def test_what_is_out_of_use_is_forgotten_and_comes_back_newer() -> None:
    """What was open is kept as long as its record; its next record must win over the one that is left."""
    fleet = ToolFleet(DEFAULT_POLICY)
    fleet.second("acme", "idle", second(0, ok=1), 1)
    fail(fleet, "search", offset=2)
    idle, search = fleet.tools["acme", "idle"], fleet.tools["acme", "search"]

    assert not fleet.forgettable(idle, T0 + IDLE_MS)
    assert fleet.forgettable(idle, T0 + IDLE_MS + 1)
    assert not fleet.forgettable(search, T0 + KEPT_MS + 1)
    while fleet.held:
        fleet.tick(search.until_ms + 1)
    assert not fleet.forgettable(search, search.now_ms + KEPT_MS)
    assert fleet.forgettable(search, search.now_ms + KEPT_MS + 1)
    fleet.forget(search)
    fleet.second("acme", "search", second(0, ok=1), 4_000)
    assert fleet.tools["acme", "search"].version > search.version
