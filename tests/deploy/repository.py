"""Where the files are that these tests read."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
RUNBOOKS = ROOT / "docs" / "runbooks"
ALERTS = DEPLOY / "prometheus" / "alerts.yaml"
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "fleet.json"


def load_yaml(path: Path) -> Any:
    """Return a YAML file, anchors resolved."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def alert_rules() -> list[dict[str, Any]]:
    """Return the alert rules, in order."""
    return [rule for group in load_yaml(ALERTS)["groups"] for rule in group["rules"]]


def tool(name: str) -> str:
    """Return the path of `promtool` or `prometheus`; skip the test without it, unless it is required."""
    path = shutil.which(name)
    if path is None:
        message = f"{name} is not installed (on Debian: package prometheus)"
        if os.environ.get("LOOPWARDEN_TEST_REQUIRE_PROMTOOL") == "1":
            pytest.fail(message)
        pytest.skip(message)
    return path
