"""The policy: every threshold, mode, declared effect and limit. This file is the default policy.

A policy file (YAML) overrides single values; what it does not name keeps the value given here. Beside each
number stands where it comes from: *public* = a named system ships it, *measured* = counted on recorded runs of
real agents, *judgement* = ours, and the first thing to re-tune.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

import msgspec
from msgspec import Meta, Struct, field

from loopwarden_models.effects import EFFECTS
from loopwarden_models.errors import ConfigError
from loopwarden_models.events import Limits
from loopwarden_models.patterns import Mode

Repeats = Annotated[int, Meta(ge=2, le=10_000)]
Percent = Annotated[int, Meta(ge=1, le=100)]
DetectorMode = Literal["inherit", "off", "shadow", "warn", "enforce"]


class _Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every part of the policy: immutable, and a field that does not exist is an error."""


class ExactRepeatConfig(_Config, frozen=True):
    """Same call, same result, in a row (`exact_repeat`)."""

    mode: DetectorMode = "inherit"
    observe: Repeats = 2
    # measured: a streak of 3 hits 14 of 22 labelled loops and none of 175 healthy coding runs. public: most warn at 3.
    nudge: Repeats = 3
    # public: Hermes and Cline block at 5.
    break_at: Repeats = 5
    # measured: a streak of 8 hits no successful run but 4 that repeat one query to their end.
    kill: Repeats = 8
    # A call without a result proves nothing: this many equal calls may nudge, nothing more. judgement
    nudge_without_result: Repeats = 5
    # An undeclared poller must not be killed for its patience: equal calls this far apart do not count. judgement
    slow_gap_ms: Annotated[int, Meta(ge=1_000)] = 30_000
    slow_gap_medians: Annotated[int, Meta(ge=1)] = 3


class ChangingRepeatConfig(_Config, frozen=True):
    """Same call, changing result, in a row (`changing_repeat`). Never kills: the world is moving."""

    mode: DetectorMode = "inherit"
    # public: OpenClaw 10 and 20.
    observe: Repeats = 10
    nudge: Repeats = 20
    # Tools whose answer is always new (effect `clock`) prove nothing by a new answer. judgement
    clock_observe: Repeats = 5
    clock_nudge: Repeats = 10


class CycleConfig(_Config, frozen=True):
    """A sequence of 2 to 6 calls with equal results, lap after lap (`cycle`)."""

    mode: DetectorMode = "inherit"
    # measured: two laps hit no successful run at all.
    observe_laps: Repeats = 2
    # public: Hermes notices at 3 laps and halts at 5.
    nudge_laps: Repeats = 3
    kill_laps: Repeats = 5


class SameErrorConfig(_Config, frozen=True):
    """The same error again and again, whatever the arguments (`same_error`)."""

    mode: DetectorMode = "inherit"
    observe: Repeats = 2
    # measured: 3 hits 21 of 25 labelled loops and 12 of 2,593 successes; so it advises only.
    nudge: Repeats = 3
    # Without a declared effect a meaningful exit code looks like an error. measured: 5 hits 6 of 2,593 successes.
    nudge_undeclared: Repeats = 5
    break_at: Repeats = 5
    # public: Hermes 8. Only if every tool of the streak declares its effect.
    kill: Repeats = 8


class RateConfig(_Config, frozen=True):
    """Tool calls of one run per minute (`rate`)."""

    mode: DetectorMode = "inherit"
    # judgement: a busy agent calls a tool every other second; a fan-out may double that for a moment.
    observe_per_min: Annotated[int, Meta(ge=30, le=1_000_000)] = 120
    nudge_per_min: Annotated[int, Meta(ge=30, le=1_000_000)] = 240
    # A burst is not a loop: nothing stronger than a nudge unless an operator sets a number here.
    kill_per_min: Annotated[int, Meta(ge=30, le=1_000_000)] | None = None


class BudgetConfig(_Config, frozen=True):
    """Limits of a run's tree (`budget`). What `run_start.limits` declares takes the place of these."""

    mode: DetectorMode = "inherit"
    # measured: of 175 healthy coding runs 10 pass 60 steps, 3 pass 80, 1 passes 100. public: Qwen-Code 100 and 1,000.
    observe_steps: Annotated[int, Meta(ge=1)] = 60
    nudge_steps: Annotated[int, Meta(ge=1)] = 80
    # Ends the run only if another detector has seen something too.
    max_steps_if_stuck: Annotated[int, Meta(ge=1)] = 100
    limits: Limits = Limits(
        max_steps=1_000,
        # measured: healthy coding runs cost $0.34 at the median, $1.50 at most. public: SWE-agent $3.
        max_cost_usd=3.0,
    )
    # public: Redpanda warns at 80 %; the toolkit of Microsoft at 50, 75, 90 and 95 %.
    observe_percent: Percent = 80
    nudge_percent: Percent = 90


class LadderConfig(_Config, frozen=True):
    """From a verdict to a command, per loop identity."""

    # public: Stella. A second nudge comes when the count doubles (public: senpi).
    max_nudges_per_loop: Annotated[int, Meta(ge=0, le=10)] = 2
    # Advice itself can become the loop. judgement
    max_nudges_per_run: Annotated[int, Meta(ge=0, le=100)] = 6
    # A step up needs the nudge to have been applied and the loop to have come back this often since. judgement
    returns_after_nudge: Annotated[int, Meta(ge=1, le=100)] = 2
    # ... or no acknowledgement for this long, in event time. judgement
    ack_timeout_ms: Annotated[int, Meta(ge=1_000)] = 30_000
    command_ttl_ms: Annotated[int, Meta(ge=1_000, le=3_600_000)] = 120_000
    kill_grace_ms: Annotated[int, Meta(ge=0, le=600_000)] = 5_000


class Policy(_Config, frozen=True):
    """What is watched, how strictly, and what may be done about it.

    `mode` holds for every detector that says `inherit`: `off`, `shadow` (record only), `warn` (up to a nudge,
    the rest is recorded as "would have") or `enforce`. A first deployment warns; enforce when the recorded
    kills have been reviewed.
    """

    version: Annotated[str, Meta(max_length=64)] = "default-1"
    mode: Mode = "warn"
    # Declared effects by tool name: read, write, poll, clock or unknown. Wins over what the runtime says.
    effects: dict[str, str] = field(default_factory=dict)
    exact_repeat: ExactRepeatConfig = ExactRepeatConfig()
    changing_repeat: ChangingRepeatConfig = ChangingRepeatConfig()
    cycle: CycleConfig = CycleConfig()
    same_error: SameErrorConfig = SameErrorConfig()
    rate: RateConfig = RateConfig()
    budget: BudgetConfig = BudgetConfig()
    ladder: LadderConfig = LadderConfig()

    def __post_init__(self) -> None:
        """Refuse what can never fire or fires in the wrong order.

        Raises:
            ValueError: The message names the path, the value and the remedy.
        """
        for path, rising in _rising(self):
            numbers = [n for n in rising if n is not None]
            if numbers != sorted(numbers):
                raise ValueError(f"{path} = {numbers} must not fall from the weaker to the stronger level")
        for tool, effect in self.effects.items():
            if effect not in EFFECTS:
                raise ValueError(f"effects.{tool} = {effect!r} is not one of {', '.join(sorted(EFFECTS))}")

    def mode_of(self, detector: str) -> Mode:
        """Return the mode that is in force for `detector`. Cost: two attribute reads."""
        own: DetectorMode = getattr(self, detector).mode
        return self.mode if own == "inherit" else own

    @classmethod
    def from_builtins(cls, data: object) -> Self:
        """Build a policy from parsed YAML or JSON.

        Raises:
            ConfigError: A field that does not exist, a wrong type or range, thresholds that fall; the message
                names the path.
        """
        try:
            return msgspec.convert(data if data is not None else {}, cls)
        except msgspec.ValidationError as error:
            raise ConfigError(f"policy: {error}") from None


def _rising(policy: Policy) -> list[tuple[str, list[int | None]]]:
    repeat, changing, cycle, error = policy.exact_repeat, policy.changing_repeat, policy.cycle, policy.same_error
    rate, budget = policy.rate, policy.budget
    return [
        ("exact_repeat.observe, nudge, break_at, kill", [repeat.observe, repeat.nudge, repeat.break_at, repeat.kill]),
        ("changing_repeat.observe, nudge", [changing.observe, changing.nudge]),
        ("changing_repeat.clock_observe, clock_nudge", [changing.clock_observe, changing.clock_nudge]),
        ("cycle.observe_laps, nudge_laps, kill_laps", [cycle.observe_laps, cycle.nudge_laps, cycle.kill_laps]),
        ("same_error.observe, nudge, break_at, kill", [error.observe, error.nudge, error.break_at, error.kill]),
        ("same_error.nudge, nudge_undeclared", [error.nudge, error.nudge_undeclared]),
        (
            "rate.observe_per_min, nudge_per_min, kill_per_min",
            [rate.observe_per_min, rate.nudge_per_min, rate.kill_per_min],
        ),
        (
            "budget.observe_steps, nudge_steps, max_steps_if_stuck",
            [budget.observe_steps, budget.nudge_steps, budget.max_steps_if_stuck],
        ),
        ("budget.observe_percent, nudge_percent", [budget.observe_percent, budget.nudge_percent]),
    ]


DEFAULT_POLICY = Policy()
