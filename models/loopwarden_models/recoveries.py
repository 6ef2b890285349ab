"""The public names of what is done about a loop. Which one, and when, stands with each pattern (`patterns`)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

from msgspec import Struct

# L1 advises: a text. L2 insists: the text again, or what the runtime does whatever the model thinks. L3 stops.
RecoveryLevel = Literal["L1", "L2", "L3"]
RECOVERY_LEVELS: Final[tuple[RecoveryLevel, ...]] = ("L1", "L2", "L3")

RecoveryName = Literal[
    "state_latch",
    "objective_anchor",
    "force_action",
    "tool_schema",
    "explain_refusal",
    "one_blocking_wait",
    "change_approach",
    "circuit_breaker",
    "ask_a_person",
    "end_with_a_report",
]


class Recovery(Struct, frozen=True, gc=False):
    """One way back to work, or out of it.

    Attributes:
        title: What people call it.
        text: What is done, in one sentence.
        levels: At which of the three levels it is used.
    """

    title: str
    text: str
    levels: tuple[RecoveryLevel, ...]


_ADVICE: Final[tuple[RecoveryLevel, ...]] = ("L1", "L2")

RECOVERIES: Final[Mapping[str, Recovery]] = MappingProxyType(
    {
        "state_latch": Recovery(
            "state latch",
            "Writes down what is known already, to be treated as settled: the same question has the same answer.",
            _ADVICE,
        ),
        "objective_anchor": Recovery(
            "objective anchor",
            "Goes back to the goal and to what is certain, and asks for the next step from there.",
            _ADVICE,
        ),
        "force_action": Recovery(
            "force action", "Act or finish now: one call, or the final answer; no more planning and talking.", _ADVICE
        ),
        "tool_schema": Recovery(
            "tool schema", "Sends the model back to the tools that exist, their exact names and arguments.", _ADVICE
        ),
        "explain_refusal": Recovery(
            "explain refusal",
            "Says that the rule behind a refusal will not change: an allowed way, or stop and report.",
            _ADVICE,
        ),
        "one_blocking_wait": Recovery(
            "one blocking wait",
            "One single wait that is long enough, then one look; or a final answer that names what is pending.",
            _ADVICE,
        ),
        "change_approach": Recovery(
            "change approach",
            "Says what was tried, how often, and that it will not work: another way, or a report of failure.",
            _ADVICE,
        ),
        "circuit_breaker": Recovery(
            "circuit breaker",
            "The tool is shut for a while, to one run (L2) or to all (L3): each call is refused at once, in few words.",
            ("L2", "L3"),
        ),
        "ask_a_person": Recovery(
            "ask a person",
            "A person sees the evidence; a paused run waits to be resumed, redirected or ended.",
            ("L3",),
        ),
        "end_with_a_report": Recovery(
            "end with a report", "The run ends, with the pattern, the counts and the steps in its status.", ("L3",)
        ),
    }
)
