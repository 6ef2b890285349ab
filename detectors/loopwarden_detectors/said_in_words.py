"""What a tool said, as a text: out of a JSON string, out of blocks of content, or out of an object's fields."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

# Of a longer result the beginning is read, as it stands.
MAX_BYTES: Final = 16_384
MAX_CHARS: Final = 8_192
_MAX_DEPTH: Final = 6


def text_of(raw: Raw | UnsetType) -> str:
    """Return the texts that a result holds, a line each, without the names of its fields; `""` if it holds none.

    Tools answer with a string, with blocks (`[{"type": "text", "text": "…"}]`), or with an object, one of whose fields
    is the answer.

    Cost: 0.5 µs for a string of 100 characters, 40 µs at most.
    """
    if raw is UNSET:
        return ""
    if len(raw) > MAX_BYTES:
        return bytes(memoryview(raw)[:MAX_BYTES]).decode("utf-8", "replace")[:MAX_CHARS]
    try:
        value = _decode(raw)
    except (msgspec.DecodeError, ValueError):
        return bytes(raw).decode("utf-8", "replace")[:MAX_CHARS]
    return value[:MAX_CHARS] if type(value) is str else "\n".join(_texts(value, 0))[:MAX_CHARS]


_decode = msgspec.json.Decoder().decode


def _texts(value: Any, depth: int) -> Iterator[str]:
    if type(value) is str:
        yield value
    elif type(value) in (int, float):
        yield str(value)
    elif depth < _MAX_DEPTH and type(value) in (dict, list):
        for item in value.values() if type(value) is dict else value:
            yield from _texts(item, depth + 1)
