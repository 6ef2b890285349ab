"""The same in other words: questions, answers, messages and thoughts that mean what was said before."""

from __future__ import annotations

from struct import Struct as Layout
from typing import TYPE_CHECKING, ClassVar, Final

from msgspec import Struct, field

from loopwarden_detectors.base import KILL, NUDGE, OBSERVE, Finding
from loopwarden_detectors.exchanges import NO_ROUND, Exchange, exchange_of_call, exchange_of_text, is_answer
from loopwarden_detectors.meaning import DIMENSIONS, MAX_CHARS, Meaning, cosine_percent
from loopwarden_detectors.new_facts import FACT_BYTES, facts_of, gaps, is_known, remember, words_of
from loopwarden_detectors.normalise import replace_volatile
from loopwarden_detectors.novelty import FIRST_TIME, calls_since, has_moved_lately, news_of_last
from loopwarden_detectors.streak_finding import finding_of
from loopwarden_models.events import AnyStep, Message, ModelEnd, ToolEnd
from loopwarden_models.hashes import stable_key
from loopwarden_models.semantic_rules import WINDOW

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState
    from loopwarden_models.policy import Policy
    from loopwarden_models.semantic_rules import SemanticRepeatConfig

# Tools, agents and the run's own thoughts whose words are followed at a time; the longest unheard leaves.
MAX_CHANNELS: Final = 3
# Of an exchange: key of the answer, of the one before that it is like, how surely; `seq`, event time, source offset;
# then the two vectors.
_ROW_LAYOUT: Final = Layout(f">QQBqqq{DIMENSIONS}s{DIMENSIONS}s")
ROW: Final = _ROW_LAYOUT.size
_pack, _rows = _ROW_LAYOUT.pack, _ROW_LAYOUT.iter_unpack
_KEPT_BYTES: Final = WINDOW * ROW
# It brings news; it brings none and is like none that is kept; it may be like one; it surely is.
_NEW, _OLD, _MAYBE, _SURE = range(4)
_NO_THOUGHT: Final = -1
Row = tuple[int, int, int, int, int, int, bytes, bytes]
_NO_VECTOR: Final = bytes(DIMENSIONS)


class Channel(Struct, array_like=True, gc=False):
    """What one tool was asked and answered, what one agent was told, or what the run thought.

    Attributes:
        key: Whose words they are, 64 bits.
        heard: How often the run was heard when this was heard last.
        words: Hashes of the words that were said last. `asked`: of those that were asked.
        rows: The newest `WINDOW` exchanges, `ROW` bytes each.
        count: Exchanges in a row that brought nothing new, the first one included.
        round: Of the newest exchange.
        first_seq: Of the first of them; `first_ms`, `first_offset`: its event time and source offset.
    """

    key: int
    heard: int
    words: list[int] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    rows: bytes = b""
    count: int = 0
    round: int = -1
    first_seq: int = 0
    first_ms: int = 0
    first_offset: int = -1


class SemanticState(Struct, array_like=True, gc=False):
    """What a run's words meant.

    Attributes:
        heard: Exchanges, of all channels.
        channels: At most `MAX_CHANNELS`.
        facts: Hashes of the numbers, names and paths that were told, the newest last (`new_facts`).
    """

    heard: int = 0
    channels: list[Channel] = field(default_factory=list)
    facts: bytes = b""


class SemanticRepeat:
    """`n` = of the last six exchanges with one tool or agent, those that say again what was said, the first included.

    An exchange is a call that asks a sentence with its answer, a message to another agent, or a thought (an answer of
    the model, or its reasoning) if nothing new came since the thought before. It says again what was said if all of
    this holds of it and one of the five before: the questions mean nearly the same; so do the answers, by the first
    model alone, or by the second where the first is not sure; and the answer holds hardly a number, name or path that
    was not told before, nor another filler of the gap of a template (`new_facts`). The last part keeps texts from one
    template apart, which no model does. An answer too short to say anything leaves it to the question what is new.

    What the run does meanwhile decides how much that means. A new write, a declared read or another tool that brought
    something new: observe only. The end of the run is asked for only where the second model confirmed every exchange of
    the window but the newest, which it has only just been asked about; late answers and missing ones are no
    confirmation. Messages and thoughts alone never end a run.

    Levels: observe 3, nudge 4, kill 8 in a row, of calls alone (`SemanticRepeatConfig`, with sources).
    State: 1.0 KB a channel, three at most, and 1 KB of facts; only with a model.
    Cost: nothing without a model. With one 1 µs a call that asks no sentence, 90 µs an exchange in words; 60 µs and two
        vectors of the model more if it brings nothing new (benchmarks/semantic.py).
    """

    name: ClassVar[str] = "semantic_repeat"
    pattern: ClassVar[str] = "text_loop"
    kinds: ClassVar[tuple[type[AnyStep], ...]] = (ToolEnd, Message, ModelEnd)

    def hear_call(
        self, run: RunState, step: ToolEnd, result_key: int, policy: Policy, offset: int, meaning: Meaning
    ) -> Finding | None:
        """Judge one call that was carried out. See the class."""
        said = exchange_of_call(step, result_key, run.round)
        return None if said is None else self._heard(run, policy, offset, meaning, step, said)

    def hear_text(self, run: RunState, step: AnyStep, policy: Policy, offset: int, meaning: Meaning) -> Finding | None:
        """Judge a message, or a thought. See the class."""
        if type(step) is ModelEnd and not _stands_still(run):
            return None
        said = exchange_of_text(step)
        if said is None:
            return None
        return self._heard(run, policy, offset, meaning, step, said)

    def _heard(
        self, run: RunState, policy: Policy, offset: int, meaning: Meaning, step: AnyStep, said: Exchange
    ) -> Finding | None:
        config = policy.semantic_repeat
        if policy.mode_of(self.name, run.now_ms) == "off":
            return None
        state = run.semantic
        if state is None:
            state = run.semantic = SemanticState()
        channel = channel_of(state, said.key)
        if said.round == channel.round != NO_ROUND:
            return None  # a batch counts once
        in_words = is_answer(said.answer)
        is_news = takes_news(state, channel, said.question, said.answer if in_words else "", policy)
        own = asked = _NO_VECTOR
        if not is_news:
            # What brings news is not asked about: that is nearly everything that healthy runs say.
            own = meaning.vector(said.answer[:MAX_CHARS]) if in_words else _NO_VECTOR
            asked = meaning.vector(said.question[:MAX_CHARS]) if said.question else _NO_VECTOR
        known = rows_of(channel)
        if any(row[0] == said.answer_key and row[6] == asked for row in known):
            return None  # word for word: that is what the rules over calls and near texts count
        channel.round = said.round
        like, how = (0, _NEW) if is_news else _most_alike(known, said.answer_key, own, asked, config)
        if how == _MAYBE and not meaning.confirms:
            like, how = 0, _OLD
        if meaning.confirms and in_words and not is_news:
            meaning.ask(said.answer_key, said.answer[:MAX_CHARS])
        row = _pack(said.answer_key, like, how, step.seq, run.now_ms, offset, asked, own)
        channel.rows = (channel.rows + row)[-_KEPT_BYTES:]
        if how == _NEW:
            channel.count = 0
        channel.count += 1
        if channel.count == 1:
            channel.first_seq, channel.first_ms, channel.first_offset = step.seq, run.now_ms, offset
        if how in (_NEW, _OLD):
            return None
        return self._finding(run, step, channel, policy, meaning, is_text=not said.question)

    def _finding(
        self, run: RunState, step: AnyStep, channel: Channel, policy: Policy, meaning: Meaning, *, is_text: bool
    ) -> Finding | None:
        config = policy.semantic_repeat
        least = config.confirmed_text_percent if is_text else config.confirmed_percent
        rows = rows_of(channel)
        alike = FIRST_TIME + _count_alike(rows, meaning, least)
        nudge = config.nudge_text if is_text else config.nudge
        if alike < config.observe:
            return None
        level, threshold = OBSERVE, config.observe
        if alike >= nudge and not _has_moved(run, rows[0][3], step):
            level, threshold = NUDGE, nudge
            # The newest was handed over a moment ago: the second model answers to it before the next one comes.
            if not is_text and channel.count >= config.kill and _are_confirmed(rows[1:-1], meaning, least):
                level, threshold = KILL, config.kill
        tool = step.tool if isinstance(step, ToolEnd) else None
        what = f"{tool} was asked and answered" if tool else "messages say" if type(step) is Message else "answers say"
        return finding_of(
            self,
            run,
            policy,
            channel,
            level=level,
            count=channel.count if level == KILL else alike,
            threshold=threshold,
            loop_key=stable_key(f"semantic_repeat:{channel.key}"),
            note=lambda: f"{what} the same in other words, {alike} of the last {len(rows)} times",
            tool=tool,
            model=meaning.name,
        )


def is_sound(state: SemanticState) -> bool:
    """Return whether the parts of a state have the lengths that they must have. Cost: 0.5 µs."""
    return len(state.facts) % FACT_BYTES == 0 and all(len(channel.rows) % ROW == 0 for channel in state.channels)


def rows_of(channel: Channel) -> list[Row]:
    """Return the exchanges that are kept, oldest first. Cost: 1 µs."""
    return [*_rows(channel.rows)]


def renumber(state: SemanticState) -> None:
    """Date what is kept before the first step: `seq` begins anew. Cost: 2 µs a channel."""
    for channel in state.channels:
        channel.first_seq = 0
        channel.rows = b"".join(_pack(*row[:3], 0, *row[4:]) for row in rows_of(channel))


def channel_of(state: SemanticState, key: int) -> Channel:
    """Return the channel of this key, a new one if need be. Cost: 0.5 µs."""
    state.heard += 1
    channel = next((known for known in state.channels if known.key == key), None)
    if channel is None:
        if len(state.channels) >= MAX_CHANNELS:
            state.channels.remove(min(state.channels, key=lambda known: known.heard))
        channel = Channel(key, state.heard)
        state.channels.append(channel)
    channel.heard = state.heard
    return channel


def takes_news(state: SemanticState, channel: Channel, question: str, answer: str, policy: Policy) -> bool:
    """Remember the facts of an exchange, and return whether they are news.

    Of an answer, those that the question held are none; if there is no answer to speak of, the question's own count.
    """
    told = replace_volatile((answer or question)[:MAX_CHARS], policy.volatile)
    facts = facts_of(told)
    question = question[:MAX_CHARS]
    words, asked = words_of(told), words_of(question) if question else []
    # A batch over many targets asks one question of each.
    filled = {*gaps(words, channel.words), *gaps(asked, channel.asked)}
    channel.words, channel.asked = words, asked
    echoed = facts_of(question) if answer else {}
    new = {fact for fact in {*facts, *filled} if not is_known(state.facts, fact)} - ({*echoed} - filled)
    state.facts = remember(state.facts, sorted(new | {fact for fact in echoed if not is_known(state.facts, fact)}))
    config = policy.semantic_repeat
    return len(new) * 100 > max(0, len(facts) - config.few_facts) * config.max_new_percent


def _most_alike(
    known: list[Row],
    answer_key: int,
    own: bytes,
    asked: bytes,
    config: SemanticRepeatConfig,
) -> tuple[int, int]:
    """Return the answer before that this one is most like, and how surely it says the same."""
    best, percent = 0, 0
    for row in reversed(known[1 - WINDOW :]):
        if asked != row[6] and cosine_percent(asked, row[6]) < config.same_question_percent:
            continue
        if row[0] == answer_key:
            return answer_key, _SURE
        like = cosine_percent(own, row[7]) if own != _NO_VECTOR and row[7] != _NO_VECTOR else 0
        if like > percent:
            best, percent = row[0], like
    if percent >= config.same_percent:
        return best, _SURE
    return (best, _MAYBE) if percent >= config.maybe_percent else (0, _OLD)


def _count_alike(rows: list[Row], meaning: Meaning, least: int) -> int:
    """Return how many exchanges after the oldest say what was said, the one that they are first like included."""
    alike = [row for row in rows if row[2] == _SURE or (row[2] == _MAYBE and _is_confirmed(row, meaning, least))]
    first = {row[1] for row in alike}
    return sum(row in alike or (row[2] == _OLD and row[0] in first) for row in rows[1:])


def _is_confirmed(row: Row, meaning: Meaning, least: int) -> bool:
    percent = meaning.confirmed_percent(row[0], row[1])
    return percent is not None and percent >= least


def _are_confirmed(rows: list[Row], meaning: Meaning, least: int) -> bool:
    return all(row[2] in (_MAYBE, _SURE) and _is_confirmed(row, meaning, least) for row in rows)


def _stands_still(run: RunState) -> bool:
    """Return whether nothing new came since the answer of the model before, for all that is known.

    The first answer of a run has none before it. Cost: 0.5 µs where the newest call brought something, 10 µs else.
    """
    mark = run.thought_mark
    if mark == _NO_THOUGHT and not run.calls:
        return False
    calls = run.calls - (mark if mark >= 0 else ~mark)
    if calls and run.ring.is_newest_new():
        return False
    return calls <= len(run.ring) and not news_of_last(run, calls, are_tries_news=True)[1]


def _has_moved(run: RunState, since_seq: int, step: AnyStep) -> bool:
    """Return whether the world moved since the oldest exchange that is kept, or may have."""
    if has_moved_lately(run):
        return True
    own = run.tool_number(step.tool) if isinstance(step, ToolEnd) else -1
    waits, news = news_of_last(run, calls_since(run, since_seq), but_of=own, are_tries_news=own < 0)
    return waits or news > FIRST_TIME
