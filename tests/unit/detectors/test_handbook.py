"""docs/detectors.md says what the default policy says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from loopwarden_detectors import fleet_breaker, restart_loop
from loopwarden_detectors.rings import KEPT_CALLS
from loopwarden_detectors.same_error import SIGNATURE_CHARS
from loopwarden_detectors.tool_fleet import RULES
from loopwarden_detectors.watch import BUDGET, CALL_DETECTORS, STEP_DETECTORS, TICK_DETECTORS
from loopwarden_models.policy import DEFAULT_POLICY, Policy

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "detectors.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(?P<path>[a-z_.]+)` \| (?P<value>[^|]+) \|", re.MULTILINE)
GLANCE = re.compile(
    r"^\| \[`(?P<name>\w+)`\]\(#(?P<anchor>[\w-]+)\) \| `(?P<pattern>\w+)` \|(?P<cells>.*)\|$", re.MULTILINE
)
PATTERNS = {BUDGET.name: BUDGET.pattern} | {rule.name: rule.pattern for rule in CALL_DETECTORS}
PATTERNS |= {rule.name: rule.pattern for rule in STEP_DETECTORS} | {rule.name: rule.pattern for rule in TICK_DETECTORS}
PATTERNS |= {rule.NAME: rule.PATTERN for rule in (fleet_breaker, restart_loop)}
# All of a limit, in per cent; and what is text, as "twice" or "2nd".
NOT_OF_THE_POLICY = {"100"}


def numbers() -> Iterator[tuple[str, Any]]:
    """Yield the path and the default of every number in the policy that a rule or the ladder reads."""
    for part in (*RULES, "ladder", "blast_radius"):
        config = getattr(DEFAULT_POLICY, part)
        for field in msgspec.structs.fields(config):
            value = getattr(config, field.name)
            if isinstance(value, msgspec.Struct):
                yield from ((f"{part}.{field.name}.{one}", getattr(value, one)) for one in value.__struct_fields__)
            elif field.name not in ("mode", "until"):
                yield f"{part}.{field.name}", value


def shown(value: Any) -> str:
    """Return a number as the page writes it."""
    return "not set" if value is None else f"{value:,g}" if isinstance(value, float) else f"{value:,}"


def test_every_number_of_the_policy_is_on_the_page() -> None:
    """Whoever is paged reads the page, not the code: a number that moved must move there as well."""
    page = {row["path"]: row["value"].strip() for row in ROW.finditer(PAGE) if "." in row["path"]}

    assert page == {path: shown(value) for path, value in numbers()}


@pytest.mark.parametrize("name", RULES)
def test_the_overview_shows_the_same_numbers(name: str) -> None:
    """The first table is what most people read, and nothing else."""
    row = next(row for row in GLANCE.finditer(PAGE) if row["name"] == name)
    config = getattr(DEFAULT_POLICY, name)
    assert row["pattern"] == PATTERNS[name]
    for level, cell in zip(("observe", "nudge", "break", "kill"), row["cells"].split("|"), strict=True):
        own = {field: getattr(config, field) for field in config.__struct_fields__ if field.startswith(level)}
        written = set(re.findall(r"\d[\d,]*\d|\d", cell))
        seconds = {shown(value // 1_000) for field, value in own.items() if field.endswith("_ms")}
        main = own.get("break_at" if level == "break" else level)
        assert written <= {shown(value) for value in own.values()} | seconds | NOT_OF_THE_POLICY
        assert main is None or shown(main) in written


def test_every_rule_has_a_section_that_the_overview_links_to() -> None:
    """A link that leads nowhere is found at night."""
    headings = {
        re.sub(r"[^\w -]", "", line[3:]).lower().replace(" ", "-") for line in PAGE.splitlines() if line[:3] == "## "
    }

    assert [row["name"] for row in GLANCE.finditer(PAGE)] == list(RULES)
    assert {row["anchor"] for row in GLANCE.finditer(PAGE)} <= headings


def test_what_the_page_advises_is_a_policy() -> None:
    """Pasted into the policy file it must load."""
    advice = re.findall(r"`((?:effects|[a-z_]+): \{[^`]+\})`", PAGE)

    assert len(advice) >= 5
    for snippet in advice:
        assert isinstance(Policy.from_builtins(yaml.safe_load(snippet)), Policy)


def test_numbers_that_are_no_policy_are_right_too() -> None:
    """How far is looked back, and how much of a message counts."""
    assert f"among the last {KEPT_CALLS} calls" in PAGE
    assert f"the first {SIGNATURE_CHARS} characters" in PAGE
    assert DEFAULT_POLICY.mode == "warn"
