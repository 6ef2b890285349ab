"""What the rules may ask about the meaning of a text, and how little of the answer is kept.

The models themselves stand outside (`loopwarden_streams.static_meaning`, `.confirmer`): a rule gets vectors and
percentages, and judges without them if there is nobody to ask.
"""

from __future__ import annotations

from math import sqrt
from operator import mul
from typing import Final, Protocol

from loopwarden_models.hashes import stable_key

# Of a vector: so many numbers of one byte each, -127 to 127.
DIMENSIONS: Final = 64
_SCALE: Final = 127

# Of a longer text the beginning counts: what an answer is about stands there, and models read no more.
MAX_CHARS: Final = 1_000


class Meaning(Protocol):
    """A model of texts that answers at once, and perhaps a better one that answers later.

    Attributes:
        name: The models with their versions: thresholds hold for these, and verdicts name them.
        confirms: Whether there is a second model.
    """

    @property
    def name(self) -> str:
        """See the class."""
        ...

    @property
    def confirms(self) -> bool:
        """See the class."""
        ...

    def vector(self, text: str) -> bytes:
        """Return the text's vector, `DIMENSIONS` signed bytes of length 127; zeros if it says nothing to the model.

        Total and deterministic: equal texts have equal vectors, in every process that has the same model.
        """
        ...

    def ask(self, key: int, text: str) -> None:
        """Hand a text to the second model, under a 64-bit key of it. Returns at once, and may forget it."""
        ...

    def confirmed_percent(self, one: int, other: int) -> int | None:
        """Return the cosine of two texts that were handed over, 0 to 100; `None` if that is not known, or not yet."""
        ...


def key_of(text: str) -> int:
    """Return the 64-bit key under which a text is asked about. Cost: 1 µs."""
    return stable_key(text[:MAX_CHARS])


def cosine_percent(one: bytes, other: bytes) -> int:
    """Return the cosine of two vectors in per cent, 0 to 100: below zero is nothing in common. Cost: 5 µs."""
    mine, others = memoryview(one).cast("b"), memoryview(other).cast("b")
    dot: int = sum(map(mul, mine, others))
    if dot <= 0:
        return 0
    return min(100, round(100 * dot / sqrt(sum(map(mul, mine, mine)) * sum(map(mul, others, others)))))
