"""What a metric is: its name, its labels, what it means and what to do when it moves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.metrics_core import Metric

M = TypeVar("M", Counter, Gauge, Histogram, Info)


@dataclass(frozen=True, eq=False)
class MetricSpec(Generic[M]):
    """One metric.

    Attributes:
        kind: Class of the client library.
        name: As it is scraped, with the suffix of its kind.
        labels: Names of its labels.
        unit: Of one unit of its value.
        meaning: What is counted or measured, as a sentence.
        remedy: What to do when it moves, as a sentence.
        buckets: Upper bounds, for a histogram.
    """

    kind: type[M]
    name: str
    labels: tuple[str, ...]
    unit: str
    meaning: str
    remedy: str
    buckets: tuple[float, ...] = ()

    @property
    def scraped_labels(self) -> tuple[str, ...]:
        """Names of the labels as they are scraped, without `le`."""
        return ("version",) if self.kind is Info else self.labels

    def create(self, registry: CollectorRegistry) -> M:
        """Create the metric in `registry`; the help text says what it means and what to do."""
        more: dict[str, Any] = {"buckets": self.buckets} if self.buckets else {}
        name = self.name.removesuffix("_info") if self.kind is Info else self.name
        return self.kind(name, f"{self.meaning} {self.remedy}", self.labels, registry=registry, **more)


class Registry(CollectorRegistry):
    """Metrics without the times at which their series were made."""

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        for metric in super().collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


# By whoever declares them.
DECLARED: Final[list[MetricSpec[Any]]] = []


def metric(
    kind: type[M], name: str, labels: str, unit: str, meaning: str, remedy: str, buckets: tuple[float, ...] = ()
) -> MetricSpec[M]:
    """Declare a metric, named without the prefix, its labels in one text, and put it into the catalogue."""
    spec = MetricSpec(kind, f"loopwarden_{name}", tuple(labels.split()), unit, meaning, remedy, buckets)
    DECLARED.append(spec)
    return spec
