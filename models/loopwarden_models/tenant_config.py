"""How much all runs of a tenant may do and spend together."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from loopwarden_models.rule_config import Percent, RuleConfig


class TenantLimitsConfig(RuleConfig, frozen=True):
    """What all runs of a tenant may do and spend together (`tenant_limits`). For people: nobody is stopped.

    None is set by default: what is much for one tenant is little for another.
    """

    # Tool calls of all runs within a minute of event time. None = no limit.
    max_calls_per_min: Annotated[int, Meta(ge=1, le=1_000_000_000)] | None = None
    # US dollars within a minute of event time. None = no limit.
    max_cost_usd_per_min: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    # US dollars within 24 hours of event time. None = no limit.
    max_cost_usd_per_day: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    # Runs that have begun and not ended. None = no limit.
    max_live_runs: Annotated[int, Meta(ge=1, le=1_000_000_000)] | None = None
    # Part of a limit that is said and no more. public: Redpanda warns at 80 %.
    warn_percent: Percent = 80
