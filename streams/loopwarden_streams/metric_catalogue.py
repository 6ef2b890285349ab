"""The catalogue of metrics: what each counts, in which unit, and what to do when it moves.

Declarations only; `metrics.Metrics` creates them and changes them. No label ever holds a run, a user, an argument or
an error text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeVar, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from loopwarden_models.acks import ACK_STATUSES
from loopwarden_models.errors import REASONS
from loopwarden_streams.metric_labels import OTHER

# From the propagation target of 10 ms at the median up to what no objective allows any more.
_LATENCY: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
# A worker that catches up after hours must still show how far behind it is.
_LAG: Final = (*_LATENCY, 60.0, 300.0, 1800.0, 7200.0)
# An objective says 30 s; recovery of a large table may take minutes.
_RECOVERY: Final = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
# A snapshot has at most 4 KiB, 8 KiB with texts.
_SNAPSHOT: Final = (256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 65536.0)

StepSource = Literal["runtime"]
IgnoredReason = Literal["unknown_type", "duplicate"]
HoleKind = Literal["sought", "real", "retention"]
ReplayKind = Literal["position", "stamp"]
RecoveryFault = Literal["repaired", "corrupt"]
EvictionReason = Literal["idle", "cap", "ended"]
SuppressionReason = Literal["shadow", "warn"]

M = TypeVar("M", Counter, Gauge, Histogram, Info)


@dataclass(frozen=True, eq=False)
class MetricSpec(Generic[M]):
    """One metric.

    Attributes:
        kind: Class of the client library.
        name: As it is scraped, with the suffix of its kind.
        labels: Names of its labels.
        unit: Of one unit of its value.
        meaning: What is counted or measured, as a sentence.
        remedy: What to do when it moves, as a sentence.
        buckets: Upper bounds, for a histogram.
    """

    kind: type[M]
    name: str
    labels: tuple[str, ...]
    unit: str
    meaning: str
    remedy: str
    buckets: tuple[float, ...] = ()

    @property
    def scraped_labels(self) -> tuple[str, ...]:
        """Names of the labels as they are scraped, without `le`."""
        return ("version",) if self.kind is Info else self.labels

    def create(self, registry: CollectorRegistry) -> M:
        """Create the metric in `registry`; the help text says what it means and what to do."""
        more: dict[str, Any] = {"buckets": self.buckets} if self.buckets else {}
        name = self.name.removesuffix("_info") if self.kind is Info else self.name
        return self.kind(name, f"{self.meaning} {self.remedy}", self.labels, registry=registry, **more)


CATALOGUE: Final[list[MetricSpec[Any]]] = []


def _metric(
    kind: type[M], name: str, labels: str, unit: str, meaning: str, remedy: str, buckets: tuple[float, ...] = ()
) -> MetricSpec[M]:
    spec = MetricSpec(kind, f"loopwarden_{name}", tuple(labels.split()), unit, meaning, remedy, buckets)
    CATALOGUE.append(spec)
    return spec


# What is read.
STEPS_CONSUMED = _metric(
    Counter,
    "steps_consumed_total",
    "tenant source",
    "steps",
    "Steps applied to the state of their run.",
    "Flat while there is lag: the worker is stuck, see LoopwardenDetectorStopped.",
)
STEPS_IGNORED = _metric(
    Counter,
    "steps_ignored_total",
    "reason",
    "steps",
    "Steps that were read and deliberately not applied.",
    "Many duplicates: a runtime sends again; unknown_type: a runtime is newer than the detector, so update it.",
)
TOOL_CALLS = _metric(
    Counter,
    "tool_calls_total",
    "tenant tool",
    "calls",
    "Finished tool calls.",
    "Far above its usual rate: find the runs in the verdicts topic, see LoopwardenToolCallsHigh.",
)
DEAD_LETTERS = _metric(
    Counter,
    "dead_letters_total",
    "reason",
    "records",
    "Records that could not be read and went to the dead-letter topic.",
    "A jump follows a release of a runtime: read one record, its headers name the fault.",
)
DEAD_LETTERS_DROPPED = _metric(
    Counter,
    "dead_letters_dropped_total",
    "",
    "records",
    "Refused records above the limit of the dead-letter topic, counted only.",
    "Not 0: most of a stream is broken, see LoopwardenStreamBroken.",
)
BROKEN_STREAM = _metric(
    Gauge,
    "broken_stream",
    "topic partition",
    "0 or 1",
    "1 while the share of refused records of a partition is above the limit.",
    "1: stop the producer that writes what cannot be read, see LoopwardenStreamBroken.",
)
STEP_LAG = _metric(
    Histogram,
    "step_lag_seconds",
    "",
    "seconds",
    "Age of the last step of each batch when it was applied, by the clock of its source.",
    "Rises with lag: add workers. Without lag: clocks of the agents are wrong.",
    _LAG,
)
CONSUMER_LAG = _metric(
    Gauge,
    "consumer_lag_records",
    "topic partition",
    "records",
    "Records that are written and not yet read.",
    "Grows for minutes: add workers up to the number of partitions, see LoopwardenConsumerLagHigh.",
)
COMMIT_AGE = _metric(
    Gauge,
    "commit_age_seconds",
    "topic partition",
    "seconds",
    "Time since the committed offset last moved while there is lag, else 0.",
    "Above a minute: checkpoints fail or hang, see LoopwardenCommitStalled.",
)
SOURCE_HOLES = _metric(
    Counter,
    "source_holes_total",
    "kind",
    "holes",
    "Gaps in the offsets: sought = read again, real = no record there, retention = records deleted unread.",
    "real and retention should stay 0, see LoopwardenSourceHoles.",
)
EVENTS_REPLAYED = _metric(
    Counter,
    "events_replayed_total",
    "kind",
    "steps",
    "Steps that came again and were skipped, by the reader's position or by the offset in their run's snapshot.",
    "Bursts at a rebalance are normal. Without one, a runtime sends everything twice.",
)
PARTITION_OWNED = _metric(
    Gauge,
    "partition_owned",
    "partition",
    "1",
    "1 for each partition of the steps that this worker owns.",
    "A partition that nobody owns is not watched, see LoopwardenDetectorStopped.",
)
# What is kept.
CHECKPOINT = _metric(
    Histogram,
    "checkpoint_seconds",
    "",
    "seconds",
    "Time to write the changed runs and commit.",
    "Near the interval between checkpoints: the broker is slow, or too many runs change.",
    _LATENCY,
)
CHECKPOINT_FAILURES = _metric(
    Counter,
    "checkpoint_failures_total",
    "",
    "checkpoints",
    "Checkpoints that were given up; the next one covers them.",
    "Repeated: look at the broker, since a crash now replays more, see LoopwardenCommitStalled.",
)
SNAPSHOTS_WRITTEN = _metric(
    Counter,
    "snapshots_written_total",
    "",
    "snapshots",
    "Snapshots of runs that checkpoints wrote or deleted.",
    "Follows the runs that are active.",
)
SNAPSHOT_BYTES = _metric(
    Histogram,
    "snapshot_bytes",
    "",
    "bytes",
    "Size of the snapshot of a run tree.",
    "Above 8 KiB is a fault of ours: report it.",
    _SNAPSHOT,
)
RECOVERY = _metric(
    Histogram,
    "recovery_seconds",
    "",
    "seconds",
    "Time from the assignment of partitions until the worker is ready.",
    "Fail-over time is made of this. Above 30 s: look at compaction of the changelog topic.",
    _RECOVERY,
)
RECOVERY_FAULTS = _metric(
    Counter,
    "recovery_faults_total",
    "kind",
    "faults",
    "repaired = a partition's snapshots did not add up and were read again; corrupt = a snapshot cannot be read.",
    "corrupt is a fault of ours: report it with the log line; its run starts afresh. repaired alone needs nothing.",
)
STATE_ENTRIES = _metric(
    Gauge,
    "state_entries",
    "table",
    "entries",
    "Entries held in memory.",
    "Steady growth: runs do not end; check that runtimes send run_end.",
)
EVICTIONS = _metric(
    Counter,
    "evictions_total",
    "reason",
    "runs",
    "Runs that were forgotten.",
    "cap: more runs than LOOPWARDEN_MAX_RUNS, and the idlest are not watched any more.",
)
ACTIVE_RUNS = _metric(
    Gauge,
    "active_runs",
    "tenant",
    "runs",
    "Runs that are watched.",
    "Falls to 0 with agents at work: the runtimes do not reach Kafka.",
)
# What is seen and done.
LOOPS_DETECTED = _metric(
    Counter,
    "loops_detected_total",
    "tenant detector level",
    "verdicts",
    "Verdicts that ask for a nudge or more, in any mode.",
    "A jump after a release of the agents: look at their verdicts. After one of ours: a rule got greedier.",
)
WOULD_HAVE = _metric(
    Counter,
    "would_have_total",
    "tenant detector level",
    "verdicts",
    "Verdicts that the mode kept from being acted on: all in shadow, above a nudge in warn.",
    "Review these before enforcing.",
)
VETOES = _metric(
    Counter,
    "vetoes_total",
    "tenant detector",
    "verdicts",
    "Verdicts that signs of progress lowered.",
    "A jump after a release: a rule got greedier.",
)
DETECTION_LATENCY = _metric(
    Histogram,
    "detection_latency_seconds",
    "detector",
    "seconds",
    "From the time of the deciding step, by the clock of its source, to the decision.",
    "Objective: 99 % within 2.5 s. Follows step_lag.",
    _LATENCY,
)
COMMANDS = _metric(
    Counter,
    "commands_total",
    "tenant type mode reason",
    "commands",
    "Commands issued; reason is the detector.",
    "Many kills at once: suspect the detector first, see LoopwardenKillStorm.",
)
COMMANDS_SUPPRESSED = _metric(
    Counter,
    "commands_suppressed_total",
    "reason",
    "commands",
    "Verdicts that led to no command: shadow by policy or because the step was too old, warn above a nudge.",
    "shadow rises although the policy does not say so: the detector is far behind, see its lag.",
)
COMMAND_ACKS = _metric(
    Counter,
    "command_acks_total",
    "status",
    "acknowledgements",
    "Answers of runtimes to commands.",
    "expired or stale: commands arrive late; failed: look at the runtime's log, the command may be forged; "
    "unsupported: update the runtime.",
)
COMMAND_LATENCY = _metric(
    Histogram,
    "command_latency_seconds",
    "",
    "seconds",
    "From the append of a command to its application, as the runtime measured it.",
    "Objective: 99.9 % within 1 s. High: the control consumer of a runtime is starved.",
    _LATENCY,
)
STEPS_AFTER_KILL = _metric(
    Counter,
    "steps_after_kill_total",
    "tenant",
    "steps",
    "Steps that began after their run's stop was applied.",
    "Must be 0: a runtime does not obey, see LoopwardenStepsAfterKill.",
)
# What it costs.
TOKENS = _metric(
    Counter,
    "tokens_total",
    "tenant kind",
    "tokens",
    "Tokens as reported by runtimes.",
    "Compare with the loops of the tenant before you raise a limit.",
)
COST = _metric(
    Counter,
    "cost_usd_total",
    "tenant",
    "US dollars",
    "Cost as reported by runtimes; unknown cost is not counted.",
    "Rises faster than steps: a dearer model, or growing contexts.",
)
SAVED_COST = _metric(
    Counter,
    "saved_cost_usd_total",
    "tenant",
    "US dollars, estimate",
    "Estimate of what killed runs would have spent up to their limit at the pace of their last steps.",
    "An estimate: never call it revenue.",
)
# About the service itself.
LABEL_OVERFLOW = _metric(
    Counter,
    "label_overflow_total",
    "label",
    "updates",
    f"Updates counted under {OTHER} because the label had no name left.",
    "More tenants or tools than names: exact figures are in the verdicts topic.",
)
BUILD = _metric(
    Info,
    "build_info",
    "",
    "1",
    "Version of the worker.",
    "Two versions for long: a roll-out is stuck.",
)

# Values of closed labels. Their series exist from the start, at 0: an increase from nothing to 1 is invisible.
CLOSED: Final[tuple[tuple[MetricSpec[Counter], tuple[str, ...]], ...]] = (
    (STEPS_IGNORED, get_args(IgnoredReason)),
    (DEAD_LETTERS, (*REASONS, OTHER)),
    (SOURCE_HOLES, get_args(HoleKind)),
    (EVENTS_REPLAYED, get_args(ReplayKind)),
    (RECOVERY_FAULTS, get_args(RecoveryFault)),
    (EVICTIONS, get_args(EvictionReason)),
    (COMMANDS_SUPPRESSED, get_args(SuppressionReason)),
    (COMMAND_ACKS, (*ACK_STATUSES, OTHER)),
    (LABEL_OVERFLOW, ("tenant", "tool", "reason", "status")),
)
