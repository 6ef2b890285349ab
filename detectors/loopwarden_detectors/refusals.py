"""Calls that were refused before they ran: what is counted of one kind of them, and what forgives them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from loopwarden_detectors.base import KILL, Finding, grade
from loopwarden_detectors.ladder_state import is_news

if TYPE_CHECKING:
    from loopwarden_detectors.base import Call
    from loopwarden_detectors.run_state import RunState
    from loopwarden_models.call_rules import DeniedConfig, UnknownToolConfig
    from loopwarden_models.causes import CauseName
    from loopwarden_models.policy import Policy


class RefusalState(Struct, array_like=True, gc=False):
    """Refusals of one kind.

    Attributes:
        key: Identity of the loop.
        count: How many are not forgiven. `stubborn`: of these, how many since the run last made progress.
        round: The last one that counted.
        good: Productive calls in a row since.
        last_call: Number of the run's call that was refused last; `last_seq`: its step.
        first_seq: Step of the first one; `first_ms`, `first_offset`: its event time and source offset.
    """

    key: int
    count: int = 0
    stubborn: int = 0
    round: int = -1
    good: int = 0
    last_call: int = 0
    last_seq: int = -1
    first_seq: int = 0
    first_ms: int = 0
    first_offset: int = -1

    def renumber(self) -> None:
        """Date all that is counted before the first step of a new incarnation."""
        self.last_seq = self.first_seq = 0


def count_refusal(state: RefusalState, run: RunState, round_: int, seq: int, offset: int) -> bool:
    """Count one refusal; return whether it is one more: of a round only the first is."""
    state.good = 0
    if state.round == round_:
        return False
    if not state.count:
        state.first_seq, state.first_ms, state.first_offset = seq, run.now_ms, offset
    has_progressed = run.progress_seq > state.last_seq
    state.round = round_
    state.count += 1
    state.stubborn = 1 if has_progressed else state.stubborn + 1
    state.last_call = run.calls
    state.last_seq = seq
    return True


def forgive(state: RefusalState, call: Call, after: int) -> bool:
    """Let `after` productive calls in a row forget one refusal; return whether none is left. Cost: 0.15 µs."""
    if call.is_wait:
        return False
    if call.outcome != "ok" or call.is_unproductive or call.pair_age:
        state.good = 0
        return False
    state.good += 1
    if state.good < after:
        return False
    state.good = 0
    state.count -= 1
    state.stubborn = max(0, state.stubborn - 1)
    return state.count <= 0


def finding_of(
    run: RunState,
    policy: Policy,
    config: UnknownToolConfig | DeniedConfig,
    state: RefusalState,
    names: tuple[str, str],
    tools: tuple[str, ...],
    note: str,
    cause: CauseName | None = None,
) -> Finding | None:
    """Return what a kind of refusals amounts to, `None` if that is nothing or no news.

    A kill asks for as many refusals since the last sign of progress: who goes on working and meets a closed door now
    and then is advised, not ended.

    Args:
        run: Whose refusals.
        policy: In force.
        config: Thresholds.
        state: What is counted.
        names: Of detector and pattern.
        tools: Involved.
        note: For people; `{count}` is filled in.
        cause: What stands behind it, if that is known.
    """
    level, threshold = grade(state.count, config.observe, config.nudge, None, config.kill)
    # As many without progress among them: nothing to veto. Else there was progress after the first.
    veto_after_seq = -1 if level < KILL or state.stubborn >= config.kill else state.first_seq
    if not level or not is_news(run, policy, names[0], state.key, level, state.count, veto_after_seq):
        return None
    return Finding(
        detector=names[0],
        pattern=names[1],
        level=level,
        loop_key=state.key,
        count=state.count,
        threshold=threshold,
        first_seq=state.first_seq,
        first_ms=state.first_ms,
        first_offset=state.first_offset,
        tools=tools,
        veto_after_seq=veto_after_seq,
        note=note.replace("{count}", str(state.count)),
        cause=cause,
    )
