"""The metrics of a worker: the only place where a metric is created or changed. What each means: `metric_catalogue`.

`metric_page` prints the table that stands in `docs/metrics.md`; alert rules and dashboards are tested against it. What
comes from outside is bounded: at most 200 tenants and 50 tools of each keep their name, by activity, and a value that
is not in its closed set becomes `_other`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Final, get_args

from prometheus_client import Gauge

from loopwarden_detectors.ladder import Alarm
from loopwarden_models.acks import ACK_STATUSES
from loopwarden_models.errors import REASONS
from loopwarden_models.patterns import LEVEL_NAMES, Level
from loopwarden_models.verdicts import Verdict
from loopwarden_streams import metric_catalogue as of
from loopwarden_streams import metric_intake as intake
from loopwarden_streams import metric_meaning as texts
from loopwarden_streams import metric_policy as judging
from loopwarden_streams import metric_questions as asking
from loopwarden_streams.metric_labels import OTHER
from loopwarden_streams.metric_series import Series
from loopwarden_streams.metric_spec import MetricSpec

Join = Callable[[float, float], float]

_LOUD: Final = frozenset(name for name in LEVEL_NAMES if Level[name.upper()] >= Level.NUDGE)


class Metrics(Series):
    """The metrics of one worker. Change them from one thread; scrape from any. See `Series` for what a change costs."""

    # What is read.

    def count_steps(self, tenant: str, n: int, *, source: of.StepSource = "runtime") -> None:
        """Count steps of one batch that were applied; now and then also give names to who is most active."""
        self._rerank_if_due()
        self._child(intake.STEPS_CONSUMED, self._tenant(tenant, n), source).inc(n)

    def count_ignored(self, reason: of.IgnoredReason, n: int = 1) -> None:
        """Count steps that were read and not applied."""
        self._child(intake.STEPS_IGNORED, reason).inc(n)

    def count_tool_calls(self, calls: Mapping[tuple[str, str], int]) -> None:
        """Count finished calls of one batch, by (tenant, tool)."""
        for (tenant, tool), n in calls.items():
            name = self._tenant(tenant)
            self._child(intake.TOOL_CALLS, name, self._tool(name, tool, n)).inc(n)

    def count_dead_letter(self, reason: str, n: int = 1) -> None:
        """Count records that went to the dead-letter topic; `reason` is one of `loopwarden_models.errors.REASONS`."""
        self._child(intake.DEAD_LETTERS, self._closed("reason", reason, REASONS)).inc(n)

    def count_dead_letters_dropped(self, n: int = 1) -> None:
        """Count refused records of which only the positions were kept, because the limit was reached."""
        self._child(intake.DEAD_LETTERS_DROPPED).inc(n)

    def observe_step_lag(self, seconds: float) -> None:
        """Note the age of the newest step of a batch; a clock that runs ahead counts as 0."""
        self._child(intake.STEP_LAG).observe(max(0.0, seconds))

    def set_lag(self, topic: str, partition: int, *, records: int, commit_age_seconds: float) -> None:
        """Set how far a partition is behind, and since when its committed offset stands still (0 without lag)."""
        self._child(intake.CONSUMER_LAG, topic, str(partition)).set(records)
        self._child(intake.COMMIT_AGE, topic, str(partition)).set(commit_age_seconds)

    def set_broken(self, topic: str, partition: int, is_broken: bool) -> None:
        """Set whether most records of a partition are refused."""
        self._child(intake.BROKEN_STREAM, topic, str(partition)).set(is_broken)

    def set_owned(self, partitions: Iterable[int]) -> None:
        """Set which partitions this worker owns from now on; the series of all others end."""
        owned = {str(partition) for partition in partitions}
        for spec in (intake.PARTITION_OWNED, intake.CONSUMER_LAG, intake.COMMIT_AGE, intake.BROKEN_STREAM):
            self._remove(spec, lambda labels: labels[-1] not in owned)
        for partition in owned:
            self._child(intake.PARTITION_OWNED, partition).set(1)

    def count_hole(self, kind: of.HoleKind, n: int = 1) -> None:
        """Count gaps in the offsets of a source."""
        self._child(intake.SOURCE_HOLES, kind).inc(n)

    def count_replayed(self, kind: of.ReplayKind, n: int = 1) -> None:
        """Count steps that came again and were skipped."""
        self._child(intake.EVENTS_REPLAYED, kind).inc(n)

    # What is kept.

    def observe_checkpoint(self, seconds: float, snapshot_sizes: Iterable[int] = ()) -> None:
        """Note a checkpoint that succeeded, with the sizes of its snapshots in bytes."""
        self._child(of.CHECKPOINT).observe(seconds)
        observe = self._child(of.SNAPSHOT_BYTES).observe
        written = 0
        for size in snapshot_sizes:
            observe(size)
            written += 1
        self._child(of.SNAPSHOTS_WRITTEN).inc(written)

    def count_checkpoint_failure(self) -> None:
        """Count a checkpoint that was given up."""
        self._child(of.CHECKPOINT_FAILURES).inc()

    def observe_recovery(self, seconds: float) -> None:
        """Note the time from an assignment until the worker was ready."""
        self._child(of.RECOVERY).observe(seconds)

    def count_recovery_fault(self, kind: of.RecoveryFault, n: int = 1) -> None:
        """Count what was wrong with the snapshots of a partition."""
        self._child(of.RECOVERY_FAULTS, kind).inc(n)

    def set_state_entries(self, table: str, n: int) -> None:
        """Set the number of entries that a table holds in memory."""
        self._child(of.STATE_ENTRIES, table).set(n)

    def count_evictions(self, reason: of.EvictionReason, n: int = 1) -> None:
        """Count runs that were forgotten."""
        self._child(of.EVICTIONS, reason).inc(n)

    def set_active_runs(self, runs: Mapping[str, int]) -> None:
        """Set the number of watched runs of every tenant."""
        self.set_gauge(of.ACTIVE_RUNS, {(tenant,): n for tenant, n in runs.items()})

    def set_gauge(
        self, gauge: MetricSpec[Gauge], values: Mapping[tuple[str, ...], float], join: Join = operator.add
    ) -> None:
        """Set a gauge by its labels, the tenant first; `join` those that share a name. All others lose their series."""
        joined: dict[tuple[str, ...], float] = {}
        for (tenant, *rest), value in values.items():
            labels = (self._tenant(tenant, 0), *rest)
            joined[labels] = join(joined[labels], value) if labels in joined else value
        self._remove(gauge, lambda labels: labels not in joined)
        for labels, value in joined.items():
            self._child(gauge, *labels).set(value)

    # What is seen and done.

    def count_verdict(self, verdict: Verdict) -> None:
        """Count a verdict as a loop, as something that the mode prevented, and as a veto, where it is one."""
        tenant = self._tenant(verdict.tenant)
        detector, level, mode = verdict.detector, verdict.level, verdict.mode
        if verdict.vetoed_from is not None:
            self._child(of.VETOES, tenant, detector).inc()
        # Episode 0 announces a command; what it is about was counted when it was found.
        if verdict.episode == 0 or level not in _LOUD:
            return
        self._child(of.LOOPS_DETECTED, tenant, detector, level).inc()
        if mode == "shadow" or (mode == "warn" and level != "nudge"):
            self._child(of.WOULD_HAVE, tenant, detector, level).inc()
            self._child(of.COMMANDS_SUPPRESSED, mode).inc()

    def observe_detection(self, detector: str, seconds: float) -> None:
        """Note the time from the deciding step to the decision; a clock that runs ahead counts as 0."""
        self._child(of.DETECTION_LATENCY, detector).observe(max(0.0, seconds))

    def count_command(self, tenant: str, command_type: str, mode: str, detector: str) -> None:
        """Count a command that was issued."""
        self._child(of.COMMANDS, self._tenant(tenant), command_type, mode, detector).inc()

    def count_ack(self, status: str, latency_ms: float | None = None) -> None:
        """Count an acknowledgement, and its latency if it says that a command was applied."""
        self._child(of.COMMAND_ACKS, self._closed("status", status, ACK_STATUSES)).inc()
        if status == "applied" and latency_ms is not None:
            self._child(of.COMMAND_LATENCY).observe(latency_ms / 1000)

    def count_step_after_kill(self, tenant: str, n: int = 1) -> None:
        """Count steps that began after their run's stop was applied."""
        self._child(of.STEPS_AFTER_KILL, self._tenant(tenant)).inc(n)

    def count_suppressed(self, reason: of.SuppressionReason) -> None:
        """Count a command that was decided and kept back."""
        self._child(of.COMMANDS_SUPPRESSED, reason).inc()

    def count_resent(self) -> None:
        """Count a command that went out once more because nobody answered."""
        self._child(of.COMMANDS_RESENT).inc()

    def count_alarm(self, reason: Alarm) -> None:
        """Count a command that does not land, which a person must know of."""
        self._child(of.COMMAND_ALARMS, reason).inc()

    def count_kill_confirmed(self) -> None:
        """Count a kill whose last run is known to be dead."""
        self._child(of.KILLS_CONFIRMED).inc()

    def set_open_orders(self, orders: Mapping[str, int]) -> None:
        """Set how many orders to stop have come how far; a state that is not named has none."""
        for state in get_args(of.OrderState):
            self._child(of.OPEN_ORDERS, state).set(orders.get(state, 0))

    # The breakers of tools.

    def set_breakers(self, states: Mapping[tuple[str, str], str]) -> None:
        """Set the breakers that are not closed, by (tenant, tool); the series of all others end."""
        numbers: dict[tuple[str, str], int] = {}
        for (tenant, tool), state in states.items():
            name = self._tenant(tenant, 0)
            labels = (name, self._tool(name, tool, 0))
            numbers[labels] = max(numbers.get(labels, 0), of.BREAKER_NUMBERS[state])
        self._remove(of.BREAKER_STATE, lambda labels: labels not in numbers)
        for labels, number in numbers.items():
            self._child(of.BREAKER_STATE, *labels).set(number)

    def count_transition(self, tenant: str, tool: str, to: str) -> None:
        """Count one change of a breaker."""
        name = self._tenant(tenant)
        self._child(of.BREAKER_TRANSITIONS, name, self._tool(name, tool, 1), to).inc()

    def count_probes(self, tenant: str, *, ok: int, failed: int) -> None:
        """Count calls of a half-open tool."""
        name = self._tenant(tenant)
        for outcome, n in (("ok", ok), ("failed", failed)):
            if n:
                self._child(of.BREAKER_PROBES, name, outcome).inc(n)

    def count_held_back(self, tenant: str) -> None:
        """Count a breaker for which there was no room."""
        self._child(of.BREAKERS_HELD_BACK, self._tenant(tenant)).inc()

    def count_sum_dropped(self, reason: str, n: int = 1) -> None:
        """Count partial sums that were not counted; `reason` is one of `DroppedSum`."""
        self._child(of.TOOL_SUMS_DROPPED, reason).inc(n)

    def set_enforcing(self, is_enforcing: bool) -> None:
        """Set whether the big switch lets orders have an effect."""
        self._child(judging.ENFORCING).set(is_enforcing)

    def set_open_questions(self, waiting: Mapping[str, int], oldest_s: float) -> None:
        """Set how many questions wait for each tenant, and for how long the oldest; other tenants lose theirs."""
        self._remove(asking.QUESTIONS_OPEN, lambda _: True)
        for tenant, n in waiting.items():
            self._child(asking.QUESTIONS_OPEN, self._tenant(tenant, 0)).inc(n)
        self._child(asking.QUESTION_OLDEST).set(oldest_s)

    def count_question(self, status: asking.QuestionStatus) -> None:
        """Count something that happened to a question."""
        self._child(asking.QUESTIONS, status).inc()

    def count_webhook(self, failure: asking.WebhookFailure | None = None) -> None:
        """Count an event that its address took, or that was given up."""
        (self._child(asking.WEBHOOK_FAILURES, failure) if failure else self._child(asking.WEBHOOKS)).inc()

    def set_policies(self, versions: Mapping[str, str]) -> None:
        """Set which version is in force for all (`*`), and for each tenant with one of its own; others lose theirs.

        A tenant without a name among the labels is left out: what is in force for it is in its verdicts.
        """
        named = {(key if key == "*" else self._tenant(key, 0), version) for key, version in versions.items()}
        kept = {labels for labels in named if labels[0] != OTHER}
        self._remove(judging.POLICY_IN_FORCE, lambda labels: labels not in kept)
        for labels in kept:
            self._child(judging.POLICY_IN_FORCE, *labels).set(1)

    def set_policies_refused(self, n: int) -> None:
        """Set how many documents on the topic of policies are not in force because they are wrong."""
        self._child(judging.POLICIES_REFUSED).set(n)

    def count_policy_change(self, result: judging.PolicyChange) -> None:
        """Count a change of the topic of policies."""
        self._child(judging.POLICY_CHANGES, result).inc()

    def set_model(self, tier: texts.Tier, is_up: bool) -> None:
        """Set whether a model of texts is loaded."""
        self._child(texts.EMBEDDING_UP, tier).set(is_up)

    def count_texts(self, tier: texts.Tier, n: int) -> None:
        """Count texts that a model answered."""
        self._child(texts.EMBEDDING_TEXTS, tier).inc(n)

    def count_unconfirmed(self, kind: texts.Missed, n: int) -> None:
        """Count texts that the second model did not answer in time."""
        self._child(texts.EMBEDDING_LATE, kind).inc(n)

    def observe_confirmation(self, seconds: float) -> None:
        """Note how long the second model took for a text."""
        self._child(texts.EMBEDDING_SECONDS).observe(seconds)

    # What it costs.

    def count_tokens(self, tenant: str, *, input_n: int = 0, output_n: int = 0, reasoning_n: int = 0) -> None:
        """Count tokens of one batch."""
        name = self._tenant(tenant)
        for kind, n in (("input", input_n), ("output", output_n), ("reasoning", reasoning_n)):
            if n:
                self._child(of.TOKENS, name, kind).inc(n)

    def count_cost(self, tenant: str, usd: float) -> None:
        """Add known cost of one batch."""
        self._child(of.COST, self._tenant(tenant)).inc(usd)

    def count_saved_cost(self, tenant: str, usd: float) -> None:
        """Add the estimate of what a killed run would still have spent."""
        self._child(of.SAVED_COST, self._tenant(tenant)).inc(usd)
