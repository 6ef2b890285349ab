"""docs/detectors.md and the pages of the rules say what the default policy says.

The pages are generated (tests/unit/streams/test_rule_docs.py checks that they are current). Here the finished text is
read as a reader reads it, and compared with the policy by other means than those that made it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from loopwarden_detectors import fleet_breaker, restart_loop, tenant_limits
from loopwarden_detectors.rings import KEPT_CALLS
from loopwarden_detectors.same_error import SIGNATURE_CHARS
from loopwarden_detectors.tool_fleet import RULES as ALL
from loopwarden_detectors.watch import BUDGET, CALL_DETECTORS, SEMANTIC, STEP_DETECTORS, TICK_DETECTORS
from loopwarden_models.policy import DEFAULT_POLICY, Policy
from loopwarden_models.rule_config import RuleConfig
from loopwarden_streams.policy_file import load_policy

DOCS = Path(__file__).resolve().parents[3] / "docs"
OVERVIEW = (DOCS / "detectors.md").read_text(encoding="utf-8")
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted((DOCS / "detectors").glob("*.md"))}
RULES = [name for name in DEFAULT_POLICY.__struct_fields__ if isinstance(getattr(DEFAULT_POLICY, name), RuleConfig)]
COMMON = ("ladder", "blast_radius")  # what all rules share
ROW = re.compile(r"^\| `(?P<path>[a-z_.]+)` \| (?P<value>[^|]+) \|", re.MULTILINE)
GLANCE = re.compile(
    r'^\| <a id="(?P<anchor>[\w-]+)"></a>\[`(?P<name>\w+)`\]\((?P<page>[\w/.]+)\) \|[^|]+\| \[`(?P<pattern>\w+)`\]'
    r"\([^)]+\) \|(?P<cells>.*)\|$",
    re.MULTILINE,
)
PATTERNS = {rule.name: rule.pattern for rule in (BUDGET, SEMANTIC)} | {
    rule.name: rule.pattern for rule in CALL_DETECTORS
}
PATTERNS |= {rule.name: rule.pattern for rule in STEP_DETECTORS} | {rule.name: rule.pattern for rule in TICK_DETECTORS}
PATTERNS |= {rule.NAME: rule.PATTERN for rule in (fleet_breaker, restart_loop, tenant_limits)}


def numbers(part: str) -> Iterator[tuple[str, Any]]:
    """Yield the path and the default of every number of one part of the policy."""
    config = getattr(DEFAULT_POLICY, part)
    for field in msgspec.structs.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, msgspec.Struct):
            yield from ((f"{part}.{field.name}.{one}", getattr(value, one)) for one in value.__struct_fields__)
        elif field.name not in ("mode", "until"):
            yield f"{part}.{field.name}", value


def shown(value: Any) -> str:
    """Return a number as the pages write it."""
    return "not set" if value is None else f"{value:,g}" if isinstance(value, float) else f"{value:,}"


@pytest.mark.parametrize("name", [*RULES, *COMMON])
def test_every_number_of_the_policy_is_on_its_page(name: str) -> None:
    """Whoever is paged reads the page, not the code: a number that moved must move there as well."""
    page = OVERVIEW if name in COMMON else PAGES[name]
    rows = {row["path"]: row["value"].strip() for row in ROW.finditer(page) if row["path"].startswith(f"{name}.")}

    assert rows == {path: shown(value) for path, value in numbers(name)}


@pytest.mark.parametrize("name", ALL)
def test_the_overview_shows_the_same_numbers(name: str) -> None:
    """The first table is what most people read, and nothing else."""
    row = next(row for row in GLANCE.finditer(OVERVIEW) if row["name"] == name)
    config = getattr(DEFAULT_POLICY, name)
    assert row["pattern"] == PATTERNS[name]
    for level, cell in zip(("observe", "nudge", "break", "kill"), row["cells"].split("|"), strict=True):
        own = {field: getattr(config, field) for field in config.__struct_fields__ if field.startswith(level)}
        written = set(re.findall(r"\d[\d,]*\d|\d", cell))
        seconds = {shown(value // 1_000) for field, value in own.items() if field.endswith("_ms") and value is not None}
        main = own.get("break_at" if level == "break" else level)
        assert written <= {shown(value) for value in own.values()} | seconds
        assert main is None or shown(main) in written


def test_every_rule_has_a_row_and_a_page_that_it_links_to() -> None:
    """A link that leads nowhere is found at night."""
    rows = list(GLANCE.finditer(OVERVIEW))

    assert [row["name"] for row in rows][: len(ALL)] == list(ALL)
    assert {row["name"] for row in rows} == set(RULES) == set(PAGES)
    assert all((DOCS / row["page"]).is_file() for row in rows)


def test_links_to_the_sections_that_rules_once_had_still_lead_to_them() -> None:
    """Bookmarks, runbooks and dashboards of users point at `detectors.md#exact-repeat`."""
    anchors = {row["anchor"] for row in GLANCE.finditer(OVERVIEW)}

    assert {"exact-repeat", "same-call-changing-result", "paged-re-sweep", "parameter-walk", "budget"} <= anchors
    assert len(anchors) == len(RULES)


@pytest.mark.parametrize("name", ["detectors", "patterns", "policy", "eval", *(f"detectors/{page}" for page in PAGES)])
def test_links_between_the_pages_lead_somewhere(name: str) -> None:
    """To a file that is there, and a heading or an anchor that is in it."""
    source = DOCS / f"{name}.md"
    for target in re.findall(r"\]\((?!https?://)([^)\s]+)\)", source.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        found = (source.parent / path).resolve() if path else source
        assert found.is_file(), target
        text = found.read_text(encoding="utf-8")
        headings = {
            re.sub(r"[^\w -]", "", line.lstrip("# ")).strip().lower().replace(" ", "-")
            for line in text.splitlines()
            if line.startswith("#")
        }
        assert not anchor or anchor in headings | set(re.findall(r'<a id="([^"]+)">', text)), target


def test_what_the_pages_advise_is_a_policy() -> None:
    """Pasted into the policy file it must load."""
    text = "\n".join([OVERVIEW, *PAGES.values()])
    advice = re.findall(r"`((?:effects|agents|tools|[a-z_]+): \{[^`]+\})`", " ".join(text.split()))

    assert len(advice) >= len(RULES) / 2
    for snippet in advice:
        assert isinstance(Policy.from_builtins(yaml.safe_load(snippet)), Policy)


@pytest.mark.parametrize("name", RULES)
def test_what_a_page_offers_to_quieten_its_rule_does_so(name: str, tmp_path: Path) -> None:
    """For everybody it records; for one tool as well; for one agent it is silent until that day and not after."""
    policies = []
    for snippet in re.findall(r"```yaml\n(.*?)```", PAGES[name], re.DOTALL):
        (tmp_path / "policy.yaml").write_text(snippet, encoding="utf-8")
        policies.append(load_policy(tmp_path / "policy.yaml"))
    everywhere, *of_tool, exempt = policies

    assert everywhere.mode_of(name) == "shadow"
    assert [policy.of("acme", "").for_tool("TOOL").mode_of(name) for policy in of_tool] == ["shadow"] * len(of_tool)
    some = exempt.of("TENANT", "AGENT")
    assert (some.mode_of(name, at_ms=0), some.mode_of(name, at_ms=2_000_000_000_000)) == ("off", "warn")


def test_numbers_that_are_no_policy_are_right_too() -> None:
    """How far is looked back, and how much of a message counts."""
    assert f"among the last {KEPT_CALLS} calls" in OVERVIEW
    assert f"the first {SIGNATURE_CHARS} characters" in " ".join(PAGES["same_error"].split())
    assert DEFAULT_POLICY.mode == "warn"
