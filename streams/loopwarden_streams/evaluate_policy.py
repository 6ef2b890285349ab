"""Policies for an evaluation: the ladder goes on, and one detector may be switched off. Layers of a policy, too."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from loopwarden_models.policy import Policy

# The ablation's name for a policy with nothing switched off.
ALL_ON: Final = ""

_LAYERS: Final = ("tenants", "agents", "tools")
_Layer = dict[str, Any]


def enforced(policy: Policy) -> Policy:
    """Return `policy` in mode `enforce`: in every other one the ladder stands still.

    Modes of single detectors stay as they are.
    """
    return _changed(
        policy, lambda layer: {name: part for name, part in layer.items() if name != "mode"}, mode="enforce"
    )


def without(policy: Policy, detector: str) -> Policy:
    """Return `policy` with one detector switched off for every tenant, agent and tool; as it is for `ALL_ON`."""
    if detector == ALL_ON:
        return policy

    def change(layer: _Layer) -> _Layer:
        kept = {name: part for name, part in layer.items() if name != detector}
        rule = layer.get(detector)
        if isinstance(rule, Mapping):
            kept[detector] = {name: value for name, value in rule.items() if name not in ("mode", "until")}
        return kept

    # An exemption with an end would come back after it.
    rule = msgspec.structs.asdict(getattr(policy, detector)) | {"mode": "off"}
    off = type(getattr(policy, detector))(**rule | dict.fromkeys({"until"} & rule.keys()))
    return _changed(policy, change, **{detector: off})


def laid_over(policy: Policy, settings: Mapping[str, Any]) -> Policy:
    """Return `policy` with the settings of a case laid over it.

    Raises:
        ConfigError: A setting does not exist, or cannot be what it is.
    """
    if not settings:
        return policy
    return Policy.from_builtins(_merged(msgspec.to_builtins(policy, builtin_types=(dt.date,)), settings))


def _changed(policy: Policy, change: Callable[[_Layer], _Layer], **fields: Any) -> Policy:
    layers = {kind: _relayered(getattr(policy, kind), change) for kind in _LAYERS if getattr(policy, kind, None)}
    return replace(policy, **fields, **layers)


def _relayered(layers: Mapping[str, _Layer], change: Callable[[_Layer], _Layer]) -> dict[str, _Layer]:
    changed = {}
    for name, layer in layers.items():
        inner = {kind: _relayered(layer[kind], change) for kind in _LAYERS if layer.get(kind)}
        changed[name] = {part: value for part, value in (change(layer) | inner).items() if value != {}}
    # A layer that changes nothing is refused.
    return {name: layer for name, layer in changed.items() if layer}


def _merged(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(lower)
    for name, value in upper.items():
        below = merged.get(name)
        merged[name] = _merged(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged
