"""Level break: one tool is closed to one run for a while."""

from __future__ import annotations

from collections.abc import Sequence

from tests._support.steps import ENFORCE, Run, decide, only, order_of, orders, tree_of, verdicts

from loopwarden_detectors.base import BREAK, Finding
from loopwarden_detectors.ladder import Decision
from loopwarden_detectors.run_state import TreeState
from loopwarden_detectors.tool_block import MAX_BLOCKED, Block, block_of, blocked_with
from loopwarden_models.events import AnyStep
from loopwarden_models.policy import Policy

REPEATS = only("exact_repeat")


def blocks(decisions: Sequence[Decision]) -> list[Block]:
    """Return the blocks among decisions."""
    return [decision.block for decision in decisions if decision.block is not None]


def reads(run: Run, n: int, tool: str = "search") -> list[AnyStep]:
    """Return `n` equal calls of a declared read."""
    return run.calls(n, tool, effect="read")


def test_a_tool_is_blocked_after_a_nudge_that_did_not_help() -> None:
    """Five equal calls, the third of which was answered with a nudge: the sixth would be refused."""
    run = Run()
    found = decide(reads(run, 5), REPEATS)

    block = blocks(found)[0]
    assert [one.tool for one in block.tools] == ["search"]
    assert block.tools[0].until_ms == run.now_ms + REPEATS.ladder.tool_block_ms
    assert (block.run_id, block.incarnation, block.reason.detector) == ("r1", "a", "exact_repeat")
    ordered = next(one.verdict for one in found if one.block is not None)
    assert ordered is not None
    assert (ordered.level, ordered.verdict_id) == ("break", block.tools[0].verdict_id)


def test_nothing_is_blocked_before_the_nudge_was_heard() -> None:
    """The rung below comes first: a model that was not told cannot have gone on in spite of it."""
    run = Run()

    assert blocks(decide(reads(run, 6), REPEATS, heed=False)) == []


def test_nothing_is_blocked_unless_the_mode_enforces() -> None:
    """A first deployment warns."""
    assert blocks(decide(reads(Run(), 7), only("exact_repeat", "warn"))) == []
    assert blocks(decide(reads(Run(), 7), only("exact_repeat", "shadow"))) == []


def test_a_block_is_not_given_again_while_it_holds() -> None:
    """The record says until when; a second one would say the same."""
    run = Run()

    assert len(blocks(decide(reads(run, 7), REPEATS))) == 1


def test_a_block_that_is_over_is_given_again() -> None:
    """The run took the loop up again after its minute."""
    policy = Policy.from_builtins(
        {"mode": "enforce", "exact_repeat": {"kill": 100}, "ladder": {"tool_block_ms": 1_000}}
    )
    run = Run()
    found = blocks(decide(reads(run, 7), policy))

    assert len(found) == 3
    assert len({block.tools[-1].verdict_id for block in found}) == 3


def test_the_record_names_every_tool_that_is_blocked_now() -> None:
    """It is state: a runtime that reads the newest record alone must know all of it."""
    run = Run()
    steps = [*reads(run, 5), *reads(run, 5, "open")]
    found = blocks(decide(steps, REPEATS))

    assert [[one.tool for one in block.tools] for block in found] == [["search"], ["search", "open"]]


def about(tool: str) -> Finding:
    """Return a finding about one tool."""
    return Finding(
        detector="same_error", pattern="error_loop", level=BREAK, loop_key=1, count=5, threshold=5, first_seq=0,
        first_ms=0, tools=(tool,), cause="tool_down",
    )  # fmt: skip


def test_a_block_remembers_what_led_to_it() -> None:
    """Whoever is told of a blocked call wants to know why the tool was blocked."""
    run = Run()
    tree = tree_of(first := run.call(fails="no", effect="read"))
    decide([first, *(run.call(fails="no", effect="read") for _ in range(5))], only("same_error"), tree=tree)
    block = block_of(tree.runs["r1"], "search")

    assert block is not None
    assert (block.detector, block.pattern, block.count) == ("same_error", "error_loop", 5)
    assert block_of(tree.runs["r1"], "open") is None
    assert TreeState.from_bytes(tree.to_bytes()) == tree


def test_old_blocks_leave() -> None:
    """What is over is not repeated, and there is a cap."""
    run_state = TreeState(tenant="acme", root_run_id="r1")
    decide([Run().call()], tree=run_state)
    run = run_state.runs["r1"]
    for n in range(MAX_BLOCKED + 3):
        blocked_with(run, about(f"tool-{n}"), 1_000 + n, "f" * 32, now_ms=0)

    assert len(run.blocks or ()) == MAX_BLOCKED
    assert [one.tool for one in blocked_with(run, about("new"), 9_000, "f" * 32, now_ms=5_000)] == ["new"]


def test_the_end_of_a_run_is_not_written_over() -> None:
    """The record of a kill is the same record: a block after it would take the kill back."""
    run = Run()
    tree = tree_of(first := run.call(effect="read"))
    killed = decide([first, *reads(run, 8)], tree=tree)
    assert order_of(killed, "kill_run").run_id == "r1"
    after = decide([run.resume("b"), *reads(run, 7, "open")], tree=tree)

    assert "nudge" in orders(after)
    assert blocks(after) == []


def test_a_state_in_a_snapshot_goes_on_as_it_was() -> None:
    """Blocked, written, read again: the block is not given a second time, and its record is complete."""
    run = Run()
    tree = tree_of(first := run.call(effect="read"))
    decide([first, *reads(run, 5)], REPEATS, tree=tree)
    again = TreeState.from_bytes(tree.to_bytes())

    assert again == tree
    assert blocks(decide(reads(run, 1), REPEATS, tree=again)) == []
    assert [
        [one.tool for one in block.tools] for block in blocks(decide(reads(run, 5, "open"), REPEATS, tree=again))
    ] == [["search", "open"]]


def test_the_verdict_of_a_block_says_break() -> None:
    """Whoever reads the verdicts topic sees what was done."""
    found = verdicts(decide(reads(Run(), 8), ENFORCE), "exact_repeat")

    assert [verdict.level for verdict in found if not verdict.episode] == ["break", "nudge", "kill"]
