"""What most rules end in: a streak that may be news, told with its beginning as evidence."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from loopwarden_detectors.base import Finding
from loopwarden_detectors.ladder_state import is_news

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState
    from loopwarden_models.causes import CauseName
    from loopwarden_models.patterns import Level
    from loopwarden_models.policy import Policy


class Rule(Protocol):
    """Who tells: a detector."""

    @property
    def name(self) -> str:
        """Name of the detector."""
        ...

    @property
    def pattern(self) -> str:
        """Public name of what it finds."""
        ...


class Streak(Protocol):
    """Where something began that goes on: step, event time in Unix milliseconds, source offset or -1."""

    first_seq: int
    first_ms: int
    first_offset: int


def finding_of(
    rule: Rule,
    run: RunState,
    policy: Policy,
    streak: Streak,
    *,
    level: Level,
    count: int,
    threshold: int,
    loop_key: int,
    note: Callable[[], str],
    tool: str | None = None,
    has_veto: bool = True,
    effect: str = "",
    cause: CauseName | None = None,
    model: str | None = None,
) -> Finding | None:
    """Return the finding about a streak, `None` if there is nothing new to say or to do about it.

    Args:
        rule: Who tells.
        run: What it remembers of the loop is changed in place (`is_news`).
        policy: In force.
        streak: With its beginning.
        level: What the evidence asks for.
        count: As the rule counts.
        threshold: The count at which `level` begins.
        loop_key: Identity of the loop.
        note: One sentence for people, asked for only if it is told.
        tool: The tool of the streak, if it is one of calls.
        has_veto: Progress after the beginning lowers what is above a nudge.
        effect: See `Finding`.
        cause: See `Finding`.
        model: See `Finding`.

    Cost: 0.5 µs; 1.5 µs if it is told.
    """
    veto_after_seq = streak.first_seq if has_veto else -1
    if not is_news(run, policy, rule.name, loop_key, level, count, veto_after_seq):
        return None
    return Finding(
        detector=rule.name,
        pattern=rule.pattern,
        level=level,
        loop_key=loop_key,
        count=count,
        threshold=threshold,
        first_seq=streak.first_seq,
        first_ms=streak.first_ms,
        first_offset=streak.first_offset,
        tools=() if tool is None else (tool,),
        veto_after_seq=veto_after_seq,
        note=note(),
        effect=effect,
        cause=cause,
        model=model,
    )
