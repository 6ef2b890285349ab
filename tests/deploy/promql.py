"""What a PromQL expression refers to: a small reader, enough for the rules and the dashboard of this repository.

Whether an expression is valid is for Prometheus to say; here it is only asked which series and labels it needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from prometheus_client import Histogram

from loopwarden_streams.metric_catalogue import CATALOGUE

# What the scrape adds to every series.
TARGET_LABELS = frozenset({"job", "instance"})
# What `ProcessCollector` adds to the registry.
PROCESS_METRICS = frozenset(
    {
        "process_cpu_seconds_total",
        "process_max_fds",
        "process_open_fds",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
        "process_virtual_memory_bytes",
    }
)
_WORDS = frozenset({"and", "or", "unless", "offset", "bool", "atan2", "inf", "nan"})

_SELECTOR = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)\s*\{(?P<matchers>[^{}]*)\}")
_MATCHER = re.compile(r'(?P<label>\w+)\s*(?:=~|!~|!=|=)\s*"(?P<value>[^"]*)"')
_GROUPING = re.compile(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^()]*)\)")
_WINDOW = re.compile(r"\[[^\]]*\]")
_WORD = re.compile(r"(?<![\w.$])(?P<word>[a-zA-Z_:][\w:]*)\s*(?P<call>\()?")


class Selector(NamedTuple):
    """One series selector: the name of the metric, and its matchers as (label, value)."""

    name: str
    matchers: tuple[tuple[str, str], ...]


class References(NamedTuple):
    """All that an expression refers to: selectors, and the labels that it groups or joins by."""

    selectors: tuple[Selector, ...]
    grouping: frozenset[str]


def references(expression: str) -> References:
    """Return what `expression` refers to."""
    rest = _WINDOW.sub(" ", expression)
    grouping = {label.strip() for labels in _GROUPING.findall(rest) for label in labels.split(",") if label.strip()}
    rest = _GROUPING.sub(" ", rest)
    selectors = [
        Selector(found["name"], tuple(_MATCHER.findall(found["matchers"]))) for found in _SELECTOR.finditer(rest)
    ]
    rest = re.sub(r'"[^"]*"', " ", _SELECTOR.sub(" ", rest))
    selectors += [
        Selector(found["word"], ())
        for found in _WORD.finditer(rest)
        if not found["call"] and found["word"] not in _WORDS
    ]
    return References(tuple(selectors), frozenset(grouping))


def series() -> dict[str, frozenset[str]]:
    """Return the labels of every series of a worker's registry, by name, those of the target included."""
    found = dict.fromkeys(PROCESS_METRICS, TARGET_LABELS)
    for spec in CATALOGUE:
        labels = frozenset(spec.scraped_labels) | TARGET_LABELS
        if spec.kind is Histogram:
            found[f"{spec.name}_bucket"] = labels | {"le"}
            found[f"{spec.name}_sum"] = found[f"{spec.name}_count"] = labels
        else:
            found[spec.name] = labels
    return found


def problems(expression: str) -> Iterable[str]:
    """Yield what `expression` refers to and no worker has."""
    known = series()
    refers = references(expression)
    available: set[str] = set()
    for selector in refers.selectors:
        labels = known.get(selector.name)
        if labels is None:
            yield f"{selector.name} is not in the registry"
            continue
        available |= labels
        for label, _ in selector.matchers:
            if label not in labels:
                yield f"{selector.name} has no label {label}"
    for label in refers.grouping - available:
        yield f"none of the series has the label {label}"
