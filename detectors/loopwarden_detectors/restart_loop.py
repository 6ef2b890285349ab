"""One task is started again and again: each run is short or fails, and something outside starts the next.

No run of such a loop repeats anything, so no rule about a run sees it. What is judged here is a task: the runs of one
agent with one goal. There is nobody to advise, for the agent does not know; verdicts of this rule are for people.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct, field

from loopwarden_detectors.base import NONE, NUDGE, grade
from loopwarden_detectors.identity import set_key
from loopwarden_detectors.normalise import replace_volatile
from loopwarden_detectors.rings import MARK, WRITES
from loopwarden_detectors.sealed import seal, unseal
from loopwarden_models.events import RunEnd, RunStart
from loopwarden_models.hashes import stable_key
from loopwarden_models.ids import verdict_id
from loopwarden_models.patterns import LEVEL_NAMES, Level, Mode
from loopwarden_models.run_turns import RunTurn
from loopwarden_models.step_rules import MAX_ENDS
from loopwarden_models.verdicts import Evidence, Verdict

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState, TreeState
    from loopwarden_models.events import AnyStep
    from loopwarden_models.step_rules import RestartLoopConfig
    from loopwarden_models.volatile import VolatileRules

FORMAT: Final = 1

NAME: Final = "restart_loop"
PATTERN: Final = "restart_loop"

# A goal is told apart by its beginning.
_GOAL_CHARS: Final = 500
_BITS: Final = 53
_BAD_ENDS: Final = frozenset({"failed", "killed", "limit"})


class End(Struct, array_like=True, gc=False):
    """How one run of a task ended, in Unix milliseconds. `is_bad`: it failed, or was short and found nothing new.

    `run` are 53 bits of its id: a run that ends twice, for it was resumed, counts once.
    """

    run: int
    at_ms: int
    findings: int
    is_short: bool
    is_bad: bool


class TaskState(Struct, array_like=True):
    """Memory of one task. Fields are only ever appended: the encoding is positional.

    Attributes:
        known: By partition of steps, the newest offset of a turn that is included.
        ends: The newest, oldest first, at most `MAX_ENDS`.
        level: Strongest level said since the task last rested. `count`: at the newest verdict.
        said: Verdicts, over its life. `now_ms`: newest time of a turn.
        offset: Newest offset of `tool-health` that is included, -1 where the turns come from elsewhere.
    """

    tenant: str
    fingerprint: int
    known: dict[int, int] = field(default_factory=dict)
    ends: list[End] = field(default_factory=list)
    level: int = 0
    count: int = 0
    said: int = 0
    now_ms: int = 0
    offset: int = -1

    def admit(self, turn: RunTurn) -> bool:
        """Note where a turn comes from, and return whether it is new: a partition's turns come in order, or again."""
        if turn.offset <= self.known.get(turn.partition, -1):
            return False
        self.known[turn.partition] = turn.offset
        return True

    def to_bytes(self) -> bytes:
        """Return the snapshot."""
        return seal(FORMAT, _encode(self))

    @staticmethod
    def from_bytes(data: bytes) -> TaskState:
        """Read a snapshot of this version, or one that was written before fields were appended to it.

        Raises:
            StateCorrupt: Another format version, or bytes that are none.
        """
        return unseal(FORMAT, data, _decode, "tasks")


def fingerprint_of(tenant: str, agent: str, goal: str, rules: VolatileRules) -> int:
    """Return 53 bits that identify a task: who does what, without times, ids and durations in the goal.

    Numbers stay: twenty workers with a page each have twenty tasks. Cost: 10 µs, once a run.
    """
    text = " ".join(replace_volatile(goal[:_GOAL_CHARS], rules).split())
    return stable_key(f"{tenant}\0{agent}\0{text}") >> (64 - _BITS)


def turn_of(tree: TreeState, step: AnyStep, *, partition: int, epoch: int, offset: int) -> RunTurn | None:
    """Return what the task of a tree is told of a step that its root began or ended with, after it was judged.

    Args:
        tree: Its root has a task if its `run_start` gave a goal.
        step: Of the tree.
        partition: Of the steps topic.
        epoch: Of its owner.
        offset: Where the step lies in it.

    Cost: 0.1 µs for any other step.
    """
    kind = type(step)
    if (kind is not RunStart and kind is not RunEnd) or step.run_id != tree.root_run_id:
        return None
    run = tree.runs.get(step.run_id)
    if run is None or not run.task:
        return None
    is_end = type(step) is RunEnd
    return RunTurn(
        v=1,
        type="run_turn",
        turn="end" if is_end else "start",
        tenant=tree.tenant,
        run_id=step.run_id,
        fingerprint=run.task,
        agent=run.agent,
        at_ms=run.now_ms,
        status=step.status if type(step) is RunEnd else None,
        calls=run.calls if is_end else 0,
        findings=run.findings if is_end else 0,
        partition=partition,
        epoch=epoch,
        offset=offset,
    )


def findings_of(run: RunState) -> int:
    """Return 53 bits of what a run asked and was told in its last calls; of a write, only of what it asked. 0 = none.

    To be asked before the run's memory is cleared. Cost: 10 µs, once a run.
    """
    ring = run.ring
    keys = set()
    for at, (mark, kind) in enumerate(ring.marked_kinds()):
        told = 0 if kind & WRITES else int.from_bytes(mark[: MARK // 2], "big")
        asked = int.from_bytes(mark[MARK // 2 :], "big")
        keys.add(told << 32 | asked or at)
    return set_key(keys) >> (64 - _BITS) if keys else 0


def observe(task: TaskState, turn: RunTurn, config: RestartLoopConfig, mode: Mode) -> Verdict | None:
    """Judge one turn.

    `n` = ends within the last hour that were bad, at a start that comes after them. Bad is a run that failed, was ended
    or reached a limit, and one of at most ten calls that asked and found just what the run before it did.

    Runs that called nothing prove nothing.

    Levels: observe 3, nudge 5 (`RestartLoopConfig`, with sources). Nobody is stopped: whatever starts the runs stands
    outside.

    Args:
        task: Changed in place; the turn was admitted.
        turn: A start or an end.
        config: In force for the agent.
        mode: In force for the agent; `off` says nothing.

    Returns:
        A verdict about the run that starts, or `None`: said when the level rises, or the count has doubled.

    Cost: 2 µs a turn.
    """
    task.now_ms = max(task.now_ms, turn.at_ms)
    ends = task.ends
    since_ms = task.now_ms - config.window_ms
    while ends and ends[0].at_ms < since_ms:
        del ends[0]
    if turn.turn == "end":
        _note_end(ends, turn, config)
        return None
    count = sum(end.is_bad and end.at_ms <= turn.at_ms for end in ends)
    level, threshold = grade(count, config.observe, config.nudge)
    if level == NONE:
        if turn.at_ms >= task.now_ms:  # one that is late says nothing about how it stands now
            task.level = task.count = 0
        return None
    if mode == "off" or (level <= task.level and count < 2 * task.count):
        return None
    task.level, task.count = int(level), count
    task.said += 1
    return _said(task, turn, level, threshold, mode)


def _note_end(ends: list[End], turn: RunTurn, config: RestartLoopConfig) -> None:
    run = stable_key(turn.run_id) >> (64 - _BITS)
    ends[:] = [end for end in ends if end.run != run]
    end = End(run, turn.at_ms, turn.findings, turn.calls <= config.short_calls, turn.status in _BAD_ENDS)
    before = ends[-1] if ends else None
    if before is not None and end.is_short and before.is_short and 0 != end.findings == before.findings:
        # Two runs that did the same: the first was no better than the second.
        end.is_bad = before.is_bad = True
    ends.append(end)
    del ends[:-MAX_ENDS]


def _said(task: TaskState, turn: RunTurn, level: Level, threshold: int, mode: Mode) -> Verdict:
    loop_id = f"{task.fingerprint:016x}"
    first_ms = next(end.at_ms for end in task.ends if end.is_bad)
    return Verdict(
        v=1,
        verdict_id=verdict_id(task.tenant, turn.run_id, "", NAME, loop_id, task.said),
        tenant=task.tenant,
        run_id=turn.run_id,
        root_run_id=turn.run_id,
        incarnation="",
        at_ms=turn.at_ms,
        detector=NAME,
        pattern=PATTERN,
        level=LEVEL_NAMES[level],
        mode=mode,
        loop_id=loop_id,
        episode=task.said,
        evidence=Evidence(
            count=task.count,
            threshold=threshold,
            window_ms=max(0, turn.at_ms - first_ms),
            note=(
                f"{turn.agent or 'an agent'} is started again for the same task: {task.count} runs before this one "
                "failed, or did just what the run before them had done"
            )[:512],
        ),
        # Nobody is advised, so whoever reads this decides.
        recovery="ask_a_person" if level >= NUDGE else None,
        recovery_level="L3" if level >= NUDGE else None,
    )


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(TaskState).decode
