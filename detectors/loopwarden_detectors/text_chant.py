"""A generation that ends in a chant: one block of words back to back, until its limit on tokens stops it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from msgspec import Struct

from loopwarden_detectors.base import KILL, NUDGE, Finding
from loopwarden_detectors.chant import TAIL_CHARS, Chant, longest_chant
from loopwarden_detectors.streak_finding import finding_of
from loopwarden_models.events import MAX_INT, AnyStep, ModelEnd

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState, TreeState
    from loopwarden_models.policy import Policy

# measured: of 17,373 recorded texts one ends in three equal stretches; its last 12 characters occur before in 3 %.
_PROBE_CHARS: Final = 12
_STRETCHES: Final = 3


class TextChantState(Struct, array_like=True, gc=False):
    """Generations that chanted, since the last call.

    `loop_key` is the block of the first. `repeats`: in all of them; `long`: how many reached the threshold of the kill.
    `calls`: how many the run had made at the newest.
    """

    loop_key: int
    repeats: int
    long: int
    calls: int
    first_seq: int
    first_ms: int
    first_offset: int


class TextChant:
    """`n` = repeats of the block that a generation, its text or its reasoning, ends in (`chant.longest_chant`).

    Prose only: code, tables, lists and quotes repeat by nature. Whether the text ends in three equal stretches is asked
    first, because the answer is nearly always no; and an answer that announces calls has recovered by itself. The kill
    needs two such generations with no tool call between them; its count is that of all repeats.

    Levels: nudge 4, kill 10 in two generations (`TextChantConfig`, with sources).
    State: from the first chant on.
    Cost: 0.3 µs an answer; 0.2 to 4 ms for one that ends in equal stretches.
    """

    name: ClassVar[str] = "text_chant"
    pattern: ClassVar[str] = "text_loop"
    kinds: ClassVar[tuple[type[AnyStep], ...]] = (ModelEnd,)

    def observe(self, tree: TreeState, run: RunState, step: AnyStep, policy: Policy, offset: int) -> Finding | None:  # noqa: ARG002
        """Judge one answer. See the class."""
        if type(step) is not ModelEnd or step.tool_calls:
            return None
        text, reasoning = step.text, step.reasoning
        chant = None
        if text and may_chant(text):
            chant = longest_chant(text, min_repeats=policy.text_chant.nudge)
        if reasoning and may_chant(reasoning):
            other = longest_chant(reasoning, min_repeats=policy.text_chant.nudge)
            if chant is None or (other is not None and other.repeats > chant.repeats):
                chant = other
        return None if chant is None else self._finding(run, step, chant, policy, offset)

    def _finding(self, run: RunState, step: ModelEnd, chant: Chant, policy: Policy, offset: int) -> Finding | None:
        config = policy.text_chant
        state = run.text_chant
        if state is None or state.calls != run.calls:
            state = run.text_chant = TextChantState(chant.block_key, 0, 0, 0, step.seq, run.now_ms, offset)
        state.calls = run.calls
        state.repeats = min(state.repeats + chant.repeats, MAX_INT)
        is_long = chant.repeats >= config.kill
        state.long += is_long
        level, threshold = NUDGE, config.nudge
        if is_long and state.long >= config.kill_generations:
            level, threshold = KILL, config.kill * config.kill_generations
        return finding_of(
            self,
            run,
            policy,
            state,
            level=level,
            count=state.repeats,
            threshold=threshold,
            loop_key=state.loop_key,
            note=lambda: (
                f"a block of {chant.period_tokens} tokens was written {chant.repeats} times back to back, "
                f"{state.repeats} times in all since the last call"
            ),
        )


def may_chant(text: str) -> bool:
    """Return whether a text ends in three equal stretches, to the letter, blanks at the end aside.

    The stretch is the distance of its last 12 characters to the place where they occurred before.

    Cost: 0.25 µs for 200 characters, 1 µs for 8,000 and more.
    """
    text = text.rstrip()
    size = len(text)
    probe_at = size - _PROBE_CHARS
    if probe_at < _PROBE_CHARS:
        return False
    # A third of the text, or of the tail that is looked at, is the longest stretch that fits three times.
    first = max(0, probe_at - min(size, TAIL_CHARS) // _STRETCHES)
    at = text.rfind(text[probe_at:], first, -1)
    if at < 0:
        return False
    stretch = probe_at - at
    whole = _STRETCHES * stretch
    return whole <= size and text.endswith(text[-whole:-stretch])
