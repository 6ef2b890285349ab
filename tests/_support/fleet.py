"""Fleets of made-up runs with timestamps of now, some of which loop, and what must be said about them."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from tests._support.clients import OutRecord

from loopwarden_detectors.answers import acknowledge
from loopwarden_detectors.run_state import TreeState
from loopwarden_detectors.watch import observe
from loopwarden_models.acks import Ack
from loopwarden_models.codec import decode_step
from loopwarden_models.events import root_of, step_key
from loopwarden_models.ids import murmur2

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from loopwarden_models.policy import Policy

Event = dict[str, Any]

# Longer than the median gap of a loop may be before its repetitions stop to count is 30 s; an unheard nudge is given up
# after 30 s of event time. Six steps of 5 s lie between the nudge of a loop and its kill.
GAP_MS = 5_000


class Run:
    """Writes down one made-up run: numbers its steps and moves its clock."""

    def __init__(
        self, run_id: str, *, tenant: str = "acme", root: str = "", start_ms: int, incarnation: str = "i1"
    ) -> None:
        self.events: list[Event] = []
        self._common: Event = {"v": 1, "tenant": tenant, "run_id": run_id, "incarnation": incarnation}
        if root:
            self._common |= {"root_run_id": root, "parent_run_id": root}
        self._now_ms = start_ms
        self._seq = count()
        self._calls = count(1)
        self.add("run_start", goal="a made-up task")

    def add(self, kind: str, **fields: Any) -> None:
        """Add one event, `GAP_MS` after the last."""
        self.events.append({**self._common, "type": kind, "seq": next(self._seq), "ts_ms": self._now_ms, **fields})
        self._now_ms += GAP_MS

    def call(self, tool: str, args: Any, result: Any, **fields: Any) -> None:
        """Add one finished call that went well, unless `outcome` says otherwise."""
        call_id = f"c{next(self._calls)}"
        self.add(
            "tool_end", tool=tool, call_id=call_id, args=args, outcome="ok", effect="read", result=result, **fields
        )

    def fail(self, tool: str, args: Any) -> None:
        """Add one failed call: always the same error."""
        error = {"class": "PermissionError", "message": "not allowed here", "status": 403}
        call_id = f"c{next(self._calls)}"
        self.add("tool_end", tool=tool, call_id=call_id, args=args, outcome="error", effect="write", error=error)


def looping(run_id: str, laps: int, *, start_ms: int, **names: str) -> list[Event]:
    """Return a run that asks the same question `laps` times and gets the same answer: nudged at 3, killed from 8 on."""
    run = Run(run_id, start_ms=start_ms, **names)
    for _ in range(laps):
        run.call("search", {"query": "revenue 2024"}, "42 million")
    return run.events


def cycling(run_id: str, laps: int, *, start_ms: int, **names: str) -> list[Event]:
    """Return a run that reads three files in turn, `laps` times."""
    run = Run(run_id, start_ms=start_ms, **names)
    for _ in range(laps):
        for name in ("a.py", "b.py", "c.py"):
            run.call("read_file", {"path": name}, f"content of {name}")
    return run.events


def failing(run_id: str, times: int, *, start_ms: int, **names: str) -> list[Event]:
    """Return a run that meets the same error with ever new arguments."""
    run = Run(run_id, start_ms=start_ms, **names)
    for number in range(times):
        run.fail("book", {"flight": number})
    return run.events


def healthy(run_id: str, steps: int, *, start_ms: int, **names: str) -> list[Event]:
    """Return a run that learns something new at each step, and ends."""
    run = Run(run_id, start_ms=start_ms, **names)
    for number in range(steps):
        run.call("read_file", {"path": f"{run_id}/{number}.py"}, f"{run_id}: content {number}")
    run.add("run_end", status="completed")
    return run.events


def fleet(runs: int, *, seed: int, now_ms: int | None = None) -> list[list[Event]]:
    """Return the events of `runs` runs, each in its order: six in ten loop in one way or another.

    Timestamps are such that the last steps lie a little before `now_ms`, the wall clock by default. A parent and its
    child count as one run here: they are one tree, whose order of events must be kept.
    """
    draw = random.Random(seed)
    end_ms = int(time.time() * 1000) if now_ms is None else now_ms
    made: list[list[Event]] = []
    for number in range(runs):
        run_id = f"r{number:04d}"
        tenant = draw.choice(["acme", "globex", "initech"])
        match number % 10:
            case 0 | 1 | 2:
                events = looping(run_id, draw.randint(6, 16), start_ms=0, tenant=tenant)
            case 3:
                events = cycling(run_id, draw.randint(3, 7), start_ms=0, tenant=tenant)
            case 4:
                events = failing(run_id, draw.randint(6, 12), start_ms=0, tenant=tenant)
            case 5:
                parent = healthy(run_id, draw.randint(4, 8), start_ms=0, tenant=tenant)
                child = looping(f"{run_id}.1", draw.randint(6, 12), start_ms=0, tenant=tenant, root=run_id)
                events = shuffled([parent, child], draw)
            case _:
                events = healthy(run_id, draw.randint(5, 20), start_ms=0, tenant=tenant)
        shift_ms = end_ms - draw.randint(0, 5_000) - max(event["ts_ms"] for event in events)
        made.append([{**event, "ts_ms": event["ts_ms"] + shift_ms} for event in events])
    return made


def shuffled(runs: Sequence[Sequence[Event]], draw: random.Random) -> list[Event]:
    """Return the events of all runs in one order in which each run keeps its own."""
    order = [number for number, events in enumerate(runs) for _ in events]
    draw.shuffle(order)
    left = [iter(events) for events in runs]
    return [next(left[number]) for number in order]


def doubled(events: Sequence[Event], draw: random.Random, *, share: float) -> list[Event]:
    """Return `events` with some of them again, at once or up to a hundred events later, as retries of a source do."""
    places = [(float(at), event) for at, event in enumerate(events)]
    again = [(at + draw.choice([0.5, draw.uniform(1, 100)]), event) for at, event in places if draw.random() < share]
    return [event for _, event in sorted(places + again, key=lambda place: place[0])]


def key_of(event: Event) -> bytes:
    """Return the record key of a step event or an acknowledgement."""
    return step_key(event["tenant"], event.get("root_run_id") or event["run_id"])


def records(events: Iterable[Event], partitions: int) -> Iterator[OutRecord]:
    """Yield the records of events, with the partitions that Kafka's own clients would take."""
    for event in events:
        key = key_of(event)
        yield OutRecord((murmur2(key) & 0x7FFFFFFF) % partitions, key, msgspec.json.encode(event))


class Said(NamedTuple):
    """What must be said and ordered: verdicts without their source, by id, and the orders' types by command id."""

    verdicts: dict[str, Event]
    orders: dict[str, str]


class Judge:
    """The detectors in this process, where nothing is lost and nobody is interrupted.

    Attributes:
        said: What was said and ordered up to now.
    """

    def __init__(self, policy: Policy) -> None:
        self.said = Said({}, {})
        self._policy = policy
        self._trees: dict[bytes, TreeState] = {}
        self._unanswered: list[tuple[TreeState, Ack]] = []

    def feed(self, events: Iterable[Event]) -> None:
        """Judge events; each tree's must come in its order."""
        for event in events:
            step = decode_step(msgspec.json.encode(event))
            assert step is not None
            tree = self._trees.setdefault(key_of(event), TreeState(tenant=step.tenant, root_run_id=root_of(step)))
            for decision in observe(tree, step, self._policy):
                if decision.verdict is not None:
                    self.said.verdicts[decision.verdict.verdict_id] = plain(msgspec.to_builtins(decision.verdict))
                order = decision.order
                if order is not None:
                    self.said.orders[order.command_id] = order.type
                    ack = Ack(
                        v=1,
                        command_id=order.command_id,
                        tenant=order.tenant,
                        run_id=order.run_id,
                        status="applied",
                        at_ms=step.ts_ms,
                    )
                    self._unanswered.append((tree, ack))

    def answer(self) -> None:
        """Acknowledge every order up to now as applied."""
        for tree, ack in self._unanswered:
            acknowledge(tree, ack)
        self._unanswered.clear()


def judged(events: Iterable[Event], policy: Policy) -> Said:
    """Return what the detectors say of events, with no answer to any order."""
    judge = Judge(policy)
    judge.feed(events)
    return judge.said


def plain(verdict: Event) -> Event:
    """Return a verdict without what is put on where it is published: the place of its evidence, and the policy."""
    return {name: value for name, value in verdict.items() if name not in ("source", "policy")}


def heard(verdicts: Iterable[Event], commands: Iterable[Event]) -> Said:
    """Return what came out of the topics, each id once.

    Without the rule landing: what is said of orders that nobody answers hangs on how long the test takes.

    Raises:
        AssertionError: Two records of one id do not say the same: a receiver that keeps one of them is wrong.
    """
    said = Said({}, {})
    for verdict in verdicts:
        if verdict["detector"] == "landing":
            continue
        own = plain(verdict)
        kept = said.verdicts.setdefault(own["verdict_id"], own)
        assert kept == own, f"one id, two verdicts:\n{kept}\n{own}"
    meant: dict[str, tuple[Any, ...]] = {}
    for command in commands:
        target = tuple(command.get(field) for field in ("type", "tenant", "run_id", "incarnation", "scope", "mode"))
        kept_target = meant.setdefault(command["command_id"], target)
        assert kept_target == target, f"one id, two commands: {kept_target} and {target}"
        said.orders[command["command_id"]] = command["type"]
    return said


def differences(expected: Said, found: Said) -> str:
    """Return what is missing, too much or different, in a few lines; empty if nothing is."""
    lines: list[str] = []
    for what, wanted, got in (
        ("verdict", expected.verdicts, found.verdicts),
        ("command", expected.orders, found.orders),
    ):
        by_kind: dict[str, list[Any]] = defaultdict(list)
        by_kind["missing"] = [wanted[own_id] for own_id in wanted.keys() - got.keys()]
        by_kind["too much"] = [got[own_id] for own_id in got.keys() - wanted.keys()]
        by_kind["different"] = [
            (wanted[own_id], got[own_id]) for own_id in wanted.keys() & got.keys() if wanted[own_id] != got[own_id]
        ]
        for kind, entries in by_kind.items():
            if entries:
                lines.append(f"{len(entries)} of {len(wanted)} {what}s {kind}, such as {entries[0]}")
    return "\n".join(lines)
