"""Many tools, each with its state: where sums and calls of a whole fleet come in, and how many tools may be held open.

The same object judges in the worker, in `loopwarden replay`, in `loopwarden eval` and in a test.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from loopwarden_detectors import restart_loop, tenant_limits
from loopwarden_detectors.fleet_breaker import HELD_OPEN, MANUAL, NAME, NOTHING, Transition, observe, set_by_hand, tick
from loopwarden_detectors.tool_faults import has_failed
from loopwarden_detectors.tool_state import Admission, ToolState
from loopwarden_detectors.watch import DETECTORS
from loopwarden_models.breaker_config import BreakerConfig
from loopwarden_models.control_state import BreakerStateName
from loopwarden_models.events import ToolEnd
from loopwarden_models.patterns import Mode
from loopwarden_models.policy import Policy
from loopwarden_models.tool_health import PartialSum, SecondSum, run_hash

# Tools of one tenant. What makes up ever new names is no tool, and must not take the memory of the others. judgement
MAX_TOOLS: Final = 5_000

# A closed breaker that nobody called for so long is forgotten; one that was open is kept for a day, as its record is.
IDLE_MS: Final = 3_600_000
KEPT_MS: Final = 86_400_000

# Whatever can say something: the rules about runs, and those about tools, tasks and tenants.
RULES: Final = (*DETECTORS, NAME, restart_loop.NAME, tenant_limits.NAME)

ToolId = tuple[str, str]


class Counted(NamedTuple):
    """What came of one sum. `admission`: `new`, or why it was not counted; `crowded`: the tenant has too many tools."""

    admission: Admission | str
    transitions: Sequence[Transition]


class ToolFleet:
    """The tools of many tenants. Not thread-safe.

    Attributes:
        policy: In force; it may be replaced between two sums.
        tools: By (tenant, tool).
        held: Of these, the ones whose breaker is open or half open. `manual`: the ones that a person set.
    """

    def __init__(self, policy: Policy) -> None:
        """Judge by `policy`, the layers of agents left out: all runs of a tool share its breaker."""
        self.policy = policy
        self.tools: dict[ToolId, ToolState] = {}
        self.held: dict[ToolId, ToolState] = {}
        self.manual: dict[ToolId, ToolState] = {}
        self._known: Counter[str] = Counter()
        self._held: Counter[str] = Counter()

    def config_of(self, tenant: str, tool: str) -> BreakerConfig:
        """Return what is in force for a tool. Cost: 0.3 µs with layers, else nothing."""
        return self._rules(tenant, tool).fleet_breaker

    def mode_of(self, tenant: str, tool: str, at_ms: int) -> Mode:
        """Return the mode in force for a tool: a policy that warns lets its breakers act (see `BreakerConfig`)."""
        return breaker_mode(self._rules(tenant, tool), at_ms)

    def count(self, sums: PartialSum, offset: int, *, act_from_ms: int = 0) -> Counted:
        """Count one partial sum.

        Args:
            sums: As it was sent.
            offset: Its own offset in its source; one that is included already is a duplicate.
            act_from_ms: Seconds that began before, in Unix milliseconds, open nothing.

        Cost: about 3 µs with one second.
        """
        tool = self._find(sums.tenant, sums.tool, offset)
        if tool is None:
            return Counted("crowded", NOTHING)
        if offset <= tool.offset:
            return Counted("duplicate", NOTHING)
        tool.offset = offset
        admission = tool.admit(sums)
        if admission != "new":
            return Counted(admission, NOTHING)
        said: Sequence[Transition] = NOTHING
        for one in sums.seconds:
            found = self._observe(tool, one, act=one.at_ms >= act_from_ms)
            if found:
                said = [*said, *found]
        return Counted(admission, said)

    def call(self, tenant: str, step: ToolEnd, offset: int) -> Sequence[Transition]:
        """Count one finished call, where nothing adds up before: in an evaluation or a test. Cost: about 4 µs."""
        failed = has_failed(step)
        if failed is None:
            return NOTHING
        slow_ms = self.config_of(tenant, step.tool).slow_ms
        is_slow = not failed and slow_ms is not None and (step.duration_ms or 0) > slow_ms
        runs = [run_hash(step.run_id)] if failed or is_slow else []
        one = SecondSum(
            at_ms=step.ts_ms,
            calls=1,
            failures=int(failed),
            slow=int(is_slow),
            failed_runs=runs if failed else [],
            slow_runs=runs if is_slow else [],
        )
        return self.second(tenant, step.tool, one, offset)

    def second(self, tenant: str, tool: str, one: SecondSum, offset: int) -> Sequence[Transition]:
        """Count calls of one second whose source needs no watching."""
        state = self._find(tenant, tool, offset)
        return NOTHING if state is None else self._observe(state, one, act=True)

    def tick(self, now_ms: int) -> list[tuple[ToolState, Transition]]:
        """Let time pass for the breakers that are held open. `now_ms` in Unix milliseconds. Cost: O(held open)."""
        said = []
        for tool in list(self.held.values()):
            config = self.config_of(tool.tenant, tool.tool)
            found = tick(tool, now_ms, config, self.mode_of(tool.tenant, tool.tool, now_ms))
            if found:
                self._note(tool)
                said += [(tool, transition) for transition in found]
        return said

    def restore(self, tools: Iterable[ToolState]) -> None:
        """Take in tools that were saved."""
        for tool in tools:
            self.tools[tool.tenant, tool.tool] = tool
            self._known[tool.tenant] += 1
            self._note(tool)

    def set_by_hand(self, tenant: str, tool: str, state: BreakerStateName, offset: int) -> ToolState | None:
        """Take over what a person ordered: a manual state, or `closed`. `None` if that changes nothing."""
        known = self.tools.get((tenant, tool))
        if (state == "closed") if known is None else (known.state == state):
            return None
        if known is None:
            known = self._find(tenant, tool, offset)
            if known is None:
                return None
        set_by_hand(known, state)
        self._note(known)
        return known

    def busiest(self, tenant: str, count: int = 3) -> list[str]:
        """Return the tools of a tenant with most calls in their windows. Cost: O(tools)."""
        own = (tool for tool in self.tools.values() if tool.tenant == tenant and tool.calls)
        return [tool.tool for tool in heapq.nsmallest(count, own, key=lambda tool: (-tool.calls, tool.tool))]

    def forgettable(self, tool: ToolState, now_ms: int) -> bool:
        """Return whether nothing is lost with a tool: it is closed, and was not called for long."""
        if tool.state != "closed":
            return False
        idle_ms = now_ms - max(tool.heard_ms, tool.now_ms)
        return idle_ms > (KEPT_MS if tool.episode else IDLE_MS)

    def forget(self, tool: ToolState) -> None:
        """Drop a tool."""
        del self.tools[tool.tenant, tool.tool]
        self._known[tool.tenant] -= 1

    def _rules(self, tenant: str, tool: str) -> Policy:
        policy = self.policy
        return policy.of(tenant, "").for_tool(tool) if policy.is_layered else policy

    def _find(self, tenant: str, tool: str, offset: int) -> ToolState | None:
        key = (tenant, tool)
        state = self.tools.get(key)
        if state is None:
            if self._known[tenant] >= MAX_TOOLS:
                return None
            # The version goes on from the source: a tool that was forgotten and comes back is newer than its record.
            state = self.tools[key] = ToolState(tenant, tool, born=offset, version=max(offset, 0))
            self._known[tenant] += 1
        return state

    def _observe(self, tool: ToolState, one: SecondSum, *, act: bool) -> Sequence[Transition]:
        rules = self._rules(tool.tenant, tool.tool)
        mode = breaker_mode(rules, one.at_ms)
        found = observe(tool, one, rules.fleet_breaker, mode, act=act, room=lambda: self._why_full(tool.tenant))
        if found:
            self._note(tool)
        return found

    def _note(self, tool: ToolState) -> None:
        key = (tool.tenant, tool.tool)
        is_held = tool.state in HELD_OPEN
        if is_held and key not in self.held:
            self.held[key] = tool
            self._held[tool.tenant] += 1
        elif not is_held and key in self.held:
            del self.held[key]
            self._held[tool.tenant] -= 1
        if tool.state in MANUAL:
            self.manual[key] = tool
        else:
            self.manual.pop(key, None)

    def _why_full(self, tenant: str) -> str | None:
        known, held = self._known[tenant], self._held[tenant]
        most = max(1, known * self.config_of(tenant, "").max_open_percent // 100)
        if held < most:
            return None
        return f"{held} of the tenant's {known} known tools are held open already, which is as many as may be"


def breaker_mode(policy: Policy, at_ms: int) -> Mode:
    """Return the mode of the breaker under `policy`: what is inherited from `warn` acts (see `BreakerConfig`)."""
    mode = policy.mode_of(NAME, at_ms)
    return "enforce" if mode == "warn" and policy.fleet_breaker.mode in ("inherit", "off") else mode
