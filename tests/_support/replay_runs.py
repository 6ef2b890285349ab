"""Recorded runs for the tests of `loopwarden replay`, and the example of its guide: one run per rule, two healthy."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

START_MS = 1_767_603_600_000  # 2026-01-05 09:00:00 UTC
Event = dict[str, Any]


class Recorder:
    """Writes down one run: numbers its steps and moves its clock."""

    def __init__(self, run_id: str, agent: str, *, start_ms: int = START_MS, **start: Any) -> None:
        self.events: list[Event] = []
        self._run_id = run_id
        self._agent = agent
        self._now_ms = start_ms
        self._seq = count()
        self._calls = count(1)
        self.add("run_start", 0, **start)

    def add(self, kind: str, after_ms: int, **fields: Any) -> None:
        """Add one event, `after_ms` later than the last."""
        self._now_ms += after_ms
        common = {"v": 1, "type": kind, "tenant": "acme", "run_id": self._run_id, "agent": self._agent}
        self.events.append({**common, "seq": next(self._seq), "ts_ms": self._now_ms, **fields})

    def call(self, tool: str, args: Any, result: Any, after_ms: int = 4_000, **fields: Any) -> None:
        """Add one finished tool call; it went well unless `outcome` says otherwise."""
        call_id = f"c{next(self._calls)}"
        answer = {} if result is None else {"result": result}
        self.add("tool_end", after_ms, tool=tool, call_id=call_id, args=args, **{"outcome": "ok", **answer, **fields})

    def think(self, text: str, after_ms: int = 2_000, **fields: Any) -> None:
        """Add one answer of the model."""
        self.add("model_end", after_ms, text=text, **fields)


def exact_repeat(run_id: str = "report-1", *, times: int = 14, start_ms: int = START_MS) -> list[Event]:
    """The same search, the same answer, again and again."""
    run = Recorder(run_id, "researcher", start_ms=start_ms, goal="Find the revenue of 2024.")
    for _ in range(times):
        run.think("Let me search once more.", cost_usd=0.012)
        run.call("search", {"query": "revenue 2024"}, "see the annual report", effect="read")
    run.add("run_end", 1_000, status="failed")
    return run.events


def changing_repeat(run_id: str = "price-2") -> list[Event]:
    """The same question to a world that moves: watched a little too patiently."""
    run = Recorder(run_id, "shopper", goal="Buy when the price falls.")
    for cents in range(21):
        run.call("get_price", {"item": "B-17"}, {"usd": 10 + cents / 100}, effect="read")
    run.add("run_end", 1_000, status="completed")
    return run.events


def cycle(run_id: str = "refactor-3", *, laps: int = 11) -> list[Event]:
    """Two files, read in turn."""
    run = Recorder(run_id, "coder", goal="Remove the duplicate function.")
    for _ in range(laps):
        for name in ("billing.py", "invoices.py"):
            run.call("read_file", {"path": name}, f"def total(): ...  # {name}", effect="read")
    run.add("run_end", 1_000, status="limit")
    return run.events


def same_error(run_id: str = "trip-4", *, times: int = 16) -> list[Event]:
    """Another flight each time, the same wall."""
    run = Recorder(run_id, "booker", goal="Book a flight to Lisbon.")
    for number in range(times):
        error = {"class": "PaymentError", "message": "card declined", "status": 402}
        run.call("book", {"flight": f"TP{100 + number}"}, None, effect="write", outcome="error", error=error)
    run.add("run_end", 1_000, status="failed")
    return run.events


def rate(run_id: str = "crawl-5", *, calls: int = 131) -> list[Event]:
    """Never the same page twice, but more than two a second."""
    run = Recorder(run_id, "crawler", goal="Read the handbook.", limits={"max_steps": 1_000})
    for page in range(calls):
        run.call("fetch", {"page": page}, f"page {page}", after_ms=400, effect="read")
    run.add("run_end", 1_000, status="completed")
    return run.events


def budget(run_id: str = "plan-6", *, answers: int = 10) -> list[Event]:
    """A run that was given half a dollar."""
    run = Recorder(run_id, "planner", goal="Plan the migration.", limits={"max_cost_usd": 0.5})
    for number in range(answers):
        run.think(f"Step {number + 1} of the plan.", 3_000, cost_usd=0.06)
        run.call("note", {"text": f"step {number + 1}"}, "saved", effect="write")
    run.add("run_end", 1_000, status="completed")
    return run.events


def healthy_fix(run_id: str = "fix-7") -> list[Event]:
    """Test, edit, test: the same command, and a world that moves."""
    run = Recorder(run_id, "coder", goal="Make the tests pass.")
    for failing in (3, 2, 1, 0):
        run.call("run_tests", {}, f"{failing} failed, {40 - failing} passed", effect="read")
        run.call("edit", {"file": "total.py", "line": 10 + failing}, "saved", effect="write")
    run.add("run_end", 1_000, status="completed")
    return run.events


def healthy_wait(run_id: str = "deploy-8") -> list[Event]:
    """A declared poller may ask as often as it likes."""
    run = Recorder(run_id, "operator", goal="Deploy and wait.")
    for state in ["pending"] * 8 + ["done"]:
        run.call("job_status", {"job": 7}, state, after_ms=15_000, effect="poll")
    run.add("run_end", 1_000, status="completed")
    return run.events


def example_events() -> list[Event]:
    """All of them, as a topic would hold them: in order of time."""
    runs = (exact_repeat, changing_repeat, cycle, same_error, rate, budget, healthy_fix, healthy_wait)
    return sorted((event for run in runs for event in run()), key=lambda event: int(event["ts_ms"]))


def lines_of(events: Iterable[Event]) -> Iterator[bytes]:
    """Yield the events as lines, without their ends."""
    for event in events:
        yield json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode()


def jsonl(events: Iterable[Event]) -> bytes:
    """Return the events as a JSON Lines file."""
    return b"".join(line + b"\n" for line in lines_of(events))
