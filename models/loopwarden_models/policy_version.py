"""Which policy a verdict was judged by, in a text short enough to carry."""

from __future__ import annotations

import msgspec

from loopwarden_models.hashes import content_hash
from loopwarden_models.policy import Policy


def stamp(policy: Policy, tenant: str) -> str:
    """Return the version of what holds for a tenant: its name for itself, `@`, and a hash of 16 hex digits.

    The hash is over every value that can decide about the tenant's runs, layers of agents and tools included, and over
    nothing of other tenants. The name is that of the tenant's layer, if it has one.

    Args:
        policy: With its layers, as it is in force for all.
        tenant: Whose version; `""` for a tenant without a layer.

    Cost: a millisecond, once for each tenant that has a layer; then 0.2 µs.
    """
    own = policy.tenants.get(tenant)
    key = tenant if own else ""
    found = policy.stamps.get(key)
    if found is None:
        data = msgspec.to_builtins(policy)
        data["tenants"] = {tenant: data["tenants"][tenant]} if own else {}
        name = own.get("version", policy.version) if own else policy.version
        found = policy.stamps[key] = f"{name}@{content_hash(data)}"
    return found
