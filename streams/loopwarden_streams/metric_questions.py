"""The metrics of what people are asked: a part of `metric_catalogue`."""

from __future__ import annotations

from typing import Literal

from prometheus_client import Counter, Gauge

from loopwarden_streams.metric_spec import metric

QuestionStatus = Literal["open", "answered", "approved", "rejected", "expired"]
WebhookFailure = Literal["refused", "unreachable", "dropped"]

QUESTIONS_OPEN = metric(
    Gauge,
    "questions_open",
    "tenant",
    "questions",
    "Questions that wait for a person, of the tenants that this worker tells of.",
    "Growth: nobody answers, or a rule pauses too much; `loopwarden approvals list`.",
)
QUESTION_OLDEST = metric(
    Gauge,
    "question_oldest_seconds",
    "",
    "seconds",
    "How long the oldest of them has waited; 0 without any.",
    "Minutes: nobody looks, see LoopwardenQuestionsUnanswered.",
)
QUESTIONS = metric(
    Counter,
    "question_events_total",
    "status",
    "questions",
    "Questions that were opened and answered, and how they ended.",
    "Many expired: people are asked who are not there, or told too late.",
)
WEBHOOKS = metric(
    Counter,
    "webhooks_sent_total",
    "",
    "requests",
    "Events that an address took.",
    "Flat while questions are opened: no address is set for the tenant, or it fails.",
)
WEBHOOK_FAILURES = metric(
    Counter,
    "webhook_failures_total",
    "reason",
    "events",
    "Events that were given up: refused by the address, unreachable, or dropped because too many wait.",
    "Not 0: people are not told; the log names the tenant and the status.",
)
