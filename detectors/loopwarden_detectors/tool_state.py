"""What is remembered of one tool of one tenant: its last calls by seconds, its breaker, and its snapshot."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec
from msgspec import Struct, field

from loopwarden_detectors.sealed import seal, unseal
from loopwarden_models.commands import Reason
from loopwarden_models.control_state import BreakerStateName
from loopwarden_models.tenant_load import TenantLoad
from loopwarden_models.tool_health import MAX_RUN_HASHES, PartialSum, SecondSum, run_hash

FORMAT: Final = 1

# A row of failures ends when nothing failed for so long: retries on the minute are one row. judgement
ROW_GAP_S: Final = 120

Admission = Literal["new", "duplicate", "straddling", "stale"]


class Bucket(Struct, array_like=True, gc=False):
    """One second of event time, in Unix seconds. See `SecondSum`."""

    second: int
    calls: int = 0
    failures: int = 0
    slow: int = 0
    failed_runs: list[int] = field(default_factory=list)
    slow_runs: list[int] = field(default_factory=list)

    def count(self, run_id: str, *, failed: bool, is_slow: bool) -> None:
        """Count one call that says something about the tool. Cost: 0.15 µs, 1 µs if it failed or was slow."""
        self.calls += 1
        if failed:
            self.failures += 1
            join_run(self.failed_runs, run_id)
        elif is_slow:
            self.slow += 1
            join_run(self.slow_runs, run_id)

    def join(self, other: Bucket | SecondSum) -> None:
        """Add the calls of another one."""
        self.calls += other.calls
        if other.failures:
            self.failures += other.failures
            join_runs(self.failed_runs, other.failed_runs)
        if other.slow:
            self.slow += other.slow
            join_runs(self.slow_runs, other.slow_runs)

    def to_sum(self) -> SecondSum:
        """Return the same as a message has it."""
        return SecondSum(
            at_ms=self.second * 1000,
            calls=self.calls,
            failures=self.failures,
            slow=self.slow,
            failed_runs=self.failed_runs,
            slow_runs=self.slow_runs,
        )


class ToolState(Struct, array_like=True):
    """Memory of one tool. Fields are only ever appended: the encoding is positional.

    Attributes:
        born: Source offset of the first sum: what its verdicts' ids hang on.
        offset: Newest source offset that is included. `known`: by partition of steps, epoch and newest offset there.
        buckets: Seconds of the window that had calls, oldest first. `calls`, `failures`, `slow`: over all of them.
        row: Failures since the last success. `row_runs`: hashes of up to three runs. `row_from`, `row_to`: its seconds.
        newest: Newest second of event time. `now_ms`: newest time at all, ticks included; never goes backwards.
        state: Of the breaker. `version`: of its record, rises with every change. `said`: verdicts, over its life.
        episode: Openings from `closed`. `reopened`: how often in a row it was opened again.
        opened_ms: When it opened last. `until_ms`: end of the pause, or of the wait for a probe.
        counts_from: Calls that ended before this second say nothing about the tool as it is now.
        heard_ms: When a call was last reported that says something about the tool.
        probed: Probes that succeeded. `probe_epoch`, `share`: which runs are probes. `is_wider`: the share is doubled.
        reason: Why it opened.
        quiet_ms: What would have opened it is not said again before. `is_observed`: that calls fail was said.
    """

    tenant: str
    tool: str
    born: int
    offset: int = -1
    known: dict[int, list[int]] = field(default_factory=dict)
    buckets: list[Bucket] = field(default_factory=list)
    calls: int = 0
    failures: int = 0
    slow: int = 0
    row: int = 0
    row_runs: list[int] = field(default_factory=list)
    row_from: int = 0
    row_to: int = 0
    newest: int = 0
    now_ms: int = 0
    state: BreakerStateName = "closed"
    version: int = 0
    said: int = 0
    episode: int = 0
    reopened: int = 0
    opened_ms: int = 0
    until_ms: int = 0
    counts_from: int = 0
    heard_ms: int = 0
    probed: int = 0
    probe_epoch: int = 0
    share: float = 0.0
    is_wider: bool = False
    reason: Reason | None = None
    quiet_ms: int = 0
    is_observed: bool = False

    def admit(self, sums: PartialSum) -> Admission:
        """Note where a sum comes from, and return whether it is to be counted: only what is `new` is.

        What a partition's owner has sent is sent again by the next one, added up otherwise. `straddling`: a part of it
        was counted, and nobody can tell which. `stale`: a former owner that does not know yet.
        """
        return admit(self.known, sums)

    def add(self, one: SecondSum, window_s: int) -> bool:
        """Add one second to the window, and return whether it lies in it. Cost: 1 µs; the window has few seconds."""
        second = one.at_ms // 1000
        if second > self.newest:
            self.newest = second
            self._forget(second - window_s)
        elif second <= self.newest - window_s:
            return False
        self.calls += one.calls
        self.failures += one.failures
        self.slow += one.slow
        self._lengthen_row(one, second)
        self._bucket(second).join(one)
        return True

    def start_window(self) -> None:
        """Forget all calls: what comes now is judged by itself."""
        self.buckets = []
        self.calls = self.failures = self.slow = self.row = 0
        self.row_runs = []
        self.is_observed = False

    def failed_runs(self) -> int:
        """Return how many different runs failed in the window, three at most of each second. Cost: O(seconds)."""
        return len({run for bucket in self.buckets for run in bucket.failed_runs})

    def slow_runs(self) -> int:
        """Return the same of slow calls."""
        return len({run for bucket in self.buckets for run in bucket.slow_runs})

    def _lengthen_row(self, one: SecondSum, second: int) -> None:
        if one.failures < one.calls:
            self.row = 0
        elif one.failures:
            if not self.row or second - self.row_to > ROW_GAP_S:
                self.row, self.row_runs, self.row_from = 0, [], second
            self.row += one.failures
            self.row_to = max(second, self.row_to)
            join_runs(self.row_runs, one.failed_runs)

    def _forget(self, until: int) -> None:
        buckets = self.buckets
        gone = 0
        for bucket in buckets:
            if bucket.second > until:
                break
            gone += 1
            self.calls -= bucket.calls
            self.failures -= bucket.failures
            self.slow -= bucket.slow
        if gone:
            del buckets[:gone]

    def _bucket(self, second: int) -> Bucket:
        buckets = self.buckets
        at = len(buckets)
        while at and buckets[at - 1].second > second:
            at -= 1
        if at and buckets[at - 1].second == second:
            return buckets[at - 1]
        buckets.insert(at, Bucket(second))
        return buckets[at]

    def to_bytes(self) -> bytes:
        """Return the snapshot."""
        return seal(FORMAT, _encode(self))

    @staticmethod
    def from_bytes(data: bytes) -> ToolState:
        """Read a snapshot of this version, or one that was written before fields were appended to it.

        Raises:
            StateCorrupt: Another format version, or bytes that are none.
        """
        return unseal(FORMAT, data, _decode, "tools")


def admit(known: dict[int, list[int]], sums: PartialSum | TenantLoad) -> Admission:
    """Note in `known`, by partition of steps epoch and newest offset, where a sum is from. See `ToolState.admit`."""
    last = known.get(sums.partition)
    if last is not None:
        epoch, newest = last
        if sums.epoch < epoch:
            return "stale"
        if sums.first_offset <= newest:
            last[0] = sums.epoch
            last[1] = max(newest, sums.last_offset)
            return "duplicate" if sums.last_offset <= newest else "straddling"
    known[sums.partition] = [sums.epoch, sums.last_offset]
    return "new"


def join_run(known: list[int], run_id: str) -> None:
    """Add the hash of one run, as `join_runs`. Cost: 0.1 µs once there is no room."""
    if len(known) < MAX_RUN_HASHES:
        join_runs(known, (run_hash(run_id),))


def join_runs(known: list[int], more: Iterable[int]) -> None:
    """Add to `known` what is not in it, up to `MAX_RUN_HASHES`."""
    for run in more:
        if len(known) >= MAX_RUN_HASHES:
            return
        if run not in known:
            known.append(run)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ToolState).decode
