"""The heart of `loopwarden replay`: recorded steps in, the worker's verdicts out. No input, no output, no clock."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from loopwarden_detectors.ladder import Decision
from loopwarden_detectors.meaning import Meaning
from loopwarden_detectors.restart_loop import turn_of
from loopwarden_detectors.run_state import TreeState
from loopwarden_detectors.watch import NOTHING, observe
from loopwarden_models.codec import MAX_STEP_BYTES, decode_step
from loopwarden_models.commands import EvidenceRange
from loopwarden_models.errors import InvalidEvent
from loopwarden_models.events import AnyStep, RunEnd, RunStart, ToolEnd, root_of, step_key
from loopwarden_models.policy import Policy
from loopwarden_streams.replay_summary import Summary, Tally
from loopwarden_streams.replay_tasks import ReplayTasks
from loopwarden_streams.replay_tools import ReplayTools

# Evicting one tree costs a pass over all; a batch of them costs the same pass.
_EVICTED_SHARE: Final = 16
_MAX_NAME_CHARS: Final = 256  # of `EvidenceRange.topic`


class Source(Struct, frozen=True):
    """Where records lie.

    Attributes:
        name: Path of the file as it was given, `-`, or name of the topic.
        partition: Partition of the topic; 0 for a file.
        is_topic: Records have keys and their offsets are Kafka's. In a file an offset is the line number less one.
    """

    name: str
    partition: int = 0
    is_topic: bool = False

    def place(self, offset: int) -> str:
        """Return the place of a record as people look for it: `file:line` or `topic/partition/offset`."""
        return f"{self.name}/{self.partition}/{offset}" if self.is_topic else f"{self.name}:{offset + 1}"


class SourceRecord(NamedTuple):
    """One recorded event, undecoded. `latest_ms` bounds its time as in `watch.observe`; files know no bound."""

    value: bytes | None
    source: Source
    offset: int
    latest_ms: int | None = None
    key: bytes | None = None


class FleetDecision(NamedTuple):
    """A decision on what runs share, and the source of the newest event that it rests on."""

    source: Source
    decision: Decision


class Broken(NamedTuple):
    """A record that is no step event, and where it lies."""

    source: Source
    offset: int
    error: InvalidEvent


class Replay:
    """Judges records one by one, with the state of every run tree in memory. Not thread-safe.

    The same records in the same order give the same decisions, and these are a worker's for the same events, as long
    as no acknowledgement, tick or eviction came between them there: a replay hears no answers, so from a nudge to a
    stronger order it waits for the policy's `ack_timeout_ms` of recorded time.

    Args:
        policy: In force for every tenant.
        tenant: Judge this tenant alone.
        run: Tell of this run, or of the tree with this root, alone. All are judged: budgets are of the tree.
        max_runs: Run trees held in memory; beyond it the ended, then the idlest are forgotten and counted.
        max_bytes: A larger record is broken.
        on_broken: Called with each record that is no step event.
        meaning: A model of texts, if there is one.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        tenant: str | None = None,
        run: str | None = None,
        max_runs: int = 500_000,
        max_bytes: int = MAX_STEP_BYTES,
        on_broken: Callable[[Broken], None] | None = None,
        meaning: Meaning | None = None,
    ) -> None:
        self._policy = policy
        self._meaning = meaning
        self._tenant = tenant
        self._run = run
        self._max_runs = max_runs
        self._max_bytes = max_bytes
        self._on_broken = on_broken
        # A worker keeps its state per partition, and so do we. Files are one partition: a run may span several.
        self._trees: dict[tuple[int, str, str], TreeState] = {}
        self._source: Source | None = None
        self._base = self._next = 0
        self._tally = Tally(run)
        self._events = self._unknown_types = 0
        self._broken: Counter[str] = Counter()
        self._tools: ReplayTools[tuple[Source, int]] = ReplayTools(policy)
        self._tasks: ReplayTasks[tuple[Source, int]] = ReplayTasks(policy)

    def feed(self, record: SourceRecord) -> Sequence[Decision]:
        """Judge one record.

        Returns:
            What a worker would publish for it, the evidence naming the record's source. Usually empty.

        Cost: that of `decode_step` and `observe`, and 0.6 µs.
        """
        value, source, offset, latest_ms, key = record
        if source is not self._source:
            self._change_source(source)
        try:
            step = decode_step(value, max_bytes=self._max_bytes)
            if step is None:
                self._unknown_types += 1
                return NOTHING
            root = step.root_run_id or step.run_id
            if source.is_topic:
                _check_key(key, step)
            if self._tenant is not None and step.tenant != self._tenant:
                return NOTHING
            tree_key = (source.partition, step.tenant, root)
            tree = self._trees.get(tree_key)
            if tree is None:
                tree = self._open_tree(tree_key)
            # Offsets rise across files, so that evidence from an earlier file is told from this one's.
            self._next = self._base + offset + 1
            calls = tree.calls
            decisions = observe(
                tree, step, self._policy, offset=self._next - 1, latest_ms=latest_ms, meaning=self._meaning
            )
        except InvalidEvent as error:
            return self._refuse(Broken(source, offset, error))
        except Exception as error:  # noqa: BLE001 - a fault of ours: as in a worker, reported, and the next one judged
            return self._refuse(Broken(source, offset, InvalidEvent("unhandled", repr(error)[:500])))
        self._events += 1
        if type(step) is ToolEnd:
            if tree.calls > calls:
                self._tools.add(step.tenant, step, (source, offset))
        elif type(step) is RunStart or type(step) is RunEnd:
            turn = turn_of(tree, step, partition=0, epoch=0, offset=self._next - 1)
            if turn is not None:
                self._tasks.add(turn, (source, offset))
        return self._told(tree, step, decisions, source, offset) if decisions else NOTHING

    def finish(self) -> Iterator[FleetDecision]:
        """Judge what runs share, once all records were fed, and yield the decisions in order of time.

        If only one run is told of: of its task alone, for no run is what a breaker is about.
        """
        of_tools = self._tools.finish() if self._run is None else ()
        of_tasks = (said for said in self._tasks.finish() if self._run in (None, said.verdict.run_id))
        for verdict, (source, offset) in heapq.merge(of_tools, of_tasks, key=lambda said: said.verdict.at_ms):
            self._tally.add_fleet(verdict)
            place = EvidenceRange(source.name[-_MAX_NAME_CHARS:], source.partition, [offset, offset])
            yield FleetDecision(source, Decision(verdict=replace(verdict, source=place), first_offset=offset))

    def agent_of(self, decision: Decision) -> str | None:
        """Return the name of the agent whose run `decision` is about, if its steps gave one."""
        verdict = decision.verdict
        return self._tally.agents.get((verdict.tenant, verdict.run_id)) if verdict is not None else None

    def summary(self) -> Summary:
        """Return what was seen so far. Cost: O(trees)."""
        return self._tally.summary(
            self._trees.values(), events=self._events, unknown_types=self._unknown_types, broken=self._broken
        )

    def _refuse(self, broken: Broken) -> Sequence[Decision]:
        self._broken[broken.error.reason] += 1
        if self._on_broken is not None:
            self._on_broken(broken)
        return NOTHING

    def _change_source(self, source: Source) -> None:
        self._source = source
        self._base = 0 if source.is_topic else self._next

    def _open_tree(self, key: tuple[int, str, str]) -> TreeState:
        trees = self._trees
        if len(trees) >= self._max_runs:
            count = max(1, len(trees) // _EVICTED_SHARE)
            for idlest in heapq.nsmallest(count, trees, key=lambda k: (not trees[k].is_over, trees[k].now_ms)):
                self._tally.forget(trees.pop(idlest))
        tree = trees[key] = TreeState(key[1], key[2])
        return tree

    def _told(
        self, tree: TreeState, step: AnyStep, decisions: Sequence[Decision], source: Source, offset: int
    ) -> Sequence[Decision]:
        told = []
        for decision in decisions:
            verdict = decision.verdict
            if verdict is None or self._run not in (None, verdict.run_id, verdict.root_run_id):
                continue
            # What began in an earlier file begins, in this one, at its first line.
            first = max(0, decision.first_offset - self._base) if decision.first_offset >= 0 else offset
            place = EvidenceRange(source.name[-_MAX_NAME_CHARS:], source.partition, [first, offset])
            told.append(replace(decision, verdict=replace(verdict, source=place), first_offset=first))
            self._tally.add(tree, step, told[-1])
        return told


def replay_steps(records: Iterable[SourceRecord], policy: Policy) -> Iterator[Decision]:
    """Yield the decisions on `records` in their order; records that are no step events are passed over."""
    replay = Replay(policy)
    for record in records:
        yield from replay.feed(record)


def _check_key(key: bytes | None, step: AnyStep) -> None:
    """Refuse what a worker refuses.

    Raises:
        InvalidEvent: The record's key is missing or not that of the event.
    """
    if not key:
        raise InvalidEvent("empty_key", "a record without a key belongs to no run")
    expected = step_key(step.tenant, root_of(step))
    if key != expected:
        raise InvalidEvent("key_mismatch", f"the key is {key[:200]!r}, the event's is {expected[:200]!r}")
