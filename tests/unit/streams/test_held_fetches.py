"""What the proxy in front of the embedded broker reads of Kafka's protocol. Frames are without their length."""

from __future__ import annotations

import struct

import pytest

from loopwarden_streams.held_fetches import fetch_wait, is_nothing, limit_versions, produced


def text(value: str) -> bytes:
    """Return a string as it stands on the wire."""
    return struct.pack(">h", len(value)) + value.encode()


def header(key: int, version: int) -> bytes:
    """Return the header of a request."""
    return struct.pack(">hhi", key, version, 7) + text("client")


def answer(version: int, *, records: bytes | None = b"", error: int = 0, session: int = 0) -> bytes:
    """Return an answer to a fetch: two topics of one partition, the second with `records` and `error`."""
    frame = struct.pack(">ii", 7, 0)
    if version >= 7:
        frame += struct.pack(">hi", 0, session)
    frame += struct.pack(">i", 2)
    for name, content, code in (("a", b"", 0), ("b", records, error)):
        frame += text(name) + struct.pack(">iih", 1, 0, code) + struct.pack(">qq", 5, 5)
        if version >= 5:
            frame += struct.pack(">q", 0)
        frame += struct.pack(">iqq", 1, 4, 2)  # one aborted transaction
        if version >= 11:
            frame += struct.pack(">i", -1)
        frame += struct.pack(">i", -1) if content is None else struct.pack(">i", len(content)) + content
    return frame


@pytest.mark.parametrize("version", [4, 5, 6, 7, 9, 11])
def test_an_empty_answer_is_nothing(version: int) -> None:
    """Only such an answer is kept back: everything else is for the client at once."""
    assert is_nothing(version, answer(version))
    assert is_nothing(version, answer(version, records=None))
    assert not is_nothing(version, answer(version, records=b"x"))
    assert not is_nothing(version, answer(version, error=1))


def test_a_session_is_not_asked_twice() -> None:
    """The second question of a session is another question."""
    assert not is_nothing(7, answer(7, session=42))


@pytest.mark.parametrize("version", [4, 5, 7, 9, 11])
def test_a_fetch_says_how_long_and_what(version: int) -> None:
    """The wait is the client's own, and a write to another topic does not end it."""
    frame = header(1, version) + struct.pack(">iiiib", -1, 500, 1, 1_000, 0)
    if version >= 7:
        frame += struct.pack(">ii", 0, -1)
    frame += struct.pack(">i", 2)
    for name in ("a", "b"):
        frame += text(name) + struct.pack(">i", 2)
        for partition in range(2):
            frame += struct.pack(">i", partition)
            frame += struct.pack(">i", -1) if version >= 9 else b""
            frame += struct.pack(">q", 0)
            frame += struct.pack(">q", -1) if version >= 5 else b""
            frame += struct.pack(">i", 1_000)

    assert fetch_wait(version, frame) == (0.5, frozenset({b"a", b"b"}))


@pytest.mark.parametrize(("acks", "is_answered"), [(-1, True), (1, True), (0, False)])
@pytest.mark.parametrize("version", [2, 3, 8])
def test_a_produce_request_says_where_and_whether_to_wait(version: int, acks: int, is_answered: bool) -> None:
    """With `acks=0` there is no answer: whoever waits for it waits for ever."""
    frame = header(0, version)
    if version >= 3:
        frame += struct.pack(">h", -1)  # no transaction
    frame += struct.pack(">hii", acks, 1_000, 2)
    for name in ("a", "b"):
        frame += text(name) + struct.pack(">iii", 1, 0, 3) + b"xyz"

    assert produced(version, frame) == (is_answered, frozenset({b"a", b"b"}))


def test_versions_are_lowered_to_what_is_read() -> None:
    """In both encodings; what need not be read stays as it is."""
    offered = [(0, 0, 9), (1, 0, 13), (3, 0, 12), (18, 0, 3)]
    expected = [(0, 0, 8), (1, 0, 11), (3, 0, 12), (18, 0, 3)]

    def old(versions: list[tuple[int, int, int]]) -> bytes:
        return struct.pack(">ihi", 7, 0, len(versions)) + b"".join(struct.pack(">hhh", *each) for each in versions)

    def new(versions: list[tuple[int, int, int]]) -> bytes:
        entries = b"".join(struct.pack(">hhhb", *each, 0) for each in versions)
        return struct.pack(">ihB", 7, 0, len(versions) + 1) + entries + struct.pack(">ib", 0, 0)

    assert limit_versions(0, old(offered)) == old(expected)
    assert limit_versions(3, new(offered)) == new(expected)


def test_a_long_list_of_versions_has_a_longer_length() -> None:
    """Seven bits to a byte: from 127 entries on it takes two."""
    entries = b"".join(struct.pack(">hhhb", number, 0, 9, 0) for number in range(200))
    frame = struct.pack(">ih", 7, 0) + bytes([201 & 0x7F | 0x80, 201 >> 7]) + entries

    limited = limit_versions(3, frame)

    assert struct.unpack_from(">hhh", limited, 8) == (0, 0, 8)
    assert limited[8 + 14 :] == frame[8 + 14 :]
