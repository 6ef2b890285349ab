"""Policies as data: documents laid over a file, and what is refused of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwarden_models.errors import ConfigError
from loopwarden_models.policy import DEFAULT_POLICY, Policy
from loopwarden_models.policy_version import stamp
from loopwarden_streams.policy_documents import Change, PolicyDocuments, document_version, read_document

FILE: dict[str, Any] = {
    "version": "file-1",
    "exact_repeat": {"nudge": 4, "kill": 10},
    "tenants": {"acme": {"cycle": {"kill_laps": 7}}},
}


def change(key: str, document: Any) -> Change:
    """Return a record of the topic."""
    return key.encode(), None if document is None else json.dumps(document).encode()


def documents(*changes: tuple[str, Any], mode: str = "policy") -> PolicyDocuments:
    """Return what changes, one after the other, come to over the file."""
    made = PolicyDocuments(Policy.from_builtins(FILE), mode)
    for key, document in changes:
        made.apply([change(key, document)])
    return made


def test_each_layer_wins_over_the_one_below_value_by_value() -> None:
    """File, then the document of all, then that of the tenant; what none of them names stays."""
    made = documents(
        ("*", {"exact_repeat": {"kill": 12}, "mode": "enforce"}),
        ("acme", {"mode": "warn", "exact_repeat": {"kill": 20}}),
    )
    acme, other = made.policy.of("acme", ""), made.policy.of("umbrella", "")

    assert (other.mode, other.exact_repeat.nudge, other.exact_repeat.kill) == ("enforce", 4, 12)
    assert (acme.mode, acme.exact_repeat.nudge, acme.exact_repeat.kill) == ("warn", 4, 20)
    # What the file says of one tenant is stronger than what a document says of all.
    assert (acme.cycle.kill_laps, other.cycle.kill_laps) == (7, DEFAULT_POLICY.cycle.kill_laps)


def test_a_deleted_document_lets_what_is_below_it_hold_again() -> None:
    """Back to the file is one command."""
    made = documents(("acme", {"mode": "enforce"}), ("acme", None))

    assert made.policy.of("acme", "").mode == "warn"
    assert stamp(made.policy, "acme") == stamp(documents().policy, "acme")


@pytest.mark.parametrize(
    ("key", "document", "said"),
    [
        ("acme", {"cycle": {"kill_laps": "five"}}, "tenants.acme.cycle.kill_laps = 'five': wrong type"),
        ("acme", {"cycle": {"mode": "off"}}, "tenants.acme.cycle.mode = 'off' has no end"),
        ("acme", {"interleaved_repeat": {"kill": 41}}, "can never be reached"),
        ("acme", {"tenants": {"b": {"mode": "warn"}}}, "in the document of one tenant"),
        ("*", {"exact_repeat": {"nudge": 30}}, "must not fall"),
        ("*", {"budgets": {}}, "did you mean `budget`?"),
        ("*", ["mode"], "is no mapping"),
        ("a|b", {"mode": "warn"}, "neither a tenant nor *"),
    ],
)
def test_an_invalid_document_is_refused_and_the_one_before_stays(key: str, document: Any, said: str) -> None:
    """Lifecycle 74: with the field and the arithmetic, and detection goes on as it was."""
    made = documents(("*", {"mode": "enforce"}), ("acme", {"mode": "shadow"}))
    before = made.policy

    assert not made.apply([change(key, document)])

    assert made.policy is before
    assert said in made.refused[key]
    made.apply([change(key, None)])
    assert made.refused.keys() <= {"a|b"}


def test_one_bad_document_keeps_no_good_one_away() -> None:
    """At a start a worker reads the documents of all tenants at once."""
    made = PolicyDocuments(DEFAULT_POLICY)
    made.apply([change("a", {"mode": "enforce"}), change("b", {"modes": 1}), change("c", {"mode": "shadow"})])

    assert [made.policy.of(tenant, "").mode for tenant in "abc"] == ["enforce", "warn", "shadow"]
    assert made.refused.keys() == {"b"}


def test_the_newest_valid_document_of_a_key_is_taken_where_the_topic_still_has_it() -> None:
    """Until compaction a restart finds the one before an invalid one, as the workers that never stopped do."""
    made = PolicyDocuments(DEFAULT_POLICY)
    made.apply([change("a", {"mode": "enforce"}), change("a", {"modes": 1}), change("b", {"mode": "shadow"})])
    assert made.policy.of("a", "").mode == "enforce"
    assert made.refused.keys() == {"a"}

    made = PolicyDocuments(DEFAULT_POLICY)
    made.apply([change("a", {"mode": "enforce"}), (b"a", b"{")])
    assert made.policy.of("a", "").mode == "enforce"
    assert "no JSON" in made.refused["a"]


def test_the_order_of_keys_does_not_matter() -> None:
    """Compaction keeps the last record of each key, in whatever order: two may be right only together."""
    tenant = change("a", {"exact_repeat": {"nudge": 9}})
    everyone = change("*", {"exact_repeat": {"break_at": 10, "kill": 12}})
    broken = change("z", {"modes": 1})
    for order in ([tenant, everyone, broken], [broken, everyone, tenant]):
        made = PolicyDocuments(DEFAULT_POLICY)
        made.apply(order)
        assert made.policy.of("a", "").exact_repeat.nudge == 9
        assert made.refused.keys() == {"z"}


def test_a_version_changes_with_what_holds_for_the_tenant_and_with_nothing_else() -> None:
    """Two verdicts with one version were judged by the same numbers."""
    base = documents()
    other = documents(("umbrella", {"mode": "enforce"}))
    named = documents(("acme", {"version": "acme-2", "mode": "enforce"}))

    assert stamp(other.policy, "acme") == stamp(base.policy, "acme")
    assert stamp(other.policy, "umbrella") != stamp(base.policy, "umbrella")
    assert stamp(named.policy, "acme").startswith("acme-2@")
    assert stamp(base.policy, "nobody").startswith("file-1@")
    assert stamp(documents(mode="enforce").policy, "acme") != stamp(base.policy, "acme")


@given(st.binary(max_size=40) | st.none(), st.binary(max_size=12))
def test_no_bytes_stop_a_worker(value: bytes | None, key: bytes) -> None:
    """Whoever may write to the topic must not be able to end the detection."""
    made = documents()
    made.apply([(key, value), change("acme", {"mode": "enforce"})])

    assert made.policy.of("acme", "").mode == "enforce"


PARTS = st.sampled_from(
    ["mode", "cycle", "budget", "ladder", "tools", "agents", "tenants", "effects", "version", "volatile", "limits", "a"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 50) | st.sampled_from(["off", "enforce", "poll", "2030-01-31", ""]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(PARTS, inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(["*", "acme"]), st.dictionaries(PARTS, VALUES, min_size=1, max_size=4))
def test_every_document_is_accepted_or_refused_with_a_reason(key: str, document: dict[str, Any]) -> None:
    """A document of any shape is data, never a fault: the worker that reads it judges a fleet."""
    made = documents()

    made.apply([change(key, document)])

    assert (key in made.documents) != (key in made.refused)
    if key in made.refused:
        assert made.refused[key].startswith("policy")


def test_a_document_has_a_version_of_its_own() -> None:
    """It is what `policy list` and the audit show, whatever file is below it."""
    document = read_document(b"acme", b'{"version":"acme-2","mode":"enforce"}')

    assert document is not None
    assert document_version(document) == document_version({"mode": "enforce", "version": "acme-2"})
    assert document_version(document).startswith("acme-2@")
    with pytest.raises(ConfigError, match="neither a tenant nor"):
        read_document(None, b"{}")
