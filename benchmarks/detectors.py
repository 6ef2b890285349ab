"""What the rules cost: nanoseconds per event for each detector, snapshots, and memory per live run.

    python benchmarks/detectors.py [FILE_OR_FOLDER ...] [--json] [--rounds 7] [--live-runs 100000]

Reads step events, one JSON object a line, gzipped or not; of a folder every `*.jsonl` and `*.jsonl.gz` below it.
Without an argument the recorded traces beside the repository are taken if they are there, else a mix that this script
makes up.

A detector's cost is what it adds to the shared work: the keys, the ring, the rounds. Each number is a sum of minima
over short chunks, and all rows take turns, so that the ratios hold on a busy machine where the numbers do not.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from loopwarden_detectors import watch
from loopwarden_detectors.base import ANY_SIGN
from loopwarden_detectors.run_state import TreeState
from loopwarden_models.codec import decode_step
from loopwarden_models.events import STEP_TYPES, AnyStep, root_of
from loopwarden_models.policy import DEFAULT_POLICY

TRACES = Path(__file__).resolve().parents[1].parent / "shared" / "traces"
START_MS = 1_800_000_000_000
CHUNK_EVENTS = 1_000


def read_records(paths: Sequence[Path]) -> dict[str, list[bytes]]:
    """Return the step events of each file as the bytes that were on the wire."""
    found: dict[str, list[bytes]] = {}
    for path in paths:
        files = sorted(path.rglob("*.jsonl*")) if path.is_dir() else [path]
        for file in files:
            with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as lines:
                records = [line for line in lines if b'"type"' in line and b'"run_id"' in line]
            if records:
                found[file.parent.name if file.name.startswith("steps.") else file.stem] = records
    return found


def made_up_records(runs: int = 2_000) -> dict[str, list[bytes]]:
    """Return a mix of runs: of ten, seven read on, two repeat one call, one fails again and again."""
    chance = random.Random(1)
    lines = []
    for run in range(runs):
        kind = chance.choice(["reads"] * 7 + ["repeats"] * 2 + ["fails"])
        for seq in range(chance.choice((4, 9, 9, 20, 60))):
            event: dict[str, Any] = {"v": 1, "tenant": "acme", "run_id": f"run-{run}", "incarnation": "a", "seq": seq}
            event["ts_ms"] = START_MS + seq * 2_000
            if seq == 0:
                event |= {"type": "run_start", "goal": "A report on the harbour's traffic of last year"}
            else:
                number = 0 if kind == "repeats" else seq
                event |= {"type": "tool_end", "tool": "shell", "call_id": f"call-{seq}", "effect": "unknown"}
                event |= {"args": {"command": f"grep -rn berth{number} logs"}, "args_hash": f"{number + 1:012x}"}
                event |= {"result": "x" * 400, "result_hash": f"{number + 7:012x}", "outcome": "ok"}
            if kind == "fails" and seq:
                event |= {"outcome": "error", "error": {"class": "CommandFailed", "message": f"no berth {seq}"}}
            lines.append(json.dumps(event).encode())
    return {"made up": lines}


def replay(steps: Sequence[AnyStep]) -> dict[str, TreeState]:
    """Judge all steps, each run from its beginning, and return the states."""
    trees: dict[str, TreeState] = {}
    observe = watch.observe
    for step in steps:
        key = root_of(step)
        tree = trees.get(key)
        if tree is None:
            tree = trees[key] = TreeState(tenant=step.tenant, root_run_id=key)
        observe(tree, step, DEFAULT_POLICY, offset=1)
    return trees


def with_detectors(names: Sequence[str], work: Callable[[int], object]) -> Callable[[int], object]:
    """Return `work` with these detectors alone switched on."""
    calls = tuple(
        tuple(rule.observe for rule in watch.CALL_DETECTORS if rule.name in names and rule.signs & signs)
        for signs in range(ANY_SIGN + 1)
    )
    steps = {
        kind: tuple(rule.observe for rule in watch.STEP_DETECTORS if rule.name in names and kind in rule.kinds)
        for kind in STEP_TYPES
    }
    own = {
        "_ASKED": calls,
        "_ASKED_AT": steps,
        "_OBSERVE_TREE": watch.BUDGET.observe if watch.BUDGET.name in names else lambda *_: (),
    }

    def run(chunk: int) -> object:
        before = {name: getattr(watch, name) for name in own}
        try:
            for name, value in own.items():
                setattr(watch, name, value)
            return work(chunk)
        finally:
            for name, value in before.items():
                setattr(watch, name, value)

    return run


def best_of(rounds: int, works: dict[str, Callable[[int], object]], chunks: int) -> dict[str, int]:
    """Return the time of each work in nanoseconds: the sum over the chunks of the shortest time of each.

    A chunk is done in milliseconds, so that one of its rounds meets a quiet machine. The works take turns.
    """
    best: dict[str, int] = dict.fromkeys(works, 0)
    for chunk in range(chunks):
        shortest: dict[str, int] = {}
        for _ in range(rounds):
            for name, work in works.items():
                started = perf_counter_ns()
                work(chunk)
                taken = perf_counter_ns() - started
                shortest[name] = min(shortest.get(name, taken), taken)
        for name, taken in shortest.items():
            best[name] += taken
    return best


def in_chunks(records: Sequence[bytes], size: int) -> list[list[bytes]]:
    """Return the records in chunks of at least `size` events that hold whole runs, if the runs follow each other."""
    chunks: list[list[bytes]] = [[]]
    last_run = b""
    for record in records:
        run = record[record.index(b'"run_id"') :][:80]
        if len(chunks[-1]) >= size and run != last_run:
            chunks.append([])
        chunks[-1].append(record)
        last_run = run
    return chunks


def measure(records: Sequence[bytes], rounds: int) -> dict[str, float]:
    """Return nanoseconds per event, and per snapshot, of one file."""
    chunks = in_chunks(records, CHUNK_EVENTS)
    steps = [[step for step in map(decode_step, chunk) if step is not None] for chunk in chunks]
    states = [list(replay(chunk).values()) for chunk in steps]
    snapshots = [[state.to_bytes() for state in chunk] for chunk in states]
    works: dict[str, Callable[[int], object]] = {
        "decode": lambda n: [decode_step(record) for record in chunks[n]],
        "shared": with_detectors((), lambda n: replay(steps[n])),
    }
    for name in watch.DETECTORS:
        works[name] = with_detectors((name,), lambda n: replay(steps[n]))
    works["all"] = lambda n: replay(steps[n])
    works["snapshot"] = lambda n: [state.to_bytes() for state in states[n]]
    works["restore"] = lambda n: [TreeState.from_bytes(snapshot) for snapshot in snapshots[n]]
    best = best_of(rounds, works, len(chunks))
    runs = sum(map(len, states))
    found = {name: best[name] / len(records) for name in ("decode", "shared", "all")}
    found |= {name: (best[name] - best["shared"]) / len(records) for name in watch.DETECTORS}
    found |= {name: best[name] / runs for name in ("snapshot", "restore")}
    sizes = sorted(len(snapshot) for chunk in snapshots for snapshot in chunk)
    return found | {"events": len(records), "runs": runs, "bytes": sizes[len(sizes) // 2], "max_bytes": sizes[-1]}


def memory_per_run(records: Sequence[bytes], live_runs: int) -> float:
    """Return Python's bytes per live run when `live_runs` of the shape in `records` are held at once."""
    by_run: dict[str, list[bytes]] = {}
    for record in records:
        step = decode_step(record)
        if step is not None:
            by_run.setdefault(step.run_id, []).append(record)
    trees: list[TreeState] = []
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for run in islice(_for_ever(list(by_run.values())), live_runs):
        trees += replay([step for step in map(decode_step, run) if step is not None]).values()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return used / len(trees)


def _for_ever(runs: list[list[bytes]]) -> Iterator[list[bytes]]:
    while True:
        yield from runs


ROWS = ("decode", "shared", *watch.DETECTORS, "all", "snapshot", "restore", "bytes", "max_bytes", "events", "runs")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--live-runs", type=int, default=100_000)
    options = parser.parse_args(argv)
    paths = options.paths or ([TRACES] if TRACES.is_dir() else [])
    records = read_records(paths) if paths else made_up_records()
    if not records:
        parser.error("no step events found")
    everything = [record for lines in records.values() for record in lines]
    table = {name: measure(lines, options.rounds) for name, lines in records.items()}
    table["all files"] = measure(everything, options.rounds)
    memory = memory_per_run(everything, options.live_runs)
    if options.json:
        json.dump({"per_event_ns": table, "bytes_per_live_run": memory, "live_runs": options.live_runs}, sys.stdout)
        return 0
    width = max(map(len, table)) + 1
    print("ns per event, of a detector what it adds to `shared`; ns and bytes per snapshot")
    print(" " * width, *(f"{row[:10]:>10}" for row in ROWS))
    for name, found in table.items():
        print(f"{name:{width}}", *(f"{found[row]:10,.0f}" for row in ROWS))
    ratio = table["all files"]["all"] / table["all files"]["decode"]
    print(f"\nall rules cost {ratio:.2f} times the decoding of an event")
    print(f"{options.live_runs:,} live runs: {memory:,.0f} bytes each, {memory * options.live_runs / 2**20:,.0f} MiB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
