"""What is published about the wire says what the code does: schemas, AsyncAPI, topics, and the page for people."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import tarfile
from collections.abc import Collection, Iterator
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from loopwarden_models.acks import ACK_STATUSES
from loopwarden_models.canonical import canonical_json, loads_strict
from loopwarden_models.codec import MAX_STEP_BYTES
from loopwarden_models.commands import COMMAND_TYPES
from loopwarden_models.effects import EFFECTS, OUTCOMES
from loopwarden_models.errors import REASONS
from loopwarden_models.events import STEP_TYPES
from loopwarden_models.hashes import content_hash
from loopwarden_models.patterns import LEVEL_NAMES, MODES
from loopwarden_models.schema import json_schemas
from loopwarden_streams.schema_docs import COMMAND, asyncapi, main, read_topics, stale, write

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "contract.md").read_text(encoding="utf-8")
INTERNAL = (DOCS / "tool-health.md").read_text(encoding="utf-8")  # between detectors: no runtime needs it
# Of one object: field, and then its kind and whether it is required, as the page's tables have them.
Fields = dict[str, tuple[str, str]]
HOUR, DAY = 3_600_000, 86_400_000

# Release of the npm package that holds the AsyncAPI specification's own JSON Schemas (Apache-2.0).
ASYNCAPI_SPECS = "@asyncapi/specs@6.11.1"


def test_generated_documents_are_up_to_date() -> None:
    """A schema that lags behind the code sends other people's runtimes into our dead letters."""
    names = stale(DOCS)

    assert names == [], f"run: {COMMAND}"


def test_command_writes_what_is_stale_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The check in CI and the remedy on a developer's machine are one command."""
    assert main(["--check", "--docs", str(tmp_path)]) == 1
    assert COMMAND in capsys.readouterr().err
    assert main(["--write", "--docs", str(tmp_path)]) == 0
    assert "asyncapi.yaml" in capsys.readouterr().out
    assert main(["--check", "--docs", str(tmp_path)]) == 0
    assert write(tmp_path) == []


def test_changed_and_left_over_files_are_stale(tmp_path: Path) -> None:
    """A schema of a message that no longer exists would go on being published."""
    write(tmp_path)
    (tmp_path / "schema" / "heartbeat.schema.json").write_text("{}")
    (tmp_path / "schema" / "command.schema.json").write_text("{}")

    assert stale(tmp_path) == ["schema/command.schema.json", "schema/heartbeat.schema.json"]
    write(tmp_path)
    assert not (tmp_path / "schema" / "heartbeat.schema.json").exists()


# --- AsyncAPI: our own checks of its structure, which need nothing but the repository


def references(node: Any) -> Iterator[str]:
    """Yield every `$ref` below `node`."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "$ref":
                yield value
            else:
                yield from references(value)
    elif isinstance(node, list):
        for item in node:
            yield from references(item)


def resolve(document: Any, pointer: str) -> Any:
    """Return what a local JSON pointer names."""
    for part in pointer.removeprefix("#/").split("/"):
        document = document[part]
    return document


def test_every_reference_of_the_asyncapi_document_resolves() -> None:
    """A generator stops at the first one that does not."""
    document = yaml.safe_load((DOCS / "asyncapi.yaml").read_text(encoding="utf-8"))
    found = list(references(document))
    for reference in found:
        if reference.startswith("#"):
            assert resolve(document, reference)
        else:
            assert json.loads((DOCS / reference).read_text(encoding="utf-8"))["$id"]

    assert {Path(name).name for name in found if not name.startswith("#")} == {
        f"{kind}.schema.json" for kind in json_schemas()
    }


def test_every_topic_is_a_channel_and_every_message_is_used() -> None:
    """The document is how other people find out which topics there are."""
    document = asyncapi()
    addresses = {channel["address"] for channel in document["channels"].values()}
    used = {reference for channel in document["channels"].values() for reference in references(channel["messages"])}

    assert addresses == {topic["name"] for topic in read_topics().values()}
    assert used == {f"#/components/messages/{name}" for name in document["components"]["messages"]}


def test_every_operation_names_messages_of_its_own_channel() -> None:
    """Who may read and write what: a runtime's rights are set up after this list."""
    document = asyncapi()
    for name, operation in document["operations"].items():
        channel = resolve(document, operation["channel"]["$ref"])
        role = operation["tags"][0]["name"]

        assert name.startswith(f"{role}{operation['action'].capitalize()}s")
        for message in operation["messages"]:
            assert message["$ref"].startswith(operation["channel"]["$ref"] + "/messages/")
            assert message["$ref"].rsplit("/", 1)[1] in channel["messages"]

    runtime = {name for name in document["operations"] if name.startswith("runtime")}
    assert runtime == {
        "runtimeSendsSteps",
        "runtimeSendsAcks",
        "runtimeReceivesControlState",
        "runtimeReceivesControlCommands",
    }


def test_asyncapi_document_is_valid_by_the_published_specification(pytestconfig: pytest.Config) -> None:
    """Tools refuse a document over details that our own checks do not know."""
    specification = _specification(pytestconfig)
    document = yaml.safe_load((DOCS / "asyncapi.yaml").read_text(encoding="utf-8"))
    errors = Draft7Validator(specification).iter_errors(document)

    assert [f"{error.json_path}: {error.message[:200]}" for error in errors] == []


def _specification(config: pytest.Config) -> Any:
    """Return the JSON Schema of AsyncAPI 3.1, fetched once with npm into pytest's cache; skip if it cannot be had."""
    npm = shutil.which("npm")
    cache = getattr(config, "cache", None)  # pytest can be run without it
    if npm is None or cache is None:
        pytest.skip("npm or pytest's cache is not there; the structural checks have run")
    folder = cache.mkdir("asyncapi-specs")
    kept = folder / f"{ASYNCAPI_SPECS.rsplit('@', 1)[1]}.json"
    if not kept.exists():
        command = [npm, "pack", ASYNCAPI_SPECS, "--silent", "--fetch-retries=0", "--fetch-timeout=15000"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
        if done.returncode != 0:
            pytest.skip("npm could not fetch the specification; the structural checks have run")
        archive = folder / done.stdout.strip()
        with tarfile.open(fileobj=io.BytesIO(archive.read_bytes())) as package:
            member = package.extractfile("package/schemas/3.1.0.json")
            assert member is not None
            kept.write_bytes(member.read())
        archive.unlink()
    return json.loads(kept.read_text(encoding="utf-8"))


# --- topics.yaml


def test_topics_that_feed_the_same_runs_have_the_same_number_of_partitions() -> None:
    """Otherwise a run's acknowledgements and snapshots come to a worker that does not own the run."""
    topics = read_topics()
    follows = {name: topic["same_partitions_as"] for name, topic in topics.items() if "same_partitions_as" in topic}

    assert follows == {
        "acks": "steps",
        "runs-changelog": "steps",
        "verdicts": "steps",
        "dead-letter": "steps",
        "tool-health": "steps",
        "control.commands": "control.state",
    }
    assert all(topics[name]["partitions"] == topics[other]["partitions"] for name, other in follows.items())


def test_topics_keep_what_the_contract_promises() -> None:
    """Retention is a promise: an audit reads acknowledgements a week later."""
    config = {name: topic["config"] for name, topic in read_topics().items()}
    kept = {name: settings["retention.ms"] for name, settings in config.items() if "retention.ms" in settings}

    assert kept == {
        "steps": 72 * HOUR,
        "control.commands": HOUR,
        "acks": 7 * DAY,
        "verdicts": 30 * DAY,
        "tool-health": HOUR,
        "dead-letter": 14 * DAY,
    }
    compacted = {name for name, settings in config.items() if settings["cleanup.policy"] == "compact"}
    assert compacted == {"control.state", "policies", "runs-changelog"}
    assert compacted.isdisjoint(kept)


def test_control_topics_carry_the_time_of_the_broker() -> None:
    """Leases and expiry are told by it: with the writer's clock a skewed host would keep tools shut."""
    stamped = {n for n, t in read_topics().items() if t["config"].get("message.timestamp.type") == "LogAppendTime"}

    assert stamped == {"control.state", "control.commands"}


def test_topics_take_the_largest_record_that_the_edge_lets_through() -> None:
    """A step at the limit still needs room for its key and headers; snapshots are sent in whole batches."""
    config = {name: topic["config"] for name, topic in read_topics().items()}

    assert config["steps"]["max.message.bytes"] > MAX_STEP_BYTES
    assert config["runs-changelog"]["max.message.bytes"] >= 4 * 1024 * 1024


def test_topics_file_is_plain_yaml() -> None:
    """Operators feed it to tools of other languages, which read numbers with underscores as texts."""
    text = (files("loopwarden_streams") / "topics.yaml").read_text(encoding="utf-8")

    assert re.findall(r"\d_\d", text) == []


# --- contract.md

ROW = re.compile(r"^\|(?P<cells>.*)\|$")


def tables() -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Yield (nearest heading, head, rows) of every table of the page; an empty first cell repeats the one above."""
    heading, lines = "", [*PAGE.splitlines(), *INTERNAL.splitlines(), ""]
    block: list[list[str]] = []
    for line in lines:
        if row := ROW.match(line):
            block.append([cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row["cells"])])
            continue
        if block:
            head, _, *rows = block
            for above, below in pairwise(rows):
                below[0] = below[0] or above[0]
            yield heading, head, rows
            block = []
        if line.startswith("#"):
            heading = line.lstrip("# ")


def kind_of(field: dict[str, Any]) -> str:
    """Say in the page's notation what a schema's field holds."""
    branches = [
        branch for branch in field.get("anyOf", [field]) if branch.get("type") != "null" and "enum" not in branch
    ]
    if len(branches) == 2:
        return " or ".join(kind_of(branch) for branch in branches)
    (branch,) = branches
    if "const" in branch:
        return str(branch["const"])
    match branch.get("type"):
        case None:
            return "object" if "$ref" in branch else "any JSON"
        case "string":
            lowest, highest = branch.get("minLength"), branch.get("maxLength")
            if highest is None:
                return "text"
            return f"text ≤ {highest}" if lowest is None else f"text {lowest} to {highest}"
        case "integer":
            return "int"
        case "number":
            highest = branch.get("maximum")
            return "number" if highest is None else f"number ≤ {highest:g}".replace("e+0", "e").replace("e+", "e")
        case "array" if branch.get("maxItems") == 2:
            return "two ints"
        case "array":
            return "list of objects" if "$ref" in branch["items"] else f"list of {kind_of(branch['items'])}"
        case "boolean":
            return "bool"
    raise AssertionError(field)


def described(schema: dict[str, Any], *, without: Collection[str] = ()) -> Fields:
    """Return (kind, required) of every field of one object, as its table should have them."""
    required = schema.get("required", [])
    return {
        name: (kind_of(field), "yes" if name in required else "")
        for name, field in schema["properties"].items()
        if name not in without
    }


def expected_tables() -> Iterator[tuple[str, Fields]]:
    """Yield (where, fields) for every object of the contract."""
    schemas = json_schemas()
    step, verdict = schemas["step-event"]["$defs"], schemas["verdict"]
    common = set(step["UserInput"]["properties"])
    state = {"v", "key", "kid", "sig"}
    yield "Fields of every step", described(step["UserInput"]) | {"type": ("text", "yes")}
    for kind in STEP_TYPES:
        yield f"`{kind.__struct_config__.tag}`", described(step[kind.__name__], without=common)
    yield from ((f"`{name.lower()}`", described(step[name])) for name in ("Limits", "Usage"))
    yield "`error`", described(step["ToolError"])
    yield "Commands", described(schemas["command"])
    yield "`reason`", described(schemas["command"]["$defs"]["Reason"])
    yield "`evidence`", described(schemas["command"]["$defs"]["EvidenceRange"])
    fence = schemas["fence-record"]
    yield "every state", {name: row for name, row in described(fence).items() if name in state}
    yield "Breaker, key `tenant|breaker|tool`", described(schemas["breaker-state"], without=state)
    yield "`probe`", described(schemas["breaker-state"]["$defs"]["Probe"])
    yield "Run, key `tenant|run|run_id`", described(schemas["run-record"], without=state)
    yield "`blocked_tools`", described(schemas["run-record"]["$defs"]["BlockedTool"])
    yield "Fence, key `*|fence|<steps partition>`", described(fence, without=state)
    yield "Enforcement, key `*|enforcement|global`", described(schemas["enforcement-record"], without=state)
    yield "Question, key `tenant|question|<question id>`", described(schemas["question-record"], without=state)
    yield "Answer, key `tenant|approval|<question id>`", described(schemas["answer-record"], without=state)
    yield "Acknowledgements", described(schemas["acknowledgement"])
    yield "Verdicts", described(verdict)
    yield "`evidence` of a verdict", described(verdict["$defs"]["Evidence"])
    yield "Partial sums", described(schemas["partial-sum"])
    yield "`seconds`", described(schemas["partial-sum"]["$defs"]["SecondSum"])
    yield "What people ordered", described(schemas["operator-action"])
    yield "Run turns", described(schemas["run-turn"])
    yield "Tenant loads", described(schemas["tenant-load"])
    yield "`seconds` of a load", described(schemas["tenant-load"]["$defs"]["LoadSecond"])


def printed_tables() -> dict[str, Fields]:
    """Return the fields that the page has, by heading or by the first column."""
    printed: dict[str, Fields] = {}
    for heading, head, rows in tables():
        if head[:2] == ["field", "kind"]:
            printed[heading] = {name.strip("`"): (kind, required) for name, kind, required, _ in rows}
        elif head[:2] == ["of", "field"]:
            for of, name, kind, required, _ in rows:
                printed.setdefault(of, {})[name.strip("`")] = (kind, required)
    return printed


def test_page_has_every_field_with_its_kind_and_whether_it_is_required() -> None:
    """People build runtimes from this page; a limit that is not in it is found in production."""
    expected = {where: fields for where, fields in expected_tables() if fields}

    assert printed_tables() == expected


def test_page_names_every_default() -> None:
    """A field that was left out has a meaning, and the reader of the page must know it."""
    defaults = [
        (name, field["default"])
        for schema in json_schemas().values()
        for part in [schema, *schema.get("$defs", {}).values()]
        for name, field in part.get("properties", {}).items()
        if field.get("default") not in (None, "")
    ]

    for name, default in defaults:
        assert re.search(rf"^\|.*`{name}` \|.*default `{re.escape(str(default))}`", PAGE + INTERNAL, re.MULTILINE), name


def first_column(heading: str, head: str) -> list[str]:
    """Return the backticked words in the first column of the table with this head below this heading."""
    (rows,) = [rows for where, names, rows in tables() if where == heading and names[0] == head]
    return [word for row in rows for word in re.findall(r"`([^`]+)`", row[0])]


def words_after(name: str, heading: str) -> list[str]:
    """Return the first column of the table of words that follows `**name**` or stands below `heading`."""
    section = PAGE.split(f"**`{name}`**", 1)[1] if name else PAGE.split(f"### {heading}", 1)[1]
    table = re.split(r"^\| word \| meaning \|$", section, maxsplit=1, flags=re.MULTILINE)[1]
    return re.findall(r"^\| `([^`]+)` \|", table.split("\n\n", 1)[0], re.MULTILINE)


def test_page_lists_every_word_of_the_vocabularies() -> None:
    """A word that nobody explains gets a meaning of its own in each runtime."""
    state = json_schemas()

    assert set(words_after("effect", "")) == EFFECTS
    assert set(words_after("outcome", "")) == OUTCOMES
    assert words_after("", "Breaker") == state["breaker-state"]["properties"]["state"]["anyOf"][0]["enum"]
    assert words_after("", "Run,") == state["run-record"]["properties"]["state"]["anyOf"][0]["enum"]
    for word in (*COMMAND_TYPES, *LEVEL_NAMES, *MODES):
        assert f"`{word}`" in PAGE


def test_page_lists_every_acknowledgement_and_every_reason() -> None:
    """Reasons are what the owner of a runtime sees of its broken events."""
    assert sorted(first_column("Acknowledgements", "status")) == sorted(ACK_STATUSES)
    assert first_column("Dead letters", "reason") == list(REASONS)


def test_page_has_the_topics_of_the_topics_file() -> None:
    """Names, counts, retention and rights stand in two places: here for people, there for machines."""
    (rows,) = [rows for heading, _, rows in tables() if heading == "Topics"]
    printed = {row[0].strip("`"): row[2:] for row in rows}

    assert printed == {topic["name"]: _topic_row(topic) for topic in read_topics().values()}


def _topic_row(topic: dict[str, Any]) -> list[str]:
    config = topic["config"]
    hours = config.get("retention.ms", 0) // HOUR
    kept = "compacted" if not hours else f"{hours // 24} d" if hours % 24 == 0 and hours > 72 else f"{hours} h"
    partitions = f"as `{topic['same_partitions_as']}`" if "same_partitions_as" in topic else str(topic["partitions"])
    return [partitions, kept, ", ".join(topic["writers"]), ", ".join(topic["readers"])]


def test_worked_examples_of_the_page_are_right() -> None:
    """The first thing a reader does is to type them in."""
    (rows,) = [rows for _, head, rows in tables() if head == ["value", "canonical", "hash"]]
    for value, canonical, digest in rows:
        parsed = loads_strict(value.strip("`"))

        assert canonical_json(parsed).decode() == canonical.strip("`")
        assert content_hash(parsed) == digest.strip("`")


def test_page_names_every_section_of_the_vectors() -> None:
    """Whoever checks an implementation must know what each section is for."""
    sections = json.loads((files("loopwarden_models") / "vectors.json").read_text(encoding="utf-8")).keys()

    assert set(first_column("Hashes", "section")) == sections - {"contract"}


def test_page_can_be_read_in_ten_minutes() -> None:
    """Prose at 240 words a minute, as adults read; tables are looked up, not read."""
    prose = [line for line in PAGE.splitlines() if not line.startswith("|")]

    assert len(" ".join(prose).split()) < 2_400
