"""What a worker holds for one partition of the steps topic that it owns."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from loopwarden_detectors.run_state import TreeState
from loopwarden_detectors.task_fleet import TaskFleet, TaskId
from loopwarden_detectors.tenant_fleet import TenantFleet
from loopwarden_detectors.tool_fleet import ToolFleet, ToolId
from loopwarden_models.policy import DEFAULT_POLICY, Policy
from loopwarden_models.run_turns import RunTurn
from loopwarden_streams.early_answers import EarlyAnswers
from loopwarden_streams.snapshots import Position
from loopwarden_streams.tenant_loads import TenantLoads
from loopwarden_streams.tool_sums import ToolSums

STEPS = "steps"
ACKS = "acks"
TOOLS = "tool-health"
SOURCES = (STEPS, ACKS, TOOLS)
MAX_OFFSET = 2**63 - 1
# So many beginnings and ends of runs are sent out of turn: 300 bytes each, and a backlog has thousands.
MAX_TURNS = 1_024


@dataclass(slots=True, kw_only=True)
class Partition:
    """Decoded state of one partition, and how far each of its sources was read.

    Attributes:
        number: Partition of the steps topic, of acks, of tool-health and of the changelog alike.
        epoch: Of this ownership; commands carry it, and a runtime refuses an older one.
        next_offset: By source, the offset that must come next.
        trees: Live run trees by record key.
        dirty: Keys that changed since the last checkpoint. `dead`: keys to delete at the next.
        dirty_from: A tree whose newest step is at this offset or above is in `dirty` already.
        marks: Mark of the last saved snapshot of each key. `xor`: over all of them.
        timed: Keys of trees with a wall-clock limit of their own.
        landing: Keys of trees with an order that is out and has not landed; some that have are still among them.
        watermark_ms: Newest event time seen. The partition's clock goes on from there while nothing comes.
        watermark_at: `time.monotonic()` when it moved.
        progress_at: `time.monotonic()` when `next_offset` of any source last moved.
        caught_up_at: `time.monotonic()` when the broker last said that no step is left to read. `answered_at`: the
            same of acknowledgements.
        covered: By source, the newest offset that a checkpoint made durable. `covered_at`: `time.monotonic()` of it.
        is_saved: A position record of this epoch is in the changelog, so that nobody takes the epoch again.
        replay_until: End of the steps when this ownership began: below it, steps may come that were judged before.
        was_owned: Somebody owned the partition before, and may have told of its steps already.
        early: Acknowledgements that came before that was read.
        sought: By source, the last hole that was read again, as (expected, found). `sought_at`: when.
        policy: In force for the tools.
        tools: The tools of this partition of tool-health. `dirty_tools`, `dead_tools`: as `dirty` and `dead`.
        tools_until: End of tool-health when this ownership began: until it is read, time stands still for the tools.
        leases: `time.monotonic()` when the lease of an open breaker was last said.
        sums: Calls of this partition's steps that were not sent to tool-health yet. `turns`: beginnings and ends of
            runs, likewise.
        loads: What the tenants of this partition's steps did and spent, likewise. `loads_live`: tenants
            that had live runs when they were last counted.
        tenants: The tenants of this partition of tool-health.
        tasks: The tasks of this partition of tool-health. `tasks_moved_at`: `time.monotonic()` when their time moved.
        lock: Held while a chunk of records is applied, and while a checkpoint takes its picture.
    """

    number: int
    epoch: int
    next_offset: dict[str, int]
    trees: dict[bytes, TreeState] = field(default_factory=dict)
    dirty: set[bytes] = field(default_factory=set)
    dirty_from: int = MAX_OFFSET
    dead: set[bytes] = field(default_factory=set)
    marks: dict[bytes, int] = field(default_factory=dict)
    xor: int = 0
    timed: set[bytes] = field(default_factory=set)
    landing: set[bytes] = field(default_factory=set)
    watermark_ms: int = 0
    watermark_at: float = field(default_factory=time.monotonic)
    progress_at: float = field(default_factory=time.monotonic)
    caught_up_at: float = float("-inf")
    answered_at: float = float("-inf")
    covered: dict[str, int] = field(default_factory=dict)
    covered_at: float = field(default_factory=time.monotonic)
    is_saved: bool = False
    replay_until: int = 0
    was_owned: bool = False
    early: EarlyAnswers = field(default_factory=EarlyAnswers)
    sought: dict[str, tuple[int, int]] = field(default_factory=dict)
    sought_at: float = 0.0
    policy: Policy = DEFAULT_POLICY
    dirty_tools: set[ToolId] = field(default_factory=set)
    dead_tools: set[ToolId] = field(default_factory=set)
    tools_until: int = 0
    leases: dict[ToolId, float] = field(default_factory=dict)
    turns: list[RunTurn] = field(default_factory=list)
    tasks_moved_at: float = field(default_factory=time.monotonic)
    tools: ToolFleet = field(init=False)
    sums: ToolSums = field(init=False)
    tasks: TaskFleet = field(init=False)
    loads_live: set[str] = field(default_factory=set)
    loads: TenantLoads = field(default_factory=TenantLoads)
    tenants: TenantFleet = field(init=False)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        """Make what hangs on the policy, and begin at 0 what was not given."""
        for source in SOURCES:
            self.next_offset.setdefault(source, 0)
        self.tools = ToolFleet(self.policy)
        self.sums = ToolSums(self.tools.config_of)
        self.tasks = TaskFleet(self.policy)
        self.tenants = TenantFleet(self.policy)

    @property
    def is_replaying(self) -> bool:
        """Whether steps may still come that a former owner judged."""
        return self.next_offset[STEPS] < self.replay_until

    @property
    def has_to_send(self) -> bool:
        """Whether something is to be sent to tool-health."""
        return bool(self.turns or self.sums)

    @property
    def must_send(self) -> bool:
        """Whether that is to be done before its time."""
        return self.sums.is_full or self.loads.is_full or len(self.turns) >= MAX_TURNS

    def upto(self) -> dict[str, int]:
        """Return, by source, the newest offset that a checkpoint may cover now."""
        return {
            STEPS: self.next_offset[STEPS] - 1,
            ACKS: self.early.covered(self.next_offset[ACKS] - 1),
            TOOLS: self.next_offset[TOOLS] - 1,
        }

    def take_changes(self) -> tuple[set[bytes], set[bytes]]:
        """Return the keys that changed, and those that are to be deleted, since the last call."""
        changed, self.dirty = self.dirty, set()
        dead, self.dead = self.dead, set()
        # A tree that was recovered may be newer than what was read up to now.
        self.dirty_from = MAX_OFFSET if self.is_replaying else self.next_offset[STEPS]
        return changed, dead

    def take_tools(self) -> tuple[set[ToolId], set[ToolId]]:
        """Return the tools that changed, and those that are to be deleted, since the last call."""
        changed, self.dirty_tools = self.dirty_tools, set()
        dead, self.dead_tools = self.dead_tools, set()
        return changed, dead

    def take_tenants(self) -> set[str]:
        """Return the tenants that changed or were forgotten since the last call."""
        changed, self.tenants.changed = self.tenants.changed, set()
        return changed

    def take_tasks(self) -> set[TaskId]:
        """Return the tasks that changed or were forgotten since the last call."""
        changed, self.tasks.changed = self.tasks.changed, set()
        return changed

    def clock_ms(self) -> int:
        """Return the partition's time: its newest event time plus the time since, in Unix milliseconds.

        Not the wall clock: events of yesterday that are read today must not look silent for a day.
        """
        return self.watermark_ms + int((time.monotonic() - self.watermark_at) * 1000)

    def saved(self, key: bytes, mark: int | None) -> None:
        """Note the mark under which `key` was saved, `None` = deleted."""
        before = self.marks.pop(key, 0) if mark is None else self.marks.get(key, 0)
        self.xor ^= before
        if mark is not None:
            self.marks[key] = mark
            self.xor ^= mark

    def forget(self, key: bytes) -> None:
        """Drop a tree from memory; the next checkpoint deletes its snapshot."""
        del self.trees[key]
        self.dirty.discard(key)
        self.timed.discard(key)
        self.landing.discard(key)
        self.dead.add(key)

    def position(self, upto: dict[str, int]) -> Position:
        """Return the position record for a checkpoint that covers `upto`."""
        return Position(
            steps=upto[STEPS],
            acks=upto[ACKS],
            count=len(self.marks),
            xor=self.xor,
            watermark_ms=self.watermark_ms,
            tools=upto[TOOLS],
        )


def has_wall_clock_limit(tree: TreeState) -> bool:
    """Return whether the tree, or a run of it, has a limit that time alone can reach. Cost: O(runs)."""
    limits = [tree.limits, *(run.own.limits for run in tree.runs.values() if run.own is not None)]
    return any(limit is not None and limit.max_duration_ms is not None for limit in limits)
