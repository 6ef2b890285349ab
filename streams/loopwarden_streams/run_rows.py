"""The runs of a fleet as rows for people: the workers' snapshots, with what was said and what binds them now.

Snapshots lie in the run table's changelog and are as old as the last checkpoint, five seconds by default. The tree
counts tokens and cost, so a child has none of its own unless it declared limits; then they are in both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from aiokafka import ConsumerRecord
from msgspec import Struct

from loopwarden.fencing import OPERATOR
from loopwarden.hosting import matches
from loopwarden_detectors.run_state import RunState, TreeState
from loopwarden_models.control_state import RunRecord
from loopwarden_models.errors import StateCorrupt
from loopwarden_models.patterns import LEVEL_NAMES, Level, LevelName
from loopwarden_models.verdicts import Verdict
from loopwarden_streams.snapshots import POSITION_KEY, decode_snapshot, epoch_of, is_tool
from loopwarden_streams.standing_orders import Said, StandingOrders

RunStatus = Literal["live", "paused", "killed", "over"]
STATUSES: Final[tuple[RunStatus, ...]] = ("live", "paused", "killed", "over")


class Saying(Struct, frozen=True, omit_defaults=True):
    """The strongest that was said of a run.

    Attributes:
        level: What the evidence asks for.
        count: As its rule counts.
        pattern: Public name of it; `""` if its verdict is older than what was read.
        detector: The rule; likewise.
        at_ms: Event time; 0 likewise.
    """

    level: LevelName
    count: int
    pattern: str = ""
    detector: str = ""
    at_ms: int = 0


class RunRow(Struct, frozen=True, kw_only=True):
    """One run.

    Attributes:
        status: `live`, `paused`, `killed`, or `over` by itself. One whose host fell silent is `live`: nobody but its
            host says that it is dead.
        steps: Finished tool calls.
        tokens: Read and written, of the whole tree; of a child its own, `None` where nobody counts them.
        cost_usd: US dollars, likewise.
        started_ms: Event time of its first step, in Unix milliseconds. `last_step_ms`: of its newest.
        attended: Whether a person is watching.
        said: The strongest that was said of it since a person last spoke to it.
        bound_by: What binds it, in words.
    """

    tenant: str
    run_id: str
    root_run_id: str
    incarnation: str
    agent: str
    status: RunStatus
    steps: int
    tokens: int | None
    cost_usd: float | None
    started_ms: int
    last_step_ms: int
    attended: bool
    said: Saying | None
    bound_by: list[str]


class RunTable:
    """Collects snapshots, and decodes what changed when it is asked. Not thread-safe."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._trees: dict[bytes, TreeState] = {}
        self._epochs: dict[int, int] = {}
        self.unreadable: set[bytes] = set()

    def put(self, record: ConsumerRecord[bytes, bytes]) -> None:
        """Take one record of the changelog. What a former owner wrote after a newer one is passed over."""
        key, value = record.key, record.value
        if key is None or key == POSITION_KEY or is_tool(key):
            return
        self._trees.pop(key, None)
        self.unreadable.discard(key)
        if value is None:
            self._values.pop(key, None)
        elif epoch_of(value) >= self._epochs.get(record.partition, -1):
            self._epochs[record.partition] = epoch_of(value)
            self._values[key] = value

    def trees(self, tenant: str = "") -> Iterator[TreeState]:
        """Yield the trees, of one tenant or of all. Cost: 5 µs for each that changed."""
        prefix = f"{tenant}|".encode() if tenant else b""
        for key, value in self._values.items():
            if not key.startswith(prefix) or key in self.unreadable:
                continue
            tree = self._trees.get(key)
            if tree is None:
                try:
                    tree = self._trees[key] = decode_snapshot(key, value).tree
                except StateCorrupt:
                    self.unreadable.add(key)
                    continue
            yield tree

    def tree_of(self, tenant: str, run_id: str) -> TreeState | None:
        """Return the tree that a run belongs to. Cost: a pass over the tenant's trees, unless it is the root."""
        trees = [tree for tree in self.trees(tenant) if run_id in tree.runs]
        return max(trees, key=lambda tree: tree.now_ms, default=None)


class Sayings:
    """The strongest verdict of each run, from the topic of verdicts."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], Verdict] = {}

    def put(self, verdict: Verdict) -> None:
        """Take a verdict; of two of one level the later one stands."""
        key = (verdict.tenant, verdict.run_id)
        known = self._of.get(key)
        if known is None or _level(verdict) >= _level(known):
            self._of[key] = verdict

    def of(self, tenant: str, run_id: str, run: RunState) -> Saying | None:
        """Return what was said of a run: by the topic if it was read, else what the snapshot remembers."""
        verdict = self._of.get((tenant, run_id))
        loops = [(loop.level, loop.count) for loop in run.loops or () if loop.level]
        level, count = max(loops, default=(0, 0))
        if verdict is not None and _level(verdict) >= level:
            return Saying(verdict.level, verdict.evidence.count, verdict.pattern, verdict.detector, verdict.at_ms)
        return Saying(LEVEL_NAMES[level], count) if level else None


def rows(tree: TreeState, standing: StandingOrders, sayings: Sayings) -> Iterator[RunRow]:
    """Yield a row for each run of a tree."""
    for run_id, run in tree.runs.items():
        said = standing.run(tree.tenant, run_id)
        tokens, cost_usd = _spent(tree, run_id, run)
        yield RunRow(
            tenant=tree.tenant,
            run_id=run_id,
            root_run_id=tree.root_run_id,
            incarnation=run.incarnation,
            agent=run.agent,
            status=status_of(run, said),
            steps=run.calls,
            tokens=tokens,
            cost_usd=cost_usd,
            started_ms=run.started_ms,
            last_step_ms=run.now_ms,
            attended=run.attended,
            said=sayings.of(tree.tenant, run_id, run),
            bound_by=_bonds(run, said),
        )


def status_of(run: RunState, said: Said[RunRecord] | None) -> RunStatus:
    """Return how a run stands: by what its runtime has acknowledged, and by the record that binds it."""
    record = None if said is None else said.record
    if record is not None and record.state == "killed":
        return "killed"
    stop = run.stop
    is_stopped = stop is not None and stop.incarnation == run.incarnations and stop.applied_ms >= 0
    if is_stopped and stop is not None and stop.level >= Level.KILL:
        return "killed"
    if run.is_over:
        return "over"
    if record is not None and record.state == "paused":
        return "paused"
    if is_stopped and stop is not None and not _is_released(said, stop.applied_ms):
        return "paused"
    return "live"


def _is_released(said: Said[RunRecord] | None, since_ms: int) -> bool:
    return said is not None and said.record.state == "released" and said.append_ms >= since_ms


def _spent(tree: TreeState, run_id: str, run: RunState) -> tuple[int | None, float | None]:
    if run_id == tree.root_run_id:
        return tree.tokens, tree.cost_usd
    return (None, None) if run.own is None else (run.own.tokens, run.own.cost_usd)


def _bonds(run: RunState, said: Said[RunRecord] | None) -> list[str]:
    bonds = []
    record = None if said is None else said.record
    if record is not None and record.state in {"killed", "kill_wanted", "paused"}:
        bonds.append(f"{record.state.replace('_', ' ')} by {_by(record)}")
    if record is not None and matches(record.incarnation, run.incarnation) and record.state != "released":
        bonds += [f"{one.tool} blocked" for one in record.blocked_tools if one.until_ms > run.now_ms]
    stop = run.stop
    if stop is not None and stop.incarnation == run.incarnations and not run.is_over:
        verb = "kill" if stop.level >= Level.KILL else "pause"
        how = "dead" if stop.is_dead else "applied" if stop.applied_ms >= 0 else "not answered yet"
        is_known = record is not None and record.command_id == stop.command_id
        if not _is_released(said, stop.ordered_ms) and (verb == "pause" or not is_known or how != "dead"):
            bonds.append(f"{verb} by detector: {how}")
    return bonds


def _by(record: RunRecord) -> str:
    note = record.reason.note if record.reason is not None else None
    return f"{record.writer}: {note}" if record.writer == OPERATOR and note else record.writer


def _level(verdict: Verdict) -> int:
    return LEVEL_NAMES.index(verdict.level)
