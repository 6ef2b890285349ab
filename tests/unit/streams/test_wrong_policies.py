"""A catalogue of wrong policy files: each is refused with the path, the value and what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopwarden_models.errors import ConfigError
from loopwarden_streams.policy_file import load_policy

FILES = sorted((Path(__file__).resolve().parents[2] / "policies" / "wrong").glob("*.yaml"))


def test_the_catalogue_is_there() -> None:
    """An empty folder would make every test below pass."""
    assert len(FILES) >= 30


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_a_wrong_file_says_where_and_what_to_do(file: Path) -> None:
    """Whoever edits a policy at night reads one line, and must not have to guess."""
    names, remedy = (line.partition(": ")[2] for line in file.read_text(encoding="utf-8").splitlines()[:2])

    with pytest.raises(ConfigError) as caught:
        load_policy(file)

    said = str(caught.value)
    assert names in said
    assert remedy in said
    assert "\n" not in said


def test_the_example_of_the_page_is_a_policy(tmp_path: Path) -> None:
    """What people copy from the handbook must load, and say what the handbook says."""
    page = (Path(__file__).resolve().parents[3] / "docs" / "policy.md").read_text(encoding="utf-8")
    file = tmp_path / "policy.yaml"
    file.write_text(page.partition("```yaml\n")[2].partition("```")[0])

    policy = load_policy(file).of("acme", "coder")

    assert (policy.mode, policy.exact_repeat.nudge, policy.budget.limits.max_steps) == ("enforce", 5, 400)
    assert policy.mode_of("cycle") == "off"
    assert policy.for_tool("search").exact_repeat.kill == 12
