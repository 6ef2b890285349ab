"""The alert rules: valid, tested both ways, about metrics that exist, and each with a page that says what to do."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from tests.deploy.promql import problems, references
from tests.deploy.repository import ALERTS, DEPLOY, RUNBOOKS, alert_rules, load_yaml, tool

from loopwarden_models.acks import ACK_STATUSES
from loopwarden_models.commands import COMMAND_TYPES
from loopwarden_models.patterns import MODES
from loopwarden_streams.metric_catalogue import HoleKind

RULES = alert_rules()
NAMES = sorted({rule["alert"] for rule in RULES})
TESTS = DEPLOY / "prometheus" / "tests" / "alerts_test.yaml"
SEVERITIES = {"critical", "warning", "none"}
# Values that a matcher may ask for, where the set is closed.
CLOSED: dict[str, set[str]] = {
    "type": set(COMMAND_TYPES),
    "mode": set(MODES),
    "status": set(ACK_STATUSES),
    "kind": set(get_args(HoleKind)),
    "job": {"loopwarden"},
}


def expressions(rule: dict[str, Any]) -> Iterator[str]:
    """Yield the expression of a rule, and the queries in the templates of its annotations."""
    yield rule["expr"]
    for text in rule["annotations"].values():
        for query in re.findall(r"printf\s+`([^`]*)`", text):
            yield query.replace("%s", "acme")


def check_with_promtool(*arguments: str) -> None:
    """Run promtool and show what it says if it complains."""
    done = subprocess.run([tool("promtool"), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_accepts_the_configuration_and_the_rules() -> None:
    """Syntax, and files that it names."""
    check_with_promtool("check", "config", str(DEPLOY / "prometheus" / "prometheus.yml"))
    check_with_promtool("check", "rules", str(ALERTS))


def test_alerts_fire_when_they_must_and_only_then() -> None:
    """The series are in `deploy/prometheus/tests/alerts_test.yaml`."""
    check_with_promtool("test", "rules", str(TESTS))


@pytest.mark.parametrize("name", NAMES)
def test_each_alert_is_tested_both_ways(name: str) -> None:
    """Once with series that fire it, once with series that do not; for every cause where it has several."""
    cases = [
        case for test in load_yaml(TESTS)["tests"] for case in test["alert_rule_test"] if case["alertname"] == name
    ]
    fired = [alert["exp_labels"] for case in cases for alert in case["exp_alerts"]]

    assert fired
    if name != "LoopwardenDeadMan":
        assert [case for case in cases if not case["exp_alerts"]]
    for rule in RULES:
        if rule["alert"] == name:
            assert any(rule["labels"].items() <= labels.items() for labels in fired), rule["labels"]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_each_rule_asks_for_what_a_worker_has(rule: dict[str, Any]) -> None:
    """Names, labels, and values out of closed sets. A rule about a metric that was renamed is silent for ever."""
    for expression in expressions(rule):
        assert list(problems(expression)) == []
        for selector in references(expression).selectors:
            for label, text in selector.matchers:
                if label in CLOSED:
                    assert set(text.split("|")) <= CLOSED[label], text


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_each_rule_says_how_bad_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    """Severity, one line that says what, a text that says what to do, and the page."""
    annotations = rule["annotations"]

    assert rule["labels"]["severity"] in SEVERITIES
    assert annotations.keys() == {"summary", "description", "runbook_url"}
    assert annotations["summary"].endswith(".")
    assert len(annotations["description"]) > 40
    assert annotations["runbook_url"] == f"docs/runbooks/{rule['alert']}.md"
    assert (RUNBOOKS / f"{rule['alert']}.md").is_file()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_summary_names_only_labels_that_its_alert_has(rule: dict[str, Any]) -> None:
    """A label that is not there prints as nothing."""
    used = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
    kept = references(rule["expr"]).grouping | rule["labels"].keys()

    assert used <= kept


def test_rules_of_one_name_differ_in_their_labels() -> None:
    """Else the Alertmanager takes them for one."""
    identities = [(rule["alert"], tuple(sorted(rule["labels"].items()))) for rule in RULES]
    assert len(set(identities)) == len(identities)
