"""Recorded runs of real agents, kept outside the repository, and what a policy makes of them."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from msgspec import Struct

from loopwarden_detectors import answers, watch
from loopwarden_detectors.run_state import TreeState
from loopwarden_models.acks import Ack
from loopwarden_models.codec import decode_step
from loopwarden_models.events import AnyStep, root_of
from loopwarden_models.patterns import LEVEL_NAMES, Level
from loopwarden_models.policy import Policy
from loopwarden_models.verdicts import Verdict


class Trace(Struct):
    """One recorded run: its label, and every verdict on it."""

    run_id: str
    label: dict[str, Any]
    said: list[Verdict]

    @property
    def level(self) -> Level:
        """The strongest level that was said."""
        return max((level_of(verdict) for verdict in self.said), default=Level.NONE)

    @property
    def delay(self) -> int | None:
        """Events from the labelled onset to the first nudge, `None` if one of the two is not there."""
        onset = self.label.get("onset_event_seq")
        nudged = [verdict.evidence.last_seq for verdict in self.said if level_of(verdict) >= Level.NUDGE]
        return nudged[0] - onset if nudged and onset is not None else None


def level_of(verdict: Verdict) -> Level:
    """Return a verdict's level as a number."""
    return Level(LEVEL_NAMES.index(verdict.level))


def read_steps(folder: Path) -> Iterator[AnyStep]:
    """Yield the step events of one data set, run by run."""
    with gzip.open(folder / "steps.jsonl.gz") as lines:
        for line in lines:
            step = decode_step(line)
            if step is not None:
                yield step


def judge(folder: Path, policy: Policy) -> list[Trace]:
    """Return all runs of a data set with what `policy` says of them. Every nudge was applied, and ignored."""
    said: dict[str, list[Verdict]] = defaultdict(list)
    tree, key = None, ""
    for step in read_steps(folder):
        if tree is None or key != root_of(step):
            key = root_of(step)
            tree = TreeState(tenant=step.tenant, root_run_id=key)
        for decision in watch.observe(tree, step, policy):
            order = decision.order
            if order is not None and order.type == "nudge":
                ack = Ack(
                    v=1,
                    command_id=order.command_id,
                    tenant=order.tenant,
                    run_id=order.run_id,
                    status="applied",
                    at_ms=step.ts_ms,
                )
                answers.acknowledge(tree, ack)
            if decision.verdict is not None:
                said[step.run_id].append(decision.verdict)
    labels = map(json.loads, (folder / "labels.jsonl").read_text(encoding="utf-8").splitlines())
    return [Trace(label["run_id"], label, said[label["run_id"]]) for label in labels]


def rates(name: str, traces: list[Trace]) -> str:
    """Return one line: how many of these runs were seen, nudged and ended, and how long after the onset."""
    delays = sorted(trace.delay for trace in traces if trace.delay is not None)
    late = f", median {median(delays):g} events after the onset" if delays else ""
    counts = {
        level: sum(trace.level >= level for trace in traces) for level in (Level.OBSERVE, Level.NUDGE, Level.KILL)
    }
    seen, nudged, ended = counts.values()
    return f"{name:32} {len(traces):5} runs: {seen:4} observed, {nudged:4} nudged, {ended:4} ended{late}"
