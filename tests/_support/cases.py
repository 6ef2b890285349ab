"""Cases and their judge, as `loopwarden eval` has them: there is one implementation, and it is the product's."""

from __future__ import annotations

from loopwarden_streams.evaluate_cases import Case, expand, load
from loopwarden_streams.evaluate_judge import ENFORCE, Said, faults, judge

__all__ = ["ENFORCE", "Case", "Said", "expand", "faults", "judge", "load"]
