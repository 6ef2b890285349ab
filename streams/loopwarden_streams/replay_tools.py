"""The tools of a replay: the breakers that the recorded runs would have shared.

Records come as they lie in their sources, one partition or file after the other, but breakers slide over the time that
all runs share. So calls are added up by tool and second, as a fleet does it, and judged in order of time at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, NamedTuple, TypeVar

from loopwarden_detectors.tool_faults import has_failed
from loopwarden_detectors.tool_fleet import ToolFleet
from loopwarden_detectors.tool_state import Bucket
from loopwarden_models.events import ToolEnd
from loopwarden_models.policy import Policy
from loopwarden_models.verdicts import Verdict

# Seconds of tools held at most, 300 bytes each; beyond it the older half is judged, and what comes later for them is
# left out. An hour of two hundred busy tools is less.
MAX_HELD: Final = 1_000_000

P = TypeVar("P")


class ToolVerdict(NamedTuple, Generic[P]):
    """A verdict on a tool, and the place of the newest call that it rests on."""

    verdict: Verdict
    place: P


class _Held(Generic[P]):
    __slots__ = ("bucket", "place")

    def __init__(self, bucket: Bucket, place: P) -> None:
        self.bucket = bucket
        self.place = place


class ReplayTools(Generic[P]):
    """Adds up the calls of a replay, and judges them. A place is whatever names where a call was recorded."""

    def __init__(self, policy: Policy, *, max_held: int = MAX_HELD) -> None:
        self._fleet = ToolFleet(policy)
        self._max_held = max_held
        self._held: dict[tuple[int, str, str], _Held[P]] = {}
        self._judged_ms = -1
        self._said: list[ToolVerdict[P]] = []
        self._seconds = 0

    def add(self, tenant: str, step: ToolEnd, place: P) -> None:
        """Add one finished call. Cost: 1 µs."""
        failed = has_failed(step)
        if failed is None:
            return
        slow_ms = self._fleet.config_of(tenant, step.tool).slow_ms
        is_slow = not failed and slow_ms is not None and (step.duration_ms or 0) > slow_ms
        at_ms = step.ts_ms - step.ts_ms % 1000
        key = (at_ms, tenant, step.tool)
        held = self._held.get(key)
        if held is None:
            if len(self._held) >= self._max_held:
                self._judge(len(self._held) // 2)
            held = self._held[key] = _Held(Bucket(at_ms // 1000), place)
        held.bucket.count(step.run_id, failed=failed, is_slow=is_slow)
        if failed or is_slow:
            held.place = place

    def finish(self) -> Iterator[ToolVerdict[P]]:
        """Judge what is left, and yield all verdicts in order of time. Cost: 2 µs for each second of a tool."""
        self._judge(len(self._held))
        yield from self._said

    def _judge(self, count: int) -> None:
        for key in sorted(self._held)[:count]:
            held = self._held.pop(key)
            at_ms, tenant, tool = key
            if at_ms < self._judged_ms:
                continue
            self._judged_ms = at_ms
            for said in self._fleet.second(tenant, tool, held.bucket.to_sum(), self._seconds):
                self._said.append(ToolVerdict(said.verdict, held.place))
            self._seconds += 1
