"""Keys and key rings for tests of signatures."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import msgspec

from loopwarden_models.key_ring import KeyRing, RingKey, Role
from loopwarden_models.signing import SigningKey

if TYPE_CHECKING:
    from pathlib import Path

DETECTOR = SigningKey.generate("detector-1")
NEXT_DETECTOR = SigningKey.generate("detector-2")
OPERATOR = SigningKey.generate("operator-1")
STRANGER = SigningKey.generate("stranger")


def public(key: SigningKey, role: Role = "detector", **fields: Any) -> RingKey:
    """Return the entry of a key in a ring; `fields` are any other of `RingKey`."""
    text = base64.b64encode(key.public_key).decode("ascii")
    return RingKey(**{"kid": key.kid, "role": role, "public_key": text, **fields})


def ring(**detector: Any) -> KeyRing:
    """Return a ring with one key of the detector, with these fields, and one of an operator."""
    return KeyRing([public(DETECTOR, **detector), public(OPERATOR, "operator")])


def write_ring(directory: Path, *keys: RingKey) -> Path:
    """Write a ring into a directory, over what was there of the same names, and return the directory."""
    directory.mkdir(exist_ok=True)
    for key in keys:
        (directory / f"{key.kid}.pub").write_bytes(msgspec.json.encode(key))
    return directory
