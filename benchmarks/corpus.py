"""Step events for the benchmarks: real runs of recorded traces, given new ids and times and woven together.

Of the data sets those are taken whose events have about 1 KB, the size of a step in a real fleet: runs of coding
agents. Each has an equal share of the runs. Without the traces a synthetic mix of the same shape takes their place, and
the benchmark says so.
"""

from __future__ import annotations

import gzip
import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from loopwarden_models.ids import murmur2

Event = dict[str, object]
MIN_MEAN_BYTES = 700
TENANTS = 20
TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"


@dataclass(frozen=True, slots=True)
class Keyed:
    """One record to write: partition, key and value."""

    partition: int
    key: bytes
    value: bytes


def load_runs(traces: Path = TRACES) -> tuple[list[list[Event]], str]:
    """Return recorded runs, the data sets taking turns, and where they come from."""
    files = sorted(traces.glob("*/steps.jsonl.gz"))
    if not files:
        return [_synthetic_run(n) for n in range(500)], "synthetic runs (no recorded traces here)"
    by_set = []
    for file in files:
        runs: dict[str, list[Event]] = {}
        size = events = 0
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                event = json.loads(line)
                size += len(line)
                events += 1
                runs.setdefault(event["run_id"], []).append(event)
        if size >= MIN_MEAN_BYTES * events:
            by_set.append(list(runs.values()))
    most = max(map(len, by_set))
    turns = zip(*(itertools.islice(itertools.cycle(runs), most) for runs in by_set), strict=True)
    return list(itertools.chain.from_iterable(turns)), f"recorded runs of {len(by_set)} data sets in equal shares"


def weave(
    runs: list[list[Event]],
    *,
    count: int,
    max_events: int,
    partitions: int,
    live: int | None = None,
    tenant: str | None = None,
) -> Iterator[Keyed]:
    """Yield the events of `count` runs, interleaved: the first of each, then the second of each, and so on.

    Args:
        runs: From `load_runs`; used over and over under new ids.
        count: Runs to make.
        max_events: Events taken of each run, at most.
        partitions: Of the steps topic.
        live: Runs that are woven together at a time; the next ones begin when these are through. All by default.
        tenant: Whose runs they are; those of twenty tenants in turn by default.
    """
    live = count if live is None else live
    start_ms = int(time.time() * 1000) - 3_600_000
    for turn, first in enumerate(range(0, count, live)):
        group = [(n, runs[n % len(runs)][:max_events]) for n in range(first, min(first + live, count))]
        for at in range(max_events):
            ts_ms = start_ms + (turn * max_events + at) * 2_000
            for run, events in group:
                if at < len(events):
                    yield _record(events[at], run, at, ts_ms, partitions, tenant or f"tenant-{run % TENANTS:02d}")


def _record(event: Event, run: int, at: int, ts_ms: int, partitions: int, tenant: str) -> Keyed:
    run_id = f"run-{run:07d}"
    named = {
        **event,
        "tenant": tenant,
        "run_id": run_id,
        "root_run_id": run_id,
        "incarnation": "a",
        "seq": at,
        "ts_ms": ts_ms,
    }
    key = f"{tenant}|{run_id}".encode()
    value = json.dumps(named, ensure_ascii=False, separators=(",", ":")).encode()
    return Keyed((murmur2(key) & 0x7FFFFFFF) % partitions, key, value)


def _synthetic_run(n: int) -> list[Event]:
    events: list[Event] = [{"v": 1, "type": "run_start", "goal": f"Task {n}"}]
    for at in range(12):
        same = n % 10 == 0 and at > 3
        text = f"Step {0 if same else at} of task {n}: " + "look at the next file and decide. " * 12
        events.append({"v": 1, "type": "model_end", "text": text, "usage": {"input_tokens": 900, "output_tokens": 60}})
        what = f"{n}-{0 if same else at}"
        events.append(
            {
                "v": 1,
                "type": "tool_end",
                "call_id": f"c{at}",
                "tool": ("read", "search", "bash")[at % 3],
                "args": {"path": what},
                "args_hash": f"{murmur2(what.encode()):016x}",
                "effect": "unknown",
                "outcome": "ok",
                "result": what * 80,
                "result_hash": f"{murmur2(what.encode() * 2):016x}",
            }
        )
    return events
