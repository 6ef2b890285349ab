"""The reader that the other tests of this folder rely on."""

from __future__ import annotations

from tests.deploy.promql import Selector, problems, references


def test_selectors_and_groupings_are_found_and_functions_are_not() -> None:
    """Names with and without matchers, inside functions, joins, windows and comparisons."""
    refers = references(
        'topk(3, sum by (tenant, tool) (rate(a_total{tenant=~"$tenant", tool!=""}[$__rate_interval])) * 60) > 1e3'
        " and on (tenant) (b offset 5m unless c) or vector(1)"
    )

    assert refers.selectors == (
        Selector("a_total", (("tenant", "$tenant"), ("tool", ""))),
        Selector("b", ()),
        Selector("c", ()),
    )
    assert refers.grouping == {"tenant", "tool"}


def test_what_no_worker_has_is_named() -> None:
    """A metric, a label in a matcher and a label in a grouping: each is a mistake of its own."""
    assert list(problems("sum(loopwarden_stepz_total)")) == ["loopwarden_stepz_total is not in the registry"]
    assert list(problems('loopwarden_tool_calls_total{run="r"}')) == ["loopwarden_tool_calls_total has no label run"]
    assert list(problems("sum by (user) (loopwarden_tool_calls_total)")) == ["none of the series has the label user"]
    assert list(problems("sum by (le) (rate(loopwarden_snapshot_bytes_bucket[5m]))")) == []
    assert list(problems("loopwarden_snapshot_bytes")) == ["loopwarden_snapshot_bytes is not in the registry"]
