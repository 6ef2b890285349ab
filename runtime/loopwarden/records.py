"""Records on their way in and out of the process, whatever carries them."""

from __future__ import annotations

from typing import Literal, NamedTuple

Outlet = Literal["steps", "acks"]
Inlet = Literal["state", "commands"]

# Names no tenant can have: fences and the global switch live in its partition.
EVERYONE = "*"


class Outgoing(NamedTuple):
    """A record to publish."""

    key: bytes
    value: bytes


class ControlRecord(NamedTuple):
    """A record that was read from a control topic.

    Attributes:
        inlet: `state` or `commands`.
        key: Key of the record.
        value: Its bytes; `None` deletes the key.
        append_ms: The broker's append time, Unix milliseconds.
    """

    inlet: Inlet
    key: bytes | None
    value: bytes | None
    append_ms: int
