"""What is remembered of a run and of its tree, and the bytes it survives as.

The unit of state is the tree: the root run with its children, retries and resumes, because they share budgets,
a partition and a fate. Everything a verdict depends on is here; a cache that a restart would lose may not change
an answer.
"""

from __future__ import annotations

from sys import intern
from zlib import crc32

import msgspec
from msgspec import Struct, field

from loopwarden_detectors import semantic_repeat
from loopwarden_detectors.budget import OwnBudget
from loopwarden_detectors.changing_repeat import ChangingRepeatState
from loopwarden_detectors.context_rot import ContextState
from loopwarden_detectors.denied import DeniedState
from loopwarden_detectors.exact_repeat import ExactRepeatState
from loopwarden_detectors.frozen_poll import PollState
from loopwarden_detectors.goal_drift import DriftState
from loopwarden_detectors.ladder_state import LoopState
from loopwarden_detectors.near_text import ROW as TEXT_ROW
from loopwarden_detectors.near_text import NearTextState
from loopwarden_detectors.param_walk import WalkState
from loopwarden_detectors.ping_pong import Talk
from loopwarden_detectors.reflection import ReflectionState
from loopwarden_detectors.refusals import RefusalState
from loopwarden_detectors.resweep import Sweep
from loopwarden_detectors.retry_storm import StormState
from loopwarden_detectors.rings import BUCKETS, MARK, OTHER_TOOL, ROW, Ring
from loopwarden_detectors.same_error import ErrorState
from loopwarden_detectors.same_error_raw import RawErrorState
from loopwarden_detectors.same_output import SameOutputState
from loopwarden_detectors.self_append import AppendState
from loopwarden_detectors.semantic_repeat import SemanticState
from loopwarden_detectors.silent_run import SilentState
from loopwarden_detectors.sleep_only import SleepState
from loopwarden_detectors.stops import StopState
from loopwarden_detectors.text_chant import TextChantState
from loopwarden_detectors.tool_block import ToolBlock
from loopwarden_detectors.volatile_keys import VolatileCall
from loopwarden_models.errors import StateCorrupt
from loopwarden_models.events import Limits

FORMAT = 3

# A tree of one run, whatever a runtime sends, and the same if its ids are ASCII; a larger snapshot is a fault of ours
# (tests/property/test_state_size.py). Half of all have less than 1 KB. A larger tree has at most as much for each run.
MAX_SNAPSHOT_BYTES = 7_168
MAX_SNAPSHOT_BYTES_ASCII = 6_144
# Beside it what is kept of the meaning of a run's words, where a model of texts is at hand.
MAX_MEANING_BYTES = 6_144
MAX_RUNS_PER_TREE = 64

MAX_CALL_ID_BYTES = 512
MAX_OPEN_CALLS = 32
MAX_PENDING = 8
MAX_FORMER_INCARNATIONS = 8

# Names are for people alone. Providers allow 64 characters; beyond either cap a tool is "another tool".
MAX_TOOL_NAME_BYTES = 64
MAX_TOOL_NAMES_BYTES = 320
OTHER_TOOL_NAME = "another tool"
_SURELY_FIT = MAX_TOOL_NAMES_BYTES // MAX_TOOL_NAME_BYTES


class RunState(Struct, array_like=True, gc=False):
    """Memory of one run; its id is its key in the tree. Fields are only ever appended: the encoding is positional.

    What few runs need is `None` until it is needed: there are a hundred thousand live runs.

    Attributes:
        agent: Which agent it is, as its first event or its `run_start` says; `""` = not known.
        seq: Newest `seq` of the current incarnation; what is not above it is a duplicate.
        incarnations: How many there were before the current one.
        former: Keys of the incarnations that ended; an event of one is a late copy.
        started_ms: Event time of the first event of the run.
        now_ms: Newest event time; never goes backwards.
        calls: Finished calls, refused ones included.
        round: Number of the current round. `round_left`: calls that it may still take; `round_size`: how many it took.
        silence: Of the last two calls of a streak of errors, whether each achieved nothing, one bit each.
        ring: The newest calls of the segment.
        call_ids: 32-bit keys of recent call ids, 4 bytes each.
        tools: Names of tools by number.
        progress_seq: Newest step that moved the world: a new write, a changed answer, or the runtime's own word.
            -1 = none.
        novel_call: Number of the newest call of a declared read that brought something new, -1 = none.
        last_tool: Number of the newest call's tool. `args_bytes`, `args_crc`: length and checksum of its arguments.
        watched: Bits of the rules that count on through calls without a sign, `base.WATCHES_POLLS` and so on.
        rate: Window of call counts, while the run makes many.
        loops: What was said and ordered. `nudges`: how many nudges, over all loops.
        forgotten: Highest number of a verdict whose loop left; new ones count on from it.
        forgotten_rungs: The same of an order.
        stop: The newest order to pause or to end this run.
        open_calls: Calls in flight: key of the id, and start in event time.
        waits: Approvals that are pending, by key of the call id.
        approved: Keys of calls that a person approved and that have not ended yet.
        own: Limits of a child's own.
        same_error_raw: Calls that failed alike. `retry_storm`: calls that failed again at once.
        unknown_tool: Calls of tools that do not exist. `denied`: calls that were refused, by policy.
        write_call: Number of the newest new write's call, -1 = none.
        round_twins: `seq` of second equal calls of one round, 4 bytes each: they count once.
        blocks: Tools that the run may not use for a while.
        volatile: Calls whose answers differ, perhaps only by what is new each time.
        unproductive: Of the last 32 steps, whether each brought nothing, one bit each, the newest lowest; a round is
            one step.
        stuck: Of the same steps, whether nothing could be learnt from each: it failed, was refused, or was silent.
        joined: Of the last 44 calls, while one of those steps brought nothing, whether each belongs to the step of the
            call before.
        resweep: Things that are paged through. `self_append`: a call that grows. `param_walk`: tools that find nothing.
        level: Of the run in its tree, 1 = the root. `children`: runs that it started since a person spoke to it.
        silent_run: What is known of its silence.
        thought_mark: Calls at the newest answer of the model, `~` of them if that announced calls.
        reflection: Answers since the last action. `text_chant`: generations that chanted, since the last call.
        context_rot: The newest compaction of the context, and what was counted over those before it.
        void: Of the same steps as `unproductive`, whether each could do nothing: nobody understood it (`void_calls`).
        task: Of a root, the fingerprint of what it was told to do (`restart_loop`), 0 = not known. `findings`: when it
            had ended, of what it asked and was told.
        texts: Length, edges and place of the newest messages, 36 bytes each. `near_text`: those that are alike.
        goal_drift: The goal, and how like it the texts are, where a policy asks for that.
        parent_key: 32-bit key of the parent's run id, 0 for the root.
        host: The runtime that was heard of last, by its acknowledgements, else by `run_start`; for people.
        open_tools: Numbers of the tools of `open_calls`.
        insist_seq: Step at which a goal was declared that tells the run never to give up, -1 = none.
        semantic: What its words meant, where a model of texts is at hand.
    """

    incarnation: str
    agent: str = ""
    incarnations: int = 0
    seq: int = -1
    started_ms: int = 0
    now_ms: int = 0
    attended: bool = False
    is_low_fidelity: bool = False
    is_over: bool = False
    calls: int = 0
    round: int = 0
    round_left: int = 0
    round_size: int = 0
    silence: int = 0
    progress_seq: int = -1
    novel_call: int = -1
    last_tool: int = -1
    args_bytes: int = 0
    args_crc: int = 0
    watched: int = 0
    ring: Ring = field(default_factory=Ring)
    call_ids: bytearray = field(default_factory=bytearray)
    tools: list[str] = field(default_factory=list)
    exact_repeat: ExactRepeatState | None = None
    changing_repeat: ChangingRepeatState | None = None
    same_error: list[ErrorState] | None = None
    rate: list[int] | None = None
    loops: list[LoopState] | None = None
    nudges: int = 0
    forgotten: int = 0
    forgotten_rungs: int = 0
    stop: StopState | None = None
    former: list[int] | None = None
    open_calls: list[int] | None = None
    waits: list[int] | None = None
    approved: list[int] | None = None
    own: OwnBudget | None = None
    write_call: int = -1
    round_twins: bytearray | None = None
    frozen_poll: list[PollState] | None = None
    same_output: SameOutputState | None = None
    sleep_only: SleepState | None = None
    blocks: list[ToolBlock] | None = None
    volatile: list[VolatileCall] | None = None
    same_error_raw: list[RawErrorState] | None = None
    unknown_tool: RefusalState | None = None
    denied: DeniedState | None = None
    retry_storm: list[StormState] | None = None
    unproductive: int = 0
    stuck: int = 0
    joined: int = 0
    resweep: list[Sweep] | None = None
    self_append: AppendState | None = None
    param_walk: list[WalkState] | None = None
    level: int = 1
    children: int = 0
    silent_run: SilentState | None = None
    thought_mark: int = -1
    reflection: ReflectionState | None = None
    text_chant: TextChantState | None = None
    context_rot: ContextState | None = None
    void: int = 0
    task: int = 0
    findings: int = 0
    texts: bytes = b""
    near_text: NearTextState | None = None
    goal_drift: DriftState | None = None
    parent_key: int = 0
    host: str = ""
    open_tools: bytearray | None = None
    insist_seq: int = -1
    semantic: SemanticState | None = None

    def tool_number(self, tool: str) -> int:
        """Return the number of `tool` in this run's table, `OTHER_TOOL` if the table is full."""
        tools = self.tools
        # Looked up twice rather than raised once: most runs are short, and each new tool would cost an exception.
        return tools.index(tool) if tool in tools else self._add_tool(tool)

    def _add_tool(self, tool: str) -> int:
        tools = self.tools
        if tool.isascii() and len(tool) <= MAX_TOOL_NAME_BYTES:
            # One text for all runs of a process: a run keeps a reference, and the next look-up compares by identity.
            name = intern(tool)
        else:
            name = tool.encode("utf-8", "replace")[:MAX_TOOL_NAME_BYTES].decode("utf-8", "ignore")
            if name in tools:
                return tools.index(name)
        number = len(tools)
        if number >= _SURELY_FIT:
            room = MAX_TOOL_NAMES_BYTES - sum(len(known.encode()) for known in tools)
            if number >= OTHER_TOOL or len(name.encode()) > room:
                return OTHER_TOOL
        tools.append(name)
        return number

    def tool_name(self, number: int) -> str:
        """Return the name of a tool by its number."""
        return self.tools[number] if number < len(self.tools) else OTHER_TOOL_NAME

    def start_segment(self) -> None:
        """Forget what was counted: a person spoke, or the run began anew. Loop identities stay known."""
        self.ring.clear()
        self.round_left = self.round_size = self.silence = 0
        self.unproductive = self.stuck = self.joined = self.void = 0
        self.resweep = self.self_append = self.param_walk = None
        self.novel_call = self.write_call = self.last_tool = -1
        self.args_bytes = self.args_crc = 0
        self.watched = 0
        self.thought_mark = ~self.calls
        self.reflection = self.text_chant = self.context_rot = self.near_text = None
        self.texts = b""
        self.semantic = None
        if self.goal_drift is not None:
            self.goal_drift.start_segment()
        self.round_twins = self.frozen_poll = self.same_output = self.sleep_only = None
        self.exact_repeat = self.changing_repeat = self.same_error = None
        self.same_error_raw = self.unknown_tool = self.denied = self.retry_storm = None
        self.approved = None
        for loop in self.loops or ():
            if not loop.is_limit:
                loop.start_segment()

    def forget_call(self, call_key: int) -> None:
        """Forget what was counted of one call: a person approved it."""
        self.ring.forget_call(call_key)
        if self.exact_repeat is not None and self.exact_repeat.call_key == call_key:
            self.exact_repeat = None
        if self.changing_repeat is not None and self.changing_repeat.call_key == call_key:
            self.changing_repeat = None
        for poll in self.frozen_poll or ():
            if poll.call_key == call_key:
                poll.count = 0
        if self.same_error_raw is not None:
            self.same_error_raw = [known for known in self.same_error_raw if known.call_key != call_key] or None
        for storm in self.retry_storm or ():
            if storm.call_key == call_key:
                storm.times.clear()  # the failure that comes now is the first


class TreeState(Struct, array_like=True, gc=False):
    """Memory of one run tree: its runs and what they share.

    Attributes:
        steps_offset: Newest offset of the steps topic that this state includes, -1 = none. `acks_offset` likewise.
        runs: By run id; at most `MAX_RUNS_PER_TREE`, the idlest leave.
        limits: What the root's `run_start` declared, the rest from the policy; `max_steps` only if declared.
        attempts: Tool calls, counted when they start. `model_calls`, `tokens`, `cost_usd`: as they say.
        started_ms: Event time of the first event. `now_ms`: the newest of any run.
        waits: Approvals that are pending. `waiting_since_ms`, `waited_ms`: time that counts against no limit.
        evicted_runs: How many left. `forgotten`, `forgotten_rungs`: as in a run, of theirs.
        loops: What was said and ordered about the tree as a whole: its limits.
        output_bytes: What tools put out. `depth`: levels. `widest`: the most children that one run has.
        talks: Messages that agents of the tree send each other, and do nothing else.
        calls: Finished calls of all runs, copies left out.
    """

    tenant: str
    root_run_id: str
    steps_offset: int = -1
    acks_offset: int = -1
    runs: dict[str, RunState] = field(default_factory=dict)
    limits: Limits | None = None
    attempts: int = 0
    model_calls: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    started_ms: int = 0
    now_ms: int = 0
    waits: int = 0
    waiting_since_ms: int = 0
    waited_ms: int = 0
    evicted_runs: int = 0
    forgotten: int = 0
    forgotten_rungs: int = 0
    loops: list[LoopState] | None = None
    output_bytes: int = 0
    depth: int = 1
    widest: int = 0
    talks: list[Talk] | None = None
    calls: int = 0

    @property
    def is_over(self) -> bool:
        """Whether every run of the tree has ended."""
        return all(run.is_over for run in self.runs.values())

    def id_of(self, run: RunState) -> str:
        """Return the id of one of the tree's runs. Cost: O(runs); only what has news is asked for its name."""
        for run_id, known in self.runs.items():
            if known is run:
                return run_id
        raise KeyError(run.incarnation)

    def subject(self, run: RunState) -> RunState:
        """Return the run that answers for the tree: its root, or `run` if no event of the root was seen."""
        return self.runs.get(self.root_run_id, run)

    def active_ms(self, now_ms: int | None = None) -> int:
        """Return the time from the first event to `now_ms`, or to the newest one, without waiting for people."""
        now = self.now_ms if now_ms is None or now_ms < self.now_ms else now_ms
        waiting = now - self.waiting_since_ms if self.waits else 0
        return max(0, now - self.started_ms - self.waited_ms - waiting)

    def to_bytes(self) -> bytes:
        """Return the snapshot: a version byte, a checksum, then MessagePack.

        Cost: about 3 µs for a run of ten steps.
        """
        body = _encode(self)
        return _VERSION + crc32(body).to_bytes(_CHECKSUM_BYTES, "big") + body

    @staticmethod
    def from_bytes(data: bytes) -> TreeState:
        """Read a snapshot of this version, or one that was written before fields were appended to it.

        Raises:
            StateCorrupt: Another format version, bytes that are none, or a state that no run can be in.

        Cost: about 5 µs for a run of ten steps.
        """
        if data[:1] != _VERSION:
            raise StateCorrupt("?", data[0] if data else None, f"this version reads format {FORMAT}")
        body = memoryview(data)[1 + _CHECKSUM_BYTES :]
        if crc32(body).to_bytes(_CHECKSUM_BYTES, "big") != data[1 : 1 + _CHECKSUM_BYTES]:
            raise StateCorrupt("?", FORMAT, "the checksum does not match: bytes were lost or changed on the way")
        try:
            tree = _decode(body)
        except (msgspec.DecodeError, ValueError) as error:
            raise StateCorrupt("?", FORMAT, str(error)) from None
        for run_id, run in tree.runs.items():
            if not _is_sound(run):
                raise StateCorrupt(f"{tree.tenant}|{tree.root_run_id}", FORMAT, f"run {run_id!r} contradicts itself")
        return tree


def _is_sound(run: RunState) -> bool:
    """Return whether the parts of a state fit each other, so that no rule stumbles over it later."""
    marks, rows = run.ring.marks, run.ring.rows
    return (
        len(marks) % MARK == 0
        and len(rows) // ROW == len(marks) // MARK
        and len(rows) % ROW == 0
        and (run.rate is None or len(run.rate) == BUCKETS + 2)
        and len(run.call_ids) % 4 == 0
        and len(run.texts) % TEXT_ROW == 0
        and (run.semantic is None or semantic_repeat.is_sound(run.semantic))
    )


_CHECKSUM_BYTES = 4
_VERSION = bytes([FORMAT])
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(TreeState).decode
