"""What the configurations of all rules share: types of thresholds, and the base that refuses what does not exist."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct

Repeats = Annotated[int, Meta(ge=1, le=10_000)]
Percent = Annotated[int, Meta(ge=1, le=100)]
Milliseconds = Annotated[int, Meta(ge=1_000)]
_DAY_MS = 86_400_000

DetectorMode = Literal["inherit", "off", "shadow", "warn", "enforce"]


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every part of the policy: immutable, and a field that does not exist is an error.

    Attributes:
        rising: Names of thresholds that must not fall, from the weaker to the stronger level. One that is not set does
            not count.
    """

    rising: ClassVar[tuple[tuple[str, ...], ...]] = ()


class RuleConfig(Config, frozen=True):
    """Configuration of one rule.

    Attributes:
        mode: Overrides that of the policy.
        until: With `mode: off`, the day (UTC) from which on the rule is in force again. A layer needs one: an exemption
            is made for a week, and nobody remembers it in a year.
    """

    mode: DetectorMode = "inherit"
    until: dt.date | None = None

    def has_ended(self, at_ms: int) -> bool:
        """Return whether the exemption is over at `at_ms`, Unix milliseconds."""
        if self.until is None:
            return False
        return at_ms >= (self.until - dt.date(1970, 1, 1)).days * _DAY_MS
