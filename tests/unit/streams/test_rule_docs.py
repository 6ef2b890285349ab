"""The pages of rules and patterns are generated, and are current."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from loopwarden_detectors.tool_fleet import RULES
from loopwarden_detectors.watch import DETECTORS
from loopwarden_models.causes import CAUSES
from loopwarden_models.patterns import PATTERNS
from loopwarden_models.recoveries import RECOVERIES
from loopwarden_streams.rule_catalogue import rules
from loopwarden_streams.rule_docs import COMMAND, main, stale, take_figures, write
from loopwarden_streams.rule_pages import Note

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """Return a copy of what the generator reads and writes."""
    shutil.copytree(DOCS / "detectors", tmp_path / "detectors")
    for name in ("detectors.md", "patterns.md"):
        shutil.copy(DOCS / name, tmp_path / name)
    return tmp_path


def test_the_pages_are_current() -> None:
    """If this fails: `make docs`."""
    assert stale(DOCS) == []


def test_what_was_changed_by_hand_is_found_and_written_anew(docs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A page that was edited, one that is missing, and one whose rule is gone."""
    page = docs / "detectors" / "cycle.md"
    before = page.read_text(encoding="utf-8")
    page.write_text(before.replace("| 3 |", "| 4 |"), encoding="utf-8")
    (docs / "detectors" / "rate.md").unlink()
    (docs / "detectors" / "gone.md").write_text("of a rule that is no more", encoding="utf-8")

    assert main(["--docs", str(docs), "--check"]) == 1
    told = capsys.readouterr().err
    assert all(name in told for name in ("cycle.md", "rate.md", "gone.md", COMMAND))
    assert write(docs) == ["detectors/cycle.md", "detectors/gone.md", "detectors/rate.md"]
    assert page.read_text(encoding="utf-8") == before
    assert main(["--docs", str(docs), "--check"]) == 0


def test_a_rule_without_a_note_has_a_page(docs: Path) -> None:
    """Whoever adds a rule need not know of any of this."""
    (docs / "detectors" / "_notes" / "cycle.md").unlink()
    write(docs)
    page = (docs / "detectors" / "cycle.md").read_text(encoding="utf-8")

    assert "# Cycle: `cycle`" in page
    assert "A sequence of 2 to 6 calls with equal results" in page
    assert "`cycle.kill_laps`" in page


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("no_such_rule", "# Title\n", "no_such_rule: there is no such rule"),
        ("cycle", "no title", "cycle.md:1: 'no title'"),
    ],
)
def test_a_note_that_cannot_be_placed_is_refused(docs: Path, name: str, text: str, told: str) -> None:
    """With the file, and what to do."""
    (docs / "detectors" / "_notes" / f"{name}.md").write_text(text, encoding="utf-8")

    with pytest.raises(ValueError, match=re.escape(told)):
        stale(docs)


def test_an_overview_without_a_place_for_the_table_is_refused(docs: Path) -> None:
    """Rather than appended to, or emptied."""
    (docs / "detectors.md").write_text("# Detectors\n", encoding="utf-8")

    with pytest.raises(ValueError, match="put them back"):
        write(docs)


def test_figures_hold_counts_and_no_names(docs: Path, tmp_path: Path) -> None:
    """The recordings are not ours: no name of a run, of a case or of a data set leaves the machine with them."""
    score = {"first": 5, "loop": 3, "healthy": 1, "other": 1, "precision": 0.75, "cases": {}, "traces": {}}
    evaluation = {
        "policy": "default-1",
        "cases": [{"id": "secret-case"}],
        "traces": {"secret-set": {"runs": 7, "events": 70, "missed_loops": ["secret-run"]}},
        "detectors": {"cycle": score},
    }
    file = tmp_path / "figures.json"
    file.write_text(json.dumps(evaluation), encoding="utf-8")

    assert main(["--docs", str(docs), "--figures", str(file)]) == 0
    kept = (docs / "detectors" / "_figures.json").read_text(encoding="utf-8")
    assert "secret" not in kept
    assert json.loads(kept) == take_figures(evaluation)
    page = " ".join((docs / "detectors" / "cycle.md").read_text(encoding="utf-8").split())
    assert "**Precision 75%** of the 4 that are known. That is too few to rely on." in page
    assert "Not measured yet" in (docs / "detectors" / "rate.md").read_text(encoding="utf-8")


def test_the_catalogue_knows_every_rule_with_its_thresholds_and_their_sources() -> None:
    """A number without a source is a number that nobody dares to change."""
    known = {rule.name: rule for rule in rules()}

    assert list(known)[: len(RULES)] == list(RULES)
    assert [one.path for rule in known.values() for one in rule.thresholds if not one.why] == []
    assert [name for name in RULES if not known[name].pattern] == []
    assert [name for name in DETECTORS if not known[name].looks_at] == []
    cycle = known["cycle"]
    assert (cycle.thresholds[2].path, cycle.thresholds[2].value) == ("cycle.kill_laps", 5)
    assert "Hermes" in cycle.thresholds[2].why
    assert cycle.is_per_tool
    assert not known["budget"].is_per_tool


def test_the_page_of_patterns_has_every_name() -> None:
    """What a dashboard filters by must be explained somewhere."""
    page = (DOCS / "patterns.md").read_text(encoding="utf-8")

    for name in (*PATTERNS, *RECOVERIES, *CAUSES):
        assert f"`{name}`" in page


def test_a_note_is_taken_apart() -> None:
    """The advice on quietening goes to its own section, and nothing is lost."""
    note = Note.parse(
        "# A title\n\nIntro, of\ntwo lines.\n\n* **One.** Here\n  too.\n* **To quieten it.** Do so.\n", "n.md"
    )

    assert (note.title, note.anchor, note.intro) == ("A title", "a-title", "Intro, of\ntwo lines.")
    assert note.points == ["* **One.** Here\n  too."]
    assert note.quieten == "Do so."
