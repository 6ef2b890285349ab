"""Thresholds of the rules over other steps than finished tool calls, with where each number comes from.

*public* = a named system ships it, *measured* = counted on recorded runs of real agents, *judgement* = ours, and the
first thing to re-tune.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from msgspec import Meta

from loopwarden_models.rule_config import Milliseconds, Percent, Repeats, RuleConfig

Tokens = Annotated[int, Meta(ge=1)]


class TextChantConfig(RuleConfig, frozen=True):
    """One generation repeats a block of words back to back (`text_chant`)."""

    rising: ClassVar[tuple[tuple[str, ...], ...]] = (("nudge", "kill"),)

    # public: OpenRouter 4, of a block of at most 16 tokens, 12 tokens or more in all.
    nudge: Annotated[int, Meta(ge=3, le=10_000)] = 4
    # public: gemini-cli 10. Only in so many generations, and no tool call between them. judgement
    kill: Annotated[int, Meta(ge=3, le=10_000)] = 10
    # judgement: one may be an accident of sampling
    kill_generations: Repeats = 2


class NearTextConfig(RuleConfig, frozen=True):
    """Answer after answer says nearly the same (`near_text`)."""

    rising: ClassVar[tuple[tuple[str, ...], ...]] = (("observe", "nudge", "nudge_undeclared"), ("nudge", "kill"))

    # Of the last six. A cluster is known from its fourth message on: two that look alike, and two that were compared.
    # measured: of 2,936 recorded runs known to be healthy two reach 4, none reaches 5.
    observe: Annotated[int, Meta(ge=4, le=6)] = 4
    # Of the last six. measured: as above
    nudge: Annotated[int, Meta(ge=4, le=6)] = 5
    # In all. Where undeclared tools bring something new each time, a template is likelier than a loop. judgement
    nudge_undeclared: Repeats = 8
    # In all, and five of the last six. judgement
    kill: Repeats = 8
    # public: senpi and DeepEval 0.85.
    same_percent: Annotated[int, Meta(ge=50, le=100)] = 85


class ReflectionConfig(RuleConfig, frozen=True):
    """Answer after answer of the model, and no action (`reflection`)."""

    rising: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("observe", "nudge"),
        ("observe_tokens", "nudge_tokens", "kill_tokens"),
    )

    # measured: of 175 healthy coding runs one has 5 or more in a row, it reaches 9. public: OpenHands 3, too eager.
    observe: Annotated[int, Meta(ge=2, le=10_000)] = 5
    # judgement; public: OpenHands 3, too eager
    nudge: Annotated[int, Meta(ge=2, le=10_000)] = 8
    # Where answers do not say how many calls they make, some of these may have acted.
    # measured: that healthy run reaches 9.
    nudge_undeclared: Annotated[int, Meta(ge=2, le=10_000)] = 10
    # judgement, from reports of 72,900 tokens and of 21 minutes without a call.
    observe_tokens: Tokens = 20_000
    # judgement
    nudge_tokens: Tokens = 40_000
    # judgement: a report of 72,900 tokens without a call
    kill_tokens: Tokens = 60_000
    # judgement: a report of 21 minutes
    kill_ms: Milliseconds = 900_000


class ContextRotConfig(RuleConfig, frozen=True):
    """Compactions that free nothing, or after which the work begins anew (`context_rot`)."""

    rising: ClassVar[tuple[tuple[str, ...], ...]] = (("observe", "nudge", "kill"), ("lost_reads", "lost_window"))

    # public: Hermes 2 compactions without effect. judgement: the end comes at the third.
    observe: Repeats = 1
    # public: Hermes, two compactions without effect
    nudge: Repeats = 2
    # judgement: reports of 463 compactions in a run
    kill: Repeats = 3
    # A compaction that leaves more than this, or is back at it within so many calls, was in vain. judgement
    wasted_percent: Percent = 80
    # judgement: within so many calls that brought nothing new
    wasted_calls: Annotated[int, Meta(ge=0, le=40)] = 5
    # So many of the first reads after a compaction that were made before, with the same answer. judgement
    lost_reads: Annotated[int, Meta(ge=1, le=40)] = 3
    # judgement: ... among so many first reads
    lost_window: Annotated[int, Meta(ge=1, le=40)] = 6
    # Off unless set (judgement: 8): texts so many points less like the goal than the first ones, for so many answers.
    # measured: of 181 healthy runs of 13 answers or more 3 drift, of 17 loops one; with 10 points 16 and 3.
    drift_steps: Repeats | None = None
    # judgement
    drift_percent: Percent = 15


class PingPongConfig(RuleConfig, frozen=True):
    """Messages between agents, without a tool call in between (`ping_pong`)."""

    rising: ClassVar[tuple[tuple[str, ...], ...]] = (("observe", "nudge", "kill", "kill_hops"),)

    # judgement: a negotiation of four messages is normal, and no system publishes a number.
    observe: Repeats = 4
    # judgement: no system publishes a number
    nudge: Repeats = 6
    # judgement
    kill: Repeats = 10
    # A chain of messages of any shape: circles of more than six agents, a new agent for each message. judgement
    kill_hops: Repeats = 25
    # Messages that are less than so much like all six before them are new, and nobody is ended for them. judgement
    same_percent: Percent = 50


class SilentRunConfig(RuleConfig, frozen=True):
    """Time without an event of a run that has not ended (`silent_run`)."""

    rising: ClassVar[tuple[tuple[str, ...], ...]] = (("observe_ms", "kill_ms"),)

    # judgement. public: SWE-agent gives a tool 30 s; real tools take 40 minutes, so silence alone is no fault.
    observe_ms: Milliseconds = 300_000
    # judgement: reports of tools that rightly took 40 minutes
    kill_ms: Milliseconds = 1_800_000
    # How long a call of the tool may take: once and twice it take the place of the above. Written for a tool.
    tool_limit_ms: Milliseconds | None = None


# Ends of runs that are remembered of one task.
MAX_ENDS: Final = 32


class RestartLoopConfig(RuleConfig, frozen=True):
    """One task that is started again and again (`restart_loop`). For people: nobody is stopped.

    A task that is due every few minutes and mostly finds nothing to do looks the same: switch it off for that agent.
    """

    rising: ClassVar[tuple[tuple[str, ...], ...]] = (("observe", "nudge"),)

    # judgement; reports: 1,249 restarts of one task, each caused by the time stamp of the one before.
    observe: Repeats = 3
    # Of people, not of the model. judgement
    nudge: Repeats = 5
    # How far is looked back. judgement
    window_ms: Milliseconds = 3_600_000
    # A run of more calls has worked, whatever it found. judgement
    short_calls: Annotated[int, Meta(ge=0, le=40)] = 10
