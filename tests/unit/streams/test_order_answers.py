"""When a person's order can be called done."""

from __future__ import annotations

import pytest

from loopwarden_models.acks import Ack
from loopwarden_streams.operator_orders import OrderType
from loopwarden_streams.order_answers import Answers


def said(*answers: tuple[str, str, str], kind: OrderType = "kill_run", expected: tuple[str, ...] = ("r-1",)) -> Answers:
    """Return what `(run, runtime, status)` add up to."""
    found = Answers(kind, expected=expected)
    for run_id, runtime_id, status in answers:
        found.put(Ack(v=1, command_id="k", tenant="acme", run_id=run_id, status=status, at_ms=1, runtime_id=runtime_id))
    return found


@pytest.mark.parametrize(
    ("statuses", "outcome"),
    [
        ([], "open"),
        (["received"], "open"),
        (["received", "applied"], "open"),
        (["received", "applied", "confirmed_dead"], "confirmed"),
        (["received", "applied", "noop", "confirmed_dead"], "confirmed"),
        (["received", "applied", "noop"], "open"),
        (["noop"], "nothing_to_do"),
        (["stale"], "refused"),
        (["failed"], "refused"),
    ],
)
def test_a_kill_is_done_when_its_run_is_dead(statuses: list[str], outcome: str) -> None:
    """`applied` is not "stopped": code may still run."""
    assert said(*[("r-1", "rt-1", status) for status in statuses]).outcome == outcome


def test_a_run_that_is_hosted_twice_is_dead_when_both_hosts_say_so() -> None:
    """Lifecycle 26: after a split of the network one of them is no proof."""
    both = [("r-1", "rt-1", "confirmed_dead"), ("r-1", "rt-2", "applied")]

    assert said(*both).outcome == "open"
    assert said(*both, ("r-1", "rt-2", "confirmed_dead")).outcome == "confirmed"


def test_a_tree_is_dead_when_its_last_descendant_is() -> None:
    """Those that are known to live are waited for, and whoever else answers."""
    one = [("r-1", "rt-1", "confirmed_dead")]

    assert said(*one, expected=("r-1", "r-1.1")).outcome == "open"
    assert said(*one, ("r-1.1", "rt-2", "confirmed_dead"), expected=("r-1", "r-1.1")).outcome == "confirmed"
    assert said(*one, ("r-1.2", "rt-2", "received")).outcome == "open"


def test_a_pause_is_done_when_it_is_applied() -> None:
    """Nothing has to end for it."""
    assert said(("r-1", "rt-1", "received"), kind="pause_run").outcome == "open"
    assert said(("r-1", "rt-1", "applied"), kind="pause_run").outcome == "confirmed"
