"""Do a run's texts lead away from its goal? A sign of `context_rot` that is off unless a policy asks for it."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from loopwarden_detectors.meaning import MAX_CHARS, Meaning, cosine_percent
from loopwarden_detectors.near_text import MIN_CHARS
from loopwarden_detectors.sketch import HASH_BYTES, gram_hashes

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState
    from loopwarden_models.events import ModelEnd

# So many texts are one measurement: one alone says little.
TEXTS: Final = 5

# Of the goal: 256 bytes. Of longer texts head and tail count.
_KEPT: Final = 64
_HALF_CHARS: Final = 1_000


class DriftState(Struct, array_like=True, gc=False):
    """What the texts of a run have to do with its goal.

    Attributes:
        goal: The smallest hashes of the 3-grams of the goal, four bytes each. `grams`: how many it has.
        first: Likeness to the goal of the first texts since a person spoke, in per cent. `recent`: of the newest.
        steps: Texts in a row at which the newest were so much less like the goal than the first.
        first_seq: Where that began; `first_ms`, `first_offset`: its event time and source offset.
        vector: Of the goal, where a model of texts was at hand when it was set: texts are compared by meaning then.
        said: Likeness in meaning of the text at hand, -1 = not known.
    """

    goal: bytes
    grams: int
    first: list[int] = field(default_factory=list)
    recent: list[int] = field(default_factory=list)
    steps: int = 0
    first_seq: int = 0
    first_ms: int = 0
    first_offset: int = -1
    vector: bytes = b""
    said: int = -1

    def start_segment(self) -> None:
        """Take the next texts for the first ones: a person spoke, and may have changed the task."""
        self.first, self.recent, self.steps = [], [], 0


def start_goal(goal: str) -> DriftState | None:
    """Return what is kept of a goal, `None` if it says nothing. Cost: 10 to 150 µs."""
    hashes = sorted(gram_hashes(goal, half_chars=_HALF_CHARS))
    data = b"".join([one.to_bytes(HASH_BYTES, "big") for one in hashes[:_KEPT]])
    return DriftState(data, len(hashes)) if hashes else None


def hear_goal(state: DriftState, goal: str, meaning: Meaning) -> None:
    """Keep what a goal means. Cost: one vector of the model."""
    state.vector = meaning.vector(goal[:MAX_CHARS])


def hear_text(state: DriftState, step: ModelEnd, meaning: Meaning) -> None:
    """Note how like the goal an answer is in meaning, for `count_drift`. Cost: one vector of the model and 5 µs."""
    text = step.text or step.reasoning
    if state.vector and text is not None and len(text) >= MIN_CHARS:
        state.said = cosine_percent(state.vector, meaning.vector(text[:MAX_CHARS]))


def count_drift(run: RunState, state: DriftState, step: ModelEnd, offset: int, drift_percent: int) -> bool:
    """Measure one answer, in `state.steps`; return whether it has drifted.

    A text of 80 characters or more is compared with the goal: by meaning if the goal's is known, else cosine of their
    sets of character 3-grams. The mean of the last five must lie `drift_percent` points below that of the first five.
    The two scales are never mixed: while the model is away no text is measured.

    Cost: 15 to 200 µs by 3-grams, 1 µs by meaning; nothing for a short text.
    """
    text = step.text or step.reasoning
    if text is None or len(text) < MIN_CHARS:
        return False
    like, state.said = state.said, -1
    if not state.vector:
        like = _likeness(state, text)
    if like < 0:
        return False
    if len(state.first) < TEXTS:
        state.first = [*state.first, like]
    state.recent = [*state.recent[1 - TEXTS :], like]
    if len(state.first) < TEXTS or sum(state.recent) > sum(state.first) - TEXTS * drift_percent:
        state.steps = 0
        return False
    if not state.steps:
        state.first_seq, state.first_ms, state.first_offset = step.seq, run.now_ms, offset
    state.steps += 1
    return True


def _likeness(state: DriftState, text: str) -> int:
    mine = gram_hashes(text, half_chars=_HALF_CHARS)
    goal = state.goal
    kept = [int.from_bytes(goal[at : at + HASH_BYTES], "big") for at in range(0, len(goal), HASH_BYTES)]
    if not (kept and mine):
        return 0
    share = sum(one in mine for one in kept) / len(kept)
    return int(100 * share * sqrt(state.grams / len(mine)))
