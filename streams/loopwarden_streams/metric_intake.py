"""The metrics of what is read: steps, dead letters, lag and holes. Part of `metric_catalogue`."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

from loopwarden_streams.metric_spec import metric

# From the propagation target of 10 ms at the median up to what no objective allows any more.
LATENCY: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
# A worker that catches up after hours must still show how far behind it is.
LAG: Final = (*LATENCY, 60.0, 300.0, 1800.0, 7200.0)

STEPS_CONSUMED = metric(
    Counter,
    "steps_consumed_total",
    "tenant source",
    "steps",
    "Steps applied to the state of their run.",
    "Flat while there is lag: the worker is stuck, see LoopwardenDetectorStopped.",
)
STEPS_IGNORED = metric(
    Counter,
    "steps_ignored_total",
    "reason",
    "steps",
    "Steps that were read and deliberately not applied.",
    "Many duplicates: a runtime sends again; unknown_type: a runtime is newer than the detector, so update it.",
)
TOOL_CALLS = metric(
    Counter,
    "tool_calls_total",
    "tenant tool",
    "calls",
    "Finished tool calls.",
    "Far above its usual rate: find the runs in the verdicts topic, see LoopwardenToolCallsHigh.",
)
DEAD_LETTERS = metric(
    Counter,
    "dead_letters_total",
    "reason",
    "records",
    "Records that could not be read and went to the dead-letter topic.",
    "A jump follows a release of a runtime: read one record, its headers name the fault.",
)
DEAD_LETTERS_DROPPED = metric(
    Counter,
    "dead_letters_dropped_total",
    "",
    "records",
    "Refused records above the limit of the dead-letter topic, counted only.",
    "Not 0: most of a stream is broken, see LoopwardenStreamBroken.",
)
BROKEN_STREAM = metric(
    Gauge,
    "broken_stream",
    "topic partition",
    "0 or 1",
    "1 while the share of refused records of a partition is above the limit.",
    "1: stop the producer that writes what cannot be read, see LoopwardenStreamBroken.",
)
STEP_LAG = metric(
    Histogram,
    "step_lag_seconds",
    "",
    "seconds",
    "Age of the last step of each batch when it was applied, by the clock of its source.",
    "Rises with lag: add workers. Without lag: clocks of the agents are wrong.",
    LAG,
)
CONSUMER_LAG = metric(
    Gauge,
    "consumer_lag_records",
    "topic partition",
    "records",
    "Records that are written and not yet read.",
    "Grows for minutes: add workers up to the number of partitions, see LoopwardenConsumerLagHigh.",
)
COMMIT_AGE = metric(
    Gauge,
    "commit_age_seconds",
    "topic partition",
    "seconds",
    "Time since the committed offset last moved while there is lag, else 0.",
    "Above a minute: checkpoints fail or hang, see LoopwardenCommitStalled.",
)
SOURCE_HOLES = metric(
    Counter,
    "source_holes_total",
    "kind",
    "holes",
    "Gaps in the offsets: sought = read again, real = no record there, retention = records deleted unread.",
    "real and retention should stay 0, see LoopwardenSourceHoles.",
)
EVENTS_REPLAYED = metric(
    Counter,
    "events_replayed_total",
    "kind",
    "steps",
    "Steps that came again and were skipped, by the reader's position or by the offset in their run's snapshot.",
    "Bursts at a rebalance are normal. Without one, a runtime sends everything twice.",
)
PARTITION_OWNED = metric(
    Gauge,
    "partition_owned",
    "partition",
    "1",
    "1 for each partition of the steps that this worker owns.",
    "A partition that nobody owns is not watched, see LoopwardenDetectorStopped.",
)
