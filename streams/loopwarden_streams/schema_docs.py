"""The published description of the wire: `docs/schema/*.schema.json` and `docs/asyncapi.yaml`.

Both are generated, the schemas from the structs of `loopwarden_models`, the channels from `topics.yaml` beside this
module. `python -m loopwarden_streams.schema_docs --write` brings them up to date, `--check` says whether they are.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import yaml

from loopwarden_models.schema import json_schemas

COMMAND: Final = "python -m loopwarden_streams.schema_docs --write"
_BINDING: Final = "0.5.0"
_TENANT: Final = "[A-Za-z0-9._-]{1,64}"
_ACTIONS: Final[Mapping[str, str]] = MappingProxyType({"writers": "send", "readers": "receive"})
_ROLES: Final = ("runtime", "detector", "operator")  # people use what they like


class _Message(NamedTuple):
    """One kind of record: its title, the pattern of its key, and its schema or, for internal ones, what it holds."""

    title: str
    key_pattern: str
    schema: str | None = None
    holds: str = ""


_TENANT_FIRST = rf"^{_TENANT}\|.+"
_MESSAGES: Final[Mapping[str, Mapping[str, _Message]]] = MappingProxyType(
    {
        "steps": {"stepEvent": _Message("Step event", _TENANT_FIRST, "step-event")},
        "control.state": {
            "breakerState": _Message("Breaker state", rf"^{_TENANT}\|breaker\|.+", "breaker-state"),
            "runRecord": _Message("Run record", rf"^{_TENANT}\|run\|.+", "run-record"),
            "fenceRecord": _Message("Fence record", r"^\*\|fence\|[0-9]+$", "fence-record"),
            "enforcementRecord": _Message("Enforcement record", r"^\*\|enforcement\|global$", "enforcement-record"),
            "questionRecord": _Message("Question", rf"^{_TENANT}\|question\|.+", "question-record"),
            "answerRecord": _Message("Answer", rf"^{_TENANT}\|approval\|.+", "answer-record"),
        },
        "control.commands": {"command": _Message("Command", _TENANT_FIRST, "command")},
        "acks": {"acknowledgement": _Message("Acknowledgement", _TENANT_FIRST, "acknowledgement")},
        "verdicts": {
            "verdict": _Message("Verdict", _TENANT_FIRST, "verdict"),
            "operatorAction": _Message("Operator action", r"^.+\|.+", "operator-action"),
        },
        "tool-health": {
            "partialSum": _Message("Partial sum", _TENANT_FIRST, "partial-sum"),
            "tenantLoad": _Message("Tenant load", rf"^{_TENANT}\|load$", "tenant-load"),
            "runTurn": _Message("Run turn", rf"^{_TENANT}\|task\|[0-9a-f]{{14}}$", "run-turn"),
        },
        "dead-letter": {
            "deadLetter": _Message("Dead letter", "", None, "The value as it came. The headers say what is wrong."),
        },
        "policies": {
            "policy": _Message("Policy", rf"^({_TENANT}|\*)$", None, "What a policy file holds, as JSON."),
        },
        "runs-changelog": {
            "snapshot": _Message("Snapshot", "", None, "Internal: may change with any version."),
        },
    }
)


def read_topics() -> dict[str, dict[str, Any]]:
    """Return `topics.yaml` with the default names and the partition counts filled in.

    Returns:
        Per topic: `name`, `summary`, `key`, `writers`, `readers`, `partitions`, `replication_factor`, `config`,
        and `same_partitions_as` where the count is not free.
    """
    document = yaml.safe_load((files("loopwarden_streams") / "topics.yaml").read_text(encoding="utf-8"))
    defaults = document["defaults"]
    topics: dict[str, dict[str, Any]] = document["topics"]
    for topic in topics.values():
        topic["name"] = topic["name"].format(**defaults)
        topic["replication_factor"] = defaults["replication_factor"]
        if "same_partitions_as" in topic:
            topic["partitions"] = topics[topic["same_partitions_as"]]["partitions"]
    return topics


def asyncapi() -> dict[str, Any]:
    """Return the AsyncAPI 3.1 document; payloads refer to the schema files beside it."""
    topics = read_topics()
    return {
        "asyncapi": "3.1.0",
        "id": "urn:loopwarden:v1",
        "info": {
            "title": "Loopwarden",
            "version": "1",
            "description": "The wire contract between agent runtimes and the detector: contract.md as a document for "
            "machines. Topic names carry the default prefix. An operation is named by who does it.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {_camel(topic): _channel(topic, settings) for topic, settings in topics.items()},
        "operations": _operations(topics),
        "components": {
            "messages": {
                name: _message(name, message, topics[topic]["key"])
                for topic, messages in _MESSAGES.items()
                for name, message in messages.items()
            }
        },
    }


def _channel(topic: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    config = dict(settings["config"])
    config["cleanup.policy"] = config["cleanup.policy"].split(",")
    channel: dict[str, Any] = {"address": settings["name"], "title": topic, "summary": settings["summary"]}
    if "same_partitions_as" in settings:
        channel["description"] = f"Has as many partitions as `{settings['same_partitions_as']}`."
    channel["messages"] = {name: {"$ref": f"#/components/messages/{name}"} for name in _MESSAGES[topic]}
    channel["bindings"] = {
        "kafka": {
            "topic": settings["name"],
            "partitions": settings["partitions"],
            "replicas": settings["replication_factor"],
            "topicConfiguration": config,
            "bindingVersion": _BINDING,
        }
    }
    return channel


def _operations(topics: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    operations = {}
    for topic, settings in topics.items():
        channel = _camel(topic)
        for role in _ROLES:
            for side, action in _ACTIONS.items():
                if role not in settings[side]:
                    continue
                operations[f"{role}{action.capitalize()}s{channel[0].upper()}{channel[1:]}"] = {
                    "action": action,
                    "channel": {"$ref": f"#/channels/{channel}"},
                    "messages": [{"$ref": f"#/channels/{channel}/messages/{name}"} for name in _MESSAGES[topic]],
                    "tags": [{"name": role}],
                }
    return operations


def _message(name: str, message: _Message, key: str) -> dict[str, Any]:
    key_schema = {"type": "string", "description": key}
    if message.key_pattern:
        key_schema["pattern"] = message.key_pattern
    described: dict[str, Any] = {"name": name, "title": message.title}
    if message.schema is None:
        described["summary"] = message.holds
    described["payload"] = {"$ref": f"./schema/{message.schema}.schema.json"} if message.schema else {}
    described["bindings"] = {"kafka": {"key": key_schema, "bindingVersion": _BINDING}}
    return described


def _camel(topic: str) -> str:
    first, *rest = topic.replace("-", ".").split(".")
    return first + "".join(part.capitalize() for part in rest)


def generated() -> dict[str, str]:
    """Return the text of every generated file, by its path below the folder of the documents."""
    texts = {
        f"schema/{name}.schema.json": json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
        for name, schema in json_schemas().items()
    }
    document = yaml.safe_dump(asyncapi(), sort_keys=False, width=110, allow_unicode=True)
    texts["asyncapi.yaml"] = f"# Generated by `{COMMAND}`: do not edit.\n{document}"
    return texts


def stale(docs: Path) -> list[str]:
    """Return what below `docs` differs from what would be written: changed, missing, or left over."""
    texts = generated()
    found = {name for name, text in texts.items() if not _holds(docs / name, text)}
    known = {docs / name for name in texts}
    left_over = {path for path in (docs / "schema").glob("*.schema.json") if path not in known}
    return sorted(found | {str(path.relative_to(docs)) for path in left_over})


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


def write(docs: Path) -> list[str]:
    """Bring `docs` up to date and return what was changed."""
    texts = generated()
    changed = stale(docs)
    for name in changed:
        path = docs / name
        if name in texts:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(texts[name], encoding="utf-8")
        else:
            path.unlink()
    return changed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if `--check` found something stale."""
    parser = argparse.ArgumentParser(prog="python -m loopwarden_streams.schema_docs", description=__doc__)
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="folder of the documents (default: docs)")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="write what is stale")
    what.add_argument("--check", action="store_true", help="name what is stale")
    options = parser.parse_args(arguments)
    if options.write:
        for name in write(options.docs):
            print(f"written: {options.docs / name}")
        return 0
    names = stale(options.docs)
    for name in names:
        print(f"stale: {options.docs / name}", file=sys.stderr)
    if names:
        print(f"run: {COMMAND}", file=sys.stderr)
    return 1 if names else 0


if __name__ == "__main__":
    sys.exit(main())
