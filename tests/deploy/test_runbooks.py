"""The runbooks: one for each alert, with commands that exist. Nobody wants to find out at three in the morning."""

from __future__ import annotations

import argparse
import importlib
import re
from pathlib import Path

import pytest
from tests.deploy.promql import series
from tests.deploy.repository import DASHBOARD, DEPLOY, ROOT, RUNBOOKS, alert_rules, load_yaml

from loopwarden_streams.cli import COMMANDS
from loopwarden_streams.settings import Settings

PAGES = sorted(RUNBOOKS.glob("*.md"))
TEXTS = [
    *PAGES,
    DEPLOY / "README.md",
    ROOT / "docs" / "operating.md",
    ROOT / "docs" / "approvals.md",
    ROOT / "docs" / "policy.md",
]
SERVICES = set(load_yaml(ROOT / "docker-compose.yml")["services"])
MODULES = {name: module for name, module, _, _ in COMMANDS}
# `loopwarden <command> ...`, also inside a container of the worker's image.
_COMMAND = re.compile(r"(?:\bloopwarden|compose run --rm worker) +(?P<name>[a-z]+)(?P<rest>(?![a-z]*:)[^\n`|>]*)")


def joined(path: Path) -> str:
    """Return a page with continued lines of commands joined, and the line breaks of prose taken out of code spans."""
    text = re.sub(r"\\\n\s*", " ", path.read_text(encoding="utf-8"))
    return re.sub(r"(?<!`)`[^`\n]+\n[^`\n]+`(?!`)", lambda span: span[0].replace("\n", " "), text)


def options_of(command: str, rest: str) -> set[str]:
    """Return the flags of one command of `loopwarden`, or of its action that `rest` begins with."""
    parser = argparse.ArgumentParser()
    importlib.import_module(MODULES[command]).add_arguments(parser)
    for choice in [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]:
        word = rest.split(maxsplit=1)[0]
        assert word in choice.choices, f"loopwarden {command} {word}"
        parser = choice.choices[word]
    return {option for action in parser._actions for option in action.option_strings}


def test_each_alert_has_a_page_and_each_page_an_alert() -> None:
    """None missing, no orphans."""
    assert [page.stem for page in PAGES] == sorted({rule["alert"] for rule in alert_rules()})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_page_says_what_it_means_what_to_look_at_what_to_do_and_how_to_quieten_it(page: Path) -> None:
    """Title, meaning in the first lines, then the three parts; something to type; short enough to read at night."""
    text = page.read_text(encoding="utf-8")

    assert text.startswith(f"# {page.stem}\n\n**What it means.**")
    headings = re.findall(r"(?m)^## (\w+)", text)
    assert {"Check", "Do", "Quieten"} <= set(headings)
    assert "```bash" in text
    assert len(text.splitlines()) < 80


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.stem)
def test_each_command_of_ours_exists(page: Path) -> None:
    """Commands and their flags, from the parsers themselves."""
    for found in _COMMAND.finditer(joined(page)):
        name, rest = found["name"], found["rest"]
        assert name in MODULES, found[0]
        for flag in re.findall(r"(?<=\s)--[a-z-]+", rest):
            assert flag in options_of(name, rest), found[0]


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.stem)
def test_each_setting_service_metric_and_address_exists(page: Path) -> None:
    """Whatever is named can be set, started, queried or asked."""
    text = joined(page)

    for name in re.findall(r"\bLOOPWARDEN_[A-Z_]*[A-Z]\b(?!_)", text):
        assert hasattr(Settings(), name.removeprefix("LOOPWARDEN_").lower()), name
    for verb, rest in re.findall(r"docker compose (exec|restart|logs|up|run)((?: [^\n`|]+)?)", text):
        words = [word for word in re.split(r"[ =]+", rest.strip()) if not word.startswith("-")]
        assert not words or SERVICES & set(words), (verb, rest)
    for name in re.findall(r"\bloopwarden_[a-z_]+\b", text):
        if name != "loopwarden_streams":
            assert name in series(), name
    for port, path in re.findall(r"127\.0\.0\.1:(\d+)(/[\w/-]*)?", text):
        assert port in {"6066", "9090", "9092", "3000"}, port
        if port == "6066":
            assert path in {"/livez", "/readyz", "/metrics"}, path


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.stem)
def test_each_panel_that_is_named_is_on_the_dashboard(page: Path) -> None:
    """Names of panels are set in italics; so are the variable and headings."""
    dashboard = DASHBOARD.read_text(encoding="utf-8")
    headings = re.findall(r"(?m)^#+ (.*)", (DEPLOY / "README.md").read_text(encoding="utf-8"))
    titles = [*re.findall(r'"(?:title|label)": "([^"]*)"', dashboard), *headings]

    for name in re.findall(r"(?<![*\w])\*([A-Z][^*\n]+)\*(?!\*)", page.read_text(encoding="utf-8")):
        assert any(title.startswith(name) for title in titles), name
