"""Limits of tenants on a broker: many runs in all partitions, and a worker that dies."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests._support.fleet import Event, records
from tests._support.kafka import ApacheKafka
from tests._support.workers import Deployment, wait_until

pytestmark = pytest.mark.kafka

POLICY = """
tenants:
  acme: {tenant_limits: {max_calls_per_min: 40, max_cost_usd_per_day: 100.0, max_live_runs: 1000}}
"""


def calls(name: str, *, runs: int, tenant: str = "acme") -> list[Event]:
    """Return one priced call by each of some runs that go on, a moment ago."""
    now_ms = time.time_ns() // 1_000_000
    common = {"v": 1, "tenant": tenant, "ts_ms": now_ms, "type": "tool_end", "seq": 0, "tool": "search"}
    more = {"args": {"q": 1}, "outcome": "ok", "cost_usd": 0.5}
    return [{**common, **more, "run_id": f"{name}-{number}"} for number in range(runs)]


def said(deployment: Deployment) -> list[dict[str, Any]]:
    """Return what was said of tenants, each id once."""
    found = [one for one in deployment.messages("verdicts") if one["detector"] == "tenant_limits"]
    return list({one["verdict_id"]: one for one in found}.values())


@pytest.mark.parametrize("checkpoint_ms", [300, 600_000])
def test_what_all_runs_do_is_counted_once_whoever_dies(
    apache_kafka: ApacheKafka, tmp_path: Path, checkpoint_ms: int
) -> None:
    """Killed after the first half was counted: the heir goes on from there, and the other tenant has no limit."""
    with Deployment(apache_kafka.bootstrap, tmp_path, policy=POLICY, session_timeout_ms=60_000) as deployment:
        dying = deployment.start(instance="one", checkpoint_ms=checkpoint_ms).ready()
        deployment.write(records([*calls("a", runs=20), *calls("b", runs=90, tenant="globex")], deployment.partitions))
        wait_until(lambda: dying.metric("loopwarden_tenant_calls_per_minute", tenant="acme") == 20, "the calls")
        dying.kill()
        heir = deployment.start(instance="one").ready()
        deployment.write(records(calls("c", runs=19), deployment.partitions))
        deployment.wait_applied("steps")
        wait_until(lambda: heir.metric("loopwarden_tenant_cost_usd_per_day", tenant="acme") == 19.5, "the cost")
        assert heir.metric("loopwarden_tenant_cost_usd_per_day", tenant="globex") == 45.0
        deployment.write(records(calls("d", runs=1), deployment.partitions))
        wait_until(lambda: [one["level"] for one in said(deployment)][-1:] == ["nudge"], "the limit to be told of")

        levels = [(one["level"], one["pattern"], one["evidence"]["limit"]) for one in said(deployment)]
        expected = [(level, "rate_runaway", "max_calls_per_min") for level in ("observe", "nudge")]
        assert levels == expected
        last = said(deployment)[-1]
        assert (last["tenant"], last["run_id"], last["evidence"]["used"]) == ("acme", "*", 40)
        wait_until(lambda: heir.metric("loopwarden_tenant_live_runs", tenant="acme") == 40, "the live runs")
        assert heir.metric("loopwarden_tenant_limit_used_ratio", tenant="acme", limit="max_live_runs") == 0.04
        assert heir.metric("loopwarden_tenant_limit_used_ratio", tenant="globex") == 0
        assert heir.metric("loopwarden_recovery_faults_total") == 0
        assert heir.metric("loopwarden_dead_letters_total") == 0
        assert heir.stop() == 0
