"""Keys of calls and results without what is new each time: a request id, a duration, the time of day.

Only asked where it can matter, because it costs more than all rules together: of a call that was made before with
another answer, and of one whose arguments are as long as those of the call before. So what is volatile counts from its
second occurrence.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec import UNSET, Struct

from loopwarden_detectors.identity import tool_key
from loopwarden_detectors.normalise import normalised_args, normalised_key
from loopwarden_models.hashes import stable_key
from loopwarden_models.volatile import VolatileRules, folded

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState
    from loopwarden_models.events import ToolEnd

# Calls of a run whose results are compared without their volatile parts. judgement
MAX_CALLS = 4

# A result that differs by more has changed. measured: 66 of 66 volatile pairs of recorded runs lie inside.
MAX_DIFFERENCE_BYTES = 16
MAX_DIFFERENCE_PERCENT = 2

# Longer ones cost tenths of a millisecond each time.
MAX_RESULT_BYTES = 65_536


class VolatileCall(Struct, array_like=True, gc=False):
    """A call that got different answers: its key, and the length of the newest answer."""

    call_key: int
    result_bytes: int


def stable_args_key(step: ToolEnd, rules: VolatileRules) -> int:
    """Return the key of a call without the fields that are about the request, 0 if it has none of them.

    Cost: 0.5 µs; 5 µs where there is such a field.
    """
    args = step.args
    if args is UNSET or step.args_norm_hash is not None:
        return 0
    raw = bytes(args)
    if _fields(rules.args).search(raw) is None:
        return 0
    normal = normalised_args(raw, rules)
    return 0 if normal is None else (tool_key(step.tool) ^ stable_key(normal.decode("utf-8", "replace"))) or 1


def stable_result_key(run: RunState, step: ToolEnd, call_key: int, rules: VolatileRules) -> int:
    """Return the key of a result without its volatile parts, 0 if it is to be compared as it is.

    Args:
        run: Remembers that answers of this call differ.
        step: The call; it was made before, and answered otherwise.
        call_key: Its key.
        rules: In force.

    Cost: 5 µs for the median result of 70 characters, 13 µs on average.
    """
    result = step.result
    if result is UNSET or step.result_norm_hash is not None or len(result) > MAX_RESULT_BYTES:
        return 0
    size = len(result)
    if step.result_bytes is not None and step.result_bytes > size:
        return 0  # cut on the way: equal heads are no equal results
    calls = run.volatile = [] if run.volatile is None else run.volatile
    known = next((call for call in calls if call.call_key == call_key), None)
    if known is None:
        if len(calls) >= MAX_CALLS:
            del calls[0]
        calls.append(VolatileCall(call_key, size))
    else:
        before, known.result_bytes = known.result_bytes, size
        if abs(size - before) > max(MAX_DIFFERENCE_BYTES, before * MAX_DIFFERENCE_PERCENT // 100):
            return 0
    return normalised_key(bytes(result), rules)


@lru_cache(256)
def _fields(names: tuple[str, ...]) -> re.Pattern[bytes]:
    spelt = (b"[_-]?".join(re.escape(letter).encode() for letter in folded(name)) for name in names)
    return re.compile(b'"(?:' + b"|".join(spelt) + b')"\\s*:', re.IGNORECASE)
