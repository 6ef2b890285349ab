"""Hashes of arguments and results, and the derived ids of what the detector says.

Test vectors for every function are published in `vectors.json`; a runtime in another language checks itself
against them.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from loopwarden_models.canonical import canonical_json

# An id must not be guessable into a collision by choosing run names, so parts are length-framed, not joined.
_ID_BYTES = 16


def content_hash(value: Any) -> str:
    """Return `args_hash` or `result_hash`: 16 hex digits of BLAKE2b over the canonical JSON of `value`.

    The first 64 bits of the 512-bit digest, as the contract has it (not a 64-bit BLAKE2b, which differs).

    Raises:
        ValueError: `value` has no canonical form (not finite, too deep, lone surrogate).
        TypeError: `value` is not JSON.

    Cost: that of `canonical_json` plus about 1 µs per KB.
    """
    return blake2b(canonical_json(value)).hexdigest()[:16]


def stable_key(text: str) -> int:
    """Return a 64-bit key of `text`, equal in every process and on every machine (`hash()` is not).

    Cost: about 0.7 µs; keep the answer where the same text comes again.
    """
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def hash_point(*parts: str | int) -> float:
    """Return a number from 0 up to, not including, 1 that is the same for the same `parts` everywhere.

    The first 13 hex digits of the `content_hash` of the list of `parts`, divided by 2^52: any language that hashes
    arguments can compute it, and every double holds it exactly.

    Raises:
        ValueError: A part has no canonical form (lone surrogate).

    Cost: about 6 µs.
    """
    return int(content_hash(list(parts))[:13], 16) / 2**52


def is_probe(run_id: str, epoch: int, share: float) -> bool:
    """Return whether a run may try a half-open tool: each runtime by itself, the same run always alike.

    Args:
        run_id: The run.
        epoch: Of the breaker's `probe`: with the next one other runs get a turn.
        share: Of the breaker's `probe`, 0 to 1.

    Raises:
        ValueError: `run_id` has no canonical form.
    """
    return hash_point(run_id, epoch) < share


def derived_id(*parts: str | int) -> str:
    """Return the id of a verdict or command: 32 hex digits over the framed `parts`.

    The same parts give the same id, so that events processed again after a crash give the same verdicts and
    commands, and a receiver applies each once.

    Cost: about 1.5 µs for six parts.
    """
    digest = blake2b(digest_size=_ID_BYTES)
    for part in parts:
        data = str(part).encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(4, "big"))
        digest.update(data)
    return digest.hexdigest()
