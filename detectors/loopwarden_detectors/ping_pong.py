"""Agents that write to each other, round and round, and none of them does anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final
from zlib import crc32

from msgspec import Struct, field

from loopwarden_detectors.base import KILL, NUDGE, OBSERVE, Finding, grade
from loopwarden_detectors.ladder_state import is_news
from loopwarden_detectors.new_facts import FACT_BYTES, facts_of, is_known, remember
from loopwarden_detectors.rings import POLLS, WAITS
from loopwarden_detectors.sketch import likeness, sketch
from loopwarden_models.events import AnyStep, Message, Progress, UserInput
from loopwarden_models.hashes import stable_key

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState, TreeState
    from loopwarden_models.patterns import Level
    from loopwarden_models.policy import Policy
    from loopwarden_models.step_rules import PingPongConfig

# Talks that are followed at a time in one tree; the longest unheard leaves.
MAX_TALKS: Final = 4
# The longest circle, in agents; so many messages of a talk are remembered.
MAX_PERIOD: Final = 6
# Agents of a talk whose work is followed; the longest unheard leaves.
MAX_SPEAKERS: Final = 16

_PERIODS: Final = range(2, MAX_PERIOD + 1)
# Calls in between that only wait or poll are no work; more than so many of them are, whatever they were. judgement
_MAX_WAITS: Final = 4

# A message's sketch: of its 3-grams the smallest hashes, four bytes each. Of a long one head and tail count.
_KEPT: Final = 16
_HALF_CHARS: Final = 400
# From this message of a talk on texts are looked at: a shorter talk is never judged by them.
_SKETCHED_FROM: Final = 3
_MIN_LIKENESSES: Final = 2
# A message that is so much like another is that one with another number: "could you check point 3 again?". judgement
_SAME_PERCENT: Final = 85
# Of a message the beginning is searched for facts, and of a talk the newest are remembered.
_FACTS_CHARS: Final = 1_000
_FACTS_BYTES: Final = 64 * FACT_BYTES

_CHAIN_KEY: Final = stable_key("ping_pong:chain")


class Said(Struct, array_like=True, gc=False):
    """One message: 32-bit keys of the runs and of the names of the agents at its two ends, 0 = not known; a sketch."""

    sender: int
    receiver: int
    sender_name: int
    receiver_name: int
    sketch: bytes = b""


class Speaker(Struct, array_like=True, gc=False):
    """A run of a talk: how many calls it had made when it last spoke, or was first spoken to."""

    run: int
    calls: int
    has_spoken: bool = False


class Talk(Struct, array_like=True, gc=False):
    """Messages each of which is sent by the receiver of the one before, without a tool call by either in between.

    Attributes:
        first_seq: Of the first message, by its sender's count. `first_ms`, `first_offset`: the same.
        hops: How many there are.
        said: The newest `MAX_PERIOD` of them.
        speakers: Who takes part.
        laps: By period from 2 on, how many messages in a row were between the same runs as the one a lap before.
        name_laps: The same by the names of the agents, as long as no run speaks twice: each message starts a new run.
        likeness: Of the newest messages, how much each is like one of those before it, in per cent; -1 if it told a
            number, a name or a path that was not told before, and in words of its own.
        facts: Hashes of those that were told, four bytes each.
    """

    first_seq: int
    first_ms: int
    first_offset: int
    hops: int = 0
    said: list[Said] = field(default_factory=list)
    speakers: list[Speaker] = field(default_factory=list)
    laps: list[int] = field(default_factory=lambda: [0] * len(_PERIODS))
    name_laps: list[int] | None = field(default_factory=lambda: [0] * len(_PERIODS))
    likeness: list[int] = field(default_factory=list)
    facts: bytes = b""


class PingPong:
    """Messages in a circle of two to six agents of a tree, and chains of messages, without a tool call in between.

    It is a matter of the tree: if each message starts a new run, no run by itself repeats anything. As long as no run
    speaks twice, agents are told apart by their names, afterwards by their runs, so that five workers of one name are
    five. A message without a known receiver proves nothing. Several talks may go on side by side.

    A talk begins anew after a tool call of the one who speaks, finished or in flight, unless it only waited or polled;
    when a person speaks to one of its runs; at a `progress` event. Time does not end it.

    Texts that are new, less than half like any of the six messages before, turn the kill into a nudge and the nudge
    into an observation. Where half of the messages tell a number, a name or a path that was not told before
    (`new_facts`), and are no copies but for that, agents work something out: a circle is observed, a chain of 25
    nudged. Where no texts are reported, the circle counts alone.

    Levels: observe at 4 messages, nudge at 6, kill at 10, or at a chain of 25 (`PingPongConfig`, with sources). The
    verdict is about the tree.
    State: at most four talks a tree, 0.6 KB each at a circle of six.
    Cost: nothing for other steps than messages; 10 µs a message. From the third of a talk on its text is looked into:
        25 µs for 120 characters, 60 µs for 600, 80 µs at most.
    """

    name: ClassVar[str] = "ping_pong"
    pattern: ClassVar[str] = "agent_ping_pong"
    kinds: ClassVar[tuple[type[AnyStep], ...]] = (Message, UserInput, Progress)

    def observe(self, tree: TreeState, run: RunState, step: AnyStep, policy: Policy, offset: int) -> Finding | None:
        """Judge one message, or note that the world moved. See the class."""
        if type(step) is not Message:
            if tree.talks is not None:
                me = _key(step.run_id)
                tree.talks = [talk for talk in tree.talks if _speaker(talk, me) is None] or None
            return None
        said = _ends(tree, run, step)
        if not (said.receiver or said.receiver_name) or said.sender == said.receiver:
            return None
        talk = _continued(tree, run, said)
        if talk is None:
            talk = _begun(tree, step.seq, run.now_ms, offset)
        _add(tree, run, talk, said, step)
        if talk.hops < policy.ping_pong.observe:
            return None
        return self._judged(tree, run, talk, policy, step.seq)

    def _judged(self, tree: TreeState, run: RunState, talk: Talk, policy: Policy, seq: int) -> Finding | None:
        config = policy.ping_pong
        count, period, by_name = _circle(talk)
        is_chain = talk.hops >= config.kill_hops
        if not is_chain and count < config.observe:
            return None
        if is_chain:
            level, threshold, count = KILL, config.kill_hops, talk.hops
        else:
            level, threshold = grade(count, config.observe, config.nudge, None, config.kill)
        if level > OBSERVE and (_brings_facts(talk) or _is_new(talk, config)):
            level, threshold = _demoted(level, config, threshold, is_chain=is_chain, brings_facts=_brings_facts(talk))
        loop_key = _CHAIN_KEY if not period else _loop_key(talk, period, by_name=by_name)
        if not is_news(run, policy, self.name, loop_key, level, count, tree=tree):
            return None
        shape = f"in a circle of {period} agents" if period else "one in answer to the other"
        return Finding(
            detector=self.name,
            pattern=self.pattern,
            level=level,
            loop_key=loop_key,
            count=count,
            threshold=threshold,
            first_seq=min(talk.first_seq, seq),
            first_ms=talk.first_ms,
            first_offset=talk.first_offset,
            is_of_tree=True,
            note=f"{count} messages {shape}, and no tool call in between",
        )


def _demoted(
    level: Level, config: PingPongConfig, threshold: int, *, is_chain: bool, brings_facts: bool
) -> tuple[Level, int]:
    if level == KILL and (is_chain or not brings_facts):
        return NUDGE, threshold
    return OBSERVE, config.observe


def _key(text: str) -> int:
    """Return the 32-bit key of a run id or a name."""
    return crc32(text.encode("utf-8", "replace"))


def _ends(tree: TreeState, run: RunState, step: Message) -> Said:
    """Return who writes to whom."""
    name = run.agent or step.agent
    to_run, to_name = step.to_run_id, step.to_agent
    if to_run is None and to_name is not None:
        named = [run_id for run_id, known in tree.runs.items() if known.agent == to_name and not known.is_over]
        to_run = named[0] if len(named) == 1 else None
    elif to_run is not None and to_name is None:
        receiver = tree.runs.get(to_run)
        to_name = receiver.agent if receiver is not None else None
    return Said(
        sender=_key(step.run_id),
        receiver=_key(to_run) if to_run else 0,
        sender_name=_key(name) if name else 0,
        receiver_name=_key(to_name) if to_name else 0,
    )


def _continued(tree: TreeState, run: RunState, said: Said) -> Talk | None:
    """Return the talk that this message goes on with, now the newest; `None` if it begins one.

    Of several it is the one in which the receiver spoke last: the message answers it.
    """
    talks = tree.talks
    if talks is None:
        return None
    found = None
    for talk in reversed(talks):
        last = talk.said[-1]
        if last.receiver != said.sender and (last.receiver or last.receiver_name != said.sender_name):
            continue
        if found is None or last.sender == said.receiver:
            found = talk
        if last.sender == said.receiver:
            break
    if found is None:
        return None
    talks.remove(found)
    if _has_worked(run, _speaker(found, said.sender)):
        return None
    talks.append(found)
    return found


def _has_worked(run: RunState, speaker: Speaker | None) -> bool:
    """Return whether the run did anything but wait since it was spoken to."""
    if run.open_calls:
        return True
    calls = run.calls - (0 if speaker is None else speaker.calls)
    if calls > _MAX_WAITS:
        return True
    return any(not run.ring.before(back)[1] & (WAITS | POLLS) for back in range(calls))


def _begun(tree: TreeState, seq: int, now_ms: int, offset: int) -> Talk:
    talks = tree.talks = [] if tree.talks is None else tree.talks
    # A run alone in its tree, so far: nobody there to answer.
    while len(talks) >= (MAX_TALKS if len(tree.runs) > 1 else 1):
        del talks[0]
    talk = Talk(seq, now_ms, offset)
    talks.append(talk)
    return talk


def _add(tree: TreeState, run: RunState, talk: Talk, said: Said, step: Message) -> None:
    talk.hops += 1
    _note_speakers(tree, run, talk, said, step)
    _count_laps(talk, said)
    if talk.hops >= _SKETCHED_FROM and step.text:
        said.sketch = sketch(step.text, kept=_KEPT, half_chars=_HALF_CHARS)
        alike = [likeness(said.sketch, known.sketch, kept=_KEPT) for known in talk.said if known.sketch]
        new = [fact for fact in facts_of(step.text[:_FACTS_CHARS]) if not is_known(talk.facts, fact)]
        talk.facts = remember(talk.facts, new)[-_FACTS_BYTES:]
        if alike:
            talk.likeness = [*talk.likeness[1 - MAX_PERIOD :], -1 if new and max(alike) < _SAME_PERCENT else max(alike)]
    talk.said = [*talk.said[1 - MAX_PERIOD :], said]


def _note_speakers(tree: TreeState, run: RunState, talk: Talk, said: Said, step: Message) -> None:
    me = _speaker(talk, said.sender)
    if me is None:
        me = Speaker(said.sender, 0)
    else:
        talk.speakers.remove(me)
    if me.has_spoken:
        talk.name_laps = None
    me.calls, me.has_spoken = run.calls, True
    if said.receiver and _speaker(talk, said.receiver) is None:
        receiver = tree.runs.get(step.to_run_id) if step.to_run_id is not None else None
        talk.speakers.append(Speaker(said.receiver, 0 if receiver is None else receiver.calls))
    talk.speakers = [*talk.speakers[1 - MAX_SPEAKERS :], me]


def _speaker(talk: Talk, run_key: int) -> Speaker | None:
    for speaker in talk.speakers:
        if speaker.run == run_key:
            return speaker
    return None


def _count_laps(talk: Talk, said: Said) -> None:
    #  A→B  B→C  C→A  A→B  B→C      the fourth message is between the same as the first, three before it
    #                 lap 1  lap 2   laps of period 3; a period only counts if so many different agents speak in it
    known = talk.said
    names = talk.name_laps
    for period in _PERIODS:
        at = period - 2
        if len(known) < period:
            talk.laps[at] = 0
            continue
        before, lap = known[-period], known[1 - period :]
        is_again = said.receiver != 0 and (said.sender, said.receiver) == (before.sender, before.receiver)
        is_circle = is_again and len({said.sender, *[one.sender for one in lap]}) == period
        talk.laps[at] = talk.laps[at] + 1 if is_circle else 0
        if names is not None:
            is_again = (
                said.sender_name != 0
                and said.receiver_name != 0
                and (said.sender_name, said.receiver_name) == (before.sender_name, before.receiver_name)
            )
            is_circle = is_again and len({said.sender_name, *[one.sender_name for one in lap]}) == period
            names[at] = names[at] + 1 if is_circle else 0


def _circle(talk: Talk) -> tuple[int, int, bool]:
    """Return how many messages the talk's circle has, of how many agents, and whether only their names are the same."""
    found = (0, 0, False)
    for by_name, laps in ((False, talk.laps), (True, talk.name_laps or ())):
        for period, again in zip(_PERIODS, laps, strict=False):
            if again and again + period > found[0]:
                found = (again + period, period, by_name)
    return found


def _loop_key(talk: Talk, period: int, *, by_name: bool) -> int:
    lap = talk.said[-period:]
    members = sorted({one.sender_name if by_name else one.sender for one in lap})
    return stable_key(f"ping_pong:{members}")


def _is_new(talk: Talk, config: PingPongConfig) -> bool:
    """Return whether the newest messages say something that was not said before them."""
    likeness = talk.likeness
    like = sum(one for one in likeness if one > 0)
    return len(likeness) >= _MIN_LIKENESSES and like < config.same_percent * len(likeness)


def _brings_facts(talk: Talk) -> bool:
    """Return whether half of the newest messages told something that was not told before them."""
    likeness = talk.likeness
    return len(likeness) >= _MIN_LIKENESSES and 2 * sum(one < 0 for one in likeness) >= len(likeness)
