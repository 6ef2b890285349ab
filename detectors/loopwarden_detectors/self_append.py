"""A command that is sent again with one more copy of itself glued on: it grows, and what it does not."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from loopwarden_detectors.base import LONGER, Call, Finding, grade
from loopwarden_detectors.call_memory import CLOSING_BYTES
from loopwarden_detectors.novelty import after_novelty
from loopwarden_detectors.rings import HALF, NO_KEY
from loopwarden_detectors.streak_finding import finding_of
from loopwarden_models.hashes import stable_key

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState
    from loopwarden_models.policy import Policy

# What is glued on, between the separators of shells and lists. Shorter pieces are in every text by chance. judgement
MIN_PIECE_BYTES = 4
_SEPARATORS = b" ;&|,\n\t+\\"

# A step that added something of its own is forgiven once: often the first one. judgement
_FORGIVEN = 1

_MEMO = 2_048


class AppendState(Struct, array_like=True, gc=False):
    """A streak of growing calls: its length, how many steps added a text of their own, and where it began.

    `last_call` is the run's number of its last call, `last_seq` that call's `seq`.
    """

    count: int
    own: int
    last_call: int
    last_seq: int
    first_seq: int
    first_ms: int
    first_offset: int


class SelfAppend:
    """`n` = consecutive calls of one tool whose arguments begin with those of the call before and go on.

    A step counts if what it adds stands in the arguments already, or if its answer is that of the call before; a
    command that is refined stage by stage with new answers is work. Of two arguments the growing one must come last, as
    it does in what most runtimes send; arguments beyond 2,000 bytes are not compared. Calls of one parallel batch do
    not grow out of each other.

    The growing calls are no progress of their own, even if the tool is declared to write and each of them is new; the
    runtime's word and a changed answer are.

    Levels: observe 3, nudge 4, kill 8, which only repeated text earns (`SelfAppendConfig`, with sources). A new answer
    of a declared read within the last four calls lowers the kill.
    Cost: 1.5 µs for a call that grows out of the one before, nothing for others.
    """

    name: ClassVar[str] = "self_append"
    pattern: ClassVar[str] = "param_walk"
    signs: ClassVar[int] = LONGER

    def observe(self, run: RunState, call: Call, policy: Policy) -> Finding | None:
        """Judge one call. See the class."""
        if call.in_round or call.is_wait:
            return None
        size = call.grown_from
        args = bytes(call.step.args)  # type: ignore[arg-type]  # a call that bears the sign has arguments
        piece = args[size:-CLOSING_BYTES].strip(_SEPARATORS)
        is_copy = len(piece) >= MIN_PIECE_BYTES and piece in args[:size]
        mark, _ = run.ring.before(1)
        if not is_copy and not (mark[:HALF] == call.mark[:HALF] != NO_KEY):
            return None
        state = run.self_append
        if state is None or state.last_call != run.calls - 1 or state.last_seq < run.progress_seq < call.step.seq:
            seq, offset, ms, _ = run.ring.call_at(1, seq=call.step.seq, offset=call.offset)
            state = run.self_append = AppendState(1, 0, 0, 0, seq, run.started_ms + ms, offset)
        state.count += 1
        state.own += not is_copy
        state.last_call, state.last_seq = run.calls, call.step.seq
        config = policy.self_append
        if state.count < config.observe:
            return None
        kill = config.kill if state.own <= _FORGIVEN else None
        level, threshold = grade(state.count, config.observe, config.nudge, kill=kill)
        level = after_novelty(run, level)
        loop_key = _loop_key(call.tool)
        return finding_of(
            self,
            run,
            policy,
            state,
            level=level,
            count=state.count,
            threshold=threshold,
            loop_key=loop_key,
            note=lambda: (
                f"each of the last {state.count} calls of {call.tool} repeats the one before and appends to it"
            ),
            tool=call.tool,
            has_veto=False,
        )


@lru_cache(_MEMO)
def _loop_key(tool: str) -> int:
    return stable_key(f"self_append\0{tool}") or 1
