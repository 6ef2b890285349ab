"""What still holds with Kafka down and the detector dead, besides the limits: refusals on what this process sees."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from loopwarden.breakers import Breaker, Breakers
from loopwarden.faults import Counters
from loopwarden.local_breakers import LocalBreakers, LocalLimits, is_backing_off
from loopwarden.refusals import Refusal, unavailable
from loopwarden.tool_calls import Call
from loopwarden_models.errors import ConfigError
from loopwarden_models.events import ToolError

# Calls of one run that failed within the window; the one that failed first leaves.
_MAX_KEYS: Final = 64

# HTTP statuses that are an answer to what was asked, not a sign of trouble: the run's own fault.
_OWN_FAULT: Final = frozenset(map(str, (400, 404, 405, 406, 409, 410, 411, 412, 413, 414, 415, 416, 417, 422)))

# Refused by others than the guard, and told by `after_tool`.
_REFUSED: Final = frozenset({"denied", "blocked"})


class SafetyNet(Struct, frozen=True, kw_only=True):
    """Refusals that need no Kafka. Off unless it is given to a `Guard`; the numbers are the handbook's (judgement).

    It decides on what one process sees, and only tightens: it lets nothing pass that a breaker of `control.state`
    refuses. A tool that a person set `disabled` or `observe_only` is left alone.

    Attributes:
        window_ms: Failures are counted over so long, milliseconds.
        min_failures: A tool is refused to all runs of the process from so many failures in the window on,
        failure_share: if they are at least this part of its calls, above 0 to 1.
        open_ms: For so long, milliseconds; twice as long each time a probe fails,
        max_open_ms: at most so long.
        run_failures: A tool is refused to one run from so many failures of one call (tool and arguments) on,
        run_block_ms: for so long, milliseconds.
        max_refusals: A run is stopped when so many rounds in a row brought it refusals, from whatever source. `None`:
            never.
        holds_under_observe_only: Whether it goes on refusing and stopping when the big switch says `observe_only`.
    """

    window_ms: int = 60_000
    min_failures: int = 5
    failure_share: float = 0.5
    open_ms: int = 30_000
    max_open_ms: int = 300_000
    run_failures: int = 5
    run_block_ms: int = 60_000
    max_refusals: int | None = 5
    holds_under_observe_only: bool = False

    def __post_init__(self) -> None:
        """Refuse what could never work.

        Raises:
            ConfigError: A number is not possible.
        """
        for name in ("window_ms", "min_failures", "open_ms", "run_failures", "run_block_ms"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"safety_net.{name} is {getattr(self, name)}: it must be above zero")
        if not 0 < self.failure_share <= 1:
            raise ConfigError(f"safety_net.failure_share is {self.failure_share}: it must be above 0, and at most 1")
        if self.max_open_ms < self.open_ms:
            raise ConfigError(f"safety_net.max_open_ms is {self.max_open_ms}, below open_ms ({self.open_ms})")
        if self.max_refusals is not None and self.max_refusals <= 0:
            raise ConfigError(f"safety_net.max_refusals is {self.max_refusals}: above zero, or None for never")


class ProcessNet:
    """The net of a process: its breakers, and nets for its runs."""

    def __init__(self, config: SafetyNet, *, salt: str, breakers: Breakers, counters: Counters) -> None:
        limits = LocalLimits(
            config.window_ms, config.min_failures, config.failure_share, config.open_ms, config.max_open_ms
        )
        self.config = config
        self.local = LocalBreakers(limits, salt=salt, counters=counters)
        self.breakers = breakers
        self.counters = counters

    @property
    def holds(self) -> bool:
        """False while the big switch has it only watch."""
        return self.breakers.is_enforcing or self.config.holds_under_observe_only


class RunNet:
    """The net of one run. Thread-safe: each change is one operation on a dict or a number that may be off by one."""

    __slots__ = ("_blocked", "_failed", "_net", "_refused", "_refused_round", "_round", "_run_id")

    def __init__(self, net: ProcessNet, run_id: str) -> None:
        self._net = net
        self._run_id = run_id
        self._failed: dict[int, list[float]] = {}
        self._blocked: dict[str, float] = {}
        self._round = 0
        self._refused_round = -1
        self._refused = 0

    def check(self, call: Call, remote: Breaker | None, now_ms: float) -> Refusal | None:
        """Return why a call must not begin, or `None`: then it does.

        Args:
            call: The call.
            remote: The breaker of `control.state`, which has let it pass.
            now_ms: Monotonic milliseconds.

        Cost: 0.3 µs while nothing fails.
        """
        if remote is not None and remote.is_held_open:
            return None
        tool = call.tool
        until_ms = self._blocked.get(tool)
        if until_ms is not None and now_ms < until_ms:
            why = f"the same call of {tool} failed {self._net.config.run_failures} times in this run"
            word, by, retry_after_ms = "blocked_for_this_run", "local_block", int(until_ms - now_ms)
        elif (breaker := self._net.local.refuse(call, now_ms)) is not None:
            why = f"{tool} keeps failing in this process"
            word, by, retry_after_ms = "breaker_open", "local_breaker", breaker.retry_after(self._run_id) or 0
        else:
            return None
        if not self._net.holds:
            self._net.counters.add("local_advice")
            return None
        self._net.counters.add("local_refusals")
        decision = unavailable(tool, word, retry_after_ms=retry_after_ms, why=why)
        return Refusal(decision, ToolError(error_class=f"{by}:{tool}", message=why))

    def ended(self, call: Call, outcome: str, error: ToolError | None, now_ms: float) -> str | None:
        """Count the end of a call, and return why the run has to end, if it does.

        Cost: about 1 µs; 3 µs for a failure.
        """
        if outcome in _REFUSED:
            self._net.local.ended(call, now_ms, failed=None)
            return self.refused()
        self._refused = 0
        failed = _failed(outcome, error)
        self._net.local.ended(call, now_ms, failed=failed)
        if not failed or call.args is None:
            return None
        config = self._net.config
        key = hash((call.tool, call.args.data))
        recent = [then for then in self._failed.pop(key, ()) if then > now_ms - config.window_ms]
        recent = [*recent[-2 * config.run_failures :], now_ms]
        self._failed[key] = recent
        if len(self._failed) > _MAX_KEYS:
            self._failed.pop(next(iter(self._failed)), None)
        failures = len(recent) // 2 if is_backing_off(recent) else len(recent)
        if failures >= config.run_failures:
            self._blocked[call.tool] = now_ms + config.run_block_ms
        return None

    def next_round(self) -> None:
        """The model is asked again: it has read the refusals."""
        self._round += 1

    def refused(self) -> str | None:
        """Count a refusal, and return why the run has to end, if it does.

        A batch counts once, since its model has not read any of it; where nobody reports rounds each refusal counts.
        """
        if self._round and self._round == self._refused_round:
            return None
        self._refused_round = self._round
        self._refused += 1
        limit = self._net.config.max_refusals
        if limit is None or self._refused < limit or not self._net.holds:
            return None
        self._net.counters.add("local_stops")
        return f"{self._refused} refused calls in a row"


def _failed(outcome: str, error: ToolError | None) -> bool | None:
    if outcome == "ok":
        return False
    if outcome not in {"error", "timeout"}:
        return None
    return None if error is not None and str(error.status) in _OWN_FAULT else True
