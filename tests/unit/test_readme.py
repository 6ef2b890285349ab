"""The README is the first thing that a user runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import loopwarden
from loopwarden.testing import MemoryTransport
from loopwarden_streams.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """Return the code blocks of one language."""
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_example_of_an_agent_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """An example that does not run costs a newcomer the first hour, and us the newcomer."""
    transports: list[MemoryTransport] = []

    def connect(_brokers: str) -> MemoryTransport:
        transports.append(MemoryTransport())
        return transports[-1]

    monkeypatch.setattr(loopwarden, "KafkaTransport", connect)
    (example,) = blocks("python")

    exec(compile(example, "README.md", "exec"), {"__name__": "readme"})  # noqa: S102 - our own text

    types = [step.__struct_config__.tag for step in transports[0].steps]
    assert types[0] == "run_start"
    assert types[-1] == "run_end"
    assert types.count("tool_end") == 3


def test_every_command_that_is_shown_exists() -> None:
    """A command that was renamed must be renamed here, too."""
    shown = set(re.findall(r"^loopwarden (\w+)", "\n".join(blocks("console")), re.MULTILINE))

    assert shown
    assert shown <= {name for name, *_ in COMMANDS}


def test_every_link_into_the_repository_leads_somewhere() -> None:
    """A dead link in the first file looks like a dead project."""
    targets = re.findall(r"\]\((?!https?://)([^)#]+)", README)

    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_the_two_commands_for_newcomers_are_shown() -> None:
    """`make demo` and `make test` are the promise of this page."""
    assert "make demo" in README
    assert "make test" in README
