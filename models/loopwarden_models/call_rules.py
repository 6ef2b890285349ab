"""Thresholds of the rules over tool calls, with where each number comes from.

*public* = a named system ships it, *measured* = counted on recorded runs of real agents, *judgement* = ours, and the
first thing to re-tune.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from msgspec import Meta

from loopwarden_models.rule_config import Milliseconds, Repeats, RuleConfig

# Of a call that is retried, the times of so many failures are kept: a higher threshold would never be reached.
MAX_ATTEMPTS: Final = 16
Attempts = Annotated[int, Meta(ge=1, le=MAX_ATTEMPTS)]


class ExactRepeatConfig(RuleConfig, frozen=True):
    """Same call, same result, in a row (`exact_repeat`)."""

    rising: ClassVar[tuple[tuple[str, ...], ...]] = (("observe", "nudge", "break_at", "kill"),)

    # public: Hermes warns at 2
    observe: Repeats = 2
    # measured: a streak of 3 hits 14 of 22 labelled loops and none of 175 healthy coding runs. public: most warn at 3.
    nudge: Repeats = 3
    # public: Hermes and Cline block at 5.
    break_at: Repeats = 5
    # measured: a streak of 8 hits no successful run but 4 of 2,593, whose tools are not declared.
    # public: nobody defends more.
    kill: Repeats = 8
    # measured: those 4 ask one thing eight times and get there; 9 hits none.
    kill_undeclared: Repeats = 9
    # A call without a result proves nothing: this many equal calls may nudge, nothing more. judgement
    nudge_without_result: Repeats = 5
    # An undeclared poller must not be killed for its patience: equal calls this far apart do not count. judgement
    slow_gap_ms: Annotated[int, Meta(ge=1_000)] = 30_000
    # judgement: a slow model alone must not look like polling
    slow_gap_medians: Annotated[int, Meta(ge=1)] = 3


class ChangingRepeatConfig(RuleConfig, frozen=True):
    """Same call, changing result, in a row (`changing_repeat`). Never kills: the world is moving."""

    rising: ClassVar[tuple[tuple[str, ...], ...]] = (("observe", "nudge"), ("clock_observe", "clock_nudge"))

    # public: OpenClaw 10.
    observe: Repeats = 10
    # public: OpenClaw 20.
    nudge: Repeats = 20
    # Tools whose answer is always new (effect `clock`) prove nothing by a new answer. judgement
    clock_observe: Repeats = 5
    # judgement
    clock_nudge: Repeats = 10


class CycleConfig(RuleConfig, frozen=True):
    """A sequence of 2 to 6 calls with equal results, lap after lap (`cycle`)."""

    rising: ClassVar[tuple[tuple[str, ...], ...]] = (("observe_laps", "nudge_laps", "kill_laps"),)

    # measured: two laps hit no successful run at all.
    observe_laps: Repeats = 2
    # public: Hermes notices at 3 laps and halts at 5.
    nudge_laps: Repeats = 3
    # public: Hermes halts at 5 laps
    kill_laps: Repeats = 5


class SameErrorConfig(RuleConfig, frozen=True):
    """The same error again and again, whatever the arguments (`same_error`)."""

    rising: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("observe", "nudge", "break_at", "kill"),
        ("nudge", "nudge_undeclared"),
    )

    # judgement
    observe: Repeats = 2
    # measured: 3 hits 21 of 25 labelled loops and 12 of 2,593 successes; so it advises only.
    nudge: Repeats = 3
    # Without a declared effect a meaningful exit code looks like an error. measured: 5 hits 6 of 2,593 successes.
    nudge_undeclared: Repeats = 5
    # public: Hermes blocks at 5.
    break_at: Repeats = 5
    # public: Hermes 8. Only if every tool of the streak declares its effect.
    kill: Repeats = 8


class FrozenPollConfig(RuleConfig, frozen=True):
    """A poller whose answer does not change (`frozen_poll`)."""

    rising: ClassVar[tuple[tuple[str, ...], ...]] = (("observe", "nudge", "kill"),)

    # judgement
    observe: Repeats = 5
    # judgement
    nudge: Repeats = 10
    # public: OpenClaw's global breaker 30.
    kill: Repeats = 30
    # How long the awaited work should take: written for a tool. Before three times as long without a change a poll is
    # observed and no more, after it nudged whatever the count, and only after six times ended. judgement
    expected_ms: Milliseconds | None = None
    # How far apart polls were asked to be: written for a tool. Those that keep to it count half. judgement
    interval_ms: Milliseconds | None = None


class InterleavedRepeatConfig(RuleConfig, frozen=True):
    """The same call and result among other calls, while nothing moves (`interleaved_repeat`)."""

    rising: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("observe", "nudge", "kill"),
        ("nudge", "nudge_undeclared", "kill"),
    )

    # public: Stella starts at 3.
    observe: Repeats = 3
    # public: Stella 3, with the same guard. measured: 24 of 25 loops, 17 of 2,593 successes.
    nudge: Repeats = 3
    # measured: 4 hits 22 of 25 loops and 5 of 2,593 successes.
    nudge_undeclared: Repeats = 4
    # measured: 18 of 25 loops, no success of the coding sets.
    kill: Repeats = 6


class SameErrorRawConfig(RuleConfig, frozen=True):
    """One call fails with the very same error whatever is changed around it (`same_error_raw`). Never kills."""

    rising: ClassVar[tuple[tuple[str, ...], ...]] = (("observe", "nudge"),)

    # judgement
    observe: Repeats = 3
    # judgement; measured: 3 of 2,593 successes, 16 of 26 labelled loops
    nudge: Repeats = 5


class SameOutputConfig(RuleConfig, frozen=True):
    """One result from ever other arguments of a declared read, or of a tool that is asked in words (`same_output`)."""

    rising: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("observe", "nudge", "kill"),
        ("observe", "nudge_in_words", "nudge_acknowledged"),
    )

    # judgement
    observe: Repeats = 4
    # public: Stella 6.
    # measured: 3 of 2,593 successes without declared effects.
    nudge: Repeats = 6
    # measured: 12 hits no success. For empty and negative answers alone (judgement): what says something may be right.
    kill: Repeats = 12
    # report: five rewordings of one request to a browser agent that stays on one page. For undeclared tools.
    # measured: no healthy run.
    nudge_in_words: Repeats = 5
    # report: thirteen status reports in a row, each answered "ok". For undeclared tools with so short an answer.
    # measured: no healthy run.
    nudge_acknowledged: Repeats = 12


class UnknownToolConfig(RuleConfig, frozen=True):
    """Calls of tools that do not exist (`unknown_tool`)."""

    rising: ClassVar[tuple[tuple[str, ...], ...]] = (("observe", "nudge", "kill"),)

    # judgement
    observe: Repeats = 1
    # judgement, from reports where such calls were never counted. public: OpenClaw 10.
    nudge: Repeats = 2
    # judgement; public: OpenClaw 10, which is late
    kill: Repeats = 5
    # So many productive steps in a row forget one of them. judgement
    forgive_after: Repeats = 10


class DeniedConfig(RuleConfig, frozen=True):
    """Calls that a policy, a person or our own breaker refused (`denied`)."""

    rising: ClassVar[tuple[tuple[str, ...], ...]] = (("observe", "nudge", "kill"),)

    # judgement
    observe: Repeats = 1
    # judgement
    nudge: Repeats = 2
    # judgement: blocking alone ends nothing, in reports such runs went on for hours
    kill: Repeats = 5
    # So many productive steps in a row forget one of them: a long day of work meets a closed door now and then.
    # judgement
    forgive_after: Repeats = 10


class RetryStormConfig(RuleConfig, frozen=True):
    """One call fails and is sent again at once, over and over (`retry_storm`)."""

    rising: ClassVar[tuple[tuple[str, ...], ...]] = (("observe", "break_at"),)

    # judgement
    observe: Attempts = 3
    # public: 5 failures in 30 s trip the breaker of Microsoft's toolkit.
    break_at: Attempts = 5
    # judgement: the breaker of a runtime, too, counts the failures of a minute.
    window_ms: Milliseconds = 60_000


class ResweepConfig(RuleConfig, frozen=True):
    """Pages that were read already are read through once more (`resweep`)."""

    # A sweep counts when it has re-covered half of the span: the second nudges, the third ends the run. judgement
    nudge_sweep: Repeats = 2
    # judgement
    kill_sweep: Repeats = 3
    # judgement: a sweep of fewer pages is a second look
    min_calls: Repeats = 5
    rising: ClassVar[tuple[tuple[str, ...], ...]] = (("nudge_sweep", "kill_sweep"),)


class SelfAppendConfig(RuleConfig, frozen=True):
    """An argument that grows by itself from call to call (`self_append`)."""

    rising: ClassVar[tuple[tuple[str, ...], ...]] = (("observe", "nudge", "kill"),)

    # judgement
    observe: Repeats = 3
    # measured: 4 hits 3 of 25 loops and 2 of 2,593 successes; 8 hits nothing.
    nudge: Repeats = 4
    # measured: no healthy run
    kill: Repeats = 8


class ParamWalkConfig(RuleConfig, frozen=True):
    """One tool, ever other arguments, and never anything in the answer (`param_walk`)."""

    rising: ClassVar[tuple[tuple[str, ...], ...]] = (("observe", "nudge", "break_at", "kill"),)

    # judgement
    observe: Repeats = 5
    # measured: 8 hits 5 of 22 loops and 1 of 175 successes; 12 and 16 hit none of these.
    nudge: Repeats = 8
    # measured: no healthy run
    break_at: Repeats = 12
    # measured: no healthy run
    kill: Repeats = 16


class NoProgressConfig(RuleConfig, frozen=True):
    """Most of the last steps failed or brought nothing (`no_progress`)."""

    # measured: with all rules on, 8 of 9 lets 25 of 26 and 19 of 23 loops be nudged, 9 of 12 one less and later; 7 of 8
    # two more, and healthy porting as well, where each new error is a step ahead. 14 of 16 hits no success.
    # 6 of 8 hits 13 of 175 healthy coding runs, so it only observes.
    observe: Repeats = 6
    # measured
    observe_window: Annotated[int, Meta(ge=1, le=32)] = 8
    # measured: with it 25 of 26 and 19 of 23 labelled loops are nudged; 9 of 12 one less and later
    nudge: Repeats = 8
    # measured: 7 of 8 nudges healthy porting, where each new error is a step ahead
    nudge_window: Annotated[int, Meta(ge=1, le=32)] = 9
    # measured: 5 of 6 lets 21 of 23 loops be nudged instead of 19, at a median of 2 events after the onset instead of
    # 6, and no healthy run more; 4 of 5 one more.
    nudge_void: Repeats = 5
    # measured: 4 of 5 nudges one healthy run more
    nudge_void_window: Annotated[int, Meta(ge=1, le=32)] = 6
    # Whether 32 declared reads without a new write are shown to people. judgement: 12, as others have it, is how most
    # runs begin.
    observe_without_write: bool = True
    # Without reads that found nothing: 14 of 16 such hit a successful run that looked whether a name is used anywhere.
    kill: Repeats = 14
    # measured
    kill_window: Annotated[int, Meta(ge=1, le=32)] = 16
    rising: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("observe", "nudge", "kill"),
        ("observe_window", "nudge_window", "kill_window"),
        ("observe", "observe_window"),
        ("nudge", "nudge_window"),
        ("nudge_void", "nudge_void_window"),
        ("kill", "kill_window"),
    )


class SleepOnlyConfig(RuleConfig, frozen=True):
    """Waits, and nothing between them (`sleep_only`). Advises only: the budgets end what waits for ever."""

    # public: Stella steers at 120 s.
    nudge_wait_ms: Milliseconds = 120_000
    # judgement
    nudge: Repeats = 3
