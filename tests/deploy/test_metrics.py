"""The registry: what it exports, that it stays small whatever comes from outside, and that its table is published."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator

import pytest
from prometheus_client import Info
from prometheus_client.parser import text_string_to_metric_families
from tests.deploy.promql import PROCESS_METRICS, series
from tests.deploy.repository import ROOT, tool
from tests.deploy.traffic import fill, verdict

from loopwarden import __version__
from loopwarden_detectors.watch import DETECTORS
from loopwarden_streams.metric_catalogue import CATALOGUE
from loopwarden_streams.metric_labels import OTHER, LabelFold
from loopwarden_streams.metric_page import to_markdown
from loopwarden_streams.metric_series import MAX_TENANTS, MAX_TOOLS, RERANK_SECONDS
from loopwarden_streams.metrics import Metrics

ALLOWED_LABELS = {
    "detector",
    "kind",
    "label",
    "level",
    "limit",
    "mode",
    "outcome",
    "partition",
    "reason",
    "source",
    "state",
    "status",
    "table",
    "tenant",
    "to",
    "tool",
    "topic",
    "type",
    "version",
}


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    """Return one sample, `None` if the series does not exist."""
    return metrics.registry.get_sample_value(f"loopwarden_{name}", labels)


def scraped(metrics: Metrics) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield every sample of a scrape."""
    body, _ = metrics.render()
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


# What is exported.


def test_every_series_is_in_the_catalogue_and_moves() -> None:
    """What a scrape shows is what the table promises: no series more, none less, and none that nothing can move."""
    metrics = Metrics()
    fill(metrics)
    samples = list(scraped(metrics))

    known = series()
    ours = known.keys() - PROCESS_METRICS
    assert {name for name, _, _ in samples} - PROCESS_METRICS == ours
    assert {name for name, _, number in samples if number > 0} - PROCESS_METRICS == ours
    for name, labels, _ in samples:
        assert set(labels) <= known[name], name


def test_no_label_can_hold_what_has_no_bound() -> None:
    """Runs, users, arguments and error texts are in the log and in the verdicts, never in a label."""
    assert {label for spec in CATALOGUE for label in spec.scraped_labels} == ALLOWED_LABELS


def test_names_follow_the_conventions() -> None:
    """Prefix, base units, `_total` for counters alone; each entry says what it means and what to do."""
    for spec in CATALOGUE:
        assert spec.name.startswith("loopwarden_")
        assert spec.name.endswith("_total") == (spec.kind.__name__ == "Counter"), spec.name
        assert spec.name.endswith("_info") == (spec.kind is Info), spec.name
        assert not spec.name.endswith(("_ms", "_milliseconds", "_minutes", "_kb", "_percent")), spec.name
        for text in (spec.meaning, spec.remedy):
            assert text[-1] == ".", spec.name
            assert len(text) >= 20, spec.name
        if spec.buckets:
            assert list(spec.buckets) == sorted(set(spec.buckets)), spec.name


def test_promtool_finds_nothing_to_say_about_a_scrape() -> None:
    """The linter of Prometheus: help texts, units, suffixes."""
    metrics = Metrics()
    fill(metrics)
    body, content_type = metrics.render()

    done = subprocess.run([tool("promtool"), "check", "metrics"], input=body, capture_output=True, check=False)
    complaints = [line for line in (done.stdout + done.stderr).decode().splitlines() if "process_" not in line]
    assert complaints == []
    assert content_type.startswith("text/plain")


def test_a_scraper_may_ask_for_openmetrics() -> None:
    """Prometheus prefers it; the text ends with its end mark, and holds no time of creation."""
    metrics = Metrics(version="1.2.3")
    body, content_type = metrics.render("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")

    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
    assert b'loopwarden_build_info{version="1.2.3"} 1.0' in body
    assert b"_created" not in body
    assert value(Metrics(), "build_info", version=__version__) == 1


def test_only_one_module_creates_metrics() -> None:
    """A metric that is created elsewhere would be in no table, no dashboard and no test."""
    importers = set()
    for path in (ROOT / "streams").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if any(name.split(".")[0] == "prometheus_client" for name in names):
                importers.add(path.name)

    assert importers == {
        "metric_catalogue.py",
        "metric_intake.py",
        "metric_meaning.py",
        "metric_policy.py",
        "metric_questions.py",
        "metric_series.py",
        "metric_spec.py",
        "metrics.py",
    }


def test_the_published_table_is_up_to_date() -> None:
    """If this fails: `python -m loopwarden_streams.metric_page > docs/metrics.md`."""
    assert (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8") == to_markdown()


def test_two_workers_in_one_process_do_not_share_anything() -> None:
    """Tests and the demo run several."""
    one, other = Metrics(), Metrics()
    one.count_dead_letter("not_json")

    assert value(one, "dead_letters_total", reason="not_json") == 1
    assert value(other, "dead_letters_total", reason="not_json") == 0


# Bounds.


def test_a_thousand_tenants_and_two_hundred_tools_stay_within_the_bounds() -> None:
    """The limits hold for series, the sums stay exact, and what was folded is counted."""
    metrics = Metrics()
    for tenant in range(1_000):
        metrics.count_steps(f"tenant-{tenant}", 1)
        metrics.count_tool_calls({(f"tenant-{tenant}", f"tool-{tool}"): 1 for tool in range(200)})
    samples = list(scraped(metrics))

    calls = [(labels, number) for name, labels, number in samples if name == "loopwarden_tool_calls_total"]
    assert len(calls) == MAX_TENANTS * (MAX_TOOLS + 1) + 1
    assert sum(number for _, number in calls) == 200_000
    assert len({labels["tenant"] for labels, _ in calls}) == MAX_TENANTS + 1
    assert value(metrics, "steps_consumed_total", tenant=OTHER, source="runtime") == 800
    assert value(metrics, "label_overflow_total", label="tenant") == 800 + 800 * 200
    assert value(metrics, "label_overflow_total", label="tool") == 200 * 150 + 800 * 200
    assert len(samples) < 17_000


def test_names_go_to_who_is_most_active_and_the_series_of_the_others_end() -> None:
    """A tenant that arrives late and works hard gets a name; who fell silent loses it, with all its series."""
    clock = Clock()
    metrics = Metrics(clock=clock)
    for tenant in range(MAX_TENANTS):
        metrics.count_steps(f"tenant-{tenant}", 1 if tenant == 7 else 100)
        metrics.count_tool_calls({(f"tenant-{tenant}", "search"): 1})
    metrics.count_steps("late", 50)
    assert value(metrics, "steps_consumed_total", tenant="late", source="runtime") is None

    clock.now += RERANK_SECONDS
    metrics.count_steps("late", 5)

    assert value(metrics, "steps_consumed_total", tenant="late", source="runtime") == 5
    assert not [name for name, labels, _ in scraped(metrics) if labels.get("tenant") == "tenant-7"]
    assert value(metrics, "steps_consumed_total", tenant="tenant-8", source="runtime") == 100
    # Back again, it is one of the others, until it is busy enough; then it starts afresh, as any new tenant does.
    metrics.count_steps("tenant-7", 3)
    assert value(metrics, "steps_consumed_total", tenant=OTHER, source="runtime") == 53
    clock.now += RERANK_SECONDS
    metrics.count_steps("late", 1)
    metrics.count_steps("tenant-7", 4)
    assert value(metrics, "steps_consumed_total", tenant="tenant-7", source="runtime") == 4
    assert value(metrics, "steps_after_kill_total", tenant="tenant-7") == 0


def test_tools_of_one_tenant_are_exchanged_likewise() -> None:
    """The fifty-first tool of a tenant gets a name once it is far busier than one of the fifty."""
    clock = Clock()
    metrics = Metrics(clock=clock)
    for tool_number in range(MAX_TOOLS):
        metrics.count_tool_calls({("acme", f"tool-{tool_number}"): 1 if tool_number == 3 else 10})
    metrics.count_tool_calls({("acme", "late"): 30})
    assert value(metrics, "tool_calls_total", tenant="acme", tool=OTHER) == 30

    clock.now += RERANK_SECONDS
    metrics.count_steps("acme", 1)
    metrics.count_tool_calls({("acme", "late"): 2})

    assert value(metrics, "tool_calls_total", tenant="acme", tool="late") == 2
    assert value(metrics, "tool_calls_total", tenant="acme", tool="tool-3") is None


def test_a_tenant_on_the_list_keeps_its_name_without_any_traffic() -> None:
    """The allow-list comes first, however loud the others are."""
    clock = Clock()
    metrics = Metrics(tenants=["vip"], clock=clock)
    for tenant in range(MAX_TENANTS + 50):
        metrics.count_steps(f"tenant-{tenant}", 1_000)
    clock.now += RERANK_SECONDS
    metrics.count_steps("tenant-0", 1)

    metrics.count_steps("vip", 1)
    assert value(metrics, "steps_consumed_total", tenant="vip", source="runtime") == 1


def test_near_equals_do_not_exchange_names_for_ever() -> None:
    """Every exchange breaks two series, so a name is lost only to who is more than twice as active."""
    fold = LabelFold(1)
    assert fold.fold("a", 10) == "a"
    assert fold.fold("b", 20) == OTHER
    assert fold.rerank() == []

    # Each period counts by itself: activity outside does not add up until it wins.
    fold.fold("a", 10)
    fold.fold("b", 15)
    assert fold.rerank() == []

    fold.fold("a", 10)
    fold.fold("b", 21)
    assert fold.rerank() == ["a"]
    assert fold.fold("b") == "b"


def test_a_value_that_is_called_other_takes_no_name() -> None:
    """Nobody can hide the tail by calling themselves `_other`."""
    fold = LabelFold(2)
    assert [fold.fold(OTHER), fold.fold("a"), fold.fold("b"), fold.fold("c")] == [OTHER, "a", "b", OTHER]


def test_what_waits_for_a_name_is_bounded_too() -> None:
    """A flood of names that never come again must not fill the memory."""
    fold = LabelFold(10)
    for number in range(100_000):
        fold.fold(f"value-{number}")
    assert len(fold._inside) + len(fold._outside) <= 50


def test_a_flood_of_names_does_not_hide_who_is_active() -> None:
    """Tenants that are made up, each seen once, before and between what the newcomer does."""
    fold = LabelFold(10)
    for number in range(1_000):
        fold.fold(f"made-up-{number}")
        if number >= 500:
            fold.fold("newcomer", 2)
    fold.rerank()

    assert fold.fold("newcomer") == "newcomer"


def test_values_out_of_a_closed_set_are_folded() -> None:
    """An acknowledgement's status comes from the wire: any text."""
    metrics = Metrics()
    metrics.count_ack("applied", 250.0)
    metrics.count_ack("applied")
    metrics.count_ack("received", 3.0)
    metrics.count_ack("melted")
    metrics.count_dead_letter("something new")

    assert value(metrics, "command_acks_total", status="applied") == 2
    assert value(metrics, "command_acks_total", status=OTHER) == 1
    assert value(metrics, "command_latency_seconds_sum") == 0.25
    assert value(metrics, "dead_letters_total", reason=OTHER) == 1
    assert value(metrics, "label_overflow_total", label="status") == 1
    assert value(metrics, "label_overflow_total", label="reason") == 1


# Meaning.


def test_a_breaker_that_closed_has_no_series() -> None:
    """The numbers are fixed for ever; closed is no number but the end of the series, or they would grow for ever."""
    metrics = Metrics()
    states = ("open", "half_open", "forced_open", "disabled", "observe_only")
    metrics.set_breakers({("acme", state): state for state in states})
    numbers = [value(metrics, "breaker_state", tenant="acme", tool=state) for state in states]
    metrics.set_breakers({("acme", "open"): "half_open"})

    assert numbers == [1, 2, 3, 4, 5]
    assert value(metrics, "breaker_state", tenant="acme", tool="open") == 2
    assert value(metrics, "breaker_state", tenant="acme", tool="disabled") is None


def test_first_kills_and_first_steps_after_them_are_visible_as_an_increase() -> None:
    """Prometheus sees no increase from nothing to 1, so both series exist, at 0, from a tenant's first step."""
    metrics = Metrics()
    metrics.count_steps("acme", 1)

    assert value(metrics, "steps_after_kill_total", tenant="acme") == 0
    for detector in DETECTORS:
        kills = {"tenant": "acme", "type": "kill_run", "mode": "enforce", "reason": detector}
        assert value(metrics, "commands_total", **kills) == 0


@pytest.mark.parametrize(
    ("level", "mode", "episode", "detected", "would_have"),
    [
        ("kill", "enforce", 1, 1, 0),
        ("kill", "warn", 1, 1, 1),
        ("nudge", "warn", 1, 1, 0),
        ("nudge", "shadow", 1, 1, 1),
        ("observe", "shadow", 1, 0, 0),
        ("kill", "enforce", 0, 0, 0),  # announces a command; its loop was counted when it was found
    ],
)
def test_a_verdict_counts_as_loop_and_as_what_the_mode_prevented(
    level: str, mode: str, episode: int, detected: int, would_have: int
) -> None:
    """`would_have` is the list to review before enforcing: all of shadow, and what warn holds back."""
    metrics = Metrics()
    metrics.count_verdict(verdict(level=level, mode=mode, episode=episode))  # type: ignore[arg-type]  # from the table above

    labels = {"tenant": "acme", "detector": "cycle", "level": level}
    assert (value(metrics, "loops_detected_total", **labels) or 0) == detected
    assert (value(metrics, "would_have_total", **labels) or 0) == would_have
    assert value(metrics, "vetoes_total", tenant="acme", detector="cycle") is None


def test_a_verdict_that_progress_lowered_counts_as_a_veto() -> None:
    """However it ends: the finding was there."""
    metrics = Metrics()
    metrics.count_verdict(verdict(level="nudge", vetoed_from="kill"))

    assert value(metrics, "vetoes_total", tenant="acme", detector="cycle") == 1


def test_series_of_a_partition_end_when_the_worker_loses_it() -> None:
    """A lag that nobody updates any more would raise alerts for ever."""
    metrics = Metrics()
    metrics.set_owned([0, 1])
    for partition in (0, 1):
        metrics.set_lag("loopwarden.steps", partition, records=9, commit_age_seconds=2.0)
        metrics.set_broken("loopwarden.steps", partition, is_broken=True)

    metrics.set_owned([1])

    lost = {"topic": "loopwarden.steps", "partition": "0"}
    kept = {"topic": "loopwarden.steps", "partition": "1"}
    for name in ("consumer_lag_records", "commit_age_seconds", "broken_stream"):
        assert value(metrics, name, **lost) is None, name
        assert value(metrics, name, **kept) is not None, name
    assert value(metrics, "partition_owned", partition="0") is None
    assert value(metrics, "partition_owned", partition="1") == 1


def test_a_tenant_without_runs_has_no_series_of_them() -> None:
    """Gauges of yesterday's tenants would pile up."""
    metrics = Metrics()
    metrics.set_active_runs({"acme": 4, "umbrella": 1})
    metrics.set_active_runs({"acme": 5})

    assert value(metrics, "active_runs", tenant="acme") == 5
    assert value(metrics, "active_runs", tenant="umbrella") is None


def test_runs_of_the_tail_are_added_up() -> None:
    """The gauge of `_other` is a sum, not the last of many."""
    metrics = Metrics()
    metrics.set_active_runs({f"tenant-{tenant}": 2 for tenant in range(MAX_TENANTS + 10)})

    assert value(metrics, "active_runs", tenant=OTHER) == 20
    assert value(metrics, "label_overflow_total", label="tenant") == 0


@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
def test_process_metrics_are_there() -> None:
    """The dashboard shows processor time and memory of each worker."""
    assert {name for name, _, _ in scraped(Metrics())} >= PROCESS_METRICS


def test_a_clock_that_runs_ahead_counts_as_no_delay() -> None:
    """A negative latency would be subtracted from the sum."""
    metrics = Metrics()
    metrics.observe_step_lag(-3.0)
    metrics.observe_detection("cycle", -3.0)

    assert value(metrics, "step_lag_seconds_sum") == 0
    assert value(metrics, "detection_latency_seconds_sum", detector="cycle") == 0
