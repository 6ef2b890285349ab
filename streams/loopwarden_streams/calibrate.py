"""`loopwarden calibrate`: limits and thresholds from recorded runs that went well, as a policy file with its evidence.

A limit is half as much again as what 95 of 100 completed runs stay below: what they used is normal, and a run that
needs that much more is worth a look.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any, Final

import yaml
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from loopwarden_detectors.identity import keys_of
from loopwarden_models.codec import MAX_STEP_BYTES, decode_step
from loopwarden_models.errors import ConfigError, InvalidEvent
from loopwarden_models.events import AnyStep, ModelEnd, RunEnd, RunStart, ToolEnd
from loopwarden_models.policy import DEFAULT_POLICY, Policy
from loopwarden_streams import calibrate_meaning
from loopwarden_streams.evaluate_traces import LABELS, read_labels
from loopwarden_streams.replay_core import SourceRecord
from loopwarden_streams.replay_report import new_console
from loopwarden_streams.replay_sources import STDIN, find_files, read_file, total_bytes
from loopwarden_streams.settings import add_settings_arguments

PERCENTILE: Final = 95
FACTOR: Final = 1.5
# Fewer runs than this say nothing about what is normal. judgement
MIN_RUNS: Final = 20

_NO_LABELS: Final[Mapping[str, bool | None]] = {}
_MINUTE_MS: Final = 60_000
_MIN_RATE: Final = 30


@dataclass(slots=True)
class RunFigures:
    """What one run used. A cost or a number of tokens that nobody reported is `None`, not zero."""

    agent: str = ""
    status: str | None = None
    calls: int = 0
    model_calls: int = 0
    tokens: int | None = None
    cost_usd: float | None = None
    first_ms: int = 0
    last_ms: int = 0
    per_minute: int = 0
    streaks: Counter[str] = field(default_factory=Counter)
    _minute: deque[int] = field(default_factory=deque)
    _last: tuple[int, int] = (0, 0)
    _streak: int = 0

    def add(self, step: AnyStep) -> None:
        """Count one step of the run."""
        if not self.calls and not self.model_calls and not self.last_ms:
            self.first_ms = step.ts_ms
        self.last_ms = max(self.last_ms, step.ts_ms)
        if step.agent is not None and (not self.agent or type(step) is RunStart):
            self.agent = step.agent
        if type(step) is ToolEnd:
            self._add_call(step)
        elif type(step) is ModelEnd:
            self.model_calls += 1
            usage = step.usage
            if usage is not None:
                self.tokens = (self.tokens or 0) + (usage.input_tokens or 0) + (usage.output_tokens or 0)
        elif type(step) is RunEnd:
            self.status = step.status
        if isinstance(step, ToolEnd | ModelEnd) and step.cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + step.cost_usd

    def _add_call(self, step: ToolEnd) -> None:
        self.calls += 1
        self._minute.append(step.ts_ms)
        while self._minute[0] <= step.ts_ms - _MINUTE_MS:
            self._minute.popleft()
        self.per_minute = max(self.per_minute, len(self._minute))
        pair = keys_of(step)
        self._streak = self._streak + 1 if pair == self._last and all(pair) else 1
        self._last = pair
        self.streaks[step.tool] = max(self.streaks[step.tool], self._streak)


def figures_of(records: Iterable[SourceRecord], succeeded: Mapping[str, bool | None] = _NO_LABELS) -> list[RunFigures]:
    """Return the figures of every run among the records; what is no step event is passed over.

    Args:
        records: Recorded steps.
        succeeded: By run id, whether readers say that a run reached its goal. It wins over the status of its end.
    """
    runs: dict[tuple[str, str], RunFigures] = {}
    for record in records:
        try:
            step = decode_step(record.value, max_bytes=MAX_STEP_BYTES)
            if step is not None:
                runs.setdefault((step.tenant, step.run_id), RunFigures()).add(step)
        except InvalidEvent:
            continue
    for (_, run_id), run in runs.items():
        label = succeeded.get(run_id)
        if label is not None:
            run.status = "completed" if label else "failed"
    return list(runs.values())


def percentile(values: list[float], share: int) -> float:
    """Return the smallest value that `share` per cent of `values`, at least one, do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, ceil(len(ordered) * share / 100) - 1)]


def proposal(runs: list[RunFigures]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the policy that completed runs suggest, as data, and the evidence for each of its numbers by path.

    Raises:
        ConfigError: Fewer than `MIN_RUNS` runs are recorded as completed.
    """
    completed = [run for run in runs if run.status == "completed" and run.calls]
    if len(completed) < MIN_RUNS:
        raise ConfigError(
            f"{len(completed)} of {len(runs)} recorded runs ended with status completed and made calls; at least "
            f"{MIN_RUNS} are needed to tell what is normal: record more, report `run_end` with its status, or put a "
            "labels.jsonl with `run_id` and `success` beside the recording"
        )
    evidence: dict[str, str] = {}
    data: dict[str, Any] = {"version": "calibrated-1", **_of_runs(completed, "", evidence)}
    by_agent: defaultdict[str, list[RunFigures]] = defaultdict(list)
    for run in completed:
        by_agent[run.agent].append(run)
    agents = {
        agent: _of_runs(own, f"agents.{agent}.", evidence)
        for agent, own in sorted(by_agent.items())
        if agent and MIN_RUNS <= len(own) < len(completed)
    }
    tools = _of_tools(completed, evidence)
    return data | ({"agents": agents} if agents else {}) | ({"tools": tools} if tools else {}), evidence


def _of_runs(runs: list[RunFigures], path: str, evidence: dict[str, str]) -> dict[str, Any]:
    def limit(name: str, values: list[float | None], unit: str) -> float | None:
        known = [value for value in values if value]
        if len(known) < MIN_RUNS:
            return None
        normal = percentile(known, PERCENTILE)
        evidence[path + name] = (
            f"{PERCENTILE} of 100 need at most {_told(normal)} {unit}, x {FACTOR}; median "
            f"{_told(percentile(known, 50))}, most {_told(max(known))}; {len(known)} completed runs"
        )
        return normal * FACTOR

    budget: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    calls = limit("budget.max_steps_if_stuck", [run.calls for run in runs], "calls")
    if calls is not None:
        most = max(3, ceil(calls))
        hard = max(most, DEFAULT_POLICY.budget.limits.max_steps or most)
        budget |= {"observe_steps": ceil(most * 0.6), "nudge_steps": ceil(most * 0.8), "max_steps_if_stuck": most}
        limits["max_steps"] = hard
    for name, values, unit in (
        ("max_model_calls", [run.model_calls for run in runs], "model calls"),
        ("max_tokens", [run.tokens for run in runs], "tokens"),
        ("max_duration_ms", [run.last_ms - run.first_ms for run in runs], "ms"),
    ):
        most_used = limit(f"budget.limits.{name}", list(values), unit)
        if most_used is not None:
            limits[name] = ceil(most_used)
    cost = limit("budget.limits.max_cost_usd", [run.cost_usd for run in runs], "US dollars")
    if cost is not None:
        limits["max_cost_usd"] = round(cost, 4)
    found: dict[str, Any] = {"budget": budget | ({"limits": limits} if limits else {})}
    rate = limit("rate.observe_per_min", [run.per_minute for run in runs], "calls a minute")
    if rate is not None and not path:
        observe = max(_MIN_RATE, ceil(rate))
        found["rate"] = {"observe_per_min": observe, "nudge_per_min": 2 * observe}
    return found


def _of_tools(runs: list[RunFigures], evidence: dict[str, str]) -> dict[str, Any]:
    """Return thresholds for tools that healthy runs ask again more often than the default policy nudges."""
    rule = DEFAULT_POLICY.exact_repeat
    tools: dict[str, Any] = {}
    for tool in sorted({tool for run in runs for tool in run.streaks}):
        streaks = [float(run.streaks[tool]) for run in runs if tool in run.streaks]
        normal = percentile(streaks, PERCENTILE)
        nudge = ceil(normal * FACTOR)
        if len(streaks) < MIN_RUNS or nudge <= rule.nudge:
            continue
        tools[tool] = {
            "exact_repeat": {
                "nudge": nudge,
                "break_at": nudge + rule.break_at - rule.nudge,
                "kill": nudge + rule.kill - rule.nudge,
            }
        }
        evidence[f"tools.{tool}.exact_repeat.nudge"] = (
            f"{PERCENTILE} of 100 runs repeat it {normal:,.0f} times in a row at most, x {FACTOR}; most "
            f"{max(streaks):,.0f}; {len(streaks)} completed runs"
        )
    return tools


def _told(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"  # noqa: PLR2004 - three digits


def to_yaml(data: Mapping[str, Any], evidence: Mapping[str, str]) -> str:
    """Return the policy as YAML, with the evidence for a number in a comment above it."""
    lines: list[str] = []
    _write(lines, data, evidence, "", 0)
    return "\n".join(lines) + "\n"


def _write(lines: list[str], data: Mapping[str, Any], evidence: Mapping[str, str], path: str, depth: int) -> None:
    indent = "  " * depth
    for name, value in data.items():
        here = f"{path}{name}"
        if here in evidence:
            lines.append(f"{indent}# {evidence[here]}")
        key = yaml.safe_dump(name, allow_unicode=True, width=10_000).removesuffix("\n...\n").strip()
        if isinstance(value, Mapping):
            lines.append(f"{indent}{key}:")
            _write(lines, value, evidence, f"{here}.", depth + 1)
        else:
            lines.append(f"{indent}{key}: {json.dumps(value)}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `loopwarden calibrate`."""
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="JSON Lines of step events, plain or gzip; a folder; - for standard input. With --semantic: case files",
    )
    parser.add_argument(
        "--semantic",
        action="store_true",
        help="choose the thresholds of the rule over meaning instead, for the models at hand, from labelled cases",
    )
    parser.add_argument(
        "--traces",
        action="append",
        default=[],
        metavar="DIR",
        help="with --semantic: labelled recorded runs, as for `loopwarden eval`; hardly a healthy one may be nudged",
    )
    parser.add_argument("--picture", metavar="FILE", help="with --semantic: draw the distributions, as SVG")
    parser.add_argument("--json", action="store_true", help="with --semantic: print one JSON object")
    parser.add_argument("--progress", action="store_true", help="show progress even if standard error is no terminal")
    add_settings_arguments(parser, "semantic_model", "semantic_confirm_model")


def run(args: argparse.Namespace) -> int:
    """Print the policy that the recorded runs suggest, and return 0.

    Raises:
        ConfigError: A path is wrong, or too few runs are recorded as completed.
    """
    if args.semantic:
        return calibrate_meaning.run(args)
    if args.picture or args.json or args.traces:
        raise ConfigError("--picture, --traces and --json belong to --semantic")
    folders = sorted({Path(path) if Path(path).is_dir() else Path(path).parent for path in args.paths if path != STDIN})
    labels = [read_labels(folder)[0] for folder in folders if (folder / LABELS).is_file()]
    succeeded = {run_id: label.success for own in labels for run_id, label in own.items()}
    data, evidence = proposal(figures_of(_records(args), succeeded))
    Policy.from_builtins(data)  # what is proposed must load
    sys.stdout.write(to_yaml(data, evidence))
    return 0


def _records(args: argparse.Namespace) -> Iterator[SourceRecord]:
    files = find_files(args.paths)
    console = new_console(stderr=True, is_live=args.progress)
    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("calibrate", total=total_bytes(files))
        for file in files:
            for block in read_file(file, max_bytes=MAX_STEP_BYTES, advance=lambda size: progress.advance(task, size)):
                yield from block
