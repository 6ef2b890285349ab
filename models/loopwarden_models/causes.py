"""What probably stands behind a loop, and what a person does about it.

A verdict names the cause alone; readers take its text and its countermeasure from this table, so that they are told in
one way everywhere, and a better wording helps with old verdicts as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

from msgspec import Struct

CauseName = Literal[
    "broken_schema",
    "tool_down",
    "insisting_prompt",
    "impossible_goal",
    "no_memory_of_results",
    "no_event_to_wait_for",
    "lost_context",
    "identical_calls",
]


class Cause(Struct, frozen=True, gc=False):
    """One probable cause. It is a guess from the evidence, and never changes what is decided.

    Attributes:
        title: What people call it.
        evidence: What a verdict must rest on to name it.
        countermeasure: What to do, so that it does not happen again.
    """

    title: str
    evidence: str
    countermeasure: str


CAUSES: Final[Mapping[str, Cause]] = MappingProxyType(
    {
        "broken_schema": Cause(
            "broken or unclear schema",
            "The same call is refused for its arguments again and again, or a tool is called by a name that is nearly "
            "that of a tool which works.",
            "Correct the tool's schema and description, and send them with the nudge.",
        ),
        "tool_down": Cause(
            "tool down",
            "A call fails by timeouts, with a status from 500 to 599, or because nobody answers.",
            "Look at the tool, not at the agent; back off, and let the breaker keep it shut until it answers.",
        ),
        "insisting_prompt": Cause(
            "a prompt that insists",
            "Repeats or refusals begin right after a goal that says 'until', 'never give up' or 'always retry'.",
            "Reword the prompt: say when enough is enough, and what to report then.",
        ),
        "impossible_goal": Cause(
            "impossible goal or missing data",
            "One tool after another brings nothing, or one that is asked in ever other words, and no error is behind "
            "it.",
            "Ask a person whether it can be done, and with which data; let the run end with a report.",
        ),
        "no_memory_of_results": Cause(
            "no memory of results",
            "The same is read with the same answer.",
            "Serve repeated reads from a cache, and keep what was read in the context.",
        ),
        "no_event_to_wait_for": Cause(
            "no event to wait for",
            "The agent asks and waits, and nothing tells it when there is something to see.",
            "Give it one blocking wait, or a callback that wakes it.",
        ),
        "lost_context": Cause(
            "lost context",
            "What was known is done again right after a compaction of the context.",
            "Pin what is settled outside of the context: notes that survive a compaction.",
        ),
        "identical_calls": Cause(
            "identical calls",
            "A call is made again as it was, with the same answer, and it is not known to be a read.",
            "Declare the tool's effect, and let its answer say what it changed; if it only reads, cache it.",
        ),
    }
)
