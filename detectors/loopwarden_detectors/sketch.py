"""How alike two texts are, from a few bytes of each: the smallest hashes of their 3-grams (bottom-k min-hash).

A 3-gram is three characters, white space collapsed, lower case; no language is assumed. Only hashes are kept: nothing
of a text can be read from its sketch.
"""

from __future__ import annotations

from zlib import crc32

HASH_BYTES = 4


def gram_hashes(text: str, *, half_chars: int) -> set[int]:
    """Return the 32-bit hashes of a text's 3-grams: equal in every process.

    Args:
        text: Any. Of one longer than twice `half_chars` the head and the tail count, half each.
        half_chars: Bounds the work.

    Cost: about 14 µs for 120 characters, 33 µs for 400, 110 µs for 2,000.
    """
    if len(text) > 2 * half_chars:
        text = f"{text[:half_chars]} {text[-half_chars:]}"
    # A lone surrogate has no bytes: it becomes a question mark.
    plain = f" {' '.join(text.lower().split())} ".encode("utf-8", "replace").decode()
    grams = {*map("".join, zip(plain, plain[1:], plain[2:], strict=False))}
    return {*map(crc32, map(str.encode, grams))}


def sketch(text: str, *, kept: int, half_chars: int) -> bytes:
    """Return the `kept` smallest of `gram_hashes`, in order, four bytes each; of a short text there are fewer.

    Cost: as `gram_hashes`.
    """
    hashes = sorted(gram_hashes(text, half_chars=half_chars))[:kept]
    return b"".join([one.to_bytes(HASH_BYTES, "big") for one in hashes])


def likeness(one: bytes, other: bytes, *, kept: int) -> int:
    """Estimate the Dice coefficient of two texts' sets of 3-grams, in per cent: 0 to 100, symmetric.

    Measured with 64 hashes on 4,000 pairs of recorded and edited messages: near 85 % the standard error is 2 points,
    near 30 % it is 6. With 16 it is twice as much. Equal texts give 100.

    Cost: 9 µs for 64 hashes, 3 µs for 16.
    """
    if one == other:
        return 100
    mine, others = _hashes(one), _hashes(other)
    least = sorted(mine | others)[:kept]
    both = len(mine.intersection(others, least))
    jaccard = both / len(least) if least else 0.0
    return int(200 * jaccard / (1 + jaccard))


def _hashes(data: bytes) -> set[bytes]:
    return {data[at : at + HASH_BYTES] for at in range(0, len(data), HASH_BYTES)}
