"""The dashboard: well formed, about metrics that exist, and every query answers on a real Prometheus."""

from __future__ import annotations

import contextlib
import json
import math
import re
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy.promql import TARGET_LABELS, problems, references, series
from tests.deploy.repository import ALERTS, DASHBOARD, DEPLOY, alert_rules, load_yaml, tool
from tests.deploy.traffic import fill

from loopwarden_streams.metrics import Metrics

BOARD: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
ROWS = [panel for panel in BOARD["panels"] if panel["type"] == "row"]
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
TARGETS = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
COLUMNS = 24


def test_ids_are_unique_and_stable() -> None:
    """Links and bookmarks point at the uid; two panels with one id break editing."""
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)
    assert BOARD["uid"] == "loopwarden-fleet"
    titles = [panel["title"] for panel in BOARD["panels"]]
    assert len(set(titles)) == len(titles)


def test_panels_do_not_overlap_and_leave_no_holes() -> None:
    """Each cell of the grid, down to the last panel, belongs to exactly one."""
    cells: dict[tuple[int, int], str] = {}
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in cells, f"{panel['title']} lies on {cells.get((x, y))}"
                cells[x, y] = panel["title"]
    height = max(y for _, y in cells) + 1

    assert len(cells) == COLUMNS * height


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_each_panel_says_what_it_shows_and_what_to_do(panel: dict[str, Any]) -> None:
    """A unit, a description, thresholds, the chosen data source, and a name for each line."""
    defaults = panel["fieldConfig"]["defaults"]
    assert defaults["unit"]
    assert defaults["thresholds"]["steps"][0]["value"] is None
    assert len(panel["description"]) > 40
    assert panel["datasource"]["uid"] == "${datasource}"
    refs = [target["refId"] for target in panel["targets"]]
    assert len(set(refs)) == len(refs)
    for target in panel["targets"]:
        assert target["legendFormat"]
        assert target["datasource"]["uid"] == "${datasource}"


@pytest.mark.parametrize(("title", "expression"), TARGETS)
def test_each_query_asks_for_what_a_worker_has(title: str, expression: str) -> None:
    """Metrics and labels exist, and the chosen tenants bind wherever there are tenants."""
    assert list(problems(expression)) == [], title
    for selector in references(expression).selectors:
        if "tenant" in series()[selector.name]:
            assert ("tenant", "$tenant") in selector.matchers, selector.name


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_each_name_of_a_line_is_made_of_labels_that_the_result_has(panel: dict[str, Any]) -> None:
    """A label that is not there prints as nothing."""
    for target in panel["targets"]:
        refers = references(target["expr"])
        kept = set(refers.grouping)
        if not refers.grouping and not re.match(r"(sum|max|count)\b", target["expr"]):
            kept |= TARGET_LABELS
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= kept


def test_every_metric_is_shown_somewhere() -> None:
    """A metric that nobody looks at is a cost without a use."""
    queries = [expression for _, expression in TARGETS] + [rule["expr"] for rule in alert_rules()]
    shown = {selector.name for query in queries for selector in references(query).selectors}
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown if name.startswith("loopwarden_")}
    every = {re.sub(r"_(bucket|sum|count)$", "", name) for name in series() if name.startswith("loopwarden_")}

    assert every - families == set()


def test_variables_and_format_are_what_grafana_reads() -> None:
    """Data source and tenant can be chosen; the schema is that of Grafana 12."""
    variables = {variable["name"]: variable for variable in BOARD["templating"]["list"]}
    assert set(variables) == {"datasource", "tenant"}
    assert variables["datasource"]["type"] == "datasource"
    tenant = variables["tenant"]
    assert tenant["includeAll"]
    assert tenant["multi"]
    assert tenant["allValue"] == ".*"
    name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", tenant["definition"]).groups()  # type: ignore[union-attr]  # a mismatch fails the test
    assert label in series()[name]
    assert BOARD["schemaVersion"] == 41
    assert BOARD["refresh"] == "15s"


# On a real Prometheus.


class _Exporter(ThreadingHTTPServer):
    """Serves the metrics of a worker whose fleet is busy: every scrape finds that everything has moved."""

    daemon_threads = True

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Exporter

    def do_GET(self) -> None:
        with self.server.lock:
            fill(self.server.metrics)
            body, content_type = self.server.metrics.render(self.headers.get("Accept", ""))
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """Say nothing."""


class Prometheus:
    """A server on a loopback port that has scraped a busy worker for some seconds."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}"

    def get(self, path: str, **query: str) -> Any:
        """Return the data of an answer of the API."""
        url = f"{self._base}{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - a server of this test
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[float]:
        """Return the values of an instant query."""
        result = self.get("/api/v1/query", query=expression)
        return [float(sample["value"][1]) for sample in result["result"]]

    def wait_for(self, expression: str, *, seconds: float) -> None:
        """Wait until a query answers with something."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                if self.query(expression):
                    return
            time.sleep(0.2)
        pytest.fail(f"Prometheus has no answer to {expression} after {seconds} s")


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Start an exporter and a Prometheus that scrapes it every second and evaluates the alert rules."""
    program = tool("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    with _Exporter() as exporter, socket.create_server(("127.0.0.1", 0)) as reserved:
        threading.Thread(target=exporter.serve_forever, daemon=True).start()
        port = reserved.getsockname()[1]
        reserved.close()
        _write_config(folder / "prometheus.yml", exporter.server_address[1])
        process = subprocess.Popen(
            [
                program,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--log.level=error",
            ],
            cwd=folder,
        )
        try:
            server = Prometheus(port)
            server.wait_for("count_over_time(loopwarden_build_info[1m]) > 5", seconds=60)
            yield server
        finally:
            process.terminate()
            process.wait(timeout=20)
            exporter.shutdown()


def _write_config(path: Path, port: int) -> None:
    config = load_yaml(DEPLOY / "prometheus" / "prometheus.yml")
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(ALERTS)]
    job = next(job for job in config["scrape_configs"] if job["job_name"] == "loopwarden")
    del job["dns_sd_configs"]
    job["static_configs"] = [{"targets": [f"127.0.0.1:{port}"]}]
    config["scrape_configs"] = [job]
    path.write_text(yaml.safe_dump(config), encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(("title", "expression"), TARGETS)
def test_each_query_answers_with_numbers(prometheus: Prometheus, title: str, expression: str) -> None:
    """As near to seeing the dashboard as one gets without a Grafana."""
    for variable, text in (("$__rate_interval", "30s"), ("$tenant", ".*")):
        expression = expression.replace(variable, text)
    values = prometheus.query(expression)

    assert values, title
    assert all(math.isfinite(value) for value in values), title


@pytest.mark.slow
def test_the_list_of_tenants_is_filled(prometheus: Prometheus) -> None:
    """The variable offers the tenants that there are."""
    assert prometheus.get("/api/v1/label/tenant/values", **{"match[]": "loopwarden_steps_consumed_total"}) == [
        "acme",
        "umbrella",
    ]


@pytest.mark.slow
def test_each_alert_rule_evaluates(prometheus: Prometheus) -> None:
    """On series as a worker exports them, not as a test writes them down."""
    prometheus.wait_for('ALERTS{alertname="LoopwardenDeadMan", alertstate="firing"}', seconds=20)
    rules = [rule for group in prometheus.get("/api/v1/rules")["groups"] for rule in group["rules"]]

    assert len(rules) == len(alert_rules())
    assert {(rule["name"], rule["health"], rule.get("lastError", "")) for rule in rules} == {
        (rule["alert"], "ok", "") for rule in alert_rules()
    }
