"""Models of texts for tests of the rule over meaning: small, exact, and without a package. Real ones: `models.py`.

To `WordMeaning` a text means its words, so that a test can say what is alike by the words that it writes:

    meaning = WordMeaning()
    said = decide(steps, meaning=meaning)
"""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from math import sqrt

from loopwarden_detectors.meaning import DIMENSIONS

_SCALE = 127


class WordMeaning:
    """The vector of a text is the sum of a fixed random direction for each of its words.

    Attributes:
        name: As in verdicts.
        confirms: There is a second model: to it, too, a text means its words, counted exactly.
        answers: Whether the second model answers; what it was not asked it never knows.
    """

    def __init__(self, *, confirms: bool = True, answers: bool = True) -> None:
        """Begin without a text."""
        self.name = "words@1+words@2" if confirms else "words@1"
        self.confirms = confirms
        self.answers = answers
        self._texts: dict[int, Counter[str]] = {}

    def vector(self, text: str) -> bytes:
        """See `Meaning`."""
        total = [0] * DIMENSIONS
        for word in text.casefold().split():
            digest = blake2b(word.strip(".,:;!?").encode("utf-8", "replace"), digest_size=DIMENSIONS).digest()
            total = [one + byte - 128 for one, byte in zip(total, digest, strict=True)]
        length = sqrt(sum(one * one for one in total))
        return bytes(round(one * _SCALE / length) & 255 for one in total) if length else bytes(DIMENSIONS)

    def ask(self, key: int, text: str) -> None:
        """See `Meaning`."""
        self._texts[key] = Counter(word.strip(".,:;!?") for word in text.casefold().split())

    def confirmed_percent(self, one: int, other: int) -> int | None:
        """See `Meaning`."""
        if not self.answers or one not in self._texts or other not in self._texts:
            return None
        mine, others = self._texts[one], self._texts[other]
        dot = sum(n * others[word] for word, n in mine.items())
        lengths = sqrt(sum(n * n for n in mine.values()) * sum(n * n for n in others.values()))
        return round(100 * dot / lengths) if lengths else 0
