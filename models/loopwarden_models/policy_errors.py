"""What is wrong with a policy file, in words that a person can act on: where, what stands there, what to write."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

import msgspec

_AT = re.compile(r" - at `(?:key in )?\$\.?(?P<path>[^`]*)`$")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>[^`]*)`")
_BOUND = re.compile(r"Expected `(?:int|float|str)` (?:of length )?(?P<bound>(?:<=|>=|<|>) ?[\d.e+]+)")
_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text in quotes",
    "object": "a mapping",
    "bool": "true",
}


def explain(error: Exception, data: Any, kind: type[msgspec.Struct], layer: str = "") -> str:
    """Return one sentence: the path, the value that stands there, and the remedy.

    Args:
        error: What `msgspec.convert` raised.
        data: What was converted.
        kind: The type it was converted to.
        layer: Path of the layer that the values come from, `""` for the file itself.
    """
    text = str(error)
    found = _AT.search(text)
    path = found["path"] if found else ""
    said = text[: found.start()] if found else text
    unknown = _UNKNOWN.match(said)
    if unknown:
        path = f"{path}.{unknown['name']}".lstrip(".")
    path = path.removesuffix("[...]")  # a value of a mapping from names; which one, the decoder does not say
    value = _value_at(data, path)
    where = ".".join(part for part in (layer, path) if part)
    if unknown:
        known = _names_at(kind, path.rpartition(".")[0])
        near = difflib.get_close_matches(unknown["name"], known, 1)
        remedy = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(known)}"
        return f"policy: {where} = {value!r}: there is no such setting; {remedy}"
    if not path:
        return f"policy: {f'{layer}: ' if layer else ''}{said}"
    return f"policy: {where} = {value!r}: {_remedy(said, kind, path)}"


def _remedy(said: str, kind: type[msgspec.Struct], path: str) -> str:
    bound = _BOUND.match(said)
    if bound:
        return f"out of range; it must be {bound['bound']}"
    if "RFC3339" in said:
        return "no such day; write a day as 2030-01-31"
    if said.startswith("Invalid enum value"):
        choices = _choices_at(kind, path)
        return f"not one of the choices; write one of {', '.join(choices)}" if choices else said
    wrong = re.match(r"Expected `(?P<wanted>[^`]*)`, got `(?P<got>[^`]*)`", said)
    if wrong:
        wanted = [_TYPES.get(one.strip(), one.strip()) for one in wrong["wanted"].split("|") if one.strip() != "null"]
        return f"wrong type; write {' or '.join(wanted)}"
    return said


def _value_at(data: Any, path: str) -> Any:
    for part in path.split("."):
        if not isinstance(data, Mapping) or part not in data:
            return data if not part else None
        data = data[part]
    return data


def _type_at(kind: Any, path: str) -> Any:
    for part in filter(None, path.split(".")):
        structs = [one for one in (kind, *get_args(kind)) if isinstance(one, type) and issubclass(one, msgspec.Struct)]
        if not structs:
            return None
        kind = get_type_hints(structs[0], include_extras=True).get(part)
    return kind


def _names_at(kind: Any, path: str) -> list[str]:
    found = _type_at(kind, path)
    for one in (found, *get_args(found)):
        if isinstance(one, type) and issubclass(one, msgspec.Struct):
            return list(one.__struct_fields__)
    return []


def _choices_at(kind: Any, path: str) -> list[str]:
    found = _type_at(kind, path)
    return [str(one) for one in get_args(found) if isinstance(one, str)]
