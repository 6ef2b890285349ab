"""JSON Schema 2020-12 of every message, built from the structs: for runtimes in other languages, and for tests.

A schema accepts what `codec` accepts: unknown fields, unknown step types, and unknown values where the contract
leaves a vocabulary open. Two rules it cannot say: integers are written without fraction or exponent (`1.0` is an
integer to JSON Schema), and a record has at most `codec.MAX_STEP_BYTES` bytes.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, get_args

import msgspec

from loopwarden_models.acks import ACK_STATUSES, Ack
from loopwarden_models.causes import CAUSES
from loopwarden_models.codec import TENANT_PATTERN
from loopwarden_models.commands import COMMAND_TYPES, Command, Reason
from loopwarden_models.control_state import (
    BreakerState,
    BreakerStateName,
    EnforcementRecord,
    FenceRecord,
    RunRecord,
    RunStateName,
)
from loopwarden_models.effects import EFFECTS, OUTCOMES
from loopwarden_models.events import STEP_TYPES, AnyStep, ApprovalEnd, RunEnd, Step, ToolEnd, ToolStart
from loopwarden_models.operator_actions import ActionName, OperatorAction
from loopwarden_models.patterns import MODES, PATTERNS
from loopwarden_models.questions import (
    ANSWER_DECISIONS,
    QUESTION_KINDS,
    QUESTION_STATES,
    AnswerRecord,
    QuestionRecord,
)
from loopwarden_models.recoveries import RECOVERIES, RECOVERY_LEVELS
from loopwarden_models.run_turns import RunTurn
from loopwarden_models.tenant_load import TenantLoad
from loopwarden_models.tool_health import PartialSum
from loopwarden_models.verdicts import Verdict

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

# File name of the schema, and what it describes. `step-event` is a union, the others are one struct each.
MESSAGES: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "step-event": AnyStep,
        "command": Command,
        "acknowledgement": Ack,
        "verdict": Verdict,
        "operator-action": OperatorAction,
        "breaker-state": BreakerState,
        "run-record": RunRecord,
        "fence-record": FenceRecord,
        "enforcement-record": EnforcementRecord,
        "question-record": QuestionRecord,
        "answer-record": AnswerRecord,
        "partial-sum": PartialSum,
        "run-turn": RunTurn,
        "tenant-load": TenantLoad,
    }
)

# Vocabularies that are plain text to the decoder, because a new word must not make a message unreadable.
_WRITERS = ("detector", "operator")
_VOCABULARIES: Final[Mapping[tuple[type[msgspec.Struct], str], Sequence[str]]] = MappingProxyType(
    {
        (Step, "fidelity"): ("full", "hash", "low"),
        (ToolStart, "effect"): sorted(EFFECTS),
        (ToolEnd, "effect"): sorted(EFFECTS),
        (ToolEnd, "outcome"): sorted(OUTCOMES),
        (ApprovalEnd, "decision"): ("approved", "rejected", "expired"),
        (RunEnd, "status"): ("completed", "failed", "killed", "limit", "cancelled", "awaiting_approval"),
        (Command, "type"): COMMAND_TYPES,
        (Command, "scope"): ("run", "tree"),
        (Command, "mode"): MODES,
        (Command, "writer"): _WRITERS,
        (Reason, "pattern"): sorted(PATTERNS),
        (Ack, "status"): ACK_STATUSES,
        (Verdict, "pattern"): sorted(PATTERNS),
        (Verdict, "mode"): MODES,
        (Verdict, "recovery"): tuple(RECOVERIES),
        (Verdict, "recovery_level"): RECOVERY_LEVELS,
        (Verdict, "probable_cause"): tuple(CAUSES),
        (BreakerState, "state"): get_args(BreakerStateName),
        (BreakerState, "writer"): _WRITERS,
        (RunRecord, "state"): get_args(RunStateName),
        (RunRecord, "writer"): _WRITERS,
        (EnforcementRecord, "state"): ("enforce", "observe_only"),
        (QuestionRecord, "kind"): QUESTION_KINDS,
        (QuestionRecord, "state"): QUESTION_STATES,
        (AnswerRecord, "decision"): ANSWER_DECISIONS,
        (OperatorAction, "action"): get_args(ActionName),
    }
)

Schema = dict[str, Any]


def json_schemas() -> dict[str, Schema]:
    """Return one self-contained JSON Schema per message kind, by the names of `MESSAGES`.

    Built anew at each call, so the caller may change what it gets. Equal input gives equal output, key order included.

    Cost: a few milliseconds.
    """
    return {name: _document(name, kind) for name, kind in MESSAGES.items()}


def _document(name: str, kind: Any) -> Schema:
    (root,), definitions = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    structs = {struct.__name__: struct for struct in _structs(kind)}
    defs = {key: _tidy_struct(definitions[key], structs[key]) for key in structs}
    head: Schema = {
        "$schema": DIALECT,
        "$id": f"urn:loopwarden:v1:{name}",
        "title": name.replace("-", " ").capitalize(),
    }
    if name == "step-event":
        head["description"] = _summary(Step)
        head["oneOf"] = [*root["anyOf"], {"$ref": "#/$defs/UnknownStep"}]
        return {**head, "$defs": {**defs, "UnknownStep": _unknown_step()}}
    own = defs.pop(kind.__name__)
    own.pop("title")
    return {**head, **own, **({"$defs": defs} if defs else {})}


def _structs(kind: Any) -> list[type[msgspec.Struct]]:
    """Return every struct in `kind`, in the order in which a reader meets them."""
    found: dict[type[msgspec.Struct], None] = {}

    def visit(node: Any) -> None:
        if isinstance(node, msgspec.inspect.StructType):
            if node.cls in found:
                return
            found[node.cls] = None
            for field in node.fields:
                visit(field.type)
        elif isinstance(node, msgspec.inspect.UnionType):
            for member in node.types:
                visit(member)
        elif isinstance(node, msgspec.inspect.ListType):
            visit(node.item_type)
        elif isinstance(node, msgspec.inspect.Metadata):
            visit(node.type)

    visit(msgspec.inspect.type_info(kind))
    return list(found)


def _tidy_struct(schema: Schema, struct: type[msgspec.Struct]) -> Schema:
    described = _attributes(struct)
    fields = {
        field: _tidy_field(field, node, described.get(field), _vocabulary(struct, field))
        for field, node in schema["properties"].items()
    }
    tidy = {
        "title": schema["title"],
        "description": _summary(struct),
        "type": "object",
        "properties": fields,
        "required": schema["required"],
        "additionalProperties": True,
    }
    return tidy if tidy["required"] else {key: value for key, value in tidy.items() if key != "required"}


def _tidy_field(name: str, node: Schema, description: str | None, vocabulary: Sequence[str] | None) -> Schema:
    default = node.get("default")
    branches = [dict(branch) for branch in node.get("anyOf", [node])]
    for branch in branches:
        own = branch.pop("description", None)
        description = description or own
        branch.pop("default", None)
    branches = [tidy for branch in branches for tidy in _tidy_branch(branch, vocabulary)]
    if name == "tenant":
        branches[0]["pattern"] = f"^{TENANT_PATTERN.pattern}$"
    tidy: Schema = {"description": description} if description else {}
    tidy.update(branches[0] if len(branches) == 1 else {"anyOf": branches})
    if default not in (None, []):
        tidy["default"] = default
    return tidy


def _tidy_branch(branch: Schema, vocabulary: Sequence[str] | None) -> Iterator[Schema]:
    """Say the same in the way that readers and generators of code expect; open what the contract leaves open."""
    branch = {key: _whole(value) for key, value in branch.items()}
    words = branch.get("enum")
    if words is not None and len(words) == 1:
        yield {"const": words[0]}
    elif words is not None:
        yield from ({"enum": words}, {"type": "string"})
    elif vocabulary is not None and branch.get("type") == "string":
        yield from ({"enum": list(vocabulary)}, branch)
    else:
        yield branch


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _unknown_step() -> Schema:
    known = [str(kind.__struct_config__.tag) for kind in STEP_TYPES]
    return {
        "title": "UnknownStep",
        "description": "A step event of a type that this version does not know: readers skip it.",
        "type": "object",
        "properties": {
            "type": {"description": "What happened.", "type": "string", "not": {"enum": known}},
            "v": {"description": "Version of the contract.", "const": 1},
        },
        "required": ["type", "v"],
        "additionalProperties": True,
    }


def _vocabulary(struct: type[msgspec.Struct], field: str) -> Sequence[str] | None:
    return next((_VOCABULARIES[base, field] for base in struct.__mro__ if (base, field) in _VOCABULARIES), None)


_ATTRIBUTE = re.compile(r"^    (?P<name>\w+): (?P<text>(?:.|\n(?!    \w+: |\S|$))+)", re.MULTILINE)


def _attributes(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Return the field descriptions in the docstrings of `struct` and its bases, nearest first."""
    found: dict[str, str] = {}
    for base in reversed(struct.__mro__):
        _, _, attributes = inspect.cleandoc(base.__dict__.get("__doc__") or "").partition("Attributes:\n")
        for match in _ATTRIBUTE.finditer(attributes):
            found[match["name"]] = " ".join(match["text"].split())
    return found


def _summary(struct: type[msgspec.Struct]) -> str:
    text, _, _ = inspect.cleandoc(struct.__doc__ or "").partition("Attributes:\n")
    return " ".join(text.split())
