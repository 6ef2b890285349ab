"""Thresholds for a model of texts, chosen on labelled cases. Here a text means its words."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from tests._support.meanings import WordMeaning

from loopwarden_models.errors import ConfigError
from loopwarden_models.policy import Policy
from loopwarden_streams.calibrate_meaning import Recording, calibrate, is_loop, likenesses
from loopwarden_streams.cli import main
from loopwarden_streams.evaluate_cases import Case, find_cases, load
from loopwarden_streams.meaning_picture import Likeness, picture

CASES = Path(__file__).parents[2] / "embeddings" / "cases" / "chosen"


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """Twenty loops and twenty healthy sequences."""
    return [load(path) for path in find_cases([str(CASES)])]


def test_the_choice_finds_most_loops_at_hardly_a_healthy_case(cases: list[Case]) -> None:
    """And is a policy that loads."""
    steps: list[tuple[int, int]] = []
    found = calibrate(cases, WordMeaning(), lambda done, total: steps.append((done, total)))

    assert (found.loops, found.healthy) == (20, 20)
    assert found.found.healthy == 0
    assert found.found.loops >= found.alone.loops > 0
    own = Policy.from_builtins({"semantic_repeat": found.thresholds}).semantic_repeat
    assert own.same_percent == found.thresholds["same_percent"]
    assert [done for done, _ in steps] == list(range(1, steps[-1][1] + 1))


def test_without_a_second_model_there_is_one_threshold(cases: list[Case]) -> None:
    """Nothing is confirmed, so nothing is doubtful."""
    found = calibrate(cases, WordMeaning(confirms=False), lambda _done, _total: None)

    assert found.found == found.alone
    assert found.thresholds["maybe_percent"] == found.thresholds["same_percent"]


def test_a_choice_that_nudges_recorded_healthy_runs_is_made_stricter(cases: list[Case]) -> None:
    """Whoever has recordings has the better judge of what is healthy."""
    steps = [step for case in cases if is_loop(case) for step in case.steps]
    for number, step in enumerate(steps):
        step.seq = number
    known = Recording(steps, frozenset(), frozenset({steps[0].run_id}))
    free = calibrate(cases, WordMeaning(), lambda _done, _total: None)
    bound = calibrate(cases, WordMeaning(), lambda _done, _total: None, [known])

    assert bound.recorded_healthy == 1
    assert bound.thresholds["same_percent"] > free.thresholds["same_percent"]
    assert bound.found.loops <= free.found.loops


def test_too_few_cases_of_a_kind_are_refused(cases: list[Case]) -> None:
    """Nobody chooses between loops and nothing."""
    loops = [case for case in cases if is_loop(case)]

    with pytest.raises(ConfigError, match="20 cases expect a nudge or more and 0 expect less: at least 10 of each"):
        calibrate(loops, WordMeaning(), lambda _done, _total: None)


def test_what_is_new_is_told_apart_from_what_is_alike(cases: list[Case]) -> None:
    """By likeness alone the two kinds lie on each other: that is what the picture is to show."""
    found = [*likenesses(cases, WordMeaning())]
    news = {kind: [one.is_news for one in found if one.is_loop is kind] for kind in (True, False)}

    assert sum(news[True]) < 0.2 * len(news[True])
    assert sum(news[False]) > 0.5 * len(news[False])
    assert max(one.likeness for one in found if not one.is_loop) > 80


@pytest.mark.parametrize("confirmed", [None, 60])
def test_the_picture_is_a_drawing_with_a_panel_for_each_question(confirmed: int | None) -> None:
    """One that a browser opens, whatever the numbers are."""
    found = [Likeness(k % 2 == 0, k % 3 == 0, k, confirmed) for k in range(101)]
    thresholds = {"same_percent": 85, "maybe_percent": 65, "confirmed_percent": 55}
    root = ET.fromstring(picture(found, thresholds, "a <model> & another"))  # noqa: S314 - our own text
    texts = ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]

    assert sum("model" in text for text in texts) == (4 if confirmed else 3)
    assert "a <model> & another" in texts
    assert {"85", "65"} <= set(texts)
    assert len(ET.fromstring(picture([], thresholds, "none"))) > 5  # noqa: S314 - as above


def test_without_a_model_the_command_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No choice without a model."""
    monkeypatch.setenv("LOOPWARDEN_SEMANTIC_MODEL", "")

    assert main(["calibrate", "--semantic", str(CASES)]) == 2
    assert "loopwarden[embeddings]" in capsys.readouterr().err


def test_options_of_meaning_belong_to_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A picture of limits does not exist."""
    (tmp_path / "steps.jsonl").write_text("")

    for option in (["--picture", "x.svg"], ["--json"], ["--traces", "x"]):
        assert main(["calibrate", str(tmp_path), *option]) == 2
        assert "--semantic" in capsys.readouterr().err
