"""What probably stands behind a loop, as far as the evidence shows it. It is said, and decides nothing."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from loopwarden_detectors.base import NUDGE
from loopwarden_detectors.context_rot import WASTED_KEY
from loopwarden_detectors.rings import GUARDED, UNPRODUCTIVE
from loopwarden_models.effects import READ

if TYPE_CHECKING:
    from loopwarden_detectors.base import Call, Finding
    from loopwarden_detectors.run_state import RunState
    from loopwarden_models.causes import CauseName

# A pattern that begins within so many steps of a goal, or of a compaction, begins right after it: three calls, each
# with its start and the answer of the model before it. judgement
SOON_STEPS: Final = 12

_REPEATS: Final = frozenset({"exact_repeat", "interleaved_repeat", "cycle"})
_INSISTED_ON: Final = _REPEATS | {"denied", "same_error", "same_error_raw", "retry_storm"}
_WAITS: Final = frozenset({"frozen_poll", "sleep_only"})
_SEVERAL_TOOLS: Final = 2
_RECENT: Final = 0xFFFF  # the newest steps that `no_progress` looks back on

_SERVER_ERRORS: Final = range(500, 600)
# How clients and gateways word it when nobody answers. Not "timeout" alone: half of all test reports speak of one.
_NOBODY_ANSWERS: Final = re.compile(
    r"connection (?:was )?(?:refused|reset|aborted|closed)|econn(?:refused|reset|aborted)|etimedout|connect ?timeout"
    r"|read timed out|(?:service|temporarily) unavailable|bad gateway|gateway time-?out|no route to host"
    r"|(?:http|status|code)[ :/=]{1,3}5\d\d\b",
    re.IGNORECASE,
)
_ERROR_CHARS: Final = 300
_LETTERS_OFF: Final = 2  # in which two names of tools may differ. judgement
_MEMO: Final = 1_024


def probable_cause(run: RunState, finding: Finding) -> CauseName | None:
    """Return what probably stands behind a finding, `None` where the evidence does not show it.

    Nothing is guessed of what is only observed. What the rule itself saw comes first, then what the moment tells (right
    after a compaction, right after a goal that insists), then what the rule looks for.

    Args:
        run: Whose finding it is, after the deciding step.
        finding: What was found.

    Cost: 0.3 µs; 5 µs for a tool that does not exist.
    """
    if finding.level < NUDGE or finding.is_of_tree:
        return None
    if finding.cause is not None:
        return finding.cause
    detector = finding.detector
    if _has_lost_context(run, finding):
        return "lost_context"
    if detector in _INSISTED_ON and run.insist_seq >= 0 and 0 <= finding.first_seq - run.insist_seq <= SOON_STEPS:
        return "insisting_prompt"
    if detector in _WAITS:
        return "no_event_to_wait_for"
    if finding.effect:
        return "no_memory_of_results" if finding.effect == READ else "identical_calls"
    if detector == "unknown_tool":
        return "broken_schema" if _resembles_a_tool(run, finding.tools[0]) else None
    if detector == "no_progress" and len(finding.tools) >= _SEVERAL_TOOLS and not _is_explained(run, finding.count):
        return "impossible_goal"
    return None


def cause_of_failure(call: Call) -> CauseName | None:
    """Return what a failed call that repeats itself says of its cause: its arguments are refused, or nobody answers.

    Cost: 0.2 µs; 3 µs for an error that was not seen lately.
    """
    if call.outcome == "invalid_args":
        return "broken_schema"
    if call.outcome == "timeout":
        return "tool_down"
    error = call.step.error
    if error is None:
        return None
    status = error.status
    if status is not None and str(status)[:3].isdecimal() and int(str(status)[:3]) in _SERVER_ERRORS:
        return "tool_down"
    text = f"{(error.error_class or '')[:_ERROR_CHARS]} {(error.message or '')[:_ERROR_CHARS]}"
    return "tool_down" if _says_nobody_answers(text) else None


@lru_cache(_MEMO)
def _says_nobody_answers(text: str) -> bool:
    return _NOBODY_ANSWERS.search(text) is not None


def _has_lost_context(run: RunState, finding: Finding) -> bool:
    """Return whether the run does again, right after a compaction, what it had done."""
    if finding.detector == "context_rot":
        return finding.loop_key != WASTED_KEY
    context = run.context_rot
    return context is not None and finding.detector in _REPEATS and 0 < finding.first_seq - context.seq <= SOON_STEPS


def _is_explained(run: RunState, steps: int) -> bool:
    """Return whether half of the `steps` that brought nothing, or more, failed in one way or were not understood."""
    if 2 * (run.void & _RECENT).bit_count() >= steps:
        return True
    return any(2 * error.count >= steps for error in run.same_error or ())


def _resembles_a_tool(run: RunState, name: str) -> bool:
    """Return whether a tool that did something in this run has nearly this name."""
    ring = run.ring
    kinds = ring.kinds(len(ring))
    numbers = {number for number, kind in zip(ring.tools(), kinds, strict=True) if not kind & (GUARDED | UNPRODUCTIVE)}
    return any(_is_alike(name, run.tool_name(number)) for number in numbers)


@lru_cache(_MEMO)
def _is_alike(name: str, other: str) -> bool:
    """Return whether two names differ in case, separators, a name space, or in one or two letters."""
    one, two = (re.sub(r"[^a-z0-9]", "", text.lower()) for text in (name, other))
    if not one or not two:
        return False
    shorter, longer = sorted((one, two), key=len)
    if longer.startswith(shorter) or longer.endswith(shorter):
        return 2 * len(shorter) >= len(longer)
    same = 0
    while one[same : same + 1] == two[same : same + 1]:
        same += 1
    tail = 0
    while tail < len(shorter) - same and one[-1 - tail] == two[-1 - tail]:
        tail += 1
    return same + tail >= max(len(longer) - _LETTERS_OFF, _LETTERS_OFF)
