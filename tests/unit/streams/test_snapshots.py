"""The bytes of tools and positions in the changelog."""

from __future__ import annotations

import msgspec
import pytest
from tests._support.tools import second

from loopwarden_detectors.tool_state import ToolState
from loopwarden_models.errors import StateCorrupt
from loopwarden_streams import snapshots
from loopwarden_streams.snapshots import (
    HEADER_BYTES,
    POSITION_KEY,
    Position,
    decode_position,
    decode_tool,
    encode_position,
    encode_shared,
    epoch_of,
    is_tool,
    shared_mark,
    tool_snapshot_key,
)


def test_a_tool_is_read_back_and_told_from_the_rest() -> None:
    """No tenant can have such a key, whatever the tool is called."""
    tool = ToolState("acme", "a|b", born=3, offset=9)
    tool.add(second(0, ok=2, failed=1), 30)
    key = tool_snapshot_key("acme", "a|b")
    value = encode_shared(tool, 41)

    assert decode_tool(key, value) == tool
    assert epoch_of(value) == 41
    assert is_tool(key)
    assert not is_tool(POSITION_KEY)
    assert not is_tool(b"acme|r-1")


def test_what_ticks_change_leaves_the_mark_as_it_is() -> None:
    """After a crash between the two writes, the position record must still agree with the snapshots."""
    tool = ToolState("acme", "search", born=3, offset=9)
    key = tool_snapshot_key("acme", "search")
    before = shared_mark(key, tool)
    tool.version += 1

    assert shared_mark(key, tool) == before
    tool.offset += 1
    assert shared_mark(key, tool) != before


@pytest.mark.parametrize("damage", [b"", b"\x09", b"\x01" * 10])
def test_a_broken_tool_names_its_key(damage: bytes) -> None:
    """The log must say which."""
    with pytest.raises(StateCorrupt, match="search"):
        decode_tool(tool_snapshot_key("acme", "search"), damage)


def test_a_position_from_before_the_breakers_is_read() -> None:
    """A worker is updated in place; its third source begins where the settings say."""
    old = encode_position(Position(steps=7, acks=3, count=2, xor=9, watermark_ms=5), 4)
    body = msgspec.msgpack.encode(msgspec.msgpack.decode(memoryview(old)[HEADER_BYTES:])[:5])
    read = decode_position(old[:HEADER_BYTES] + body)

    assert (read.of("steps"), read.of("acks"), read.of("tool-health")) == (7, 3, None)
    new = Position(steps=7, acks=3, count=2, xor=9, watermark_ms=5, tools=11)
    assert decode_position(encode_position(new, 4)).of("tool-health") == 11
    assert snapshots.FORMAT == 1
