"""The texts of nudges, by the rule that asks for one. Each names what was counted and offers a next step.

A poller gets "one wait", never "try other arguments": that would make it poll faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

TEMPLATES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "nudge.exact_repeat": (
            "{Tool} was called {times} with the same arguments and gave the same result each time. Treat that result "
            "as settled: the same call will not change it. Work with what it says, try different arguments or another "
            "way, or finish and say what could not be found out."
        ),
        "nudge.changing_repeat": (
            "{Tool} was called {times} with the same arguments; the answers differ and the task has not moved. Decide "
            "what you need from it. If you wait for something, wait once for long enough; otherwise go on with the "
            "latest answer, or finish with what you have."
        ),
        "nudge.cycle": (
            "Your last steps are a circle: the same calls{with_tool} in the same order, {times} round, with the same "
            "results. Another round will end where this one did. Say what is still unknown, take a step that is not "
            "part of the circle, or finish and report."
        ),
        "nudge.same_error": (
            "{Tool} failed {times} with the same error. Sent again, it will fail again. Read the error, then correct "
            "the arguments or use another way; if there is none, stop and report the error."
        ),
        "nudge.budget": (
            "This run is close to one of its limits{at_count}. Finish now: answer from what you have, and list what "
            "is left open."
        ),
        "nudge.text_chant": (
            "Your last answer repeats itself: one passage was written {times} in a row. Leave it out. Say what you "
            "have in one short paragraph that you have not written before, then make one call or give the final answer."
        ),
        "nudge.near_text": (
            "{Count} of your answers say nearly the same. Saying it once more will not change what comes back. Go back "
            "to the goal: name in one sentence what is in the way, then take the next step towards it, one that you "
            "have not taken yet, or finish and report what you have."
        ),
        "nudge.semantic_repeat": (
            "{Count} of your last steps{with_tool} asked or said the same in other words, and nothing new came of it. "
            "Wording it once more will not change that. Go back to the goal and take what was said as settled: look "
            "for another source or another way in, or finish and report what could not be found out."
        ),
        "nudge.reflection": (
            "{Count} of your answers in a row led to no action. Thinking on will not settle what is open: act or "
            "finish now. Make the one call that tells you most, or give the final answer with what you know, and say "
            "what is uncertain."
        ),
        "nudge.context_rot": (
            "Your context was shortened and it did not help{at_count}. What you keep reading back fills it again: "
            "write down in a few lines the goal, what is settled and the next step, and work with smaller pieces than "
            "before; or finish and report what does not fit."
        ),
        "nudge.ping_pong": (
            "You and other agents have been writing to each other{at_count}, and nobody has taken a step. Another "
            "message will not settle it. Decide who does what, do the part that is yours now, or finish and report "
            "what is still open."
        ),
        "nudge.rate": (
            "This run makes its calls far faster than it may{in_window}. Leave out calls whose answer you already "
            "have, join those that belong together, and make one call at a time."
        ),
        "nudge.frozen_poll": (
            "{Tool} was asked {times} and its answer has not changed. Asking sooner or in other words will not make it "
            "ready. Make one single wait that is long enough, then ask once more; or tell the user what is still "
            "pending and finish."
        ),
        "nudge.interleaved_repeat": (
            "{Tool} was called {times} with the same arguments, other calls between them, and answered the same each "
            "time. Treat that answer as settled and do not ask for it again: write down what it says, and take the "
            "next step that depends on it, or finish."
        ),
        "nudge.same_error_raw": (
            "{Tool} still fails with exactly the same error after {times}, whatever was changed in between: the "
            "changes do not reach the cause. Read the error again, check that what you change is what is run, and try "
            "another explanation; or report the error as it is."
        ),
        "nudge.same_output": (
            "{Tool} gave one and the same answer to {times_other} different questions. Other arguments of this kind "
            "will bring it again. Take the answer as it is, use another source, or say that it cannot be found here."
        ),
        "nudge.retry_storm": (
            "{Tool} failed {times} within a minute with the same arguments. It is probably down. Do not send it again "
            "now: go on with something else, wait once and long enough, or report that it is unavailable."
        ),
        "nudge.unknown_tool": (
            "{Count} of your calls named a tool that does not exist{named}. Use only the tools that you were given, "
            "by their exact names and with the arguments of their descriptions; if none of them can do it, say so and "
            "finish."
        ),
        "nudge.denied": (
            "{Count} of your calls were refused{named}. The rule behind it will not change, whatever the wording. Do "
            "not try to get around it: take an allowed way, or stop and report what was refused and why you need it."
        ),
        "nudge.resweep": (
            "{Tool} is reading again from the beginning what it has read already{at_count}. Nothing new is there. Work "
            "with what you have read; look up single places only, or finish."
        ),
        "nudge.self_append": (
            "The arguments of {tool} have grown by repeating themselves, {times} in a row. Write one command that does "
            "what you need, once, and look at what it answers before you add to it."
        ),
        "nudge.param_walk": (
            "{Tool} found nothing with {times_other} different arguments. One more of the same kind will most likely "
            "find nothing either. Question what you are looking for and where, use another source, or report that it "
            "was not found."
        ),
        "nudge.no_progress": (
            "{Count} of your last steps failed or brought nothing. Stop and say what you know for sure, what you "
            "expected and what came instead. Then take one step of another kind towards the goal, or report what is "
            "in the way."
        ),
        "nudge.sleep_only": (
            "You are only waiting{at_count}. If something will be ready, make one single wait that is long enough, "
            "then look once; if nothing is coming, tell the user what is pending and finish."
        ),
    }
)
