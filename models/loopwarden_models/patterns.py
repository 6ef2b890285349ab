"""The public names of what can be wrong with a run, how strongly it is answered, and with what."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Final, Literal

from msgspec import Struct

from loopwarden_models.recoveries import RecoveryName


class Level(IntEnum):
    """How strongly a verdict asks to act. Ordered: a stronger level compares greater."""

    NONE = 0
    OBSERVE = 1
    NUDGE = 2
    BREAK = 3
    PAUSE = 4
    KILL = 5


LevelName = Literal["none", "observe", "nudge", "break", "pause", "kill"]
LEVEL_NAMES: Final[tuple[LevelName, ...]] = ("none", "observe", "nudge", "break", "pause", "kill")

Mode = Literal["off", "shadow", "warn", "enforce"]
MODES: Final[tuple[Mode, ...]] = ("off", "shadow", "warn", "enforce")

# Names come from the wire as well; those of this version are few.
_MEMO: Final = 256

PatternName = Literal[
    "tool_repetition",
    "tool_oscillation",
    "frozen_poll",
    "error_loop",
    "param_walk",
    "tool_hallucination",
    "guardrail_loop",
    "retry_storm",
    "text_loop",
    "reflection_paralysis",
    "context_rot",
    "no_progress",
    "rate_runaway",
    "budget_exceeded",
    "agent_ping_pong",
    "idle",
    "restart_loop",
    "order_unanswered",
    "kill_unconfirmed",
    "kill_failed",
    "step_after_kill",
]


class Pattern(Struct, frozen=True, kw_only=True):
    """What a run does that is wrong, in public terms, and what is done about it at each level.

    Attributes:
        text: What it is, in one sentence.
        advice: What a nudge tells the model: the first one at L1, the second at L2. `None`: nobody is advised.
        other_advice: The same by rule, where a rule of this pattern advises otherwise.
        breaks: Rules of it may shut the tool, at L2.
        stops: What is done at L3, where nobody is advised any more.
        is_taxonomy: One of the six that the field's taxonomy names.
    """

    text: str
    advice: RecoveryName | None
    other_advice: Mapping[str, RecoveryName] = MappingProxyType({})
    breaks: bool = False
    stops: tuple[RecoveryName, ...] = ("ask_a_person", "end_with_a_report")
    is_taxonomy: bool = False


# Patterns are what users see and filter by; a detector is the rule that found one. Names are only ever added.
PATTERNS: Final[Mapping[str, Pattern]] = MappingProxyType(
    {
        "tool_repetition": Pattern(
            text="One call is made over and over with the same arguments.",
            advice="state_latch",
            other_advice={"changing_repeat": "one_blocking_wait"},
            breaks=True,
        ),
        "tool_oscillation": Pattern(
            text="A few calls come in turn, lap after lap, each with the answer it had before.",
            advice="change_approach",
            is_taxonomy=True,
        ),
        "frozen_poll": Pattern(
            text="Something is asked whether it is ready, and its answer does not change.", advice="one_blocking_wait"
        ),
        "error_loop": Pattern(
            text="Calls fail again and again with the same error.", advice="change_approach", breaks=True
        ),
        "param_walk": Pattern(
            text="One tool is called with ever other arguments, and nothing new comes of it.",
            advice="change_approach",
            other_advice={"same_output": "state_latch"},
            breaks=True,
        ),
        "tool_hallucination": Pattern(
            text="Tools are called that do not exist.", advice="tool_schema", is_taxonomy=True
        ),
        "guardrail_loop": Pattern(
            text="What a policy, a person or a breaker refused is tried again in other words.",
            advice="explain_refusal",
            is_taxonomy=True,
        ),
        "retry_storm": Pattern(
            text="What fails is sent again at once, while it is down.",
            advice="one_blocking_wait",
            breaks=True,
            stops=("circuit_breaker",),
            is_taxonomy=True,
        ),
        "text_loop": Pattern(
            text="The model writes the same again, word for word or in other words.",
            advice="objective_anchor",
            other_advice={"text_chant": "force_action"},
        ),
        "reflection_paralysis": Pattern(
            text="Answer follows on answer, and no action.", advice="force_action", is_taxonomy=True
        ),
        "context_rot": Pattern(
            text="The context is shortened in vain, or what was in it is lost and done again.",
            advice="objective_anchor",
            is_taxonomy=True,
        ),
        "no_progress": Pattern(
            text="Most of the last steps failed or brought nothing, whatever they were.", advice="objective_anchor"
        ),
        "rate_runaway": Pattern(text="Calls are made far faster than they may.", advice="change_approach"),
        "budget_exceeded": Pattern(
            text="A limit of the run or of its tree is near, or used up.", advice="force_action"
        ),
        "agent_ping_pong": Pattern(
            text="Agents write to each other, round and round, and none of them acts.", advice="force_action"
        ),
        "idle": Pattern(text="A run only waits, or is not heard of any more.", advice="one_blocking_wait"),
        "restart_loop": Pattern(
            text="Runs with the same goal fail and are started again and again.", advice=None, stops=("ask_a_person",)
        ),
        "order_unanswered": Pattern(
            text="An order to stop or to wait is out, and no runtime answers.", advice=None, stops=("ask_a_person",)
        ),
        "kill_unconfirmed": Pattern(
            text="A run was told to end, and nobody confirms that it has.", advice=None, stops=("ask_a_person",)
        ),
        "kill_failed": Pattern(text="A runtime could not end a run.", advice=None, stops=("ask_a_person",)),
        "step_after_kill": Pattern(
            text="A step began after the run's gate was said to be shut.", advice=None, stops=("ask_a_person",)
        ),
    }
)


@lru_cache(_MEMO)
def advice_of(pattern: str, detector: str) -> RecoveryName | None:
    """Return what a nudge of `detector` for `pattern` advises; `None` for a pattern of another version.

    Cost: 0.05 µs once a rule was asked for.
    """
    known = PATTERNS.get(pattern)
    return None if known is None else known.other_advice.get(detector, known.advice)
