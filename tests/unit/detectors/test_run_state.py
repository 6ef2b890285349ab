"""What is remembered of a run and of its tree, and the bytes it survives as."""

from __future__ import annotations

from zlib import crc32

import msgspec
import pytest
from tests._support.steps import Run, decide, tree_of

from loopwarden_detectors.new_facts import FACT_BYTES
from loopwarden_detectors.rings import OTHER_TOOL
from loopwarden_detectors.run_state import (
    FORMAT,
    MAX_TOOL_NAME_BYTES,
    MAX_TOOL_NAMES_BYTES,
    OTHER_TOOL_NAME,
    RunState,
    TreeState,
)
from loopwarden_detectors.semantic_repeat import ROW, Channel, SemanticState
from loopwarden_models.errors import StateCorrupt


def busy_tree() -> TreeState:
    """Return a state in which every part of the memory is in use."""
    boss, child = Run("boss"), Run("child", root="boss")
    boss.gap_ms = 100
    steps = [
        boss.start(limits={"max_tokens": 10_000, "max_duration_ms": 10**9}),
        child.start(limits={"max_steps": 500}),
    ]
    steps += [boss.call(f"tool {n % 5}", n, n) for n in range(60)]
    steps += [step for n in range(4) for step in (boss.call("a", 1, 1), boss.call("b", 2, 2))]
    steps += [*boss.calls(9, effect="read"), *[boss.call("x", n, fails="no") for n in range(6)]]
    steps += [boss.resume("b"), boss.model(tool_calls=3), boss.call("write", 1, 1, effect="write")]
    steps += [boss.step("tool_start", tool="y", call_id="y1"), boss.step("approval_wait", call_id="z1")]
    steps += [boss.step("approval_end", call_id="z2", decision="approved"), boss.call("x", 1, fails="no")]
    steps += [boss.call("x", 2, fails="no")]
    tree = tree_of(steps[0])
    decide(steps, tree=tree)
    return tree


def packed(body: bytes) -> bytes:
    """Return a snapshot with this body and the checksum that belongs to it."""
    return bytes([FORMAT]) + crc32(body).to_bytes(4, "big") + body


def test_a_snapshot_reads_back_as_it_was() -> None:
    """Whatever a verdict depends on is in it."""
    tree = busy_tree()
    boss = tree.runs["boss"]
    assert all((boss.loops, boss.same_error, boss.stop, boss.former, boss.open_calls, boss.waits, boss.approved))

    assert TreeState.from_bytes(tree.to_bytes()) == tree


def test_an_older_snapshot_lacks_the_newest_fields() -> None:
    """Fields are only ever appended: a release reads what the one before it wrote, with their defaults."""
    body = msgspec.msgpack.decode(busy_tree().to_bytes()[5:])
    for _ in range(10):
        body.pop()
        for run in body[4].values():
            run.pop()
        older = TreeState.from_bytes(packed(msgspec.msgpack.encode(body)))

        assert older.root_run_id == "boss"
        assert older.runs["boss"].own is None


def test_a_newer_snapshot_has_fields_that_are_not_known() -> None:
    """After a rollback the older release reads on."""
    body = msgspec.msgpack.decode(busy_tree().to_bytes()[5:])
    body.append("new")
    body[4]["boss"].append([1, 2, 3])

    assert TreeState.from_bytes(packed(msgspec.msgpack.encode(body))) == busy_tree()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", f"format {FORMAT}"),
        (b"\x01" + bytes(40), f"format {FORMAT}"),
        (bytes([FORMAT]), "checksum"),
        (bytes([FORMAT, 0, 0, 0, 0]) + b"{}", "checksum"),
        (packed(b"no msgpack at all"), "Expected"),
        (packed(msgspec.msgpack.encode(["acme"])), "Expected"),
    ],
    ids=["nothing", "other format", "only a version", "wrong checksum", "garbage", "too short"],
)
def test_what_is_no_snapshot_is_refused(data: bytes, reason: str) -> None:
    """One exception for all of it: the reader of a changelog knows what to do about that one."""
    with pytest.raises(StateCorrupt, match=reason):
        TreeState.from_bytes(data)


@pytest.mark.parametrize("field", ["marks", "rows", "call_ids", "rate"])
def test_a_state_that_no_run_can_be_in_is_refused(field: str) -> None:
    """A rule must not stumble over it a thousand events later."""
    tree = busy_tree()
    run = tree.runs["boss"]
    part = {"marks": run.ring.marks, "rows": run.ring.rows, "call_ids": run.call_ids, "rate": run.rate}[field]
    assert part
    del part[-1]

    with pytest.raises(StateCorrupt, match="contradicts itself"):
        TreeState.from_bytes(tree.to_bytes())


@pytest.mark.parametrize("part", ["rows", "facts"])
def test_what_is_kept_of_meaning_has_whole_rows(part: str) -> None:
    """The same of parts that cannot be cut in place."""
    tree = busy_tree()
    state = SemanticState(1, [Channel(7, 1, rows=bytes(ROW))], bytes(FACT_BYTES))
    tree.runs["boss"].semantic = state
    assert TreeState.from_bytes(tree.to_bytes()) == tree
    if part == "rows":
        state.channels[0].rows = bytes(ROW - 1)
    else:
        state.facts = bytes(FACT_BYTES + 1)

    with pytest.raises(StateCorrupt, match="contradicts itself"):
        TreeState.from_bytes(tree.to_bytes())


def test_a_flipped_bit_is_seen() -> None:
    """Bytes that were changed on the way are no state, even if they decode."""
    data = bytearray(busy_tree().to_bytes())
    data[len(data) // 2] ^= 1

    with pytest.raises(StateCorrupt, match="checksum"):
        TreeState.from_bytes(bytes(data))


def test_a_run_of_ten_steps_is_small() -> None:
    """The median of a fleet is such a run, and a hundred thousand of them are live."""
    run = Run()
    steps = [run.start(), *[run.call("shell", n, n) for n in range(10)]]
    tree = tree_of(steps[0])
    decide(steps, tree=tree)

    assert len(tree.to_bytes()) < 500


def test_tools_are_numbered_as_they_come() -> None:
    """The same name has the same number in the whole run."""
    run = RunState(incarnation="a")

    assert [run.tool_number(tool) for tool in ("ls", "cat", "ls")] == [0, 1, 0]
    assert run.tool_name(1) == "cat"


def test_names_of_tools_fit_their_share() -> None:
    """256 tools with names of 256 characters are legal: beyond the caps a tool is another tool."""
    run = RunState(incarnation="a")
    numbers = [run.tool_number(f"{n:03}" + "\U0001f527" * 253) for n in range(256)]

    assert sum(len(name.encode()) for name in run.tools) <= MAX_TOOL_NAMES_BYTES
    assert all(len(name.encode()) <= MAX_TOOL_NAME_BYTES for name in run.tools)
    assert numbers[-1] == OTHER_TOOL
    assert run.tool_name(OTHER_TOOL) == OTHER_TOOL_NAME


def test_many_short_names_are_capped_too() -> None:
    """A number has five bits."""
    run = RunState(incarnation="a")

    assert max(run.tool_number(f"t{n}") for n in range(100)) == OTHER_TOOL
    assert len(run.tools) == OTHER_TOOL


def test_a_long_name_is_known_by_its_beginning() -> None:
    """It has one number, not a new one at every call."""
    run = RunState(incarnation="a")
    name = "x" * 200

    assert run.tool_number(name) == run.tool_number(name) == 0
    assert run.tools == ["x" * MAX_TOOL_NAME_BYTES]


def test_a_tree_is_over_when_all_its_runs_are() -> None:
    """A root that waits for its children is not the end of them."""
    boss, child = Run("boss"), Run("child", root="boss")
    tree = tree_of(first := boss.start())
    decide([first, child.start(), boss.end()], tree=tree)
    assert not tree.is_over

    decide([child.end()], tree=tree)
    assert tree.is_over
