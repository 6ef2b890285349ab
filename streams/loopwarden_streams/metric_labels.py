"""Bounds for metric labels that come from outside: the most active values keep their name, the rest is `_other`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

OTHER: Final = "_other"

# A value outside takes a name away from one inside only if it was this much more active: every exchange breaks two
# series, and two near-equals would exchange for ever. judgement
_MUST_EXCEED: Final = 2
# How many values outside are watched for their activity, per name that there is. judgement
_WATCHED_PER_NAME: Final = 4


class LabelFold:
    """Folds the values of one label into at most `limit` names and `OTHER`. For one thread.

    Names are given in order of arrival while there are any left. After that the activity of those inside and
    outside is compared at every `rerank`.
    """

    def __init__(self, limit: int, always: Iterable[str] = ()) -> None:
        self._always = frozenset(always)
        self._limit = max(limit, len(self._always))
        self._inside = dict.fromkeys(self._always, 0)
        self._outside: dict[str, int] = {}

    def fold(self, value: str, weight: int = 1) -> str:
        """Return `value` if it has a name, else `OTHER`, and note `weight` as its activity. Cost: O(1), amortised."""
        inside = self._inside
        activity = inside.get(value)
        if activity is not None:
            inside[value] = activity + weight
            return value
        if value == OTHER:
            return OTHER
        if len(inside) < self._limit:
            inside[value] = weight
            return value
        outside = self._outside
        if value not in outside and len(outside) >= self._limit * _WATCHED_PER_NAME:
            self._forget_half()
        if self._limit:
            outside[value] = outside.get(value, 0) + weight
        return OTHER

    def rerank(self) -> list[str]:
        """Exchange the least active names for values that were far more active since the last call.

        Returns:
            The values that lost their name. Their series must go.

        Cost: O(n log n) in the values watched, at most five times the limit.
        """
        inside = self._inside
        leaving = sorted((value for value in inside if value not in self._always), key=inside.__getitem__)
        coming = sorted(self._outside, key=self._outside.__getitem__, reverse=True)
        dropped = []
        for old, new in zip(leaving, coming, strict=False):
            if self._outside[new] <= _MUST_EXCEED * inside[old]:
                break
            del inside[old]
            inside[new] = 0
            dropped.append(old)
        self._outside.clear()
        for value in inside:
            inside[value] = 0
        return dropped

    def _forget_half(self) -> None:
        """Make room: names that come once and never again must not keep an active one from being noticed."""
        outside = self._outside
        for value in sorted(outside, key=outside.__getitem__)[: (len(outside) + 1) // 2]:
            del outside[value]
