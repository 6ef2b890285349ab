"""`loopwarden topics`: create the Kafka topics, or say what is wrong with the ones that are there."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any, Final, Literal

import yaml
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code
from rich.console import Console
from rich.table import Table

from loopwarden_models.errors import TransportError
from loopwarden_streams.kafka_client import client_arguments
from loopwarden_streams.settings import Settings, add_settings_arguments

CATALOGUE: Final = "topics.yaml"
Status = Literal["ok", "created", "missing", "wrong"]


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """What a topic must be.

    Attributes:
        name: Full name, prefix included.
        partitions: Number of partitions; cannot be lowered, and raising it moves keys.
        config: Broker settings that must hold, by Kafka's names.
        is_fixed: The number is not a default but must equal that of another topic, or be what the settings say.
    """

    name: str
    partitions: int
    config: Mapping[str, str]
    is_fixed: bool


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found about one topic; `problems` say what is wrong and how to repair it."""

    topic: str
    status: Status
    partitions: int
    problems: tuple[str, ...] = ()


def specs(settings: Settings) -> list[TopicSpec]:
    """Return every topic of the contract, with names and partition counts by `settings`."""
    text = files("loopwarden_streams").joinpath(CATALOGUE).read_text(encoding="utf-8")
    entries: dict[str, dict[str, Any]] = yaml.safe_load(text)["topics"]
    counts = {"steps": settings.partitions, "control.state": settings.control_partitions}
    found = []
    for key, entry in entries.items():
        other = entry.get("same_partitions_as")
        counted = counts.get(other or key)
        partitions = counted if counted is not None else int(entry["partitions"])
        name = entry["name"].format(prefix=settings.topic_prefix, app_id=settings.app_id)
        config = {option: str(value) for option, value in entry["config"].items()}
        found.append(TopicSpec(name, partitions, config, is_fixed=counted is not None))
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `loopwarden topics`."""
    parser.add_argument("--check", action="store_true", help="only check: create nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    add_settings_arguments(
        parser,
        "brokers",
        "app_id",
        "topic_prefix",
        "partitions",
        "control_partitions",
        "replication",
        "security_protocol",
        "sasl_mechanism",
        "sasl_username",
        "ssl_cafile",
    )


def run(args: argparse.Namespace) -> int:
    """Create or check. Returns 0 if every topic is there and right, else 1."""
    settings = Settings.from_args(args)
    try:
        findings = asyncio.run(ensure_topics(settings, create=not args.check))
    except (KafkaError, OSError) as error:
        raise TransportError(f"brokers {settings.brokers}: {error}; are they up, and reachable from here?") from error
    ok = all(finding.status in ("ok", "created") for finding in findings)
    if args.json:
        print(json.dumps({"ok": ok, "topics": [asdict(finding) for finding in findings]}))
    else:
        _print(findings)
    return 0 if ok else 1


async def ensure_topics(settings: Settings, *, create: bool) -> list[Finding]:
    """Check every topic, and create what is missing if `create`.

    Raises:
        KafkaError: The brokers cannot be reached, or refuse.
    """
    admin = AIOKafkaAdminClient(request_timeout_ms=30_000, **client_arguments(settings))
    await admin.start()
    try:
        wanted = specs(settings)
        existing = await _existing(admin, [spec.name for spec in wanted])
        missing = [spec for spec in wanted if spec.name not in existing]
        if create and missing:
            await _create(admin, missing, settings.replication)
        findings = []
        for spec in wanted:
            if spec.name in existing:
                problems = _problems(spec, *existing[spec.name])
                findings.append(Finding(spec.name, "wrong" if problems else "ok", existing[spec.name][0], problems))
            elif create:
                findings.append(Finding(spec.name, "created", spec.partitions))
            else:
                hint = ("it does not exist; run `loopwarden topics` without --check to create it",)
                findings.append(Finding(spec.name, "missing", 0, hint))
        return findings
    finally:
        await admin.close()


async def find_obstacles(settings: Settings) -> list[str]:
    """Return why a worker cannot work with the topics as they are: one that is not there, or a count that does not fit.

    Asks for metadata alone, so that a worker needs no right to see the settings of topics.

    Raises:
        KafkaError: The brokers cannot be reached, or refuse.
    """
    admin = AIOKafkaAdminClient(request_timeout_ms=30_000, **client_arguments(settings))
    await admin.start()
    try:
        # Without its policies a worker would judge by its file alone, and say nothing.
        wanted = {
            spec.name: spec for spec in specs(settings) if spec.is_fixed or spec.name == settings.topic("policies")
        }
        # All names first: a broker that creates topics by itself would create what is asked for by name.
        present = sorted(wanted.keys() & set(await admin.list_topics()))
        described = await admin.describe_topics(present) if present else []
        counts = {topic["topic"]: len(topic["partitions"]) for topic in described if topic["error_code"] == 0}
    finally:
        await admin.close()
    obstacles = [f"{name} does not exist" for name in wanted if name not in counts]
    obstacles += [
        f"{name} has {count} partitions, expected {wanted[name].partitions}"
        for name, count in counts.items()
        if count != wanted[name].partitions
    ]
    return obstacles


async def _existing(admin: AIOKafkaAdminClient, names: list[str]) -> dict[str, tuple[int, dict[str, str]]]:
    """Return partitions and settings of those of `names` that exist."""
    found: dict[str, tuple[int, dict[str, str]]] = {}
    present = set(await admin.list_topics()) & set(names)
    if not present:
        return found
    described = await admin.describe_topics(sorted(present))
    for topic in described:
        if topic["error_code"] == 0:
            found[topic["topic"]] = (len(topic["partitions"]), {})
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in found]
    for response in await admin.describe_configs(resources):
        for error_code, error_message, _, name, entries in response.resources:
            if error_code:
                raise for_code(error_code)(error_message)
            found[name] = (found[name][0], {entry[0]: entry[1] for entry in entries})
    return found


async def _create(admin: AIOKafkaAdminClient, missing: list[TopicSpec], replication: int) -> None:
    new = [NewTopic(spec.name, spec.partitions, replication, topic_configs=dict(spec.config)) for spec in missing]
    response = await admin.create_topics(new)
    for name, code, *more in response.topic_errors:
        error = for_code(code)
        if code and error is not TopicAlreadyExistsError:
            raise error(f"{name}: {more[0] if more and more[0] else error.__name__}")


def _problems(spec: TopicSpec, partitions: int, config: Mapping[str, str]) -> tuple[str, ...]:
    problems = []
    if spec.is_fixed and partitions != spec.partitions:
        problems.append(
            f"{partitions} partitions, expected {spec.partitions}: set the number of partitions to what is there, "
            "or use another topic prefix; a changed count moves runs between partitions"
        )
    for option, value in spec.config.items():
        actual = config.get(option)
        if actual is not None and actual != value and not _same_number(actual, value):
            problems.append(f"{option} is {actual}, expected {value}")
    return tuple(problems)


def _same_number(one: str, other: str) -> bool:
    try:
        return float(one) == float(other)
    except ValueError:
        return False


def _print(findings: list[Finding]) -> None:
    table = Table("topic", "partitions", "status", "what to do")
    colours = {"ok": "green", "created": "green", "missing": "red", "wrong": "red"}
    for finding in findings:
        status = f"[{colours[finding.status]}]{finding.status}[/]"
        table.add_row(finding.topic, str(finding.partitions), status, "\n".join(finding.problems))
    Console().print(table)
