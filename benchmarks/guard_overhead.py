"""What the guard costs the agent: microseconds per call, and milliseconds to import.

    python benchmarks/guard_overhead.py [--calls N] [--json]

The calls are measured on a guard whose threads run and publish. After every 100 calls the publisher may catch up,
outside the measured time: an agent's steps are far apart, and nothing must be dropped. Each figure is the best of five
rounds, since other processes can only make it worse; the floor is the same loop around a function that does nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from loopwarden import Guard, Limits, RunGuard, Usage
from loopwarden.records import ControlRecord, Outgoing, Outlet
from loopwarden.testing import TENANT
from loopwarden.transport import ControlFeed

ROUNDS = 5
BURST = 100
ARGS = {"query": "consumer lag of a group", "page": 3, "filters": {"lang": "en", "since": "2026-01-01"}}
RESULT = [{"title": f"Result {n}", "url": f"https://docs.example/{n}", "text": "lag " * 20} for n in range(5)]
USAGE = Usage(input_tokens=2_000, output_tokens=150)


class Nowhere:
    """A transport that takes everything and keeps nothing."""

    is_caught_up = True

    def send(self, topic: Outlet, batch: Sequence[Outgoing]) -> tuple[Sequence[Outgoing], int]:
        """Forget the records."""
        del topic, batch
        return [], 0

    def open_control(self, tenant: str) -> ControlFeed:
        """Be the feed."""
        del tenant
        return self

    def poll(self, timeout_s: float) -> Sequence[ControlRecord]:
        """Have no orders."""
        time.sleep(timeout_s)
        return ()

    def close(self, timeout_s: float = 0.0) -> None:
        """Do nothing."""


class Meter:
    """Measures calls on one guard."""

    def __init__(self, guard: Guard, calls: int) -> None:
        self._guard = guard
        self._calls = calls

    def us(self, call: Callable[[int], object], before: Callable[[int], object] | None = None) -> float:
        """Return microseconds per call, best round; `before` prepares each call outside the measured time."""
        best_ns = float("inf")
        for number in range(ROUNDS):
            spent_ns = 0
            for n in range(number * self._calls, (number + 1) * self._calls):
                if before is not None:
                    before(n)
                begun_ns = time.perf_counter_ns()
                call(n)
                spent_ns += time.perf_counter_ns() - begun_ns
                while n % BURST == 0 and self._guard.stats()["events_queued"]:
                    time.sleep(0.001)
            best_ns = min(best_ns, spent_ns / self._calls)
        return best_ns / 1_000


def measure(run: RunGuard, meter: Meter) -> dict[str, float]:
    """Return microseconds per call of each hook."""
    return {
        "before_model": meter.us(lambda _: run.before_model()),
        "after_model": meter.us(lambda _: run.after_model(text="I look it up.", usage=USAGE, cost_usd=0.01)),
        "nudges": meter.us(lambda _: run.nudges()),
        "before_tool": meter.us(
            lambda n: run.before_tool("search", ARGS, f"c{n}"), before=lambda n: run.after_tool(f"c{n - 1}")
        ),
        "before_tool_no_args": meter.us(
            lambda n: run.before_tool("search", None, f"d{n}"), before=lambda n: run.after_tool(f"d{n - 1}")
        ),
        "after_tool": meter.us(
            lambda n: run.after_tool(f"e{n}", result=RESULT),
            before=lambda n: run.before_tool("search", ARGS, f"e{n}"),
        ),
        "after_tool_no_result": meter.us(
            lambda n: run.after_tool(f"f{n}"), before=lambda n: run.before_tool("search", ARGS, f"f{n}")
        ),
    }


def import_ms(statement: str) -> float:
    """Return what an import costs in a fresh interpreter, best of five."""
    code = f"import time; t = time.perf_counter(); {statement}; print((time.perf_counter() - t) * 1000)"
    return min(
        float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
        for _ in range(ROUNDS)
    )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--calls", type=int, default=2_000, help="calls per round (default 2000)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    with Guard(Nowhere(), tenant=TENANT) as guard:
        meter = Meter(guard, arguments.calls)
        with guard.run("plain") as run:
            figures = {"floor": meter.us(lambda _: None), **measure(run, meter)}
        with guard.run("limited", limits=Limits(max_model_calls=10**9, max_tokens=10**12, max_steps=10**9)) as run:
            limited = {f"{name}_with_limits": us for name, us in measure(run, meter).items()}
        stats = guard.stats()
    us_per_call = {name: round(us, 3) for name, us in {**figures, **limited}.items()}
    ms_to_import = {
        "import loopwarden": round(import_ms("import loopwarden"), 2),
        "from loopwarden import Guard": round(import_ms("from loopwarden import Guard"), 2),
        "of that, import msgspec": round(import_ms("import msgspec"), 2),
    }
    if arguments.json:
        counts = {name: stats[name] for name in ("events_accepted", "events_dropped")}
        print(json.dumps({"us_per_call": us_per_call, "import_ms": ms_to_import, **counts}))
        return
    for name, us in us_per_call.items():
        print(f"{name:32} {us:8.2f} µs")
    for statement, ms in ms_to_import.items():
        print(f"{statement:32} {ms:8.1f} ms")


if __name__ == "__main__":
    main()
