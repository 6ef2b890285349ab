"""The series of a worker's metrics: created once, kept by their labels, and bounded whatever comes from outside."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector
from prometheus_client.exposition import choose_encoder

from loopwarden import __version__
from loopwarden_detectors.tool_fleet import RULES
from loopwarden_detectors.watch import DETECTORS
from loopwarden_streams import metric_catalogue as of
from loopwarden_streams import metric_intake as intake
from loopwarden_streams.metric_labels import OTHER, LabelFold
from loopwarden_streams.metric_spec import MetricSpec, Registry

MAX_TENANTS: Final = 200
MAX_TOOLS: Final = 50
# How often names go to whom is more active. Long enough for a rate over it to mean something. judgement
RERANK_SECONDS: Final = 600.0

M = TypeVar("M", Counter, Gauge, Histogram, Info)


class Series:
    """All series of one worker, in a registry of their own.

    Children are looked up once and kept, so a change costs a lookup in a dict and an addition under a lock, about a
    microsecond. On the hot path call once per batch, with sums.

    Attributes:
        registry: What a scrape renders. It leaves out the time of creation that the client library would add to every
            counter and histogram, which doubles the series and answers nothing that anybody asks.
    """

    def __init__(
        self,
        *,
        version: str = __version__,
        tenants: Iterable[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create every metric.

        Args:
            version: For `loopwarden_build_info`.
            tenants: Tenants that keep their name however quiet they are.
            clock: Seconds, monotonic.
        """
        self.registry: CollectorRegistry = Registry()
        self._clock = clock
        self._tenants = LabelFold(MAX_TENANTS, tenants)
        self._tools: dict[str, LabelFold] = {}
        self._reranked = clock()
        self._parents: dict[MetricSpec[Any], Any] = {spec: spec.create(self.registry) for spec in of.CATALOGUE}
        self._children: dict[MetricSpec[Any], dict[tuple[str, ...], Any]] = {spec: {} for spec in of.CATALOGUE}
        for spec, values in of.CLOSED:
            for value in values:
                self._child(spec, value)
        for detector in RULES:
            self._child(of.DETECTION_LATENCY, detector)
        self._child(of.BUILD).info({"version": version})
        ProcessCollector(registry=self.registry)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return the scrape and its content type.

        Args:
            accept: The request's Accept header; with it the scraper may choose OpenMetrics.

        Cost: about 20 µs a series, a quarter of a second near the bounds: run it in a thread.
        """
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    # Children and their bounds.

    def _child(self, spec: MetricSpec[M], *labels: str) -> M:
        known = self._children[spec]
        child = known.get(labels)
        if child is None:
            parent = self._parents[spec]
            child = known[labels] = parent.labels(*labels) if labels else parent
        return cast("M", child)

    def _remove(self, spec: MetricSpec[Any], is_gone: Callable[[tuple[str, ...]], bool]) -> None:
        known = self._children[spec]
        for labels in [labels for labels in known if is_gone(labels)]:
            del known[labels]
            self._parents[spec].remove(*labels)

    def _tenant(self, tenant: str, weight: int = 1) -> str:
        name = self._tenants.fold(tenant, weight)
        if name not in self._tools:
            self._tools[name] = LabelFold(0 if name == OTHER else MAX_TOOLS)
            # As for closed labels: the first kill, and the first step after one, must be visible as an increase.
            self._child(of.STEPS_AFTER_KILL, name)
            for detector in DETECTORS:
                self._child(of.COMMANDS, name, "kill_run", "enforce", detector)
        if name == OTHER and weight:
            self._child(of.LABEL_OVERFLOW, "tenant").inc()
        return name

    def _tool(self, tenant: str, tool: str, weight: int) -> str:
        name = self._tools[tenant].fold(tool, weight)
        if name == OTHER:
            self._child(of.LABEL_OVERFLOW, "tool").inc()
        return name

    def _closed(self, label: str, value: str, known: tuple[str, ...]) -> str:
        if value in known:
            return value
        self._child(of.LABEL_OVERFLOW, label).inc()
        return OTHER

    def _rerank_if_due(self) -> None:
        now = self._clock()
        if now - self._reranked >= RERANK_SECONDS:
            self._reranked = now
            self._rerank()

    def _rerank(self) -> None:
        for tenant in self._tenants.rerank():
            self._tools.pop(tenant, None)
            for spec in of.CATALOGUE:
                if spec.labels[:1] == ("tenant",):
                    self._remove(spec, lambda labels, gone=tenant: labels[0] == gone)  # type: ignore[misc]  # mypy does not infer a lambda with a default
        for tenant, tools in self._tools.items():
            for tool in tools.rerank():
                for spec in (intake.TOOL_CALLS, of.BREAKER_TRANSITIONS):
                    self._remove(spec, lambda labels, gone=(tenant, tool): labels[:2] == gone)  # type: ignore[misc]  # as above
