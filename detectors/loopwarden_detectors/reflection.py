"""Answer after answer of the model, and no action: the agent thinks about thinking."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from msgspec import Struct

from loopwarden_detectors.base import KILL, NONE, NUDGE, OBSERVE, Finding
from loopwarden_detectors.ladder_state import is_news
from loopwarden_models.effects import THOUGHT_TOOLS
from loopwarden_models.events import MAX_INT, AnyStep, Message, ModelEnd, RunStart
from loopwarden_models.hashes import stable_key
from loopwarden_models.patterns import Level

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState, TreeState
    from loopwarden_models.policy import Policy
    from loopwarden_models.step_rules import ReflectionConfig

# One identity for all thinking of a run: what it thinks about is no other loop.
LOOP_KEY: Final = stable_key("reflection")

# An answer that says that it calls nothing, or has as many tokens, is kept at once: a tenth of what advises. Another
# one only when a second follows, so that most runs never have a state.
_LONG_TOKENS: Final = 4_000
# One answer, however long, is for the runtime's own limit on output: a long report is no paralysis. judgement
_MIN_ANSWERS: Final = 2
# Silence for longer is not known to be thinking: an agent that is asked once an hour only waits. judgement
_MAX_THOUGHT_MS: Final = 300_000
_MINUTE_MS: Final = 60_000


class ReflectionState(Struct, array_like=True, gc=False):
    """Answers since the last action.

    `pending`: tokens of the newest answer while it is open whether the calls that it announced are an action; -1 if it
    announced none. `is_declared`: every answer said how many calls it makes. `last_ms`: event time of the newest
    answer, `waited_ms` the tree's at it.
    """

    answers: int
    tokens: int
    pending: int
    thought_ms: int
    last_ms: int
    waited_ms: int
    is_declared: bool
    first_seq: int
    first_ms: int
    first_offset: int


class Reflection:
    """`n` = answers of the model since the last action of its run, with their tokens and the time they took.

    An action is a finished call of a tool that is not there for thoughts and plans (`effects.THOUGHT_TOOLS`), an
    announced call that is not reported, a call in flight, a message, and a word of a person. Whoever is written to
    begins anew, and so does a run when a child of it begins or answers: it waits, or leads.

    Tokens and time count for two answers or more. The time is that of the generations; where it was not measured, the
    time between two answers, approvals apart, if that is five minutes or less. Where no call was ever seen and the
    answers do not say that they make none, the rule only observes: calls may not be reported at all.

    Levels: observe 5 answers or 20,000 tokens; nudge 8 (10 where answers do not say what they
    call) or 40,000; kill 60,000, or 15 minutes (`ReflectionConfig`).
    State: from the first answer that says that it calls nothing, or the second in a row.
    Cost: 0.2 µs an answer; nothing for a call.
    """

    name: ClassVar[str] = "reflection"
    pattern: ClassVar[str] = "reflection_paralysis"
    kinds: ClassVar[tuple[type[AnyStep], ...]] = (ModelEnd, Message, RunStart)

    def observe(self, tree: TreeState, run: RunState, step: AnyStep, policy: Policy, offset: int) -> Finding | None:
        """Judge one answer, or note what is an action. See the class."""
        if len(tree.runs) > 1:
            _forget_others(tree, run, step)
        if type(step) is not ModelEnd:
            if type(step) is Message:
                forget_thoughts(run)
            return None
        announced = step.tool_calls
        calls = run.calls
        before = run.thought_mark
        run.thought_mark = ~calls if announced else calls
        state = run.reflection
        if run.open_calls or (before != calls and not _has_only_thought(run, before)):
            if state is not None:
                run.reflection = None
            if announced or (announced is None and _tokens_of(step) < _LONG_TOKENS):
                return None
            state = run.reflection = _begin(tree, run, step, offset, answers=0)
        elif state is None:
            state = run.reflection = _begin(tree, run, step, offset, answers=1)
        if not _count(tree, run, state, step):
            return None
        return self._finding(run, state, policy)

    def tick(self, tree: TreeState, run: RunState, policy: Policy, now_ms: int) -> Finding | None:
        """Judge the generation that is under way by `now_ms`, after others without an action.

        Silence proves little, so it is counted for five minutes at most, and not where something else explains it: a
        person who is there, an approval, a call, another run of the tree that works.
        """
        state = run.reflection
        if state is None or run.attended or state.pending >= 0 or run.thought_mark != run.calls:
            return None
        if run.open_calls or tree.waits or tree.now_ms > run.now_ms:
            return None
        # A level, true again at each later tick: quiet runs are not asked at every one (streams, `Ticker`).
        silent_ms = min(max(0, now_ms - state.last_ms), _MAX_THOUGHT_MS)
        if state.thought_ms + silent_ms < policy.reflection.kill_ms:
            return None
        return self._finding(run, state, policy, now_ms, silent_ms)

    def _finding(
        self, run: RunState, state: ReflectionState, policy: Policy, now_ms: int | None = None, silent_ms: int = 0
    ) -> Finding | None:
        config = policy.reflection
        thought_ms = state.thought_ms + silent_ms
        level = _level(state, thought_ms, config)
        if level > OBSERVE and not (state.is_declared or run.calls):
            level = OBSERVE
        answers = state.answers
        if level == NONE or not is_news(
            run, policy, self.name, LOOP_KEY, level, answers, state.first_seq, now_ms=now_ms
        ):
            return None
        threshold = _nudge_at(state, config) if level == NUDGE else config.observe if level == OBSERVE else answers
        minutes = thought_ms // _MINUTE_MS
        tokens = f"{state.tokens} tokens" if state.tokens else "an unknown number of tokens"
        return Finding(
            detector=self.name,
            pattern=self.pattern,
            level=level,
            loop_key=LOOP_KEY,
            count=answers,
            threshold=min(answers, threshold),
            first_seq=state.first_seq,
            first_ms=state.first_ms,
            first_offset=state.first_offset,
            veto_after_seq=state.first_seq,
            note=f"{answers} answers in a row, {tokens} and {minutes} minutes of them, without an action",
        )


def forget_thoughts(run: RunState) -> None:
    """Let a run's next answer be the first one: it acted, or somebody spoke to it."""
    run.reflection = None
    run.thought_mark = ~run.calls


def _level(state: ReflectionState, thought_ms: int, config: ReflectionConfig) -> Level:
    answers, tokens = state.answers, state.tokens
    if answers < _MIN_ANSWERS or (answers < config.observe and tokens < config.observe_tokens):
        return NONE
    if tokens >= config.kill_tokens or thought_ms >= config.kill_ms:
        return KILL
    return NUDGE if answers >= _nudge_at(state, config) or tokens >= config.nudge_tokens else OBSERVE


def _nudge_at(state: ReflectionState, config: ReflectionConfig) -> int:
    return config.nudge if state.is_declared else max(config.nudge, config.nudge_undeclared)


def _count(tree: TreeState, run: RunState, state: ReflectionState, step: ModelEnd) -> bool:
    """Count an answer; return whether it is known now of one more that it led to no action."""
    waited_ms = tree.waited_ms - state.waited_ms
    thought_ms = max(0, run.now_ms - state.last_ms - waited_ms)
    if step.duration_ms is not None:
        thought_ms = min(thought_ms, int(step.duration_ms))
    elif thought_ms > _MAX_THOUGHT_MS or tree.waits:
        thought_ms = 0
    state.thought_ms += thought_ms
    state.last_ms, state.waited_ms = run.now_ms, tree.waited_ms
    was_pending = state.pending >= 0
    if was_pending:
        state.answers += 1
        state.tokens = min(state.tokens + state.pending, MAX_INT)
    if step.tool_calls:
        state.pending = _tokens_of(step)
        return was_pending
    state.pending = -1
    state.answers += 1
    state.tokens = min(state.tokens + _tokens_of(step), MAX_INT)
    state.is_declared = state.is_declared and step.tool_calls is not None
    return True


def _begin(tree: TreeState, run: RunState, step: ModelEnd, offset: int, *, answers: int) -> ReflectionState:
    """Return a state that holds `answers` before this one; it begins after the last call if there was one."""
    now_ms = run.now_ms
    began_ms = now_ms if step.duration_ms is None else max(run.started_ms, now_ms - int(step.duration_ms))
    seq, first_ms = step.seq, began_ms
    if answers and len(run.ring):
        last_seq, offset, ms, _ = run.ring.call_at(0, seq=step.seq, offset=offset)
        seq, first_ms = min(last_seq + 1, step.seq), run.started_ms + ms
    return ReflectionState(answers, 0, -1, 0, began_ms, tree.waited_ms, not answers, seq, first_ms, offset)


def _tokens_of(step: ModelEnd) -> int:
    """Return the tokens that were written. Most providers count those of reasoning among them."""
    usage = step.usage
    if usage is None:
        return 0
    output, reasoning = usage.output_tokens or 0, usage.reasoning_tokens or 0
    return output if reasoning <= output else output + reasoning


def _has_only_thought(run: RunState, before: int) -> bool:
    """Return whether there were calls since an answer, all of tools for thoughts.

    Args:
        run: Not changed.
        before: `thought_mark` of the answer. Announced calls that were not reported are an action, as are others.
    """
    since = run.calls - (before if before >= 0 else ~before)
    tools = run.tools
    if not since or not 0 <= run.last_tool < len(tools) or tools[run.last_tool] not in THOUGHT_TOOLS:
        return False
    numbers = run.ring.tools()[-since:]
    return len(numbers) == since and all(run.tool_name(number) in THOUGHT_TOOLS for number in numbers)


def _forget_others(tree: TreeState, run: RunState, step: AnyStep) -> None:
    """Note that another run is led, or written to, by what this one does."""
    other = step.to_run_id if type(step) is Message else step.parent_run_id or tree.root_run_id
    found = tree.runs.get(other) if other is not None else None
    if found is not None and found is not run:
        forget_thoughts(found)
