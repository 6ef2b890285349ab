"""What a crash, a redelivery or another order of arrival may change about the decisions: nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, event, find, given, settings
from hypothesis import strategies as st
from msgspec import Struct
from tests._support.meanings import WordMeaning
from tests._support.steps import answer
from tests.property.step_streams import EAGER, Script, play, scripts

from loopwarden_detectors import answers, watch
from loopwarden_detectors.ladder import Decision, Order
from loopwarden_detectors.run_state import TreeState
from loopwarden_models.acks import Ack
from loopwarden_models.events import AnyStep, root_of

# All workers of a test ask the same models, and these know what they were asked before: what a process says that was
# started anew, and has no answers yet, is another question (tests/property/test_meaning.py).
WORDS = WordMeaning()

# Half of a verdict's evidence is where it lies in the source, and that differs if the source has duplicates.
Said = dict[str, tuple[object, ...]]


class Record(Struct, frozen=True):
    """One record of the two topics that a worker reads: a step, or an acknowledgement, with its offset."""

    offset: int
    step: AnyStep | None = None
    ack: Ack | None = None

    @property
    def key(self) -> tuple[str, str]:
        """The tree that the record belongs to."""
        if self.step is not None:
            return self.step.tenant, root_of(self.step)
        assert self.ack is not None
        return self.ack.tenant, self.ack.root_run_id or self.ack.run_id


class Worker:
    """Reads records in order, as the service does: what a tree's stamp covers is skipped."""

    def __init__(self, snapshots: dict[tuple[str, str], bytes] | None = None) -> None:
        """Take up the trees of a former worker, if there was one."""
        self.trees = {key: TreeState.from_bytes(data) for key, data in (snapshots or {}).items()}
        self.said: Said = {}
        self.ordered: Said = {}

    def read(self, record: Record) -> Sequence[Decision]:
        """Apply one record unless it is in the state already; note what was decided."""
        tree = self.trees.get(record.key)
        if record.step is None:
            assert record.ack is not None
            if tree is not None and record.offset > tree.acks_offset:
                answers.acknowledge(tree, record.ack)
                tree.acks_offset = record.offset
            return ()
        if tree is None:
            tree = self.trees[record.key] = TreeState(tenant=record.key[0], root_run_id=record.key[1])
        if record.offset <= tree.steps_offset:
            return ()
        decisions = watch.observe(tree, record.step, EAGER, offset=record.offset, meaning=WORDS)
        tree.steps_offset = record.offset
        for decision in decisions:
            if decision.verdict is not None:
                note(self.said, decision.verdict.verdict_id, decision.verdict)
            if decision.order is not None:
                note(self.ordered, decision.order.command_id, decision.order)
        return decisions


def note(found: Said, own_id: str, content: object) -> None:
    """Add what was said under an id; it must never be something else."""
    assert found.setdefault(own_id, (content,)) == (content,), own_id


def log_of(steps: Iterable[AnyStep], delay: int) -> list[Record]:
    """Return the records that a worker reads if runtimes answer each order, `delay` records later."""
    worker, log, due = Worker(), list[Record](), list[tuple[int, Ack]]()
    acks = 0
    for offset, step in enumerate(steps):
        log.append(Record(offset, step=step))
        for decision in worker.read(log[-1]):
            if decision.order is not None:
                due.append((len(log) + delay, ack_of(decision.order, step.ts_ms)))
        while due and due[0][0] <= len(log):
            log.append(Record(acks, ack=due.pop(0)[1]))
            worker.read(log[-1])
            acks += 1
    return log


def ack_of(order: Order, at_ms: int) -> Ack:
    """Return a runtime's answer: nudges are applied, and every third order cannot be delivered."""
    return Ack(
        v=1,
        command_id=order.command_id,
        tenant=order.tenant,
        run_id=order.run_id,
        root_run_id=order.root_run_id,
        status="applied" if int(order.command_id[0], 16) % 3 else "expired",
        at_ms=at_ms,
    )


def undisturbed(log: Iterable[Record]) -> Worker:
    """Return a worker that has read the whole log once."""
    worker = Worker()
    for record in log:
        worker.read(record)
    return worker


def tell(worker: Worker) -> None:
    """Let `--hypothesis-show-statistics` say which detectors the examples reach."""
    for verdict in (said[0] for said in worker.said.values()):
        event(f"{getattr(verdict, 'detector', '')}: {getattr(verdict, 'level', '')}")


# More than elsewhere: what matters is rare, a crash in the middle of each kind of memory.
CRASHES = max(500, settings.default.max_examples if settings.default is not None else 0)


@settings(max_examples=CRASHES, suppress_health_check=[HealthCheck.too_slow])
@given(
    script=scripts(),
    delay=st.integers(0, 3),
    cut=st.integers(0, 10_000),
    data=st.data(),
)
def test_a_crash_changes_no_verdict_and_no_order(script: Script, delay: int, cut: int, data: st.DataObject) -> None:
    """A worker dies anywhere; the next reads the snapshots and then some of the log again.

    Each tree's snapshot may be from another moment. What the two say together, by ids and by content, is what a worker
    says that never died.
    """
    #  log      0 ──────── checkpoint of tree 1 ── of tree 2 ── †
    #  next          └─ reads from here: what a tree's stamp covers is skipped ──────────► end
    log = log_of(play(script), delay)
    expected = undisturbed(log)
    tell(expected)
    died = len(log) - cut % len(log)
    checkpoints = {
        key: max(0, died - data.draw(st.integers(0, 80), label=f"records since the checkpoint of {key}"))
        for key in sorted({record.key for record in log})
    }
    first, snapshots = Worker(), dict[tuple[str, str], bytes]()
    for n in range(died + 1):
        for key in [key for key, at in checkpoints.items() if at == n and key in first.trees]:
            snapshots[key] = first.trees[key].to_bytes()
        if n < died:
            first.read(log[n])
    second = Worker(snapshots)
    covered = min(checkpoints.values())
    for record in log[max(0, covered - data.draw(st.integers(0, 40), label="records read again")) :]:
        second.read(record)

    for said, wanted in ((first.said, expected.said), (first.ordered, expected.ordered)):
        assert said.items() <= wanted.items()
    assert {**first.said, **second.said} == expected.said
    assert {**first.ordered, **second.ordered} == expected.ordered
    assert second.trees == expected.trees


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(script=scripts(), again=st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 40)), max_size=12))
def test_duplicates_change_nothing(script: Script, again: list[tuple[int, int]]) -> None:
    """A source sends what it is not sure of again, at any time later: the same `seq`, another offset."""
    steps, expected = play(script), Worker()
    for step in steps:
        judge(expected, step)
    copies = defaultdict(list)
    for at, later in again:
        copies[min(at % len(steps) + later, len(steps))].append(steps[at % len(steps)])
    disturbed = Worker()
    for n, step in enumerate(steps):
        for copy in copies[n]:
            assert not judge(disturbed, copy)
        judge(disturbed, step)
    for copy in copies[len(steps)]:
        assert not judge(disturbed, copy)

    assert disturbed.said == expected.said
    assert disturbed.ordered == expected.ordered
    assert disturbed.trees == expected.trees


def judge(worker: Worker, step: AnyStep) -> Sequence[Decision]:
    """Apply one step without an offset, and acknowledge what was ordered."""
    key = (step.tenant, root_of(step))
    tree = worker.trees.setdefault(key, TreeState(tenant=key[0], root_run_id=key[1]))
    decisions = watch.observe(tree, step, EAGER, meaning=WORDS)
    for decision in decisions:
        if decision.verdict is not None:
            note(worker.said, decision.verdict.verdict_id, decision.verdict)
        if decision.order is not None:
            note(worker.ordered, decision.order.command_id, decision.order)
            answer(tree, decision.order, "applied", at_ms=step.ts_ms)
    return decisions


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(script=scripts(), order=st.randoms(use_true_random=False))
def test_the_order_of_unrelated_runs_does_not_matter(script: Script, order: Random) -> None:
    """A partition holds many trees, and how their events mix is chance."""
    together, mixed, steps = Worker(), Worker(), play(script)
    for step in steps:
        judge(together, step)
    queues: dict[tuple[str, str], list[AnyStep]] = defaultdict(list)
    for step in steps:
        queues[step.tenant, root_of(step)].append(step)
    while queues:
        key = order.choice(sorted(queues))
        judge(mixed, queues[key].pop(0))
        if not queues[key]:
            del queues[key]

    assert mixed.said == together.said
    assert mixed.ordered == together.ordered
    assert mixed.trees == together.trees


TOP_LEVELS = {"changing_repeat": "nudge", "sleep_only": "nudge", "same_error_raw": "nudge", "retry_storm": "break"}


# Nobody ticks here.
OF_STEPS = [name for name in watch.DETECTORS if name not in {rule.name for rule in watch.TICK_DETECTORS}]


@pytest.mark.parametrize("detector", OF_STEPS)
def test_every_detector_fires_in_these_streams(detector: str) -> None:
    """A property of a rule that never fires says nothing about the rule."""
    level = TOP_LEVELS.get(detector, "kill")

    def fires(script: Script) -> bool:
        said = [said[0] for said in undisturbed(log_of(play(script), 0)).said.values()]
        return any(getattr(one, "detector", "") == detector and getattr(one, "level", "") == level for one in said)

    quick = settings(max_examples=3_000, phases=[Phase.generate], suppress_health_check=list(HealthCheck))

    assert fires(find(scripts(), fires, settings=quick))
