"""`loopwarden topics` on a real broker: what it creates, what it finds wrong, and what it says to do."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests._support.kafka import ApacheKafka, Broker, NewTopicSpec, create_topics, topic_config, unique_prefix

from loopwarden_streams import cli
from loopwarden_streams.embedded_broker import free_port
from loopwarden_streams.settings import Settings
from loopwarden_streams.topics import specs

ARGUMENTS = ("--partitions", "3", "--control-partitions", "2")


class Topics:
    """`loopwarden topics` for names that no other test has."""

    def __init__(self, bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.prefix = unique_prefix()
        self.app_id = self.prefix.rstrip(".")
        self.bootstrap = bootstrap
        self._capsys = capsys

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Return exit status, output and errors."""
        names = ("--brokers", self.bootstrap, "--topic-prefix", self.prefix, "--app-id", self.app_id)
        status = cli.main(["topics", *names, *ARGUMENTS, *arguments])
        captured = self._capsys.readouterr()
        return status, captured.out, captured.err

    def findings(self, *arguments: str) -> dict[str, dict[str, Any]]:
        """Return what `--json` says, by the topic's name without its prefix."""
        _, output, _ = self.run("--json", *arguments)
        return {
            finding["topic"].removeprefix(self.prefix).removeprefix(f"{self.app_id}-"): finding
            for finding in json.loads(output)["topics"]
        }


def test_every_topic_is_created_as_declared(kafka: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    """Counts and clean-up are what state and commands rest on, and automatic creation gets them wrong."""
    topics = Topics(kafka.bootstrap, capsys)

    status, _, _ = topics.run()

    assert status == 0
    settings = Settings(topic_prefix=topics.prefix, app_id=topics.app_id, partitions=3, control_partitions=2)
    for spec in specs(settings):
        found = topic_config(kafka.bootstrap, spec.name)
        assert {option: found.get(option) for option in spec.config} == dict(spec.config)
    counts = {name: finding["partitions"] for name, finding in topics.findings("--check").items()}
    assert counts == {
        "steps": 3,
        "acks": 3,
        "verdicts": 3,
        "dead-letter": 3,
        "runs-changelog": 3,
        "control.state": 2,
        "control.commands": 2,
        "tool-health": 3,
        "policies": 1,
    }


def test_a_second_run_changes_nothing(kafka: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    """It stands in every deployment's start-up, so it must do no harm the thousandth time."""
    topics = Topics(kafka.bootstrap, capsys)
    assert {finding["status"] for finding in topics.findings().values()} == {"created"}

    assert {finding["status"] for finding in topics.findings().values()} == {"ok"}
    assert topics.run("--check")[0] == 0


def test_a_missing_topic_is_created_beside_those_that_are_there(
    kafka: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    """A release that needs one topic more finds the others in use."""
    topics = Topics(kafka.bootstrap, capsys)
    create_topics(kafka.bootstrap, {f"{topics.prefix}policies": NewTopicSpec(config={"cleanup.policy": "compact"})})

    found = topics.findings()

    assert found["policies"]["status"] == "wrong"  # its segments are as the broker likes them
    assert {finding["status"] for name, finding in found.items() if name != "policies"} == {"created"}


def test_a_check_creates_nothing(kafka: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    """`--check` is for whoever may look and not touch."""
    topics = Topics(kafka.bootstrap, capsys)

    assert topics.run("--check")[0] == 1

    found = topics.findings("--check")
    assert {finding["status"] for finding in found.values()} == {"missing"}
    assert "run `loopwarden topics` without --check" in found["steps"]["problems"][0]


@pytest.mark.parametrize(
    ("name", "spec", "problem"),
    [
        (
            "acks",
            NewTopicSpec(partitions=5, config={"retention.ms": "604800000"}),
            "5 partitions, expected 3: set the number of partitions to what is there",
        ),
        (
            "control.state",
            NewTopicSpec(partitions=2, config={"cleanup.policy": "delete"}),
            "cleanup.policy is delete, expected compact",
        ),
        (
            "steps",
            NewTopicSpec(partitions=3, config={"retention.ms": "3600000", "cleanup.policy": "delete"}),
            "retention.ms is 3600000, expected 259200000",
        ),
        (
            "control.commands",
            NewTopicSpec(partitions=2, config={"message.timestamp.type": "CreateTime"}),
            "message.timestamp.type is CreateTime, expected LogAppendTime",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_remedy(
    apache_kafka: ApacheKafka, capsys: pytest.CaptureFixture[str], name: str, spec: NewTopicSpec, problem: str
) -> None:
    """Each of these runs for weeks before anybody notices, and costs commands or state then."""
    topics = Topics(apache_kafka.bootstrap, capsys)
    create_topics(apache_kafka.bootstrap, {topics.prefix + name: spec})
    topics.run()

    status, table, _ = topics.run("--check")
    found = topics.findings("--check")

    assert status == 1
    assert found[name]["status"] == "wrong"
    assert any(problem in told for told in found[name]["problems"])
    assert {finding["status"] for other, finding in found.items() if other != name} == {"ok"}
    assert "wrong" in table


def test_unreachable_brokers_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    """The first command that anybody types must not answer with a trace."""
    topics = Topics(f"127.0.0.1:{free_port()}", capsys)

    status, _, errors = topics.run()

    assert status == 1
    assert topics.bootstrap in errors
    assert "are they up, and reachable from here?" in errors
    assert "Traceback" not in errors


def test_a_remedy_is_readable_on_a_narrow_terminal(
    kafka: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table folds; it must not cut the words that say what to do."""
    monkeypatch.setenv("COLUMNS", "60")
    topics = Topics(kafka.bootstrap, capsys)

    _, table, _ = topics.run("--check")

    words = " ".join(table.replace("│", " ").split())
    assert "create it" in words
