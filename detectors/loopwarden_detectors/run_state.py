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

from loopwarden_detectors.budget import OwnBudget
from loopwarden_detectors.changing_repeat import ChangingRepeatState
from loopwarden_detectors.exact_repeat import ExactRepeatState
from loopwarden_detectors.ladder_state import LoopState, StopState
from loopwarden_detectors.rings import BUCKETS, MARK, OTHER_TOOL, ROW, Ring
from loopwarden_detectors.same_error import ErrorState
from loopwarden_models.errors import StateCorrupt
from loopwarden_models.events import Limits

FORMAT = 2

# A tree of one run, whatever a runtime sends, and the same if its ids are ASCII; a larger snapshot is a fault of ours
# (tests/property/test_state_size.py). Half of all have less than 1 KB. A larger tree has at most as much for each run.
MAX_SNAPSHOT_BYTES = 5_120
MAX_SNAPSHOT_BYTES_ASCII = 4_096
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
        rate: Window of call counts, while the run makes many.
        loops: What was said and ordered. `nudges`: how many nudges, over all loops.
        forgotten: Highest number of a verdict or order whose loop left; new ones count on from it.
        stop: The newest order to pause or to end this run.
        open_calls: Calls in flight: key of the id, and start in event time.
        waits: Approvals that are pending, by key of the call id.
        approved: Keys of calls that a person approved and that have not ended yet.
        own: Limits of a child's own.
    """

    incarnation: str
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
    stop: StopState | None = None
    former: list[int] | None = None
    open_calls: list[int] | None = None
    waits: list[int] | None = None
    approved: list[int] | None = None
    own: OwnBudget | None = None

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
        self.exact_repeat = self.changing_repeat = self.same_error = None
        self.approved = None
        for loop in self.loops or ():
            if not loop.is_limit:
                loop.start_segment()

    def renumber(self) -> None:
        """Date what is remembered before the first step: `seq` begins anew, and what comes now is later."""
        if self.exact_repeat is not None:
            self.exact_repeat.first_seq = 0
        if self.changing_repeat is not None:
            self.changing_repeat.first_seq = 0
        for error in self.same_error or ():
            error.first_seq = 0

    def forget_call(self, call_key: int) -> None:
        """Forget what was counted of one call: a person approved it."""
        self.ring.forget_call(call_key)
        if self.exact_repeat is not None and self.exact_repeat.call_key == call_key:
            self.exact_repeat = None
        if self.changing_repeat is not None and self.changing_repeat.call_key == call_key:
            self.changing_repeat = None


class TreeState(Struct, array_like=True, gc=False):
    """Memory of one run tree: its runs and what they share.

    Attributes:
        steps_offset: Newest offset of the steps topic that this state includes, -1 = none. `acks_offset` likewise.
        runs: By run id; at most `MAX_RUNS_PER_TREE`, the idlest leave.
        limits: What the root's `run_start` declared, the rest from the policy; `max_steps` only if declared.
        attempts: Tool calls, counted when they start. `model_calls`, `tokens`, `cost_usd`: as they say.
        started_ms: Event time of the first event. `now_ms`: the newest of any run.
        waits: Approvals that are pending. `waiting_since_ms`, `waited_ms`: time that counts against no limit.
        evicted_runs: How many left. `forgotten`: highest number of a verdict or order of theirs.
        loops: What was said and ordered about the tree as a whole: its limits.
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
    loops: list[LoopState] | None = None

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
    )


_CHECKSUM_BYTES = 4
_VERSION = bytes([FORMAT])
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(TreeState).decode
