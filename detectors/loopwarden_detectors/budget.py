"""Limits of a run's tree: steps, model calls, tokens, cost, wall clock, output, depth and width.

Independent of the runtime's own count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

from msgspec import Struct

from loopwarden_detectors.base import KILL, NUDGE, OBSERVE, Finding
from loopwarden_detectors.ladder_state import is_news
from loopwarden_models.events import MAX_INT, Limits, ModelEnd
from loopwarden_models.hashes import stable_key
from loopwarden_models.patterns import Level

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState, TreeState
    from loopwarden_models.policy import BudgetConfig, Policy

_UNITS = {
    "max_cost_usd": "US dollars",
    "max_tokens": "tokens",
    "max_model_calls": "model calls",
    "max_steps": "tool calls",
    "max_duration_ms": "milliseconds",
    "max_output_bytes": "bytes of output",
    "max_depth": "levels of runs",
    "max_children": "children of one run",
}
_TREE_KEYS = {name: stable_key(f"budget:{name}") for name in _UNITS}
_OWN_KEYS = {name: stable_key(f"budget:own:{name}") for name in _UNITS}

# Known before they begin: all that were granted may be used. The others are known afterwards.
_GRANTED = frozenset({"max_model_calls", "max_steps"})

# A limit so small that its per cent overflow says "exceeded" as well with a million of them.
_MAX_PERCENT = 1_000_000

# Another rule sees something as long as it saw it within this many calls of the run that acts. judgement
_STUCK_WITHIN_CALLS = 10

_NOTHING: Sequence[Finding] = ()


class Counters(Protocol):
    """What is counted against limits: by a tree, and by a child that has limits of its own."""

    attempts: int
    model_calls: int
    tokens: int
    cost_usd: float

    @property
    def limits(self) -> Limits | None:
        """The limits that were declared, `None` if none were."""
        ...

    def active_ms(self, now_ms: int) -> int:
        """Return the event time since the start, without the time spent waiting for people."""
        ...


class OwnBudget(Struct, array_like=True, gc=False):
    """Limits that a child declared for itself, and what it used of them. It draws on those of the tree besides."""

    limits: Limits
    attempts: int = 0
    model_calls: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    started_ms: int = 0
    waiting_since_ms: int = -1
    waited_ms: int = 0

    def active_ms(self, now_ms: int) -> int:
        """Return the event time since the child declared its limits, without its own waiting for people."""
        waiting = now_ms - self.waiting_since_ms if self.waiting_since_ms >= 0 else 0
        return max(0, now_ms - self.started_ms - self.waited_ms - waiting)


class Budget:
    """Per cent of each limit that is used; the policy's own step limit in steps.

    A limit that `run_start.limits` of the root declares takes the place of the policy's. The policy's own step
    limit is graded: 60 observe, 80 nudge, 100 ends the run only while another rule sees something too, 1,000 ends
    it in any case. Beyond a hard limit neither veto nor ladder is asked.

    Steps and model calls are known before they begin, so all that were granted may be used: the one beyond ends the
    run. Tokens, cost and time are known afterwards: reached is over. A cost or token count that was never reported
    is unknown, not zero: such a limit stays silent, the others hold. Waiting for people is not working.

    Limits that a child declares bind that child alone: they end it and nobody else.

    Output, depth and width are the policy's alone, and of the whole tree. Output is what tools put out, cut or not.
    Depth counts levels, the root's included; width the children that one run started since a person spoke to it. Of
    both all that were granted may be there: the one beyond ends the tree, unadvised.

    Levels: observe 80 %, nudge 90 %, kill 100 % (`BudgetConfig`, with sources). Each is said once.
    Cost: about 0.3 µs.
    """

    name: ClassVar[str] = "budget"
    pattern: ClassVar[str] = "budget_exceeded"

    def observe(self, tree: TreeState, run: RunState, policy: Policy, now_ms: int) -> Sequence[Finding]:
        """Judge the tree's counters, and those of `run` if it has limits of its own. See the class."""
        config = policy.budget
        limits = tree.limits or config.limits
        percent = config.observe_percent
        found: Sequence[Finding] = _NOTHING
        # Inlined for the tree, because it is asked at every event and the answer is nearly always no.
        if (
            (limits.max_cost_usd is not None and tree.cost_usd * 100 >= limits.max_cost_usd * percent)
            or (limits.max_tokens is not None and tree.tokens * 100 >= limits.max_tokens * percent)
            or (limits.max_model_calls is not None and tree.model_calls * 100 >= limits.max_model_calls * percent)
            or (limits.max_steps is not None and tree.attempts * 100 >= limits.max_steps * percent)
            or (limits.max_duration_ms is not None and tree.active_ms(now_ms) * 100 >= limits.max_duration_ms * percent)
        ):
            found = [*self._used_up(tree, tree, run, policy, now_ms)]
        allowed = config.limits.max_output_bytes
        if allowed is not None and tree.output_bytes * 100 >= allowed * percent:
            put_out = self._share(
                tree, run, policy, now_ms, "max_output_bytes", tree.output_bytes, allowed, is_of_tree=True
            )
            found = found if put_out is None else [*found, put_out]
        if tree.depth > 1 and _is_grown(tree, config):
            grown = (
                self._grown(tree, run, policy, now_ms, "max_depth", tree.depth, config.observe_depth),
                self._grown(tree, run, policy, now_ms, "max_children", tree.widest, config.observe_children),
            )
            found = [*found, *(finding for finding in grown if finding is not None)]
        if tree.attempts >= policy.first_graded_step and (tree.limits is None or tree.limits.max_steps is None):
            step_finding = self._graded_steps(tree, run, policy, now_ms)
            if step_finding is not None:
                found = [*found, step_finding]
        if run.own is not None:
            found = [*found, *self._used_up(run.own, tree, run, policy, now_ms)]
        return found

    def _used_up(
        self, used: Counters, tree: TreeState, run: RunState, policy: Policy, now_ms: int
    ) -> Iterator[Finding]:
        """Yield what is news about the limits of which at least the observed share is used."""
        config = policy.budget
        is_of_tree = used is tree
        limits = used.limits or config.limits
        for limit, amount in (
            ("max_cost_usd", used.cost_usd),
            ("max_tokens", used.tokens),
            ("max_model_calls", used.model_calls),
            ("max_steps", used.attempts if used.limits is not None else 0),
            ("max_duration_ms", used.active_ms(now_ms)),
        ):
            allowed: float | None = getattr(limits, limit)
            if allowed is None or not amount or amount * 100 < allowed * config.observe_percent:
                continue
            finding = self._share(tree, run, policy, now_ms, limit, amount, allowed, is_of_tree=is_of_tree)
            if finding is not None:
                yield finding

    def _share(
        self,
        tree: TreeState,
        run: RunState,
        policy: Policy,
        now_ms: int,
        limit: str,
        amount: float,
        allowed: float,
        *,
        is_of_tree: bool,
    ) -> Finding | None:
        """Return what is news about a limit of which at least the observed share is used."""
        config = policy.budget
        is_over = amount > allowed if limit in _GRANTED else amount >= allowed
        if is_over:
            level, threshold = KILL, 100
        elif amount * 100 >= allowed * config.nudge_percent:
            level, threshold = NUDGE, config.nudge_percent
        else:
            level, threshold = OBSERVE, config.observe_percent
        return self._finding(
            tree,
            run,
            policy,
            now_ms,
            limit=limit,
            level=level,
            count=int(min(amount * 100 / allowed, _MAX_PERCENT)) if allowed else _MAX_PERCENT,
            threshold=threshold,
            amount=amount,
            allowed=allowed,
            is_hard=is_over,
            is_of_tree=is_of_tree,
        )

    def _grown(
        self, tree: TreeState, run: RunState, policy: Policy, now_ms: int, limit: str, amount: int, observe: int
    ) -> Finding | None:
        """Return what is news about the shape of the tree. Nobody is advised: what has started runs already."""
        most: int | None = getattr(policy.budget.limits, limit)
        is_over = most is not None and amount > most
        if not is_over and amount < observe:
            return None
        level, threshold = (KILL, most) if is_over and most is not None else (OBSERVE, observe)
        return self._finding(
            tree,
            run,
            policy,
            now_ms,
            limit=limit,
            level=level,
            count=amount,
            threshold=threshold,
            amount=amount,
            allowed=threshold if most is None else most,
            is_hard=is_over,
            is_of_tree=True,
        )

    def _graded_steps(self, tree: TreeState, run: RunState, policy: Policy, now_ms: int) -> Finding | None:
        config, used = policy.budget, tree.attempts
        hard = config.limits.max_steps
        is_over = hard is not None and used > hard
        allowed = hard if is_over and hard is not None else config.max_steps_if_stuck
        if is_over or (used >= config.max_steps_if_stuck and _is_stuck(run)):
            level, threshold = KILL, allowed
        elif used >= config.nudge_steps:
            level, threshold = NUDGE, config.nudge_steps
        else:
            level, threshold = OBSERVE, config.observe_steps
        return self._finding(
            tree,
            run,
            policy,
            now_ms,
            limit="max_steps",
            level=level,
            count=used,
            threshold=threshold,
            amount=used,
            allowed=allowed,
            is_hard=is_over,
            is_of_tree=True,
        )

    def _finding(
        self,
        tree: TreeState,
        run: RunState,
        policy: Policy,
        now_ms: int,
        *,
        limit: str,
        level: Level,
        count: int,
        threshold: int,
        amount: float,
        allowed: float,
        is_hard: bool,
        is_of_tree: bool,
    ) -> Finding | None:
        loop_key = (_TREE_KEYS if is_of_tree else _OWN_KEYS)[limit]
        if not is_news(
            run,
            policy,
            self.name,
            loop_key,
            level,
            count,
            tree=tree if is_of_tree else None,
            is_hard=is_hard,
            now_ms=now_ms,
        ):
            return None
        whose = "" if is_of_tree else "its own "
        return Finding(
            detector=self.name,
            pattern=self.pattern,
            level=level,
            loop_key=loop_key,
            count=count,
            threshold=threshold,
            first_seq=0,
            first_ms=tree.started_ms,
            is_hard=is_hard,
            is_of_tree=is_of_tree,
            limit=limit,
            used=round(amount, 6),
            allowed=allowed,
            note=f"{amount:g} of {whose}{allowed:g} {_UNITS[limit]} used",
        )


def _is_grown(tree: TreeState, config: BudgetConfig) -> bool:
    limits = config.limits
    return (
        tree.depth >= config.observe_depth
        or tree.widest >= config.observe_children
        or (limits.max_depth is not None and tree.depth > limits.max_depth)
        or (limits.max_children is not None and tree.widest > limits.max_children)
    )


def _is_stuck(run: RunState) -> bool:
    """Return whether another rule sees something in the run that acts."""
    return any(
        loop.level and not loop.is_limit and run.calls - loop.last_call < _STUCK_WITHIN_CALLS
        for loop in run.loops or ()
    )


def count_cost(tree: TreeState, run: RunState, cost_usd: float) -> None:
    """Add what a step cost to what counts it. Cost: 0.1 µs."""
    tree.cost_usd += cost_usd
    if run.own is not None:
        run.own.cost_usd += cost_usd


def count_answer(tree: TreeState, run: RunState, step: ModelEnd) -> None:
    """Add an answer of the model, its tokens and its cost, to what counts them. Cost: 0.4 µs."""
    tree.model_calls += 1
    own = run.own
    if own is not None:
        own.model_calls += 1
    usage = step.usage
    if usage is not None:
        tokens = (usage.input_tokens or 0) + (usage.output_tokens or 0)
        # Nothing sane comes near it, but the sum has to fit into a snapshot whatever a runtime reports.
        tree.tokens = min(tree.tokens + tokens, MAX_INT)
        if own is not None:
            own.tokens = min(own.tokens + tokens, MAX_INT)
    if step.cost_usd is not None:
        count_cost(tree, run, step.cost_usd)
