"""Adds up, per tool and second, the finished calls of one partition of steps, until they are sent as partial sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from loopwarden_detectors.tool_faults import has_failed
from loopwarden_detectors.tool_state import Bucket
from loopwarden_models.breaker_config import BreakerConfig
from loopwarden_models.codec import encode
from loopwarden_models.events import ToolEnd
from loopwarden_models.ids import control_partition
from loopwarden_models.tool_health import PartialSum, tool_key
from loopwarden_streams.batch_writer import Out

# One sum may hold so many seconds before it is sent out of turn: 100 bytes each, and a backlog has thousands.
MAX_SECONDS: Final = 1_024

# So many calls that a new owner reads again are sent one by one. What the former owner sent of them is dropped by the
# owner of the tool, which it can only do with a whole sum. Five seconds at a thousand a second, the time between two
# checkpoints; beyond it one sum of each tool may be dropped that holds what was not counted. judgement
MAX_SINGLE: Final = 5_000


# Tools of one tenant in one sending: who makes up a name for each call must not fill the topic that all share.
# `tool_fleet.MAX_TOOLS` bounds what is remembered of them. judgement
MAX_TOOLS: Final = 1_000


class _Calls:
    __slots__ = ("bucket", "first_offset", "last_offset", "seconds", "slow_ms")

    def __init__(self, first_offset: int, slow_ms: int | None) -> None:
        self.first_offset = self.last_offset = first_offset
        self.slow_ms = slow_ms
        self.seconds: dict[int, Bucket] = {}
        self.bucket = Bucket(-1)


class ToolSums:
    """The sums that were not sent yet. Owned by one event loop.

    Attributes:
        is_full: Something is to be sent before its time.
        crowded: Calls that were left out, since somebody last set it to 0: their tenant has too many tools.
    """

    def __init__(self, config_of: Callable[[str, str], BreakerConfig]) -> None:
        """Call slow what is slow by `config_of(tenant, tool)`."""
        self._config_of = config_of
        self._calls: dict[tuple[str, str], _Calls] = {}
        self._single: list[tuple[tuple[str, str], _Calls]] = []
        self._single_left = MAX_SINGLE
        self.is_full = False
        self.crowded = 0
        self._tools: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return bool(self._calls or self._single)

    def add(self, tenant: str, step: ToolEnd, offset: int) -> None:
        """Add one finished call that was applied; offsets must rise.

        Cost: 0.35 µs for a success, 1 µs for a failure.
        """
        failed: bool | None = False
        outcome = step.outcome
        if outcome != "ok" and outcome is not None:  # a call more for each success of a fleet would be felt
            failed = has_failed(step)
            if failed is None:
                return
        called = (tenant, step.tool)
        calls = self._calls.get(called)
        if calls is None:
            if self._tools[tenant] >= MAX_TOOLS:
                self.crowded += 1
                return
            self._tools[tenant] += 1
            calls = self._calls[called] = _Calls(offset, self._config_of(*called).slow_ms)
        calls.last_offset = offset
        bucket = calls.bucket
        second = step.ts_ms // 1000
        if bucket.second != second:
            bucket = self._turn(calls, second)
        if failed:
            bucket.count(step.run_id, failed=True, is_slow=False)
        elif calls.slow_ms is not None and step.duration_ms is not None and step.duration_ms > calls.slow_ms:
            bucket.count(step.run_id, failed=False, is_slow=True)
        else:
            bucket.calls += 1

    def add_again(self, tenant: str, step: ToolEnd, offset: int) -> None:
        """Add a call that a former owner may have sent, as a sum of its own. Cost: 2 µs."""
        if not self._single_left:
            self.add(tenant, step, offset)
            return
        self._single_left -= 1
        self.add(tenant, step, offset)
        called = (tenant, step.tool)
        calls = self._calls.pop(called, None)
        if calls is not None:
            self._tools[tenant] -= 1
            self._single.append((called, calls))
            if len(self._single) >= MAX_SECONDS:
                self.is_full = True

    def take(self, partition: int, epoch: int, partitions: int, now_ms: int) -> dict[int, list[Out]]:
        """Return what is to be sent, by partition of `tool-health`, and begin anew.

        Args:
            partition: Of the steps that were added up.
            epoch: Of its owner.
            partitions: How many there are.
            now_ms: The wall clock in Unix milliseconds: no call ends in the future, whatever the clock of its host
                says, or one such host would push all others out of the window.

        Cost: 5 µs a tool.
        """
        # The single ones lie before all others in the source.
        taken = [*self._single, *self._calls.items()]
        self._single, self._calls = [], {}
        self._tools.clear()
        self.is_full = False
        now = now_ms // 1000
        out: dict[int, list[Out]] = {}
        for (tenant, tool), calls in taken:
            sums = PartialSum(
                v=1,
                tenant=tenant,
                tool=tool,
                partition=partition,
                epoch=epoch,
                first_offset=calls.first_offset,
                last_offset=calls.last_offset,
                seconds=[bucket.to_sum() for bucket in _in_order(calls.seconds, now)],
            )
            number = control_partition(tenant, partitions)
            out.setdefault(number, []).append(Out(tool_key(tenant, tool), encode(sums)))
        return out

    def _turn(self, calls: _Calls, second: int) -> Bucket:
        bucket = calls.seconds.get(second)
        if bucket is None:
            bucket = calls.seconds[second] = Bucket(second)
            if len(calls.seconds) >= MAX_SECONDS:
                self.is_full = True
        calls.bucket = bucket
        return bucket


def _in_order(seconds: dict[int, Bucket], now: int) -> list[Bucket]:
    """Return the seconds, oldest first, what lies beyond `now` added to it."""
    ahead = [second for second in seconds if second > now]
    for second in ahead:
        bucket = seconds.pop(second)
        known = seconds.setdefault(now, Bucket(now))
        known.join(bucket)
    return [seconds[second] for second in sorted(seconds)]
