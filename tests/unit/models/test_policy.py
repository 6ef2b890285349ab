"""The policy and its layers: who gets which threshold."""

from __future__ import annotations

from typing import Any

import pytest

from loopwarden_models.errors import ConfigError
from loopwarden_models.policy import DEFAULT_POLICY, Policy

DAY_MS = 86_400_000

LAYERED: dict[str, Any] = {
    "mode": "enforce",
    "exact_repeat": {"nudge": 4},
    "tools": {"job": {"effect": "poll", "exact_repeat": {"nudge": 5}}},
    "agents": {"coder": {"exact_repeat": {"kill": 20}, "tools": {"job": {"effect": "read"}}}},
    "tenants": {
        "acme": {
            "mode": "warn",
            "exact_repeat": {"kill": 10},
            "tools": {"job": {"exact_repeat": {"break_at": 7}}},
            "agents": {"coder": {"exact_repeat": {"break_at": 6}}},
        }
    },
}


def repeat_of(policy: Policy) -> tuple[int, int, int]:
    """Return nudge, break and kill of the first rule."""
    return policy.exact_repeat.nudge, policy.exact_repeat.break_at, policy.exact_repeat.kill


@pytest.mark.parametrize(
    ("tenant", "agent", "mode", "numbers"),
    [
        ("umbrella", "", "enforce", (4, 5, 8)),
        ("umbrella", "coder", "enforce", (4, 5, 20)),
        ("acme", "", "warn", (4, 5, 10)),
        ("acme", "coder", "warn", (4, 6, 20)),
        ("acme", "clerk", "warn", (4, 5, 10)),
    ],
)
def test_a_stronger_layer_wins_value_by_value(
    tenant: str, agent: str, mode: str, numbers: tuple[int, int, int]
) -> None:
    """Defaults, tenant, agent of all, agent of the tenant: each changes only what it names."""
    policy = Policy.from_builtins(LAYERED).of(tenant, agent)

    assert policy.mode == mode
    assert repeat_of(policy) == numbers


@pytest.mark.parametrize(
    ("tenant", "agent", "effect", "numbers"),
    [
        ("umbrella", "", "poll", (5, 5, 8)),
        ("umbrella", "coder", "read", (5, 5, 20)),
        ("acme", "", "poll", (5, 7, 10)),
        ("acme", "coder", "read", (5, 7, 20)),
    ],
)
def test_a_tool_is_the_strongest_layer(tenant: str, agent: str, effect: str, numbers: tuple[int, int, int]) -> None:
    """What is said of a tool holds whoever calls it, unless its caller says otherwise of that tool."""
    policy = Policy.from_builtins(LAYERED).of(tenant, agent)

    assert policy.for_tool("job").effects == {"job": effect}
    assert repeat_of(policy.for_tool("job")) == numbers
    assert policy.for_tool("other") is policy


def test_a_policy_without_layers_is_asked_nothing() -> None:
    """The hot path asks one flag."""
    assert not DEFAULT_POLICY.is_layered
    assert Policy.from_builtins(LAYERED).is_layered


def test_the_same_pair_gets_the_same_object() -> None:
    """To make one costs a millisecond; a fleet asks at every step."""
    policy = Policy.from_builtins(LAYERED)

    assert policy.of("acme", "coder") is policy.of("acme", "coder")


def test_an_exemption_ends_on_its_day() -> None:
    """From the first millisecond of that day, by event time, the rule is in force again."""
    policy = Policy.from_builtins({"tenants": {"acme": {"cycle": {"mode": "off", "until": "2030-01-31"}}}})
    end_ms = 21_945 * DAY_MS
    of_acme = policy.of("acme", "")

    assert of_acme.mode_of("cycle", end_ms - 1) == "off"
    assert of_acme.mode_of("cycle", end_ms) == "warn"
    assert policy.of("umbrella", "").mode_of("cycle", 0) == "warn"


def test_a_wall_clock_in_any_layer_makes_ticks_look_at_all() -> None:
    """Ticks skip the runs that no time limit can reach; one in a layer must not be overlooked."""
    limits = {"budget": {"limits": {"max_duration_ms": 60_000}}}

    assert not DEFAULT_POLICY.has_wall_clock
    assert Policy.from_builtins(limits).has_wall_clock
    assert Policy.from_builtins({"agents": {"coder": limits}}).has_wall_clock


def test_a_combination_of_layers_is_checked_when_it_is_loaded() -> None:
    """Two layers that are right alone may be wrong together; not at the first step of such a run."""
    tenant = {"exact_repeat": {"nudge": 5}}
    agent = {"exact_repeat": {"break_at": 4, "kill": 9}}
    Policy.from_builtins({"tenants": {"acme": tenant}})
    Policy.from_builtins({"agents": {"coder": agent}})

    with pytest.raises(ConfigError, match=r"agents\.coder: exact_repeat"):
        Policy.from_builtins({"tenants": {"acme": tenant}, "agents": {"coder": agent}})


# -- a part of the runs


PARTIAL = {"mode": "enforce", "blast_radius": {"enforce_share": 0.3}, "cycle": {"mode": "shadow"}}


def test_enforce_applies_to_a_part_of_the_runs() -> None:
    """By a hash of the root run: the same run decides the same way each time, also in another process."""
    policy = Policy.from_builtins(PARTIAL)
    modes = {f"r{n}": policy.of("acme", "", f"r{n}").mode_of("exact_repeat") for n in range(2_000)}

    assert set(modes.values()) == {"enforce", "warn"}
    assert 500 < sum(mode == "enforce" for mode in modes.values()) < 700
    assert modes["r5"] == Policy.from_builtins(PARTIAL).of("acme", "x", "r5").mode_of("exact_repeat")
    assert {policy.of("acme", "", f"r{n}").mode_of("cycle") for n in range(50)} == {"shadow"}


def test_who_is_in_a_share_is_in_every_larger_one() -> None:
    """A roll-out goes on with the runs that it began with."""

    def enforced(share: float) -> set[int]:
        policy = Policy.from_builtins({"mode": "enforce", "blast_radius": {"enforce_share": share}})
        return {n for n in range(500) if policy.of("acme", "", f"r{n}").mode == "enforce"}

    assert enforced(0.0) == set() < enforced(0.05) < enforced(0.5) < enforced(1.0)


def test_a_share_holds_for_what_tenants_and_tools_enforce() -> None:
    """Whoever said `enforce`: the rest of the runs is warned."""
    policy = Policy.from_builtins(
        {
            "tenants": {"acme": {"mode": "enforce", "blast_radius": {"enforce_share": 0.0}}},
            "tools": {"search": {"exact_repeat": {"mode": "enforce"}}},
        }
    )

    assert policy.of("acme", "", "r1").mode == "warn"
    assert policy.of("acme", "", "r1").for_tool("search").mode_of("exact_repeat") == "warn"
    assert policy.of("globex", "", "r1").for_tool("search").mode_of("exact_repeat") == "enforce"
    assert policy.of("acme", "").mode == "enforce"
