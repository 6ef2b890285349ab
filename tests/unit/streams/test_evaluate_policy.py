"""Policies as an evaluation has them."""

from __future__ import annotations

import msgspec
import pytest

from loopwarden_detectors.watch import DETECTORS
from loopwarden_models.policy import Policy
from loopwarden_streams.evaluate_policy import ALL_ON, enforced, laid_over, without

is_layered = "tenants" in Policy.__struct_fields__


@pytest.mark.parametrize("detector", DETECTORS)
def test_one_detector_is_switched_off_and_no_other(detector: str) -> None:
    """The names are the catalogue's: a detector that is added later can be switched off without a change here."""
    policy = without(enforced(Policy()), detector)

    assert [name for name in DETECTORS if policy.mode_of(name) == "off"] == [detector]
    assert {policy.mode_of(name) for name in DETECTORS} == {"off", "enforce"}


def test_nothing_is_switched_off_without_a_name() -> None:
    """The first variant is the policy itself."""
    policy = enforced(Policy())

    assert without(policy, ALL_ON) is policy


@pytest.mark.skipif(not is_layered, reason="policies of this release have no layers")
def test_layers_do_not_hold_the_ladder_back_or_wake_what_is_off() -> None:
    """A tenant in shadow is judged as in enforce, and what is switched off is off for every tenant and tool."""
    layers = {
        "tenants": {"acme": {"mode": "shadow", "agents": {"coder": {"exact_repeat": {"mode": "warn", "nudge": 4}}}}},
        "tools": {"search": {"exact_repeat": {"mode": "shadow"}}},
    }
    policy = enforced(Policy.from_builtins(layers))
    off = without(policy, "exact_repeat")

    told = msgspec.to_builtins(off)
    assert policy.mode == "enforce"
    assert "mode" not in str(msgspec.to_builtins(policy)["tenants"]).replace("'mode': 'warn'", "")
    assert told["tenants"] == {"acme": {"agents": {"coder": {"exact_repeat": {"nudge": 4}}}}}
    assert told["tools"] == {}
    assert laid_over(off, {"rate": {"mode": "shadow"}}).mode_of("rate") == "shadow"


def test_settings_are_laid_over_value_by_value() -> None:
    """What a case does not name keeps the value of the policy."""
    policy = laid_over(Policy(mode="enforce"), {"budget": {"limits": {"max_steps": 12}}})

    assert policy.budget.limits.max_steps == 12
    assert policy.budget.limits.max_cost_usd == Policy().budget.limits.max_cost_usd
    assert laid_over(policy, {}) is policy
