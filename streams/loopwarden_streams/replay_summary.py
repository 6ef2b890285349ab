"""What a replay adds up to: verdicts and runs per detector and level, and the runs that would have been stopped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec import Struct

from loopwarden_detectors.ladder import Decision
from loopwarden_detectors.run_state import RunState, TreeState
from loopwarden_detectors.tool_fleet import RULES
from loopwarden_models.events import AnyStep
from loopwarden_models.patterns import LEVEL_NAMES, Level
from loopwarden_models.verdicts import Verdict

ANY: Final = "any"


def ordered_by(decision: Decision) -> str | None:
    """Return what a decision ordered: the type of a command, `block_tool`, or `None`."""
    if decision.order is not None:
        return decision.order.type
    return "block_tool" if decision.block is not None else None


class StoppedRun(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run that would have been stopped: by an order, or where the mode holds orders back, by what was seen.

    Attributes:
        at_ms: Event time of the verdict with the order, else of the first of level `pause` or `kill`, in Unix
            milliseconds.
        seq: Its step. `detector`: whose verdict it was. `mode`: how far that one is acted on.
        order: `kill_run` or `pause_run`; none in `shadow` and `warn`.
        probable_cause: What its verdict names, if it names one; `loopwarden_models.causes` has the countermeasure.
        steps_after: Steps that the run is recorded to have made after `seq`.
        cost_usd_after: What its tree spent after it, as far as costs were reported.
    """

    tenant: str
    run_id: str
    at_ms: int
    seq: int
    detector: str
    mode: str
    agent: str | None = None
    order: str | None = None
    steps_after: int = 0
    cost_usd_after: float = 0.0
    probable_cause: str | None = None


class Summary(Struct, frozen=True, kw_only=True):
    """The sum of a replay. Holds nothing that depends on the machine: the same records give an equal summary.

    Attributes:
        events: Step events judged. `unknown_types`: well-formed ones of a type that this version does not know.
        runs: Runs seen, of those that are told of. `runs_with_verdict`: how many of them got one.
        first_ms: Oldest event time, in Unix milliseconds. `last_ms`: the newest.
        broken: Records that are no step events, by reason.
        verdicts: By detector and level, how many.
        runs_by_level: By detector and for `any` of them, how many runs had each level as their strongest. None for
            `fleet_breaker` and `restart_loop`, whose verdicts are about tools and tasks.
        orders: Commands that would have been given, by type.
        causes: How many runs had a verdict that names each probable cause, most first.
        stopped: Runs that would have been stopped, in the order in which they came to it.
        almost_stopped: Runs in `enforce` whose evidence asked for a stop while a nudge before it had yet to fail.
        evicted_runs: Runs that were forgotten for want of room; not 0 means that verdicts may be missing.
    """

    events: int
    unknown_types: int
    runs: int
    runs_with_verdict: int
    first_ms: int
    last_ms: int
    broken: dict[str, int]
    verdicts: dict[str, dict[str, int]]
    runs_by_level: dict[str, dict[str, int]]
    orders: dict[str, int]
    causes: dict[str, int]
    stopped: list[StoppedRun]
    almost_stopped: int
    evicted_runs: int


@dataclass(slots=True)
class _Stop:
    verdict: Verdict
    run: RunState | None
    tree: TreeState
    cost_usd: float
    order: str | None = None


class Tally:
    """Adds up decisions. Holds something for runs with a verdict alone.

    Attributes:
        agents: Names of the agents of these runs, by tenant and run.
    """

    def __init__(self, run: str | None = None) -> None:
        self.agents: dict[tuple[str, str], str] = {}
        self._only = run
        self._verdicts: dict[str, Counter[str]] = {name: Counter() for name in RULES}
        self._strongest: dict[str, dict[tuple[str, str], Level]] = {name: {} for name in (*RULES, ANY)}
        self._orders: Counter[str] = Counter()
        self._causes: dict[str, set[tuple[str, str]]] = {}
        self._stops: dict[tuple[str, str], _Stop] = {}
        self._forgotten = 0
        self._first_ms: int | None = None
        self._last_ms = 0

    def add(self, tree: TreeState, step: AnyStep, decision: Decision) -> None:
        """Count one decision on a run of `tree`, at the moment when `step` led to it."""
        verdict = decision.verdict
        if verdict is None:
            return
        key = (verdict.tenant, verdict.run_id)
        run = tree.runs.get(verdict.run_id)
        if step.run_id == verdict.run_id and step.agent is not None:
            self.agents[key] = step.agent
        level = Level(LEVEL_NAMES.index(verdict.level))
        self._verdicts[verdict.detector][verdict.level] += 1
        for name in (verdict.detector, ANY):
            strongest = self._strongest[name]
            strongest[key] = max(level, strongest.get(key, level))
        if verdict.probable_cause is not None:
            self._causes.setdefault(verdict.probable_cause, set()).add(key)
        order = ordered_by(decision)
        if order is not None:
            self._orders[order] += 1
        ends = order if order in ("kill_run", "pause_run") else None
        known = self._stops.get(key)
        if level >= Level.PAUSE and (known is None or (ends and not known.order)):
            self._stops[key] = _Stop(verdict, run, tree, tree.cost_usd, ends)

    def add_fleet(self, verdict: Verdict) -> None:
        """Count one verdict on a tool or a task. It is no verdict on any of the runs that share it."""
        self._verdicts[verdict.detector][verdict.level] += 1

    def forget(self, tree: TreeState) -> None:
        """Take leave of a tree that is held no longer."""
        if tree.runs:
            self._forgotten += self._count_runs(tree)
            self._widen(tree)

    def summary(
        self, trees: Iterable[TreeState], *, events: int, unknown_types: int, broken: Mapping[str, int]
    ) -> Summary:
        """Return the sum over what was counted and over the `trees` still held."""
        stops = [stop for stop in self._stops.values() if stop.order or stop.verdict.mode != "enforce"]
        runs = self._forgotten
        for tree in trees:
            if tree.runs:
                runs += self._count_runs(tree)
                self._widen(tree)
        return Summary(
            events=events,
            unknown_types=unknown_types,
            runs=runs,
            runs_with_verdict=len(self._strongest[ANY]),
            first_ms=self._first_ms or 0,
            last_ms=self._last_ms,
            broken=dict(sorted(broken.items())),
            verdicts={name: _in_order(counts) for name, counts in self._verdicts.items()},
            runs_by_level={
                name: _in_order(Counter(LEVEL_NAMES[level] for level in runs_of.values()))
                for name, runs_of in self._strongest.items()
            },
            orders=dict(sorted(self._orders.items())),
            causes=dict(sorted(((name, len(of)) for name, of in self._causes.items()), key=lambda it: (-it[1], it[0]))),
            stopped=sorted(map(self._stopped, stops), key=lambda run: (run.at_ms, run.tenant, run.run_id)),
            almost_stopped=len(self._stops) - len(stops),
            evicted_runs=self._forgotten,
        )

    def _count_runs(self, tree: TreeState) -> int:
        only = self._only
        if only in (None, tree.root_run_id):
            return len(tree.runs) + tree.evicted_runs
        return int(only in tree.runs)

    def _widen(self, tree: TreeState) -> None:
        # Not the tree's own start: for late events that is when the broker got them.
        first_ms = min(run.started_ms for run in tree.runs.values())
        self._first_ms = first_ms if self._first_ms is None else min(self._first_ms, first_ms)
        self._last_ms = max(self._last_ms, tree.now_ms)

    def _stopped(self, stop: _Stop) -> StoppedRun:
        verdict, run = stop.verdict, stop.run
        seq = verdict.evidence.last_seq
        # A new incarnation counts its steps from the start: what it did is not what the stop would have spared.
        same = run is not None and run.incarnation == verdict.incarnation
        return StoppedRun(
            tenant=verdict.tenant,
            run_id=verdict.run_id,
            at_ms=verdict.at_ms,
            seq=seq,
            detector=verdict.detector,
            mode=verdict.mode,
            agent=self.agents.get((verdict.tenant, verdict.run_id)),
            order=stop.order,
            steps_after=run.seq - seq if run is not None and same else 0,
            cost_usd_after=round(stop.tree.cost_usd - stop.cost_usd, 6),
            probable_cause=verdict.probable_cause,
        )


def _in_order(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: counts[name] for name in LEVEL_NAMES if counts.get(name)}
