"""Layers of a policy: what a tenant, an agent or a tool has otherwise than the rest.

From the weakest to the strongest: the file's own values, `tenants.T`, `agents.A`, `tenants.T.agents.A`, then the same
four places' `tools.X`. Each names only what it changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from loopwarden_models.errors import ConfigError

Data = Mapping[str, Any]

_SHARED = {
    "fleet_breaker": "all runs of a tool share its breaker, whoever their agent is; set it for the tenant or the tool",
    "tenant_limits": "all runs of a tenant share its limits, whoever their agent is; set it for the tenant",
}

# What a layer may hold besides the parts of a policy.
INNER = {"tenants": ("agents", "tools"), "agents": ("tools",), "tools": ("effect",)}
# What belongs to a run as a whole, so that no single tool can have it otherwise.
NOT_OF_TOOLS = ("budget", "ladder", "rate", "effects", "mode", "blast_radius", "tenant_limits")
# What all runs of a tool or a tenant share, whoever their agent is.
NOT_OF_AGENTS = ("fleet_breaker", "tenant_limits")


def merged(lower: Data, upper: Data) -> dict[str, Any]:
    """Return `lower` with the values of `upper` laid over it, mappings value by value. Neither is changed."""
    result = dict(lower)
    for key, value in upper.items():
        known = result.get(key)
        result[key] = merged(known, value) if isinstance(known, Mapping) and isinstance(value, Mapping) else value
    return result


def layers_for(data: Data, tenant: str, agent: str) -> Iterator[tuple[str, Data]]:
    """Yield `(path, layer)` of all layers that hold for an agent's run of a tenant, from the weakest to the strongest.

    Layers of tools come as `{"tools": …}`: they are laid over the rest when a tool is called.
    """
    of_tenant = _layer(data, "tenants", tenant)
    of_agent = _layer(data, "agents", agent)
    of_both = _layer(of_tenant, "agents", agent)
    found = (
        ("", {"tools": data.get("tools", {})}),
        (f"tenants.{tenant}", of_tenant),
        (f"agents.{agent}", of_agent),
        (f"tenants.{tenant}.agents.{agent}", of_both),
    )
    for path, layer in found:
        if layer:
            yield path, {key: value for key, value in layer.items() if key not in ("tenants", "agents")}


def agents_of(data: Data, tenant: str) -> set[str]:
    """Return the agents that have a layer, for this tenant or for all."""
    return {*data.get("agents", ()), *_layer(data, "tenants", tenant).get("agents", ())}


def check_shape(data: Data, path: str = "", kind: str = "", *, is_of_agent: bool = False) -> None:
    """Refuse what cannot be a layer.

    Args:
        data: The file, or a layer of it.
        path: Where that is, with a dot behind it.
        kind: `tenants`, `agents` or `tools`; nothing for the file itself.
        is_of_agent: It lies in the layer of an agent.

    Raises:
        ConfigError: The message names the path, the value and the remedy.
    """
    for inner in ("tenants", "agents", "tools"):
        if inner not in data:
            continue
        layers = data[inner]
        where = f"{path}{inner}"
        if kind and inner not in INNER[kind]:
            raise ConfigError(f"policy: {where}: a layer of {kind} cannot hold {inner}; name them at the top")
        if not isinstance(layers, Mapping):
            raise ConfigError(f"policy: {where} = {layers!r} must be a mapping from names to what differs there")
        for name, layer in layers.items():
            here = f"{where}.{name}"
            if not isinstance(name, str) or not name:
                raise ConfigError(f"policy: {where}: the name {name!r} is not a text; put it in quotes")
            if not isinstance(layer, Mapping) or not layer:
                raise ConfigError(f"policy: {here} = {layer!r} changes nothing: name what differs, or remove it")
            _check_exemptions(layer, here)
            if inner == "tools":
                _check_tool(layer, here)
            of_agent = is_of_agent or inner == "agents"
            if of_agent:
                _check_agent(layer, here)
            check_shape(layer, f"{here}.", inner, is_of_agent=of_agent)


def holds_key(data: object, key: str) -> bool:
    """Return whether `key` has a value anywhere in `data`."""
    if not isinstance(data, Mapping):
        return False
    return data.get(key) is not None or any(holds_key(value, key) for value in data.values())


def values_of(data: object, key: str) -> Iterator[Any]:
    """Yield every value that `key` has anywhere in `data`."""
    if isinstance(data, Mapping):
        for name, value in data.items():
            if name == key and value is not None:
                yield value
            yield from values_of(value, key)


def _check_tool(layer: Data, path: str) -> None:
    for part in NOT_OF_TOOLS:
        if part in layer:
            remedy = "set it for the tenant" if part == "tenant_limits" else "set it for the tenant or the agent"
            remedy = "write `effect: …`" if part == "effects" else remedy
            raise ConfigError(f"policy: {path}.{part} = {layer[part]!r} is not a matter of one tool: {remedy}")


def _check_agent(layer: Data, path: str) -> None:
    for part in NOT_OF_AGENTS:
        if part in layer:
            raise ConfigError(f"policy: {path}.{part} = {layer[part]!r} has no effect: {_SHARED[part]}")


def _check_exemptions(layer: Data, path: str) -> None:
    """Refuse an exemption without an end: it is made for a week, and nobody remembers it in a year."""
    if layer.get("mode") == "off":
        raise ConfigError(f"policy: {path}.mode = 'off' exempts it from every rule for ever: use shadow")
    for part, rule in layer.items():
        if isinstance(rule, Mapping) and rule.get("mode") == "off" and rule.get("until") is None:
            raise ConfigError(
                f"policy: {path}.{part}.mode = 'off' has no end: add `until: 2030-01-31`, or use shadow, which records"
            )


def _layer(data: Data, kind: str, name: str) -> Data:
    layers: Data = data.get(kind) or {}
    layer: Data = layers.get(name, {}) if name else {}
    return layer
