"""From what records did to metrics and log lines: added up first, reported now and then."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from loopwarden_detectors.ladder import Decision
from loopwarden_models.commands import Command
from loopwarden_models.events import AnyStep, ModelEnd, ToolEnd
from loopwarden_streams.metrics import Metrics

log = logging.getLogger("loopwarden.decisions")


@dataclass(slots=True)
class StepCounts:
    """Sums over the step events of a second or so.

    Attributes:
        calls: Finished tool calls by (tenant, tool). `others`: steps that are neither these nor model calls.
        spent: By tenant: model calls, their input, output and reasoning tokens, and US dollars.
        stamped: Records that were in the snapshot already. `unknown`: of a type that this version does not know.
        newest_ms: Source time of the last step, 0 if there was none.
        violations: By tenant, steps that began after their run's kill was applied.
    """

    others: dict[str, int] = field(default_factory=dict)
    calls: dict[tuple[str, str], int] = field(default_factory=dict)
    spent: dict[str, list[float]] = field(default_factory=dict)
    stamped: int = 0
    unknown: int = 0
    newest_ms: int = 0
    violations: dict[str, int] = field(default_factory=dict)

    def add_violation(self, step: AnyStep) -> None:
        """Count a step that began after its run's kill was applied: it must not happen, and a person must know."""
        self.violations[step.tenant] = self.violations.get(step.tenant, 0) + 1
        log.error("step %d of run %s (tenant %s) began after the kill was applied", step.seq, step.run_id, step.tenant)

    def add(self, tenant: str, step: AnyStep) -> None:
        """Add one step that was applied: one look-up for each.

        Args:
            tenant: Of the step. The state's own text is the better key: its hash is known already.
            step: What was applied.

        Cost: about 0.15 µs.
        """
        if type(step) is ToolEnd:
            calls = self.calls
            called = (tenant, step.tool)
            calls[called] = calls.get(called, 0) + 1
        elif type(step) is ModelEnd:
            sums = self.spent.get(tenant)
            if sums is None:
                sums = self.spent[tenant] = [0, 0, 0, 0, 0.0]
            sums[0] += 1
            usage = step.usage
            if usage is not None:
                sums[1] += usage.input_tokens or 0
                sums[2] += usage.output_tokens or 0
                sums[3] += usage.reasoning_tokens or 0
            if step.cost_usd is not None:
                sums[4] += step.cost_usd
        else:
            self.others[tenant] = self.others.get(tenant, 0) + 1

    def report(self, metrics: Metrics) -> None:
        """Move the sums into the metrics. Cost: about 1 µs per tenant and tool."""
        applied = dict(self.others)
        for (tenant, _), calls in self.calls.items():
            applied[tenant] = applied.get(tenant, 0) + calls
        for tenant, (answers, *_) in self.spent.items():
            applied[tenant] = applied.get(tenant, 0) + int(answers)
        for tenant, steps in applied.items():
            metrics.count_steps(tenant, steps)
        metrics.count_tool_calls(self.calls)
        for tenant, (_, sent, received, reasoned, usd) in self.spent.items():
            metrics.count_tokens(tenant, input_n=int(sent), output_n=int(received), reasoning_n=int(reasoned))
            if usd:
                metrics.count_cost(tenant, usd)
        for tenant, steps in self.violations.items():
            metrics.count_step_after_kill(tenant, steps)
        if self.stamped:
            metrics.count_replayed("stamp", self.stamped)
        if self.unknown:
            metrics.count_ignored("unknown_type", self.unknown)
        if self.newest_ms:
            metrics.observe_step_lag(time.time() - self.newest_ms / 1000)


def report_decisions(metrics: Metrics, decisions: Sequence[tuple[Decision, int]], commands: Sequence[Command]) -> None:
    """Count verdicts, commands and blocked tools, and write one log line for each that was ordered."""
    now_s = time.time()
    for decision, _ in decisions:
        verdict = decision.verdict
        if verdict is not None:
            metrics.count_verdict(verdict)
            if decision.alarm is not None:
                metrics.count_alarm(decision.alarm)
                log.error("run %s (tenant %s): %s", verdict.run_id, verdict.tenant, verdict.evidence.note)
            else:
                metrics.observe_detection(verdict.detector, now_s - verdict.at_ms / 1000)
        block = decision.block
        if block is not None:
            metrics.count_command(block.tenant, "block_tool", "enforce", block.reason.detector)
            log.info(
                "tools blocked for run %s (tenant %s): %s: %s",
                block.run_id,
                block.tenant,
                ", ".join(one.tool for one in block.tools),
                block.reason.note or "",
            )
    again = {found.order.command_id for found, _ in decisions if found.order and found.order.issued_at_ms is not None}
    for command in commands:
        if command.command_id in again:
            metrics.count_resent()
            log.warning("%s of run %s is sent once more: nobody answered", command.command_id, command.run_id)
            continue
        detector = command.reason.detector if command.reason is not None else ""
        metrics.count_command(command.tenant, command.type, command.mode, detector)
        log.info(
            "%s of run %s (tenant %s, incarnation %s): %s [command %s]",
            command.type,
            command.run_id,
            command.tenant,
            command.incarnation,
            command.reason.note if command.reason is not None else "",
            command.command_id,
        )
