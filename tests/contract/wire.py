"""What crosses the wire, as data for the contract tests: kinds of message, and generated instances of each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import ValidationError
from msgspec import inspect

from loopwarden_models.codec import TENANT_PATTERN, decode_message, decode_step
from loopwarden_models.schema import MESSAGES, json_schemas

KINDS = tuple(MESSAGES)
TEXT = st.characters(exclude_categories=["Cs"])


def decode(kind: str, value: bytes) -> msgspec.Struct | None:
    """Decode as the readers of that kind do; `None` is a step of an unknown type."""
    if kind == "step-event":
        return decode_step(value)
    message: msgspec.Struct = decode_message(value, MESSAGES[kind])
    return message


def _ecma_pattern(_validator: object, pattern: str, instance: object, _schema: object) -> Iterator[ValidationError]:
    # `$` is the end of the text to JSON Schema; to Python also the place before a last newline.
    if isinstance(instance, str) and re.search(pattern.replace("$", r"\Z"), instance) is None:
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


_extend: Any = validators.extend  # untyped in the stubs
_Validator = _extend(Draft202012Validator, {"pattern": _ecma_pattern})
VALIDATORS = {kind: _Validator(schema) for kind, schema in json_schemas().items()}


def json_values() -> st.SearchStrategy[Any]:
    """Any JSON value that has a canonical form."""
    leaf = (
        st.none()
        | st.booleans()
        | st.integers(-(2**80), 2**80)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(TEXT, max_size=20)
    )
    return st.recursive(
        leaf,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(TEXT, max_size=8), inner, max_size=4),
        max_leaves=12,
    )


@cache
def messages(kind: str) -> st.SearchStrategy[dict[str, Any]]:
    """Instances of one kind, drawn from the struct's own types: what a correct writer may send."""
    return _from_type(inspect.type_info(MESSAGES[kind]))


def _from_type(kind: inspect.Type) -> st.SearchStrategy[Any]:
    match kind:
        case inspect.Metadata():  # a type with a description
            return _from_type(kind.type)
        case inspect.StructType():
            return _from_struct(kind)
        case inspect.UnionType():
            return st.one_of([_from_type(member) for member in kind.types])
        case inspect.ListType():
            longest = 3 if kind.max_length is None else kind.max_length
            return st.lists(_from_type(kind.item_type), min_size=kind.min_length or 0, max_size=longest)
        case inspect.StrType():
            longest = 40 if kind.max_length is None else kind.max_length
            return st.text(TEXT, min_size=kind.min_length or 0, max_size=longest)
        case inspect.IntType():
            return st.integers(kind.ge, kind.le)
        case inspect.FloatType():
            highest = 1e300 if kind.le is None else float(kind.le)
            return st.floats(0, highest) | st.integers(0, min(10**15, int(highest)))
        case inspect.LiteralType():
            return st.sampled_from(kind.values)
        case inspect.BoolType() | inspect.NoneType():
            return st.booleans() if isinstance(kind, inspect.BoolType) else st.none()
        case inspect.RawType():
            return json_values()
    raise TypeError(f"no instances for {kind}")


def _from_struct(kind: inspect.StructType) -> st.SearchStrategy[dict[str, Any]]:
    required: dict[str, st.SearchStrategy[Any]] = {}
    optional: dict[str, st.SearchStrategy[Any]] = {}
    if kind.tag_field is not None:
        required[kind.tag_field] = st.just(kind.tag)
    for field in kind.fields:
        values = st.from_regex(TENANT_PATTERN, fullmatch=True) if field.name == "tenant" else _from_type(field.type)
        (required if field.required else optional)[field.encode_name] = values
    return st.fixed_dictionaries(required, optional=optional)
