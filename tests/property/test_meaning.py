"""What the second model says late, or never, or wrongly, may cost a verdict and must never add a kill."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests._support.meanings import WordMeaning
from tests._support.steps import decide, verdicts
from tests.property.step_streams import EAGER, RUNS, Script, play, scripts

from loopwarden_models.patterns import LEVEL_NAMES

NAME = "semantic_repeat"


class Forgetful(WordMeaning):
    """A second model that answers when it likes."""

    def __init__(self, moods: list[bool]) -> None:
        """Answer in turn as the moods say."""
        super().__init__()
        self._moods = moods
        self._asked = 0

    def confirmed_percent(self, one: int, other: int) -> int | None:
        """See `Meaning`."""
        self._asked += 1
        return super().confirmed_percent(one, other) if self._moods[self._asked % len(self._moods)] else None


def heights(script: Script, meaning: WordMeaning) -> dict[str, int]:
    """Return the strongest level of the rule by run."""
    found: dict[str, int] = {}
    for run_id, root in {(run_id, root) for _, run_id, root in RUNS}:
        steps = [step for step in play(script) if step.run_id == run_id and step.root_run_id == root]
        for verdict in verdicts(decide(steps, EAGER, meaning=meaning), NAME) if steps else ():
            found[run_id] = max(found.get(run_id, 0), LEVEL_NAMES.index(verdict.level))
    return found


SCRIPTS = scripts(max_scenes=6).map(lambda script: [*script, (4, "reword", 1), (4, "reword", 2)])


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(script=SCRIPTS, moods=st.lists(st.booleans(), min_size=1, max_size=7))
def test_a_model_that_is_late_at_times_ends_no_run_that_would_not_have_ended(script: Script, moods: list[bool]) -> None:
    """Missing is "not confirmed": levels fall, or stay."""
    always, at_times = heights(script, WordMeaning()), heights(script, Forgetful(moods))

    assert {run_id: level for run_id, level in at_times.items() if level > always.get(run_id, 0)} == {}


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(script=SCRIPTS)
def test_without_a_second_model_nothing_goes_beyond_a_nudge(script: Script) -> None:
    """Meaning alone advises."""
    for meaning in (WordMeaning(answers=False), WordMeaning(confirms=False)):
        assert max(heights(script, meaning).values(), default=0) <= LEVEL_NAMES.index("nudge")
