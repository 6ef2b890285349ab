"""Answers that say nearly the same again and again: one text with a word or a number changed."""

from __future__ import annotations

from struct import Struct as Layout
from typing import TYPE_CHECKING, ClassVar, Final
from zlib import crc32

from msgspec import Struct

from loopwarden_detectors.base import KILL, NONE, NUDGE, OBSERVE, Finding
from loopwarden_detectors.novelty import FIRST_TIME, calls_since, has_moved_lately, news_of_last
from loopwarden_detectors.sketch import likeness, sketch
from loopwarden_detectors.streak_finding import finding_of
from loopwarden_models.events import AnyStep, ModelEnd
from loopwarden_models.hashes import stable_key

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState, TreeState
    from loopwarden_models.patterns import Level
    from loopwarden_models.policy import Policy
    from loopwarden_models.step_rules import NearTextConfig

# Shorter texts are no messages: "Done." is always like "Done.". public: DeepEval skips texts under 20 words.
MIN_CHARS: Final = 80
# The message that is judged, and those before it that it is compared with.
WINDOW: Final = 6
_BEFORE: Final = WINDOW - 1
_SEEN: Final = (1 << WINDOW) - 1

# A message is looked into when so many of the five before begin or end as it does, and are about as long. Measured on
# 12,775 recorded messages: 785 of 789 pairs that are alike at 85 % do, and of all messages 2.1 % are looked into.
_MIN_FITS: Final = 2
# Edges of a message: so many letters, looked for in so many characters. White space, digits and marks do not count, so
# that "3. ", "Step 4: " and "(5/20)" make no difference.
_EDGE: Final = 10
_EDGE_CHARS: Final = 24
_NO_LETTERS: Final = b"0123456789 \t\r\n.,:;!?#*-_()[]{}<>/\"'`"

# Of one message: length, hash of its beginning, hash of its end; `seq`, event time and source offset.
_ROW_LAYOUT: Final = Layout(">IIIqqq")
ROW: Final = _ROW_LAYOUT.size
_pack, _rows = _ROW_LAYOUT.pack, _ROW_LAYOUT.iter_unpack
_HEAD, _TAIL, _EDGES_END = 4, 8, 12
_KEPT_BYTES: Final = _BEFORE * ROW
_LOW: Final = 0xFFFF_FFFF

# 256 bytes; of a longer text the first and the last 1,000 characters count.
_KEPT: Final = 64
_HALF_CHARS: Final = 1_000


class NearTextState(Struct, array_like=True, gc=False):
    """A cluster of messages that are alike.

    Attributes:
        loop_key: Its identity: how its messages begin, or end.
        sketch: Of the first message that was looked into; each later one is compared with it.
        window: Of the last six messages, whether each belongs, one bit each, the newest lowest.
        count: How many belong, in all. The first two may be some that were not looked into: they begin or end
            alike, and fit in length.
        is_certain: A second one was looked into, and is alike.
        first_seq: Of the first of them; `first_ms`, `first_offset`: its event time and source offset.
    """

    loop_key: int
    sketch: bytes
    window: int
    count: int
    is_certain: bool
    first_seq: int
    first_ms: int
    first_offset: int


class NearText:
    """`n` = of the last six messages of a run, those that are alike at 85 % to the first of their cluster.

    A message is the text of an answer, or its reasoning where there is no text, of 80 characters or more. Alike is the
    Dice coefficient of character 3-grams (`sketch`). To find it for each message would cost more than all other rules
    together, so of a message only length, beginning and end are kept, and it is looked into when two of the five before
    it agree in those; alike texts nearly always do. So a cluster is known from its fourth message on.

    What the run did between these messages decides how much that means: texts made from one template are healthy where
    each brings something new. A declared read that brought something new among the last four calls, a new write among
    them, or a wait or a poll anywhere: observe only (`frozen_poll` and `sleep_only` see those). Answers of undeclared
    tools that were not there before: no kill, and a nudge only at 8 if it is more than one.

    Levels: observe 4, nudge 5 (8 where undeclared calls bring something new), kill 8 in all and 5 of the
    last six (`NearTextConfig`, with sources).
    State: 180 bytes of the last five messages; 300 more while a cluster lasts.
    Cost: 0.7 µs an answer of 80 characters or more, nothing for others; 15 to 150 µs for one that is looked into.
    """

    name: ClassVar[str] = "near_text"
    pattern: ClassVar[str] = "text_loop"
    kinds: ClassVar[tuple[type[AnyStep], ...]] = (ModelEnd,)

    def observe(self, tree: TreeState, run: RunState, step: AnyStep, policy: Policy, offset: int) -> Finding | None:  # noqa: ARG002
        """Judge one answer. See the class."""
        if type(step) is not ModelEnd:
            return None
        text = step.text or step.reasoning
        if text is None or len(text) < MIN_CHARS:
            return None
        edges = (text[:_EDGE_CHARS] + text[-_EDGE_CHARS:]).encode("utf-8", "replace").translate(None, _NO_LETTERS)
        row = _pack(len(text) & _LOW, crc32(edges[:_EDGE]), crc32(edges[-_EDGE:]), step.seq, run.now_ms, offset)
        known = run.texts
        run.texts = (known + row)[-_KEPT_BYTES:]
        state = run.near_text
        if state is not None:
            state.window = state.window << 1 & _SEEN
            if not state.window:
                run.near_text = state = None
        if known.count(row[_HEAD:_TAIL]) + known.count(row[_TAIL:_EDGES_END]) < _MIN_FITS:
            return None
        return self._compared(run, state, text, row, known, policy)

    def _compared(
        self, run: RunState, state: NearTextState | None, text: str, row: bytes, known: bytes, policy: Policy
    ) -> Finding | None:
        config = policy.near_text
        fits = _fits(row, known, config.same_percent)
        if len(fits) < _MIN_FITS:
            return None
        own = sketch(text, kept=_KEPT, half_chars=_HALF_CHARS)
        if state is not None and likeness(own, state.sketch, kept=_KEPT) >= config.same_percent:
            state.window |= 1
            state.count += 1
            state.is_certain = True
            return self._finding(run, state, policy)
        if state is None:
            run.near_text = _begun(row, own, fits[:_MIN_FITS])
        elif not state.is_certain:
            # What only began alike was no cluster: nothing is taken for granted of the one that may begin here.
            run.near_text = _begun(row, own, [])
        return None

    def _finding(self, run: RunState, state: NearTextState, policy: Policy) -> Finding | None:
        level, threshold = _grade(run, state, policy.near_text)
        if level == NONE:
            return None
        return finding_of(
            self,
            run,
            policy,
            state,
            level=level,
            count=state.count,
            threshold=threshold,
            loop_key=state.loop_key,
            note=lambda: f"{state.count} answers say nearly the same, {state.window.bit_count()} of the last {WINDOW}",
        )


def renumbered(texts: bytes) -> bytes:
    """Return what is kept of messages, dated before the first step: `seq` begins anew."""
    return b"".join(_pack(size, head, tail, 0, ms, offset) for size, head, tail, _, ms, offset in _rows(texts))


def _fits(row: bytes, known: bytes, same_percent: int) -> list[tuple[int, tuple[int, ...]]]:
    """Return which messages before may be alike, by their distance: those with an edge in common, and about as long.

    Dice of p or more means that the shorter text has p / (2 - p) of the 3-grams of the longer one, repeated ones too.
    """
    [(size, head, tail, *_)] = _rows(row)
    return [
        (distance, other)
        for distance, other in enumerate(reversed([*_rows(known)]), start=1)
        if (head == other[1] or tail == other[2])
        and min(size, other[0]) * (200 - same_percent) >= max(size, other[0]) * same_percent
    ]


def _begun(row: bytes, own: bytes, fits: list[tuple[int, tuple[int, ...]]]) -> NearTextState:
    """Return a cluster of this message and of those that fit it."""
    [own_row] = _rows(row)
    _, head, tail, *_ = own_row
    window = 1
    for distance, _ in fits:
        window |= 1 << distance
    first = fits[-1][1] if fits else own_row
    edge = f"head:{head}" if first[1] == head else f"tail:{tail}"
    seq, ms, offset = first[3:]
    return NearTextState(stable_key(f"near_text:{edge}"), own, window, 1 + len(fits), False, seq, ms, offset)


def _grade(run: RunState, state: NearTextState, config: NearTextConfig) -> tuple[Level, int]:
    """Return the level that the cluster asks for, and the count at which it begins."""
    alike = state.window.bit_count()
    if alike < config.observe:
        return NONE, config.observe
    if alike < config.nudge or has_moved_lately(run):
        return OBSERVE, config.observe
    [first, *_] = _rows(run.texts)
    waits, news = news_of_last(run, calls_since(run, first[3]))
    if waits or (news > FIRST_TIME and state.count < config.nudge_undeclared):
        return OBSERVE, config.observe
    if state.count < config.kill or news:
        return NUDGE, config.nudge if news <= FIRST_TIME else config.nudge_undeclared
    return KILL, config.kill
