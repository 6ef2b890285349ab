"""The shape that all detectors share.

A detector is a module with one class. Its thresholds are its part of the policy, its memory is its part of the
run's state, and it answers each step with at most one `Finding`. It does not know what a kill is: the progress
veto, the mode and the ladder turn findings into verdicts and commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from msgspec import Struct

from loopwarden_models.causes import CauseName
from loopwarden_models.events import AnyStep, ToolEnd
from loopwarden_models.patterns import Level
from loopwarden_models.policy import Policy

if TYPE_CHECKING:  # the state of a run is made of the states of its detectors, which import this module
    from loopwarden_detectors.run_state import RunState, TreeState

# Signs of a call: what a rule over calls waits for before it looks. A call without any, as nearly all of a healthy run
# are, is remembered and nothing else.
REPEATED: Final = 1  # the ring holds the same call
WENT_WRONG: Final = 2  # it went wrong
STREAK: Final = 4  # repeats were counted at the call before
ERRORS: Final = 8  # errors were counted, and not disproved yet
BUSY: Final = 16  # the ring is long enough for a rate
REFUSED: Final = 32  # it did not run: refused, blocked, unknown, cancelled, or answered from a cache
EMPTY: Final = 64  # it succeeded, and there was nothing in the answer, or nothing but the question
PATIENT: Final = 128  # it polled, or let time pass
SAME_RESULT: Final = (
    256  # a declared read had an answer that the ring holds, an undeclared tool that of the call before
)
LONGER: Final = 512  # the tool of the call before, and its arguments with more at their end
ALIKE: Final = 1_024  # the tool of the call before, and arguments of nearly the same length
WATCHED: Final = 2_048  # a rule set its bit in `RunState.watched`: it wants to see the next call, whatever it is
MILESTONE: Final = 4_096  # it is the 32nd of its run, the 64th, and so on
ANY_SIGN: Final = 8_191

MILESTONE_CALLS: Final = 32

# Bits of `RunState.watched`, one for each rule that counts on through calls without a sign.
WATCHES_POLLS: Final = 1
WATCHES_OUTPUT: Final = 2
WATCHES_UNKNOWN: Final = 4
WATCHES_DENIALS: Final = 8
WATCHES_WALK: Final = 16
WATCHES_APPENDS: Final = 32
WATCHES_SWEEPS: Final = 64
WATCHES_WAITS: Final = 128
WATCHES_RAW_ERRORS: Final = 256
WATCHES_STORM: Final = 512
WATCHES_CONTEXT: Final = 1_024

# The members of `Level` under names of their own: to look one up in the class costs as much as a rule.
NONE, OBSERVE, NUDGE, BREAK, PAUSE, KILL = Level


class Call(Struct, gc=False):
    """What is compared of one finished tool call. Keys are 64-bit, equal on every machine; 0 = missing.

    Attributes:
        step: The event as it came.
        signs: Why it is looked at: `REPEATED`, `WENT_WRONG` and so on.
        tool: Name of the tool.
        effect: Declared effect, folded to the closed set.
        outcome: Outcome as sent, `ok` if none was.
        call_key: Of (tool, arguments); 0 if the arguments are not known.
        result_key: Of the result, or of the error in its place; 0 if neither is known or the tool did not run.
        has_pair: Whether both are present. Missing evidence never equals anything.
        mark: The halves of result and call key that the ring keeps, see `rings.mark_of`.
        round: Number of the round that the call belongs to: calls of one parallel batch have the same.
        in_round: How many calls of the same round came before it.
        call_age: How many calls ago the call was last made, 1 for the call before, 0 if the ring does not hold it.
        pair_age: The same of the call with this answer.
        emptiness: What a successful answer holds: `identity.FULL`, `EMPTY_ANSWER` or `NEGATIVE_ANSWER`.
        is_unproductive: It failed, did not run, or brought nothing (detectors.md, no_progress).
        is_novel: A declared read brought an answer, not empty, that the ring did not hold.
        is_volatile: Its result was compared without what is new each time (`volatile_keys`).
        is_new_write: A successful write that did not occur among the last 40 calls: the world moved.
        is_wait: The call only let time pass.
        grown_from: How many bytes of the arguments are those of the call before, 0 if they do not begin with them.
        offset: Source offset of the step, -1 if there is none.
    """

    step: ToolEnd
    signs: int
    tool: str
    effect: str
    outcome: str
    call_key: int
    result_key: int
    has_pair: bool
    mark: bytes
    round: int
    in_round: int
    call_age: int
    pair_age: int
    emptiness: int
    is_unproductive: bool
    is_novel: bool
    is_volatile: bool
    is_new_write: bool
    is_wait: bool
    grown_from: int
    offset: int


class Finding(Struct, frozen=True, kw_only=True, gc=False):
    """What one detector saw at one step, where that is news.

    Attributes:
        detector: Name of the rule; `pattern` is the public name of what it found.
        level: What the evidence asks for, before veto, mode and ladder.
        loop_key: Identity of the loop, 64-bit. Escalation counts against it.
        count: Repetitions, laps, errors, calls a minute or per cent, as the detector defines them.
        threshold: The `count` at which `level` begins.
        first_seq: Step at which the pattern began.
        first_offset: Its offset in the source, -1 if it is not known any more.
        first_ms: Its event time.
        tools: The tools involved, at most six.
        veto_after_seq: Progress after this step turns anything above a nudge into a nudge; -1 = no veto.
        is_hard: A limit that was agreed on: neither veto nor ladder stands between it and the end of the run.
        needs_nudge: A block of the tool, or the end of the run, waits for a nudge that failed. False where there is
            nothing to advise, or nobody who would hear it: then no nudge is given.
        is_of_tree: The finding is about the whole tree, whichever of its runs made the step.
        limit: For budgets, the name of the limit; `used` and `allowed` in its unit.
        note: One sentence for people; never content of the run.
        effect: Declared effect of the call that repeats, where the rule knows that it repeats with its answer.
        cause: What the rule itself saw of the cause; see `causes.probable_cause`.
        model: Where it rests on the meaning of texts, the models that were asked, with their versions.
    """

    detector: str
    pattern: str
    level: Level
    loop_key: int
    count: int
    threshold: int
    first_seq: int
    first_ms: int
    first_offset: int = -1
    tools: tuple[str, ...] = ()
    veto_after_seq: int = -1
    is_hard: bool = False
    needs_nudge: bool = True
    is_of_tree: bool = False
    limit: str | None = None
    used: float | None = None
    allowed: float | None = None
    note: str = ""
    effect: str = ""
    cause: CauseName | None = None
    model: str | None = None


def grade(
    count: int, observe: int, nudge: int, break_at: int | None = None, kill: int | None = None
) -> tuple[Level, int]:
    """Return the strongest level whose threshold `count` reaches, and that threshold. `None` = no such level."""
    if kill is not None and count >= kill:
        return KILL, kill
    if break_at is not None and count >= break_at:
        return BREAK, break_at
    if count >= nudge:
        return NUDGE, nudge
    return (OBSERVE, observe) if count >= observe else (NONE, observe)


class CallDetector(Protocol):
    """A rule over the finished tool calls of one run.

    `observe` is total and deterministic: it sees every call of a run that bears one of its signs, in order, the ring
    included, changes only its own part of `run`, and returns what it found at this call, or `None` if that is nothing
    or no news (`ladder_state.is_news`). What needs no sign is asked of the ring afterwards: count nanoseconds.
    """

    name: ClassVar[str]
    pattern: ClassVar[str]
    signs: ClassVar[int]

    def observe(self, run: RunState, call: Call, policy: Policy) -> Finding | None:
        """Judge one call."""
        ...


class StepDetector(Protocol):
    """A rule over the steps of one run that are no finished calls: answers of a model, messages, compactions.

    `observe` sees every step of the types in `kinds`, in order, after the run's memory was changed by it. Else as
    `CallDetector`.
    """

    name: ClassVar[str]
    pattern: ClassVar[str]
    kinds: ClassVar[tuple[type[AnyStep], ...]]

    def observe(self, tree: TreeState, run: RunState, step: AnyStep, policy: Policy, offset: int) -> Finding | None:
        """Judge one step; `offset` is its place in the source, -1 if there is none."""
        ...


class TickDetector(Protocol):
    """A rule about what does not happen, asked by ticks for every run that is not over."""

    name: ClassVar[str]
    pattern: ClassVar[str]

    def tick(self, tree: TreeState, run: RunState, policy: Policy, now_ms: int) -> Finding | None:
        """Judge the run at `now_ms` of the partition's clock, Unix milliseconds."""
        ...


class TreeDetector(Protocol):
    """A rule over the counters of a run tree, asked after every step that changes one, and by ticks."""

    name: ClassVar[str]
    pattern: ClassVar[str]

    def observe(self, tree: TreeState, run: RunState, policy: Policy, now_ms: int) -> Sequence[Finding]:
        """Judge the tree's counters at `now_ms`, on behalf of `run`."""
        ...
