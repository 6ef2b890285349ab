"""The catalogue of metrics: what each counts, in which unit, and what to do when it moves.

Declarations only; `metrics.Metrics` creates them and changes them. No label ever holds a run, a user, an argument or
an error text.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

from prometheus_client import Counter, Gauge, Histogram, Info

from loopwarden_detectors.ladder import ALARMS
from loopwarden_models.acks import ACK_STATUSES
from loopwarden_models.errors import REASONS
from loopwarden_streams.metric_intake import DEAD_LETTERS, EVENTS_REPLAYED, LATENCY, SOURCE_HOLES, STEPS_IGNORED
from loopwarden_streams.metric_labels import OTHER
from loopwarden_streams.metric_meaning import EMBEDDING_LATE, EMBEDDING_TEXTS, TIERS, Missed
from loopwarden_streams.metric_policy import POLICY_CHANGES, PolicyChange
from loopwarden_streams.metric_questions import QUESTIONS, WEBHOOK_FAILURES, QuestionStatus, WebhookFailure
from loopwarden_streams.metric_spec import DECLARED, MetricSpec, metric

# An objective says 30 s; recovery of a large table may take minutes.
_RECOVERY: Final = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
_SNAPSHOT: Final = (256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 65536.0)  # 4 KiB, 8 with texts

StepSource = Literal["runtime"]
IgnoredReason = Literal["unknown_type", "duplicate"]
HoleKind = Literal["sought", "real", "retention"]
ReplayKind = Literal["position", "stamp"]
RecoveryFault = Literal["repaired", "corrupt"]
EvictionReason = Literal["idle", "cap", "ended"]
SuppressionReason = Literal["shadow", "warn", "kill_budget"]
OrderState = Literal["sent", "received", "applied", "unconfirmed", "withheld"]
DroppedSum = Literal["duplicate", "straddling", "stale", "crowded"]

# What is kept.
CHECKPOINT = metric(
    Histogram,
    "checkpoint_seconds",
    "",
    "seconds",
    "Time to write the changed runs and commit.",
    "Near the interval between checkpoints: the broker is slow, or too many runs change.",
    LATENCY,
)
CHECKPOINT_FAILURES = metric(
    Counter,
    "checkpoint_failures_total",
    "",
    "checkpoints",
    "Checkpoints that were given up; the next one covers them.",
    "Repeated: look at the broker, since a crash now replays more, see LoopwardenCommitStalled.",
)
SNAPSHOTS_WRITTEN = metric(
    Counter,
    "snapshots_written_total",
    "",
    "snapshots",
    "Snapshots of runs that checkpoints wrote or deleted.",
    "Follows the runs that are active.",
)
SNAPSHOT_BYTES = metric(
    Histogram,
    "snapshot_bytes",
    "",
    "bytes",
    "Size of the snapshot of a run tree.",
    "Above 8 KiB is a fault of ours: report it.",
    _SNAPSHOT,
)
RECOVERY = metric(
    Histogram,
    "recovery_seconds",
    "",
    "seconds",
    "Time from the assignment of partitions until the worker is ready.",
    "Fail-over time is made of this. Above 30 s: look at compaction of the changelog topic.",
    _RECOVERY,
)
RECOVERY_FAULTS = metric(
    Counter,
    "recovery_faults_total",
    "kind",
    "faults",
    "repaired = a partition's snapshots did not add up and were read again; corrupt = a snapshot cannot be read.",
    "corrupt is a fault of ours: report it with the log line; its run starts afresh. repaired alone needs nothing.",
)
STATE_ENTRIES = metric(
    Gauge,
    "state_entries",
    "table",
    "entries",
    "Entries held in memory.",
    "Steady growth: runs do not end; check that runtimes send run_end.",
)
EVICTIONS = metric(
    Counter,
    "evictions_total",
    "reason",
    "runs",
    "Runs that were forgotten.",
    "cap: more runs than LOOPWARDEN_MAX_RUNS; of the tenants that have most, the idlest are not watched any more.",
)
ACTIVE_RUNS = metric(
    Gauge,
    "active_runs",
    "tenant",
    "runs",
    "Runs that are watched.",
    "Falls to 0 with agents at work: the runtimes do not reach Kafka.",
)
# What is seen and done.
LOOPS_DETECTED = metric(
    Counter,
    "loops_detected_total",
    "tenant detector level",
    "verdicts",
    "Verdicts that ask for a nudge or more, in any mode.",
    "A jump after a release of the agents: look at their verdicts. After one of ours: a rule got greedier.",
)
WOULD_HAVE = metric(
    Counter,
    "would_have_total",
    "tenant detector level",
    "verdicts",
    "Verdicts that the mode kept from being acted on: all in shadow, above a nudge in warn.",
    "Review these before enforcing.",
)
VETOES = metric(
    Counter,
    "vetoes_total",
    "tenant detector",
    "verdicts",
    "Verdicts that signs of progress lowered.",
    "A jump after a release: a rule got greedier.",
)
DETECTION_LATENCY = metric(
    Histogram,
    "detection_latency_seconds",
    "detector",
    "seconds",
    "From the time of the deciding step, by the clock of its source, to the decision.",
    "Objective: 99 % within 2.5 s. Follows step_lag.",
    LATENCY,
)
COMMANDS = metric(
    Counter,
    "commands_total",
    "tenant type mode reason",
    "commands",
    "Commands issued; reason is the detector.",
    "Many kills at once: suspect the detector first, see LoopwardenKillStorm.",
)
COMMANDS_SUPPRESSED = metric(
    Counter,
    "commands_suppressed_total",
    "reason",
    "commands",
    "What led to no command: verdicts in shadow, by policy or because the step was too old, and above a nudge in warn; "
    "kill_budget: kills beyond the blast radius.",
    "shadow rises although the policy does not say so: the detector is far behind. kill_budget: see "
    "LoopwardenKillsSuppressed.",
)
COMMANDS_RESENT = metric(
    Counter,
    "commands_resent_total",
    "",
    "commands",
    "Kills and pauses that went out once more because nobody had answered.",
    "Rises: runtimes are gone, or do not read the command topic.",
)
COMMAND_ALARMS = metric(
    Counter,
    "command_alarms_total",
    "reason",
    "commands",
    "Kills and pauses that do not land; each is a verdict of the rule landing.",
    "Must be 0: see LoopwardenCommandsNotLanding.",
)
KILLS_CONFIRMED = metric(
    Counter,
    "kills_confirmed_total",
    "",
    "kills",
    "Kills whose last run was confirmed dead.",
    "Far below the kills that were issued: runtimes stop late or not at all, see commands_open.",
)
OPEN_ORDERS = metric(
    Gauge,
    "commands_open",
    "state",
    "runs",
    "Runs with a kill or pause that has not landed, by how far it came: sent, received, applied, unconfirmed; "
    "withheld = kept back by the blast radius.",
    "unconfirmed: the code of the run still works, so end its process.",
)
COMMAND_ACKS = metric(
    Counter,
    "command_acks_total",
    "status",
    "acknowledgements",
    "Answers of runtimes to commands.",
    "expired or stale: commands arrive late; failed: look at the runtime's log, the command may be forged; "
    "unsupported: update the runtime.",
)
COMMAND_LATENCY = metric(
    Histogram,
    "command_latency_seconds",
    "",
    "seconds",
    "From the append of a command to its application, as the runtime measured it.",
    "Objective: 99.9 % within 1 s. High: the control consumer of a runtime is starved.",
    LATENCY,
)
STEPS_AFTER_KILL = metric(
    Counter,
    "steps_after_kill_total",
    "tenant",
    "steps",
    "Steps that began after their run's stop was applied.",
    "Must be 0: a runtime does not obey, see LoopwardenStepsAfterKill.",
)
# What all runs of a tenant do and spend: each from the worker that owns the tenant.
TENANT_CALLS = metric(
    Gauge,
    "tenant_calls_per_minute",
    "tenant",
    "calls",
    "Tool calls of all runs of a tenant within the last minute. No series: none.",
    "Far above what is usual: which tools, see the verdicts of tenant_limits.",
)
TENANT_COST_MINUTE = metric(
    Gauge,
    "tenant_cost_usd_per_minute",
    "tenant",
    "US dollars",
    "What all runs of a tenant spent within the last minute, as steps say. No series: nothing.",
    "Rises without more runs: look for long contexts, or one run that loops.",
)
TENANT_COST_DAY = metric(
    Gauge,
    "tenant_cost_usd_per_day",
    "tenant",
    "US dollars",
    "What all runs of a tenant spent within 24 hours, by stretches of ten minutes. No series: nothing.",
    "Set tenant_limits.max_cost_usd_per_day a little above a usual day.",
)
TENANT_LIVE_RUNS = metric(
    Gauge,
    "tenant_live_runs",
    "tenant",
    "runs",
    "Runs of a tenant that have begun and not ended. No series: none.",
    "Grows without end: runs do not say that they end, or something starts them again and again.",
)
TENANT_LIMIT_USED = metric(
    Gauge,
    "tenant_limit_used_ratio",
    "tenant limit",
    "ratio",
    "Part of a limit of tenant_limits that is used; 1 = all of it. No series: no such limit.",
    "1 and more: see LoopwardenTenantOverLimit.",
)
# The breakers of tools.
# Fixed for ever: alerts and dashboards are made of them.
BREAKER_NUMBERS: Final[Mapping[str, int]] = MappingProxyType(
    {"closed": 0, "open": 1, "half_open": 2, "forced_open": 3, "disabled": 4, "observe_only": 5}
)
BREAKER_STATE = metric(
    Gauge,
    "breaker_state",
    "tenant tool",
    "state",
    "Breaker of a tool: 1 open, 2 half_open, 3 forced_open, 4 disabled, 5 observe_only. No series: closed.",
    "Open for long: the tool is down or its limit too strict, see LoopwardenBreakerOpenTooLong.",
)
BREAKER_TRANSITIONS = metric(
    Counter,
    "breaker_transitions_total",
    "tenant tool to",
    "changes",
    "Changes of the breakers of tools; the verdicts say why.",
    "Open and half_open by turns: the tool is not well for long, see LoopwardenBreakerFlapping.",
)
BREAKER_PROBES = metric(
    Counter,
    "breaker_probes_total",
    "tenant outcome",
    "calls",
    "Calls of half-open tools that were reported: ok, or failed (an error, a time-out, or too slow).",
    "None while a breaker is half open: no run that may try calls the tool.",
)
BREAKERS_HELD_BACK = metric(
    Counter,
    "breakers_held_back_total",
    "tenant",
    "verdicts",
    "Breakers that stayed closed because as many tools of the tenant were held open as may be.",
    "Not 0: something that many tools need is down; open more by hand if that helps.",
)
TOOL_SUMS_DROPPED = metric(
    Counter,
    "tool_sums_dropped_total",
    "reason",
    "sums",
    "Partial sums not counted: duplicate, straddling (a part was counted), stale (a former owner), crowded.",
    "Some at a rebalance are normal; crowded: a tenant makes up names of tools.",
)
# What it costs.
TOKENS = metric(
    Counter,
    "tokens_total",
    "tenant kind",
    "tokens",
    "Tokens as reported by runtimes.",
    "Compare with the loops of the tenant before you raise a limit.",
)
COST = metric(
    Counter,
    "cost_usd_total",
    "tenant",
    "US dollars",
    "Cost as reported by runtimes; unknown cost is not counted.",
    "Rises faster than steps: a dearer model, or growing contexts.",
)
SAVED_COST = metric(
    Counter,
    "saved_cost_usd_total",
    "tenant",
    "US dollars, estimate",
    "Estimate of what killed runs would have spent up to the nearer of their limits of steps and cost, at their pace.",
    "An estimate: never call it revenue.",
)
# About the service itself.
LABEL_OVERFLOW = metric(
    Counter,
    "label_overflow_total",
    "label",
    "updates",
    f"Updates counted under {OTHER} because the label had no name left.",
    "More tenants or tools than names: exact figures are in the verdicts topic.",
)
BUILD = metric(
    Info,
    "build_info",
    "",
    "1",
    "Version of the worker.",
    "Two versions for long: a roll-out is stuck.",
)

# All of them, in the order of the page.
# By name: the order of declaration hangs on who imports what first.
CATALOGUE: Final[tuple[MetricSpec[Any], ...]] = tuple(sorted(DECLARED, key=lambda spec: spec.name))

# Values of closed labels. Their series exist from the start, at 0: an increase from nothing to 1 is invisible.
CLOSED: Final[tuple[tuple[MetricSpec[Counter], tuple[str, ...]], ...]] = (
    (STEPS_IGNORED, get_args(IgnoredReason)),
    (QUESTIONS, get_args(QuestionStatus)),
    (WEBHOOK_FAILURES, get_args(WebhookFailure)),
    (EMBEDDING_TEXTS, TIERS),
    (EMBEDDING_LATE, get_args(Missed)),
    (DEAD_LETTERS, (*REASONS, OTHER)),
    (SOURCE_HOLES, get_args(HoleKind)),
    (EVENTS_REPLAYED, get_args(ReplayKind)),
    (RECOVERY_FAULTS, get_args(RecoveryFault)),
    (EVICTIONS, get_args(EvictionReason)),
    (COMMANDS_SUPPRESSED, get_args(SuppressionReason)),
    (COMMAND_ALARMS, ALARMS),
    (COMMAND_ACKS, (*ACK_STATUSES, OTHER)),
    (TOOL_SUMS_DROPPED, get_args(DroppedSum)),
    (POLICY_CHANGES, get_args(PolicyChange)),
    (LABEL_OVERFLOW, ("tenant", "tool", "reason", "status")),
)
