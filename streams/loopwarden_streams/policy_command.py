"""`loopwarden policy`: policy files, and the documents on the topic `policies` that running workers follow."""

from __future__ import annotations

import argparse
import asyncio
import difflib
import time
import uuid
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from loopwarden_models.codec import encode
from loopwarden_models.errors import ConfigError, TransportError
from loopwarden_models.operator_actions import OperatorAction
from loopwarden_models.policy import Policy
from loopwarden_models.policy_version import stamp
from loopwarden_streams.durations import shown
from loopwarden_streams.kafka_client import new_producer
from loopwarden_streams.operator_desk import CONNECTION, add_person_arguments, person_of
from loopwarden_streams.operator_orders import Person, check_names
from loopwarden_streams.policy_documents import EVERYONE, PolicyDocuments, document_version, write_document
from loopwarden_streams.policy_file import document_to_yaml, load_policy, read_yaml, to_yaml
from loopwarden_streams.policy_follower import POLICIES
from loopwarden_streams.settings import Settings, add_settings_arguments
from loopwarden_streams.topic_tail import tail

EXIT_DIFFERENT: Final = 1
_KEY_HELP: Final = "a tenant, or * for all"
# The workers' file and mode are under the documents: with others here, what is shown would not be theirs.
_CONNECTION: Final = (*CONNECTION, "policy", "mode")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `loopwarden policy`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    page = actions.add_parser("show", help="print a policy file laid over the defaults; without one, the defaults")
    page.add_argument("file", nargs="?", metavar="FILE", help="policy file (YAML)")
    _add_place(page)

    check = actions.add_parser("validate", help="check a file as workers do; with --for, over what is on the topic")
    check.add_argument("file", metavar="FILE", help="YAML; - is the standard input")
    check.add_argument("--for", dest="key", default=None, metavar="KEY", help=f"as the document of {_KEY_HELP}")
    add_settings_arguments(check, *_CONNECTION)

    listing = actions.add_parser("list", help="the documents on the topic, with their versions")
    listing.add_argument("--json", action="store_true", help="one JSON object a line")
    add_settings_arguments(listing, *_CONNECTION)

    get = actions.add_parser("get", help="print a document, or with --effective all that holds for its tenant")
    get.add_argument("key", metavar="KEY", help=_KEY_HELP)
    get.add_argument("--effective", action="store_true", help="file and documents laid over each other")
    _add_place(get, tenant=False)
    get.add_argument("--json", action="store_true", help="JSON instead of YAML")
    add_settings_arguments(get, *_CONNECTION)

    diff = actions.add_parser("diff", help="what a file would change; status 1 if anything")
    diff.add_argument("key", metavar="KEY", help=_KEY_HELP)
    diff.add_argument("file", metavar="FILE", help="YAML; - is the standard input")
    add_settings_arguments(diff, *_CONNECTION)

    put = actions.add_parser("set", help="check a file and make it a document: workers follow within seconds")
    put.add_argument("key", metavar="KEY", help=_KEY_HELP)
    put.add_argument("file", metavar="FILE", help="YAML; - is the standard input")
    unset = actions.add_parser("unset", help="delete a document: what is below it holds again")
    unset.add_argument("key", metavar="KEY", help=_KEY_HELP)
    for writer in (put, unset):
        writer.add_argument("--json", action="store_true", help="one JSON object")
        add_person_arguments(writer, needs_why=True, signing=())
        add_settings_arguments(writer, "policy", "mode")


def _add_place(parser: argparse.ArgumentParser, *, tenant: bool = True) -> None:
    if tenant:
        parser.add_argument("--tenant", default="", help="what is in force for this tenant")
    parser.add_argument("--agent", default="", help="... for this agent")
    parser.add_argument("--tool", default="", help="... and for calls of this tool")


def run(args: argparse.Namespace) -> int:
    """Do what was asked. Returns 0; 1 if a diff shows a difference."""
    if args.action == "show":
        _print_place(load_policy(args.file), args.tenant, args)
        return 0
    settings = Settings.from_args(args)
    if args.action == "validate" and args.key is None:
        policy = Policy.from_builtins(read_yaml(args.file))
        print(f"valid: {stamp(policy, '')}")
        return 0
    if args.action != "list":
        _check_key(args.key)
    return asyncio.run(_on_topic(args, settings))


def _check_key(key: str) -> None:
    if key != EVERYONE:
        check_names(key, who="-", why="")


async def _on_topic(args: argparse.Namespace, settings: Settings) -> int:
    documents = PolicyDocuments(load_policy(settings.policy or None), settings.mode)
    appended: dict[str, int] = {}
    topic = settings.topic(POLICIES)
    async with tail(settings, {topic: "beginning"}) as reader:
        records = await reader.to_end()
    documents.apply([(record.key, record.value) for record in records])
    for record in records:
        appended[(record.key or b"").decode("utf-8", "replace")] = record.timestamp
    match args.action:
        case "list":
            _list(documents, appended, as_json=args.json)
        case "get":
            _get(documents, args)
        case "validate":
            policy = _with(documents, args.key, read_yaml(args.file))
            print(f"valid: {_stamp(policy, args.key)}")
        case "diff":
            return _diff(documents, args.key, read_yaml(args.file))
        case _:
            await _write(documents, args, settings)
    return 0


def _with(documents: PolicyDocuments, key: str, document: Mapping[str, Any] | None) -> Policy:
    """Return what would be in force with another document of `key`.

    Raises:
        ConfigError: It makes no policy with what is there.
    """
    if document is not None and key != EVERYONE and "tenants" in document:
        raise ConfigError(f"policy of {key}: tenants = ... in the document of one tenant: write it into that of *")
    wanted = {**documents.documents, key: document or {}}
    if not document:
        del wanted[key]
    return documents.compose(wanted)


def _stamp(policy: Policy, key: str) -> str:
    return stamp(policy, "" if key == EVERYONE else key)


def _list(documents: PolicyDocuments, appended: Mapping[str, int], *, as_json: bool) -> None:
    rows: list[dict[str, Any]] = [
        {
            "key": "file",
            "document": None,
            "in_force": stamp(documents.compose({}), ""),
            "since_ms": None,
            "refused": None,
        }
    ]
    for key in sorted(documents.documents.keys() | documents.refused.keys()):
        document = documents.documents.get(key)
        rows.append(
            {
                "key": key,
                "document": None if document is None else document_version(document),
                "in_force": _stamp(documents.policy, key),
                "since_ms": appended.get(key),
                "refused": documents.refused.get(key),
            }
        )
    if as_json:
        for row in rows:
            print(msgspec.json.encode(row).decode())
        return
    table = Table("key", "document", "in force", "written", "refused", box=None, pad_edge=False)
    for row in rows:
        since = "" if row["since_ms"] is None else f"{shown(time.time() * 1000 - row['since_ms'])} ago"
        refused = f"[red]{escape(row['refused'])}[/]" if row["refused"] else ""
        table.add_row(escape(row["key"]), escape(row["document"] or ""), escape(row["in_force"]), since, refused)
    Console(highlight=False).print(table)


def _get(documents: PolicyDocuments, args: argparse.Namespace) -> None:
    if args.effective or args.agent or args.tool:
        _print_place(documents.policy, "" if args.key == EVERYONE else args.key, args, as_json=args.json)
        return
    document = documents.documents.get(args.key)
    if document is None:
        why = documents.refused.get(args.key)
        raise ConfigError(f"there is no document of {args.key} in force{f': {why}' if why else '; see --effective'}")
    print(write_document(document).decode() if args.json else document_to_yaml(document), end="\n" * args.json)


def _diff(documents: PolicyDocuments, key: str, document: Mapping[str, Any]) -> int:
    _with(documents, key, document)
    old = document_to_yaml(documents.documents.get(key, {})).splitlines(keepends=True)
    new = document_to_yaml(msgspec.json.decode(write_document(document))).splitlines(keepends=True)
    lines = list(difflib.unified_diff(old, new, f"policies {key}", "file"))
    print("".join(lines), end="")
    return EXIT_DIFFERENT if lines else 0


async def _write(documents: PolicyDocuments, args: argparse.Namespace, settings: Settings) -> None:
    person = person_of(args)
    check_names("-", who=person.who, why=person.why)
    document = read_yaml(args.file) if args.action == "set" else None
    if args.action == "set" and not document:
        raise ConfigError(f"policy file {args.file!r} says nothing; `loopwarden policy unset {args.key}` deletes")
    if document is None and args.key not in documents.documents | documents.refused:
        raise ConfigError(f"there is no document of {args.key} to delete; `loopwarden policy list` shows what is there")
    policy = _with(documents, args.key, document)
    before = documents.documents.get(args.key)
    action = _audit(args.key, document, before, person, _stamp(policy, args.key))
    producer = new_producer(settings)
    try:
        await producer.start()
        try:
            await _send(producer, settings, action, args.key, document)
        finally:
            await producer.stop()
    except KafkaError as error:
        raise TransportError(f"brokers {settings.brokers}: {error!r}") from error
    if args.json:
        print(msgspec.json.encode(action).decode())
    else:
        done = "deleted" if document is None else f"written: {document_version(document)}"
        print(f"{done}; in force for {args.key} with it: {_stamp(policy, args.key)}")


async def _send(
    producer: AIOKafkaProducer,
    settings: Settings,
    action: OperatorAction,
    key: str,
    document: Mapping[str, Any] | None,
) -> None:
    await producer.send_and_wait(settings.topic("verdicts"), key=action.key.encode(), value=encode(action))
    value = None if document is None else write_document(document)
    await producer.send_and_wait(settings.topic(POLICIES), key=key.encode(), value=value)


def _audit(
    key: str, document: Mapping[str, Any] | None, before: Mapping[str, Any] | None, person: Person, stamp: str
) -> OperatorAction:
    return OperatorAction(
        v=1,
        type="operator_action",
        action_id=uuid.uuid4().hex,
        action="set_policy",
        at_ms=int(time.time() * 1000),
        who=person.who,
        why=person.why,
        key=f"{POLICIES}|{key}",
        state="deleted" if document is None else document_version(document),
        before=None if before is None else document_version(before),
        tenant=None if key == EVERYONE else key,
        policy=stamp,
    )


def _print_place(policy: Policy, tenant: str, args: argparse.Namespace, *, as_json: bool = False) -> None:
    if tenant or args.agent or args.tool:
        policy = policy.of(tenant, args.agent).for_tool(args.tool)
    print(msgspec.json.encode(policy).decode() + "\n" if as_json else to_yaml(policy), end="")
