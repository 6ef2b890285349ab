"""The metrics of what runs are judged by: a part of `metric_catalogue`."""

from __future__ import annotations

from typing import Literal

from prometheus_client import Counter, Gauge

from loopwarden_streams.metric_spec import metric

PolicyChange = Literal["applied", "refused"]

POLICY_IN_FORCE = metric(
    Gauge,
    "policy_in_force",
    "tenant version",
    "1",
    "1 for the version that is in force for all (tenant `*`), and for each tenant with a document of its own.",
    "Two versions of one tenant over all workers, for long: one of them cannot read the topic, see its log.",
)
POLICIES_REFUSED = metric(
    Gauge,
    "policies_refused",
    "",
    "documents",
    "Policy documents on the topic that are not in force, because they are wrong.",
    "Not 0: somebody believes in a policy that nobody judges by, see LoopwardenPolicyRefused.",
)
POLICY_CHANGES = metric(
    Counter,
    "policy_changes_total",
    "kind",
    "changes",
    "Changes of the topic of policies that took effect, or that held something to refuse.",
    "A jump of the loops found right after one: look at what changed, `loopwarden policy diff`.",
)
ENFORCING = metric(
    Gauge,
    "enforcing",
    "",
    "0 or 1",
    "0 while a person has the big switch off: every command is a noop, every breaker advice.",
    "0 for long: somebody forgot it, see LoopwardenEnforcementDisabled.",
)
