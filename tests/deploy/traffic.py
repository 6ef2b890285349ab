"""Plausible traffic of a small fleet, put into the metrics of a worker: nothing stays at zero."""

from __future__ import annotations

from typing import get_args

from loopwarden_detectors.ladder import ALARMS
from loopwarden_detectors.tool_fleet import RULES
from loopwarden_models.acks import ACK_STATUSES
from loopwarden_models.errors import REASONS
from loopwarden_models.patterns import LevelName, Mode
from loopwarden_models.verdicts import Evidence, Verdict
from loopwarden_streams import metric_catalogue as of
from loopwarden_streams.metric_catalogue import (
    DroppedSum,
    EvictionReason,
    HoleKind,
    IgnoredReason,
    OrderState,
    RecoveryFault,
    ReplayKind,
)
from loopwarden_streams.metric_meaning import TIERS, Missed
from loopwarden_streams.metric_policy import PolicyChange
from loopwarden_streams.metric_questions import QuestionStatus, WebhookFailure
from loopwarden_streams.metrics import Metrics


def verdict(
    *,
    detector: str = "cycle",
    level: LevelName = "kill",
    mode: Mode = "enforce",
    episode: int = 1,
    vetoed_from: LevelName | None = None,
) -> Verdict:
    """Return a verdict about a run of tenant `acme`."""
    return Verdict(
        v=1,
        verdict_id="v",
        tenant="acme",
        run_id="r",
        root_run_id="r",
        incarnation="1",
        at_ms=0,
        detector=detector,
        pattern="tool_oscillation",
        level=level,
        mode=mode,
        loop_id="00000000000000ff",
        episode=episode,
        evidence=Evidence(count=5),
        vetoed_from=vetoed_from,
    )


def fill(metrics: Metrics) -> None:
    """Let every metric move once. Call it again and again for rates."""
    for tenant in ("acme", "umbrella"):
        metrics.count_steps(tenant, 40)
        metrics.count_tool_calls({(tenant, "search"): 20, (tenant, "read_file"): 5})
        metrics.count_tokens(tenant, input_n=5_000, output_n=700, reasoning_n=300)
        metrics.count_cost(tenant, 0.02)
        metrics.count_saved_cost(tenant, 0.1)
        metrics.count_step_after_kill(tenant)
    metrics.set_active_runs({"acme": 12, "umbrella": 3})
    metrics.set_state_entries("runs", 15)
    metrics.observe_step_lag(0.02)
    _fill_pipeline(metrics)
    for detector in RULES:
        for level, mode in (("nudge", "enforce"), ("kill", "warn"), ("kill", "shadow")):
            metrics.count_verdict(verdict(detector=detector, level=level, mode=mode, vetoed_from="kill"))  # type: ignore[arg-type]  # mypy widens the tuple to str
        metrics.observe_detection(detector, 0.03)
        for command in ("nudge", "pause_run", "kill_run"):
            metrics.count_command("acme", command, "enforce", detector)
    metrics.set_breakers({("acme", "search"): "open", ("umbrella", "search"): "half_open"})
    metrics.set_state_entries("tools", 9)
    for gauge in (of.TENANT_CALLS, of.TENANT_COST_MINUTE, of.TENANT_COST_DAY, of.TENANT_LIVE_RUNS):
        metrics.set_gauge(gauge, {("acme",): 12.5, ("umbrella",): 3})
    metrics.set_gauge(of.TENANT_LIMIT_USED, {("acme", "max_calls_per_min"): 0.4, ("acme", "max_live_runs"): 0.85})
    for state in ("open", "half_open", "closed"):
        metrics.count_transition("acme", "search", state)
    metrics.count_probes("acme", ok=3, failed=1)
    metrics.count_held_back("acme")
    for dropped in get_args(DroppedSum):
        metrics.count_sum_dropped(dropped)
    for status in ACK_STATUSES:
        metrics.count_ack(status, 12.0)
    metrics.count_ack("melted")
    for alarm in ALARMS:
        metrics.count_alarm(alarm)
    metrics.count_resent()
    metrics.count_kill_confirmed()
    metrics.count_suppressed("kill_budget")
    metrics.set_open_orders(dict.fromkeys(get_args(OrderState), 1))
    metrics.set_policies({"*": "prod-7@0011223344556677", "acme": "acme-2@8899aabbccddeeff"})
    metrics.set_policies_refused(1)
    metrics.set_enforcing(True)
    metrics.set_open_questions({"acme": 2}, 90.0)
    for question in get_args(QuestionStatus):
        metrics.count_question(question)
    for tier in TIERS:
        metrics.set_model(tier, True)
        metrics.count_texts(tier, 3)
    for missed in get_args(Missed):
        metrics.count_unconfirmed(missed, 1)
    metrics.observe_confirmation(0.02)
    metrics.count_webhook()
    for failure in get_args(WebhookFailure):
        metrics.count_webhook(failure)
    for change in get_args(PolicyChange):
        metrics.count_policy_change(change)


def _fill_pipeline(metrics: Metrics) -> None:
    metrics.set_owned(range(3))
    for partition in range(3):
        for topic in ("loopwarden.steps", "loopwarden.acks"):
            metrics.set_lag(topic, partition, records=7, commit_age_seconds=1.5)
        metrics.set_broken("loopwarden.steps", partition, is_broken=partition == 0)
    for reason in REASONS:
        metrics.count_dead_letter(reason)
    metrics.count_dead_letters_dropped()
    for ignored in get_args(IgnoredReason):
        metrics.count_ignored(ignored)
    for hole in get_args(HoleKind):
        metrics.count_hole(hole)
    for replayed in get_args(ReplayKind):
        metrics.count_replayed(replayed)
    for evicted in get_args(EvictionReason):
        metrics.count_evictions(evicted)
    for fault in get_args(RecoveryFault):
        metrics.count_recovery_fault(fault)
    metrics.observe_checkpoint(0.04, [900, 2_000, 5_000])
    metrics.count_checkpoint_failure()
    metrics.observe_recovery(3.0)
