"""All runs of one tenant together make more calls, spend more, or are more than they may.

Each run may keep its own budget while a thousand of them use up the month's. What is judged here is the tenant; the
verdicts of this rule are for people, and nobody is stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec import Struct, field

from loopwarden_detectors.base import NUDGE, OBSERVE
from loopwarden_detectors.sealed import seal, unseal
from loopwarden_detectors.tool_state import Admission, admit
from loopwarden_models.hashes import stable_key
from loopwarden_models.ids import verdict_id
from loopwarden_models.patterns import LEVEL_NAMES, Mode
from loopwarden_models.tenant_config import TenantLimitsConfig
from loopwarden_models.tenant_load import LoadSecond, TenantLoad
from loopwarden_models.verdicts import Evidence, Verdict

FORMAT: Final = 1

NAME: Final = "tenant_limits"
PATTERN: Final = "rate_runaway"
COST_PATTERN: Final = "budget_exceeded"

_MINUTE_S: Final = 60
DAY_S: Final = 86_400
# A day slides by ten minutes: 144 numbers instead of 86,400. judgement
_SLOT_S: Final = 600
# How many live runs a partition has holds for so long: its owner says it every ten seconds. judgement
LIVE_MS: Final = 60_000
_ALL: Final = 100

# Limits, each with the unit of people.
LIMITS: Final = {
    "max_calls_per_min": "calls within a minute",
    "max_cost_usd_per_min": "US dollars within a minute",
    "max_cost_usd_per_day": "US dollars within 24 hours",
    "max_live_runs": "live runs",
}
_MAX_COUNT: Final = 2**53 - 1


class Slot(Struct, array_like=True, gc=False):
    """What was done and spent in one second, or in one stretch of ten minutes, by its number."""

    number: int
    calls: int = 0
    cost_usd: float = 0.0

    def add(self, one: LoadSecond) -> None:
        """Add what happened in one second."""
        self.calls += one.calls
        self.cost_usd += one.cost_usd


class TenantState(Struct, array_like=True):
    """Memory of one tenant. Fields are only ever appended: the encoding is positional.

    Attributes:
        offset: Newest offset of `tool-health` that is included. `known`: by partition of steps, epoch and newest one.
        seconds: Of the last minute that had something, oldest first. `slots`: stretches of ten minutes of the last day.
        live: By partition of steps, epoch, number of live runs, and when that was said.
        levels: Level said, by limit, since it was last below the first.
        said: Verdicts, over its life. `now_ms`: newest event time. `sent_ms`: newest time of a sender.
    """

    tenant: str
    offset: int = -1
    known: dict[int, list[int]] = field(default_factory=dict)
    seconds: list[Slot] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    live: dict[int, list[int]] = field(default_factory=dict)
    levels: dict[str, int] = field(default_factory=dict)
    said: int = 0
    now_ms: int = 0
    sent_ms: int = 0

    def used(self, now_ms: int, sent_ms: int) -> dict[str, float]:
        """Return what is used of each limit at an event time, and a time of the senders. Cost: 10 µs."""
        second, slot = now_ms // 1000, now_ms // 1000 // _SLOT_S
        minute = [one for one in self.seconds if one.number > second - _MINUTE_S]
        day = [one for one in self.slots if one.number > slot - DAY_S // _SLOT_S]
        return {
            "max_calls_per_min": sum(one.calls for one in minute),
            "max_cost_usd_per_min": sum(one.cost_usd for one in minute),
            "max_cost_usd_per_day": sum(one.cost_usd for one in day),
            "max_live_runs": sum(runs for _, runs, at_ms in self.live.values() if at_ms > sent_ms - LIVE_MS),
        }

    def advance(self, now_ms: int, sent_ms: int) -> None:
        """Let time pass, and forget what is out of every window."""
        self.now_ms = max(self.now_ms, now_ms)
        self.sent_ms = max(self.sent_ms, sent_ms)
        second = self.now_ms // 1000
        _forget(self.seconds, second - _MINUTE_S)
        _forget(self.slots, second // _SLOT_S - DAY_S // _SLOT_S)

    def add(self, one: LoadSecond) -> None:
        """Add what happened in one second, in as far as it lies in a window."""
        second = one.at_ms // 1000
        newest = self.now_ms // 1000
        if second > newest - _MINUTE_S:
            _slot(self.seconds, second).add(one)
        if second // _SLOT_S > newest // _SLOT_S - DAY_S // _SLOT_S:
            _slot(self.slots, second // _SLOT_S).add(one)

    def set_live(self, load: TenantLoad) -> None:
        """Take over how many runs are alive in a partition, unless a newer owner has said."""
        known = self.live.get(load.partition)
        if load.live_runs is not None and (known is None or load.epoch >= known[0]):
            self.live[load.partition] = [load.epoch, load.live_runs, load.at_ms]

    def admit(self, load: TenantLoad) -> Admission:
        """Note where a load comes from, and return whether its seconds are to be counted, as for a tool."""
        return admit(self.known, load)

    def to_bytes(self) -> bytes:
        """Return the snapshot."""
        return seal(FORMAT, _encode(self))

    @staticmethod
    def from_bytes(data: bytes) -> TenantState:
        """Read a snapshot of this version, or one that was written before fields were appended to it.

        Raises:
            StateCorrupt: Another format version, or bytes that are none.
        """
        return unseal(FORMAT, data, _decode, "tenants")


def observe(
    state: TenantState,
    load: TenantLoad,
    config: TenantLimitsConfig,
    mode: Mode,
    busiest: Callable[[], Sequence[str]] = tuple,
) -> list[Verdict]:
    """Judge one load.

    Used is what the runs of the tenant did and spent within the last minute or day of event time, and how many are
    alive.

    Levels: observe at `warn_percent` of a limit, nudge at the limit. Nobody is stopped. Each is said once, and again
    after what is used was below `warn_percent`.

    Args:
        state: Changed in place.
        load: As it was sent; what was counted before is left out.
        config: In force for the tenant.
        mode: In force for the tenant; `off` says nothing.
        busiest: The tools that it calls most, for a verdict.

    Cost: 3 µs, 10 µs where a limit is set.
    """
    is_new = bool(load.seconds) and state.admit(load) == "new"
    seconds = load.seconds if is_new else ()
    state.advance(max((one.at_ms for one in seconds), default=0), load.at_ms)
    _rest(state, config)  # after what has passed, and before what came
    for one in seconds:
        state.add(one)
    state.set_live(load)
    limits = limits_of(config) if mode != "off" else {}
    used = state.used(state.now_ms, state.sent_ms) if limits else {}
    said = []
    for limit, allowed in limits.items():
        percent = used[limit] * _ALL / allowed
        level, threshold = (NUDGE, _ALL) if percent >= _ALL else (OBSERVE, config.warn_percent)
        if percent < config.warn_percent or level <= state.levels.get(limit, 0):
            continue
        state.levels[limit] = int(level)
        state.said += 1
        evidence = Evidence(
            count=min(int(percent), _MAX_COUNT),
            threshold=threshold,
            tools=list(busiest())[:6],
            limit=limit,
            used=used[limit],
            allowed=allowed,
            note=f"the runs of the tenant used {used[limit]:.6g} of {allowed:.6g} {LIMITS[limit]}",
        )
        loop_id = f"{stable_key(limit):016x}"
        said.append(
            Verdict(
                v=1,
                verdict_id=verdict_id(state.tenant, "*", "", NAME, loop_id, state.said),
                tenant=state.tenant,
                run_id="*",
                root_run_id="*",
                incarnation="*",
                at_ms=state.now_ms or load.at_ms,
                detector=NAME,
                pattern=COST_PATTERN if "cost" in limit else PATTERN,
                level=LEVEL_NAMES[level],
                mode=mode,
                loop_id=loop_id,
                episode=state.said,
                evidence=evidence,
                recovery="ask_a_person" if level >= NUDGE else None,
                recovery_level="L3" if level >= NUDGE else None,
            )
        )
    return said


def limits_of(config: TenantLimitsConfig) -> dict[str, float]:
    """Return the limits that are set."""
    return {limit: allowed for limit in LIMITS if (allowed := getattr(config, limit)) is not None}


def _rest(state: TenantState, config: TenantLimitsConfig) -> None:
    if state.levels:
        used = state.used(state.now_ms, state.sent_ms)
        limits = limits_of(config)
        for limit in list(state.levels):
            allowed = limits.get(limit)
            if allowed is None or used[limit] * _ALL < config.warn_percent * allowed:
                del state.levels[limit]


def _forget(slots: list[Slot], until: int) -> None:
    gone = 0
    for slot in slots:
        if slot.number > until:
            break
        gone += 1
    del slots[:gone]


def _slot(slots: list[Slot], number: int) -> Slot:
    at = len(slots)
    while at and slots[at - 1].number > number:
        at -= 1
    if not at or slots[at - 1].number != number:
        slots.insert(at, Slot(number))
        return slots[at]
    return slots[at - 1]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(TenantState).decode
