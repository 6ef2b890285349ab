"""What the tier over meaning costs: texts a second, what it adds to an event, what a busy second model does to others.

    .venv-embeddings/bin/python -m benchmarks.semantic [--skip worker] [--rounds 5]

Needs the environment of `make test-embeddings`. All that is compared takes turns in one run; ratios hold elsewhere.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from statistics import quantiles

import msgspec
import psutil
from benchmarks.bench import PARTITIONS, environment, fill, ready, running_worker
from benchmarks.corpus import Event, load_runs, weave
from rich.console import Console
from rich.table import Table
from tests._support.kafka import THROUGHPUT, ApacheKafka
from tests._support.models import make_static_model, minilm

from loopwarden_detectors import watch
from loopwarden_detectors.meaning import Meaning
from loopwarden_detectors.run_state import TreeState
from loopwarden_models.codec import decode_step
from loopwarden_models.events import AnyStep, root_of
from loopwarden_models.policy import DEFAULT_POLICY
from loopwarden_streams.confirmer import MAX_WAITING, Confirmer
from loopwarden_streams.confirming_model import ConfirmingModel
from loopwarden_streams.ingest import CHUNK
from loopwarden_streams.meaning import TwoModels
from loopwarden_streams.settings import Settings
from loopwarden_streams.static_meaning import StaticMeaning

TEXTS = 4_000
CONFIRMED = 256
EVENTS = 40_000
console = Console(stderr=True)


def texts_of(runs: Sequence[list[Event]]) -> list[str]:
    """Return different texts of recorded answers, thoughts and results, of 40 to 1,000 characters."""
    found = dict.fromkeys(
        text[:1_000]
        for event in chain.from_iterable(runs)
        for text in (event.get("text"), event.get("result"))
        if isinstance(text, str) and len(text) >= 40
    )
    return list(islice(found, TEXTS))


def per_second(work: Callable[[], int], rounds: int) -> float:
    """Return how many units a second the best of some rounds did."""
    best = 0.0
    for _ in range(rounds):
        started = time.perf_counter()
        done = work()
        best = max(best, done / (time.perf_counter() - started))
    return best


def judge(chunks: Sequence[Sequence[AnyStep]], meaning: Meaning | None, busy: Callable[[], None]) -> list[float]:
    """Return the seconds that each chunk of steps took, as a worker judges them."""
    trees: dict[tuple[str, str], TreeState] = {}
    seconds = []
    for number, chunk in enumerate(chunks):
        busy()
        started = time.perf_counter()
        for offset, step in enumerate(chunk):
            key = (step.tenant, root_of(step))
            tree = trees.get(key)
            if tree is None:
                tree = trees[key] = TreeState(tenant=key[0], root_run_id=key[1])
            watch.observe(tree, step, DEFAULT_POLICY, offset=number * CHUNK + offset, meaning=meaning)
        seconds.append(time.perf_counter() - started)
    return seconds


def in_process(static: str, runs: list[list[Event]], rounds: int, table: Table) -> dict[str, float]:
    """Measure both models by themselves, and what they add to an event."""
    first = StaticMeaning(static)
    texts = texts_of(runs)
    characters = sum(map(len, texts)) / len(texts)

    def embed() -> int:
        first._known.clear()  # noqa: SLF001 - each text is to be new, its words are not
        for text in texts:
            first.vector(text)
        return len(texts)

    cold = per_second(embed, 1)
    rate = per_second(embed, rounds)
    short = [text[:100] for text in texts]

    def embed_short() -> int:
        first._known.clear()  # noqa: SLF001 - as above
        for text in short:
            first.vector(text)
        return len(short)

    rate_short = per_second(embed_short, rounds)
    model = ConfirmingModel(str(minilm()))
    confirmed = per_second(lambda: len(model.vectors(texts[:CONFIRMED])), 2)
    table.add_row(f"static model, texts of {characters:.0f} characters", f"{rate:,.0f} texts/s", "one core")
    table.add_row("the same, no word of them seen before", f"{cold:,.0f} texts/s", "one core")
    table.add_row("static model, texts of at most 100 characters", f"{rate_short:,.0f} texts/s", "one core")
    table.add_row("transformer, bytes, batches of 16", f"{confirmed:,.0f} texts/s", "one core")
    events = islice(weave(runs, count=4_000, max_events=16, partitions=1), EVENTS)
    steps = [step for record in events if (step := decode_step(record.value)) is not None]
    chunks = [steps[at : at + CHUNK] for at in range(0, len(steps), CHUNK)]
    confirmer = Confirmer(str(minilm()))
    while not confirmer.is_up:
        confirmer.look()
        time.sleep(0.05)
    both = TwoModels(first, confirmer)
    asked = 0

    def saturate() -> None:
        nonlocal asked
        for _ in range(MAX_WAITING):
            asked += 1
            confirmer.ask(-asked, f"{asked} {texts[asked % len(texts)]}")

    off: list[list[float]] = []
    on: list[list[float]] = []
    busy: list[list[float]] = []
    for _ in range(rounds):
        off.append(judge(chunks, None, lambda: None))
        first._known.clear()  # noqa: SLF001 - as above
        on.append(judge(chunks, both, lambda: None))
        first._known.clear()  # noqa: SLF001 - as above
        busy.append(judge(chunks, both, saturate))
    confirmer.close()
    added = sum(map(min, zip(*on, strict=True))) / sum(map(min, zip(*off, strict=True)))
    p99 = {name: quantiles(map(min, zip(*rows, strict=True)), n=100)[98] for name, rows in (("on", on), ("busy", busy))}
    table.add_row("judging in one process, with the tier", f"{1 / added:.2f} x", "of without")
    table.add_row(
        f"p99 of a chunk of {CHUNK} events, second model saturated",
        f"{p99['busy'] * 1e3:.1f} ms",
        f"{p99['busy'] / p99['on']:.2f} x with it idle",
    )
    return {
        "static_texts_per_s": round(rate),
        "static_cold_texts_per_s": round(cold),
        "static_short_texts_per_s": round(rate_short),
        "confirm_texts_per_s": round(confirmed),
        "judging_ratio": round(1 / added, 3),
        "p99_ratio_saturated": round(p99["busy"] / p99["on"], 3),
    }


def on_kafka(static: str, runs: list[list[Event]], repeat: int, table: Table) -> dict[str, float]:
    """Measure a worker with and without the tier, in turn, by the CPU time that its process takes for an event.

    Events a second would hang on what else runs: the models must be loaded before the events come, so the fleet is
    written while the worker reads.
    """
    models = {"LOOPWARDEN_SEMANTIC_MODEL": static, "LOOPWARDEN_SEMANTIC_CONFIRM_MODEL": str(minilm())}
    costs: dict[str, list[float]] = {"off": [], "on": []}
    with tempfile.TemporaryDirectory() as data, ApacheKafka(Path(data), jvm_flags=THROUGHPUT) as kafka:
        for n in range(repeat):
            for name, more in (("off", {"LOOPWARDEN_SEMANTIC_MODEL": ""}), ("on", models)):
                with console.status(f"measuring the worker, tier {name}"):
                    costs[name].append(_cpu_us(kafka.bootstrap, f"{name}{n}", runs, more))
                console.print(f"tier {name}: {costs[name][-1]:.1f} µs of CPU an event")
    best = {name: min(values) for name, values in costs.items()}
    ratio = best["off"] / best["on"]
    table.add_row("worker on Apache Kafka without the tier", f"{best['off']:.1f} µs", "of CPU an event")
    table.add_row("worker on Apache Kafka with both models", f"{best['on']:.1f} µs", f"{ratio:.2f} x the events")
    return {"worker_ratio": round(ratio, 3)}


def _cpu_us(broker: str, name: str, runs: list[list[Event]], more: dict[str, str]) -> float:
    settings = Settings(brokers=broker, app_id=f"bench-{name}", topic_prefix=f"{name}.", partitions=PARTITIONS)
    subprocess.run(
        [sys.executable, "-m", "loopwarden_streams.cli", "topics", "--json"],
        env=environment(settings),
        check=True,
        stdout=subprocess.DEVNULL,
    )
    with running_worker(replace(settings, start_at="earliest"), **more) as (process, port):
        while ready(port) is None or (more.get("LOOPWARDEN_SEMANTIC_CONFIRM_MODEL") and not _is_up(port)):
            time.sleep(0.1)
        before = sum(psutil.Process(process.pid).cpu_times()[:2])
        fleet = fill(broker, name, weave(runs, count=24_000, max_events=16, partitions=PARTITIONS))
        done = 0
        while done < fleet.events:
            time.sleep(0.2)
            body = ready(port)
            done = sum(one["next_offset"]["steps"] for one in body["partitions"].values()) if body else 0  # type: ignore[index]  # nested JSON
        return (sum(psutil.Process(process.pid).cpu_times()[:2]) - before) / fleet.events * 1e6


def _is_up(port: int) -> bool:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return b'loopwarden_embedding_up{kind="confirm"} 1.0' in answer.read()


def main() -> int:
    """Measure, print a table, write `build/semantic.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=2, help="times that the worker is measured with and without")
    parser.add_argument("--skip", nargs="*", default=[], choices=["worker"])
    args = parser.parse_args()
    runs, origin = load_runs()
    table = Table("what", "figure", "", title=f"Meaning of texts: {origin}")
    with tempfile.TemporaryDirectory() as data:
        static = str(make_static_model(Path(data) / "static"))
        result: dict[str, float] = in_process(static, runs, args.rounds, table)
        if "worker" not in args.skip:
            result |= on_kafka(static, runs, args.repeat, table)
    Console().print(table)
    target = Path(__file__).resolve().parents[1] / "build" / "semantic.json"
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(msgspec.json.format(json.dumps(result).encode(), indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
