"""Bytes of released versions: what was once on the wire is read for ever, and written back without loss.

Files below `golden/` are never edited, only added. `minimal` has what is required and nothing else, `full` every
field, `full-later` those that were added since (`-2`: since then), `at-the-limits` the longest and largest values; the
others hold what a tolerant reader must bear.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.contract.wire import KINDS, VALIDATORS, decode

from loopwarden_models.acks import Ack
from loopwarden_models.codec import decode_message, decode_step, encode
from loopwarden_models.commands import Command
from loopwarden_models.events import STEP_TYPES, Progress, ToolEnd
from loopwarden_models.schema import json_schemas

GOLDEN = sorted((Path(__file__).parent / "golden").glob("v*/*.json"))
FAITHFUL = ("minimal", "full", "full-later", "full-later-2", "at-the-limits")


def golden(name: str) -> bytes:
    """Return the bytes of one golden message of version 1."""
    return (Path(__file__).parent / "golden" / "v1" / f"{name}.json").read_bytes()


def kind_of(path: Path) -> str:
    """Return the message kind in a file's name."""
    return path.name.split(".")[0]


def variant_of(path: Path) -> str:
    """Return the variant in a file's name."""
    return path.name.split(".")[-2]


def name_of(path: Path) -> str:
    """Name a case after its file."""
    return f"{path.parent.name}/{path.stem}"


@pytest.mark.parametrize("path", GOLDEN, ids=name_of)
def test_golden_message_is_read_and_written_back(path: Path) -> None:
    """A detector reads the runtimes of last year; what it passes on must not have lost a known field."""
    value = path.read_bytes()
    message = decode(kind_of(path), value)
    if message is None:
        assert variant_of(path) == "unknown-type"
        return
    again = encode(message)

    assert decode(kind_of(path), again) == message
    sent, kept = json.loads(value), json.loads(again)
    if variant_of(path) in FAITHFUL:
        assert kept == sent
    else:
        assert_subset(kept, sent)


def assert_subset(kept: Any, sent: Any) -> None:
    """Everything in `kept` was in `sent`, with the same value: only unknown fields, nulls and defaults may go."""
    if isinstance(kept, dict):
        for name, value in kept.items():
            assert_subset(value, sent[name])
    elif isinstance(kept, list):
        assert len(kept) == len(sent)
        for one, other in zip(kept, sent, strict=True):
            assert_subset(one, other)
    else:
        assert kept == sent


@pytest.mark.parametrize("path", GOLDEN, ids=name_of)
def test_golden_message_is_valid_by_the_published_schema(path: Path) -> None:
    """Whoever generates a runtime from the schemas must accept what we have always sent."""
    errors = VALIDATORS[kind_of(path)].iter_errors(json.loads(path.read_bytes()))

    assert [error.message for error in errors] == []


def test_every_kind_and_every_step_type_has_a_minimal_and_a_full_example() -> None:
    """A new message without golden bytes could change unnoticed."""
    steps = [f"step-event.{kind.__struct_config__.tag}" for kind in STEP_TYPES]
    others = [kind for kind in KINDS if kind != "step-event"]
    wanted = {f"{name}.{variant}" for name in steps + others for variant in ("minimal", "full")}

    assert wanted <= {path.stem for path in GOLDEN if path.parent.name == "v1"}


@pytest.mark.parametrize("path", [p for p in GOLDEN if variant_of(p) == "minimal"], ids=name_of)
def test_minimal_example_holds_what_is_required_and_nothing_else(path: Path) -> None:
    """If a field became required, old runtimes would be refused: then this file no longer decodes."""
    sent = json.loads(path.read_bytes())

    assert set(sent) == set(_schema_of(path, sent)["required"])


@pytest.mark.parametrize("path", [p for p in GOLDEN if variant_of(p) == "full" and p.parent.name == "v1"], ids=name_of)
def test_full_example_holds_every_field_of_version_1(path: Path) -> None:
    """A field that is not in the example is not protected by it. Fields added later are in `full-later`."""
    sent = json.loads(path.read_bytes())
    schema = _schema_of(path, sent)
    later = path.parent.glob(path.name.replace(".full.", ".full-later*."))

    assert set(sent).union(*(json.loads(one.read_bytes()) for one in later)) == set(schema["properties"])
    for name, value in sent.items():
        nested = _definition_of(path, schema["properties"][name])
        for item in value if isinstance(value, list) else [value]:
            if nested is not None and isinstance(item, dict):
                assert set(item) == set(nested["properties"]), name


def _schema_of(path: Path, sent: dict[str, Any]) -> dict[str, Any]:
    schema = json_schemas()[kind_of(path)]
    if "oneOf" not in schema:
        return schema
    structs = {kind.__struct_config__.tag: kind.__name__ for kind in STEP_TYPES}
    definition: dict[str, Any] = schema["$defs"][structs[sent["type"]]]
    return definition


def _definition_of(path: Path, field: dict[str, Any]) -> dict[str, Any] | None:
    references = [node["$ref"] for node in [field, *field.get("anyOf", []), field.get("items", {})] if "$ref" in node]
    if not references:
        return None
    definition: dict[str, Any] = json_schemas()[kind_of(path)]["$defs"][references[0].rsplit("/", 1)[1]]
    return definition


def test_unknown_words_reach_the_reader_as_they_came() -> None:
    """The reader decides what an unknown effect or command means; the decoder must not hide or refuse it."""
    step = decode_step(golden("step-event.unknown-values"))
    command = decode_message(golden("command.unknown-values"), Command)
    ack = decode_message(golden("acknowledgement.unknown-status"), Ack)

    assert isinstance(step, ToolEnd)
    assert (step.effect, step.outcome, step.fidelity) == ("teleport", "half_done", "sampled")
    assert (command.type, command.scope, command.mode) == ("hibernate_run", "fleet", "dry_run")
    assert ack.status == "deferred"


def test_missing_and_null_results_are_told_apart() -> None:
    """A missing result equals nothing, not even another one; `null` is what some tools return."""
    missing = decode_step(golden("step-event.tool_end.minimal"))
    null = decode_step(golden("step-event.tool_end.null-values"))

    assert isinstance(missing, ToolEnd)
    assert isinstance(null, ToolEnd)
    assert missing.result is msgspec.UNSET
    assert bytes(null.result) == b"null"  # type: ignore[arg-type]  # `Raw` speaks the buffer protocol, unseen by mypy


def test_arguments_and_results_are_passed_on_byte_for_byte() -> None:
    """A re-encoded number would have another hash than the one the runtime has sent."""
    value = golden("step-event.tool_end.array-result")
    step = decode_step(value)

    assert isinstance(step, ToolEnd)
    raw = bytes(step.result)  # type: ignore[arg-type]  # as above
    assert raw in value
    assert json.loads(raw) == json.loads(value)["result"]


def test_escaped_names_and_texts_are_read() -> None:
    """JSON libraries of other languages escape what ours does not, field names included."""
    step = decode_step(golden("step-event.escaped"))

    assert isinstance(step, Progress)
    assert (step.tenant, step.note) == ("acme", "é😀/\x00\t")
