"""Thresholds of the breaker that all runs of a tool share, with where each number comes from."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from loopwarden_models.rule_config import Milliseconds, Percent, Repeats, RuleConfig
from loopwarden_models.tool_health import MAX_RUN_HASHES


class BreakerConfig(RuleConfig, frozen=True):
    """The circuit breaker of one tool of one tenant (`fleet_breaker`).

    `mode: inherit` acts in `warn` as well: it holds one tool back for a while and ends nothing. In `shadow` and `off`
    it is as every rule.
    """

    rising: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("observe", "min_failures", "failures_in_a_row"),
        ("pause_ms", "max_pause_ms"),
    )

    # public: Polly 30 s. Seconds are the unit of the sums.
    window_ms: Annotated[int, Meta(ge=5_000, le=60_000)] = 30_000
    # judgement; public: Hystrix 20, Polly and Resilience4j 100, for services that are called far more often.
    min_calls: Repeats = 10
    # Failures, of several runs and half of the calls, that are said and no more. judgement
    observe: Repeats = 3
    # public: 5 failures trip the breaker of Microsoft's toolkit, and Envoy's.
    min_failures: Repeats = 5
    # public: Hystrix and Resilience4j 50 %.
    failed_percent: Percent = 50
    # One looping run must not close a tool for everybody. judgement
    min_runs: Annotated[int, Meta(ge=2, le=MAX_RUN_HASHES)] = 3
    # Runs that all retry on the minute are never ten in one window, and none ever gets through: failures of `min_runs`
    # runs without one success in between, however far apart up to two minutes. judgement; public: Envoy 5.
    failures_in_a_row: Repeats = 20
    # What a call of the tool may take. None = nobody said, and no call is slow.
    slow_ms: Annotated[int, Meta(ge=1)] | None = None
    # Part of the calls that took longer. judgement
    slow_percent: Percent = 80
    # public: Envoy 30 s, growing to 300 s.
    pause_ms: Milliseconds = 30_000
    # public: Envoy 300 s.
    max_pause_ms: Milliseconds = 300_000
    # judgement; public: Resilience4j 10, Polly and Hystrix 1.
    probes: Repeats = 3
    # Part of all runs that may try while it is half open. judgement
    probe_share: Annotated[float, Meta(gt=0, le=1)] = 0.05
    # No probe reported for so long: the share is doubled, then it is opened again. judgement
    probe_wait_ms: Milliseconds = 60_000
    # An open breaker binds for so long unless its owner renews it, which it does every third of it. judgement
    lease_ms: Annotated[int, Meta(ge=15_000, le=600_000)] = 90_000
    # Of a tenant's known tools, at least one, held open without an operator. public: Envoy 10 %.
    max_open_percent: Percent = 10
