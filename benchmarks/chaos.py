"""Kills under fire: workers, agents and the broker die and come back, answers are late, clocks are wrong.

A few hundred runs of three tenants, about half of them loops, in processes with the real runtime library, judged by two
workers on Apache Kafka. At the end: which kills were ordered, which landed, and whether any was wrong, lost or broken.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
from benchmarks.chaos_agents import Plan, now_ms
from benchmarks.chaos_report import Message, Report, Topics, judge
from benchmarks.chaos_storm import GAP_S, AgentProcess, Storm
from rich.console import Console
from rich.table import Table
from tests._support.kafka import ApacheKafka
from tests._support.workers import Deployment

ROOT: Final = Path(__file__).resolve().parents[1]
MINUTE_MS: Final = 60_000
# A step of a host that is a minute behind looks a minute old: by default that is too old to be acted on.
ACTION_AGE_MS: Final = 3 * MINUTE_MS
# By process: tenant, how far its clock is ahead, part of its acknowledgements that are late.
HOSTS: Final = (("acme", 0, 0.0), ("acme", MINUTE_MS, 0.0), ("globex", -MINUTE_MS, 0.0), ("initech", 0, 0.05))
PATIENCE_S: Final = 90.0
console = Console(stderr=True)


def policy() -> str:
    """Return the demonstration's policy, for a fleet of which half is to be killed."""
    text = files("loopwarden_streams").joinpath("demo_policy.yaml").read_text(encoding="utf-8")
    rules: dict[str, Any] = yaml.safe_load(text)
    rules["blast_radius"] = {"killed_percent": 100, "kills_per_min": 1_000_000, "kills_per_min_total": 1_000_000}
    # Tests that fail are daily work there, and say nothing about the tool.
    rules["tools"] = {"run_tests": {"fleet_breaker": {"mode": "shadow"}}}
    return yaml.safe_dump(rules)


def run_chaos(
    broker: ApacheKafka,
    directory: Path,
    *,
    seconds: float,
    runs: int = 300,
    gap_s: tuple[float, float] = GAP_S,
    seed: int = 1,
    patience_s: float = PATIENCE_S,
    **settings: Any,
) -> tuple[Report, dict[str, int]]:
    """Let it storm for `seconds`, wait until all runs are over, and judge.

    Args:
        broker: Restarted and killed on the way.
        directory: For logs and ledgers.
        seconds: Of load with faults.
        runs: Alive at a time, half of them loops.
        gap_s: Least and longest time between two faults.
        seed: Of all that is drawn.
        patience_s: Longest wait for the end of all runs.
        settings: Of the workers.

    Returns:
        The report, and how often each fault was done.
    """
    with (
        Deployment(
            broker.bootstrap,
            directory,
            policy=policy(),
            **{
                "checkpoint_ms": 5_000,
                "tick_ms": 1_000,
                "session_timeout_ms": 6_000,
                "max_action_age_ms": ACTION_AGE_MS,
                **settings,
            },
        ) as deployment,
        _agents(deployment, directory, runs=runs, seed=seed) as agents,
    ):
        workers = [deployment.start(instance=f"w-{number}").ready() for number in range(2)]
        storm = Storm(broker, deployment, workers, agents, gap_s=gap_s, seed=seed)
        storm.blow(seconds)
        storm.revive()
        for each in agents:
            each.begin_end()
        deadline_s = time.monotonic() + patience_s
        finished = [each.finish(deadline_s) for each in agents]
        ended_ms = now_ms()
        console.print(f"all runs were over: {finished}")
        deployment.wait_applied("steps", "acks")
        errors = {"recovery_faults": sum(int(one.metric("loopwarden_recovery_faults_total")) for one in workers)}
        stays = [stay for each in agents for stay in each.stays()]
        skews_ms = {each.plan.runtime_id: each.plan.skew_ms for each in agents}
        report = judge(stays, _read(deployment), skews_ms=skews_ms, ended_ms=ended_ms)
        report.refused_starts = sum(each.refused() for each in agents)
        for name in ("faults", "events_dropped", "events_unsent", "events_invalid"):
            errors[f"runtime_{name}"] = int(sum(each.stats.get(name, 0) for each in agents))
        report.errors = errors
        return report, storm.counts


@contextlib.contextmanager
def _agents(deployment: Deployment, directory: Path, *, runs: int, seed: int) -> Iterator[list[AgentProcess]]:
    made: list[AgentProcess] = []
    try:
        for number, (tenant, skew_ms, late_acks) in enumerate(HOSTS):
            plan = Plan(
                bootstrap=deployment.bootstrap,
                prefix=deployment.prefix,
                tenant=tenant,
                runtime_id=f"rt{number}",
                ledger=str(directory / f"rt{number}.ledger"),
                seed=seed + number,
                skew_ms=skew_ms,
                late_acks=late_acks,
                loops=runs // len(HOSTS) // 2,
                healthy=runs // len(HOSTS) // 2,
            )
            made.append(AgentProcess(plan, directory))
        yield made
    finally:
        for each in made:
            each.close()


def _read(deployment: Deployment) -> Topics:
    def records(topic: str, **defaults: Any) -> list[Message]:
        found = [record for record in deployment.read(topic) if record.value is not None]
        return [{**defaults, **json.loads(record.value or b""), "append_ms": record.timestamp_ms} for record in found]

    return Topics(
        commands=records("control.commands", incarnation="*", scope="run", mode="enforce", grace_ms=0),
        acks=records("acks"),
        verdicts=records("verdicts"),
        states=[state for state in records("control.state") if "|run|" in state["key"]],
        letters=[repr(record.value)[:200] for record in deployment.read("dead-letter")],
    )


def show(report: Report, counts: dict[str, int]) -> Table:
    """Return the report as a table for people."""
    table = Table("what", "figure", title="Kills under fire, on Apache Kafka")
    table.add_row("faults", ", ".join(f"{count} x {name}" for name, count in counts.items()))
    for name, value in msgspec.to_builtins(report).items():
        shown = value if not isinstance(value, list) else f"{len(value)}" + "".join(f"\n  {one}" for one in value[:5])
        table.add_row(name.replace("_", " "), str(shown))
    return table


def main() -> int:
    """Let it storm, print the table, write the JSON file; status 1 if a kill was wrong, lost or broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="of load with faults")
    parser.add_argument("--runs", type=int, default=300, help="alive at a time, half of them loops")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is drawn")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as data, ApacheKafka(Path(data) / "kafka") as broker:
        report, counts = run_chaos(
            broker,
            Path(data),
            seconds=60 * args.minutes,
            runs=args.runs,
            seed=args.seed,
        )
    Console().print(show(report, counts))
    target = ROOT / "build" / "chaos.json"
    target.parent.mkdir(exist_ok=True)
    result = {"minutes": args.minutes, "seed": args.seed, "done": counts, **msgspec.to_builtins(report)}
    target.write_text(json.dumps(result, indent=1) + "\n")
    console.print(f"written to {target.relative_to(ROOT)}")
    return 0 if report.is_good else 1


if __name__ == "__main__":
    raise SystemExit(main())
