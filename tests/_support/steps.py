"""Valid step events in few words, and what the detectors make of them.

    run = Run()
    said = decide([run.start(), *run.calls(3, "search", result="nothing")])
    assert levels(said) == ["observe", "nudge"]

A `Run` fills in what a test leaves out: ids, `seq`, and a time two seconds after the event before. Events are decoded
from JSON, as from the wire.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from loopwarden_detectors import answers, watch
from loopwarden_detectors.ladder import Decision, Order
from loopwarden_detectors.run_state import TreeState
from loopwarden_models.acks import Ack
from loopwarden_models.codec import decode_step
from loopwarden_models.events import AnyStep, root_of
from loopwarden_models.policy import Policy
from loopwarden_models.verdicts import Verdict

START_MS = 1_800_000_000_000
ENFORCE = Policy(mode="enforce")


class Run:
    """One run that makes steps. Its fields may be set at any time: `gap_ms` is the time to the next event."""

    def __init__(self, run_id: str = "r1", *, root: str | None = None, tenant: str = "acme") -> None:
        """Begin before the first event of `run_id`, a child of `root` if that is given."""
        self.run_id = run_id
        self.root = root
        self.tenant = tenant
        self.incarnation: str | None = "a"
        self.fidelity: str | None = None
        self.seq = -1
        self.now_ms = START_MS
        self.gap_ms = 2_000
        self._calls = 0

    def step(self, kind: str, **fields: Any) -> AnyStep:
        """Return the run's next event of this type."""
        self.seq += 1
        self.now_ms += self.gap_ms
        event = {"v": 1, "type": kind, "tenant": self.tenant, "run_id": self.run_id, "root_run_id": self.root}
        event |= {"incarnation": self.incarnation, "fidelity": self.fidelity, "seq": self.seq, "ts_ms": self.now_ms}
        decoded = decode_step(
            json.dumps({name: value for name, value in (event | fields).items() if value is not None}).encode()
        )
        assert decoded is not None
        return decoded

    def start(self, **fields: Any) -> AnyStep:
        """Return a `run_start`; limits as `limits={"max_steps": 10}`."""
        return self.step("run_start", **fields)

    def resume(self, incarnation: str, **fields: Any) -> AnyStep:
        """Return the `run_start` of a new incarnation, whose `seq` begins anew."""
        self.incarnation, self.seq = incarnation, -1
        return self.start(**fields)

    def model(self, tool_calls: int | None = None, **fields: Any) -> AnyStep:
        """Return a `model_end` that announces so many calls."""
        return self.step("model_end", tool_calls=tool_calls, **fields)

    def user(self) -> AnyStep:
        """Return a `user_input`."""
        return self.step("user_input")

    def end(self, status: str = "completed") -> AnyStep:
        """Return a `run_end`."""
        return self.step("run_end", status=status)

    def call(
        self, tool: str = "search", args: Any = "q", result: Any = "chapter one", *, fails: Any = None, **fields: Any
    ) -> AnyStep:
        """Return a `tool_end`.

        Args:
            tool: Its name.
            args: Its arguments, `None` to report none.
            result: Its result, `None` to report none.
            fails: Message of an error: the outcome is `error` and there is no result.
            fields: More fields of the event, such as `effect`, `outcome`, `call_id` or `duration_ms`.
        """
        self._calls += 1
        event: dict[str, Any] = {
            "tool": tool,
            "args": args,
            "result": result,
            "call_id": f"{self.run_id}-{self._calls}",
        }
        if fails is not None:
            event |= {"outcome": "error", "result": None, "error": {"class": "Failed", "message": fails}}
        return self.step("tool_end", **(event | fields))

    def calls(
        self, n: int, tool: str = "search", args: Any = "q", result: Any = "chapter one", **fields: Any
    ) -> list[AnyStep]:
        """Return `n` equal calls, one after another."""
        return [self.call(tool, args, result, **fields) for _ in range(n)]

    def batch(self, *calls: Sequence[Any], **fields: Any) -> list[AnyStep]:
        """Return a `model_end` and the calls that it announces, each given as `(tool, args, result)`."""
        return [self.model(len(calls)), *(self.call(*call, **fields) for call in calls)]


def tree_of(step: AnyStep) -> TreeState:
    """Return the empty state of the step's tree."""
    return TreeState(tenant=step.tenant, root_run_id=root_of(step))


def decide(
    steps: Iterable[AnyStep],
    policy: Policy = ENFORCE,
    *,
    tree: TreeState | None = None,
    heed: bool = True,
    **options: Any,
) -> list[Decision]:
    """Return what the detectors decide on the steps of one tree.

    Args:
        steps: In the order of the source.
        policy: In force.
        tree: Its state, changed in place; an empty one if none is given.
        heed: A nudge is acknowledged `applied` at once, and no more.
        options: For `watch.observe`.
    """
    decisions: list[Decision] = []
    for offset, step in enumerate(steps):
        tree = tree_of(step) if tree is None else tree
        for decision in watch.observe(tree, step, policy, **{"offset": offset, **options}):
            decisions.append(decision)
            if heed and decision.order is not None and decision.order.type == "nudge":
                answer(tree, decision.order, "applied", at_ms=step.ts_ms)
    return decisions


def answer(tree: TreeState, order: Order, status: str, *, at_ms: int = START_MS, run_id: str | None = None) -> None:
    """Acknowledge an order, as the run that it is for or another one."""
    answers.acknowledge(
        tree,
        Ack(
            v=1,
            command_id=order.command_id,
            tenant=order.tenant,
            run_id=run_id or order.run_id,
            root_run_id=order.root_run_id,
            status=status,
            at_ms=at_ms,
        ),
    )


def verdicts(decisions: Iterable[Decision], detector: str | None = None) -> list[Verdict]:
    """Return the verdicts among decisions, of one detector alone if it is named."""
    found = [decision.verdict for decision in decisions if decision.verdict is not None]
    return [verdict for verdict in found if detector in (None, verdict.detector)]


def levels(decisions: Iterable[Decision], detector: str | None = None) -> list[str]:
    """Return the levels of the verdicts among decisions, without those that only say that something was ordered."""
    return [verdict.level for verdict in verdicts(decisions, detector) if verdict.episode]


def orders(decisions: Iterable[Decision]) -> list[str]:
    """Return the types of the orders among decisions."""
    return [decision.order.type for decision in decisions if decision.order is not None]


def order_of(decisions: Iterable[Decision], kind: str) -> Order:
    """Return the last order of this type among decisions."""
    return [decision.order for decision in decisions if decision.order is not None and decision.order.type == kind][-1]


def only(detector: str, mode: str = "enforce", **settings: Any) -> Policy:
    """Return a policy in which one detector alone is switched on, with these settings of its own."""
    off = {name: {"mode": "off"} for name in watch.DETECTORS if name != detector}
    return Policy.from_builtins({"mode": mode, **off, detector: settings})
