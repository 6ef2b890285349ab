"""Whatever runtimes answer, wherever a worker dies: an order goes out twice at most, and each thing is told once."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from tests._support.steps import ENFORCE, START_MS, Run, decide, order_of, tree_of

from loopwarden_detectors import landing
from loopwarden_detectors.answers import acknowledge, is_confirmed
from loopwarden_detectors.ladder import Decision
from loopwarden_detectors.run_state import TreeState
from loopwarden_models.acks import ACK_STATUSES, Ack
from loopwarden_models.events import AnyStep


class Answered(Struct, frozen=True):
    """A runtime answers the kill (False) or the wider kill (True)."""

    status: str
    run: int
    host: int
    is_wider: bool = False


# What happens: an answer, milliseconds that pass before a tick, a step of a run behind its gate, or a run that ends.
Event = Answered | int | tuple[int, str]

EVENTS = st.one_of(
    st.builds(
        Answered, st.sampled_from([*ACK_STATUSES, "melted"]), st.integers(0, 2), st.integers(0, 1), st.booleans()
    ),
    st.integers(0, 40_000),
    st.tuples(st.integers(0, 2), st.sampled_from(["step", "end"])),
)


class Tree:
    """A tree of three under a kill for its limit, and all that was decided since."""

    def __init__(self) -> None:
        """Order the kill."""
        self.runs = [Run("boss"), Run("left", root="boss"), Run("right", root="boss")]
        boss, left, right = self.runs
        steps: list[AnyStep] = [boss.start(limits={"max_steps": 3}), left.start(), right.start()]
        steps += [left.call("fetch", n, n) for n in range(4)]
        self.state = tree_of(steps[0])
        self.now_ms = max(step.ts_ms for step in steps)
        self.told: list[Decision] = []
        self.orders: list[str] = []
        self._note(decide(steps, tree=self.state))
        self.kill = order_of(self.told, "kill_run").command_id
        self.wider = ""

    def play(self, event: Event) -> None:
        """Let something happen."""
        if isinstance(event, Answered):
            command_id = self.wider if event.is_wider and self.wider else self.kill
            ack = Ack(
                v=1,
                command_id=command_id,
                tenant="acme",
                run_id=self.runs[event.run].run_id,
                root_run_id="boss",
                runtime_id=f"rt-{event.host}",
                status=event.status,
                at_ms=self.now_ms,
            )
            acknowledge(self.state, ack, self.now_ms)
        elif isinstance(event, int):
            self.now_ms += event
            self._note(landing.look(self.state, self.now_ms, ENFORCE))
        else:
            run = self.runs[event[0]]
            run.now_ms = max(run.now_ms, self.now_ms)
            step = run.end() if event[1] == "end" else run.call("fetch", run.seq, run.seq, duration_ms=1)
            self.now_ms = max(self.now_ms, step.ts_ms)
            self._note(decide([step], tree=self.state))

    def move(self) -> None:
        """Let another owner take the state up."""
        self.state = TreeState.from_bytes(self.state.to_bytes())

    def _note(self, decisions: list[Decision]) -> None:
        self.told += decisions
        for decision in decisions:
            order = decision.order
            if order is None:
                continue
            self.orders.append(order.command_id)
            if order.is_wider:
                self.wider = order.command_id
            issued_ms = self.now_ms if order.issued_at_ms is None else order.issued_at_ms
            landing.note_sent(self.state, order.command_id, issued_ms, self.now_ms)


@given(events=st.lists(EVENTS, max_size=40))
def test_an_order_goes_out_twice_at_most_and_each_alarm_once(events: list[Event]) -> None:
    """Of every command; and no run is under more than one wider kill."""
    tree = Tree()
    for event in events:
        tree.play(event)

    assert max(Counter(tree.orders).values()) <= 2
    said = [one.verdict.verdict_id for one in tree.told if one.verdict is not None and one.alarm is not None]
    assert len(said) == len(set(said))
    wider = [one.order for one in tree.told if one.order is not None and one.order.is_wider]
    assert max(Counter(order.run_id for order in wider if order.issued_at_ms is None).values(), default=0) <= 1
    assert tree.now_ms >= START_MS


@given(events=st.lists(EVENTS, max_size=40))
def test_in_the_end_nothing_is_due_any_more(events: list[Event]) -> None:
    """Nobody is alarmed for ever: after some ticks all was said."""
    tree = Tree()
    for event in [*events, *[120_000] * 8]:
        tree.play(event)
    told = len(tree.told)
    for _ in range(5):
        tree.play(120_000)

    assert len(tree.told) == told


@given(events=st.lists(EVENTS, max_size=40), moves=st.sets(st.integers(0, 40)))
def test_a_move_changes_nothing(events: list[Event], moves: set[int]) -> None:
    """All that is waited for is part of the state."""
    stays, moved = Tree(), Tree()
    for n, event in enumerate(events):
        if n in moves:
            moved.move()
        stays.play(event)
        moved.play(event)

    assert moved.told == stays.told
    assert moved.state == stays.state


@given(events=st.lists(EVENTS, max_size=30))
def test_only_hosts_confirm_a_death(events: list[Event]) -> None:
    """Neither time, nor silence, nor the end of a run says that a run is dead that nobody confirmed."""
    tree = Tree()
    confirmed = False
    for event in events:
        tree.play(event)
        confirmed |= isinstance(event, Answered) and event.status == "confirmed_dead"
        if not confirmed:
            assert not is_confirmed(tree.state, tree.kill)
