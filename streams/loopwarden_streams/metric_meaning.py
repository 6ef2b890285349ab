"""The metrics of the models of texts: a part of `metric_catalogue`."""

from __future__ import annotations

from typing import Final, Literal

from prometheus_client import Counter, Gauge, Histogram

from loopwarden_streams.metric_spec import metric

Tier = Literal["static", "confirm"]
Missed = Literal["late", "full", "down"]

EMBEDDING_UP = metric(
    Gauge,
    "embedding_up",
    "kind",
    "1",
    "1 where a model of texts is loaded: `static` finds what repeats in meaning, `confirm` confirms it.",
    "0 where it should be 1: its log line says what is missing; all other rules work (docs/semantic.md).",
)
EMBEDDING_TEXTS = metric(
    Counter,
    "embedding_texts_total",
    "kind",
    "texts",
    "Texts that a model was asked about and answered; repeated ones are remembered and not asked again.",
    "More than one `static` text for ten steps: agents that talk more than they act, or a tenant that sends prose.",
)
EMBEDDING_SECONDS = metric(
    Histogram,
    "embedding_seconds",
    "",
    "seconds",
    "From the moment a text is handed to the confirming model until its vector is there.",
    "Near 2 s: the model does not keep up, and what it does not answer in time counts as not confirmed.",
    (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0),
)
EMBEDDING_LATE = metric(
    Counter,
    "embedding_late_total",
    "kind",
    "texts",
    "Texts without a confirmation: answered too late, not handed over because too many wait, or no model is up.",
    "Growth: meaning alone ends no run meanwhile; give the worker a core more, or a smaller model.",
)
TIERS: Final[tuple[Tier, ...]] = ("static", "confirm")
