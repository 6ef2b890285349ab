"""Canonical JSON: equal values have equal bytes, different values have different ones, in every language."""

from __future__ import annotations

import enum
import json
import random
import shutil
import struct
import subprocess
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwarden_models.canonical import canonical_json, loads_strict

TEXT = st.characters(exclude_categories=["Cs"])
# Beyond 2^53 a double and an integer of equal value are written apart: see the test of the deviation.
NUMBERS = st.integers(-(2**70), 2**70) | st.floats(-(2.0**53), 2.0**53)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(TEXT, max_size=12),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(TEXT, max_size=6), inner, max_size=5),
    max_leaves=25,
)


def shuffled(value: Any, order: random.Random) -> Any:
    """Return `value` with the keys of every object in another order."""
    if isinstance(value, dict):
        keys = list(value)
        order.shuffle(keys)
        return {key: shuffled(value[key], order) for key in keys}
    return [shuffled(item, order) for item in value] if isinstance(value, list) else value


@given(value=VALUES)
def test_canonical_form_is_a_fixed_point(value: Any) -> None:
    """Whoever parses and writes it again, in between runtimes, must not change the hash."""
    text = canonical_json(value)

    assert canonical_json(loads_strict(text)) == text


@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_canonical_form_of_any_double_is_a_fixed_point(value: float) -> None:
    """Above 2^53 a double is written as an integer that is not its exact value; its digits stay all the same."""
    text = canonical_json(value)

    assert canonical_json(loads_strict(text)) == text
    assert float(text) == value


@given(value=VALUES)
def test_canonical_form_is_the_same_value(value: Any) -> None:
    """Nothing gets lost: two values that differ must not become one."""
    assert loads_strict(canonical_json(value)) == value


@given(value=VALUES, seed=st.integers(0, 1_000))
def test_order_of_keys_does_not_matter(value: Any, seed: int) -> None:
    """Models and serialisers order arguments as they like; the call is the same."""
    assert canonical_json(shuffled(value, random.Random(seed))) == canonical_json(value)


@given(value=VALUES, indent=st.none() | st.integers(0, 3), escape=st.booleans())
def test_spelling_does_not_matter(value: Any, indent: int | None, escape: bool) -> None:
    """White space and escapes belong to the serialiser, not to the call."""
    spelled = json.dumps(value, indent=indent, ensure_ascii=escape)

    assert canonical_json(loads_strict(spelled)) == canonical_json(value)


@given(one=VALUES, other=VALUES)
def test_different_values_have_different_forms(one: Any, other: Any) -> None:
    """A collision here is a loop that nobody ran. `1` and `1.0` are one number, `1` and `true` are not."""
    same_form = canonical_json(one) == canonical_json(other)

    assert same_form == (_typed(one) == _typed(other))


def _typed(value: Any) -> Any:
    """Tell booleans from numbers, which Python does not."""
    if isinstance(value, dict):
        return {key: _typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_typed(item) for item in value]
    return ("bool", value) if isinstance(value, bool) else value


def test_keys_are_in_utf16_order() -> None:
    """JavaScript sorts by UTF-16 units: an emoji stands before U+FF01, though its code point is higher."""
    assert canonical_json({"\uff01": 1, "\U0001f600": 2}).decode() == '{"\U0001f600":2,"\uff01":1}'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (1.0, "1"),
        (-1.5, "-1.5"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (1.5e21, "1.5e+21"),
        (123456789012345680000.0, "123456789012345680000"),
        (1e-6, "0.000001"),
        (1.5e-6, "0.0000015"),
        (1e-7, "1e-7"),
        (1.25e-7, "1.25e-7"),
        (5e-324, "5e-324"),
        (100, "100"),
        (2**53 + 1, "9007199254740993"),
        (-(10**30), "-1000000000000000000000000000000"),
    ],
)
def test_number_is_written_as_javascript_does(value: float, text: str) -> None:
    """Each branch of the format, at its edges; integers keep all digits, which is our one deviation."""
    assert canonical_json(value).decode() == text


def test_beyond_2_to_53_digits_count_not_values() -> None:
    """An integer keeps its digits, a double has the shortest that tell it from its neighbours."""
    assert canonical_json(43384985015540112).decode() == "43384985015540112"
    assert canonical_json(43384985015540112.0).decode() == "43384985015540110"


def test_random_doubles_are_written_as_node_writes_them() -> None:
    """Shortest digits and the places of the exponent, against an implementation that is not Python's."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    chance = random.Random(20_251_130)
    bits = [chance.getrandbits(64) for _ in range(3_000)]
    doubles = [struct.unpack(">d", struct.pack(">Q", pattern))[0] for pattern in bits]
    doubles += [chance.uniform(-1, 1) * 10.0 ** chance.randint(-12, 25) for _ in range(3_000)]
    doubles += [float(chance.randint(1, 999)) * 10.0 ** chance.randint(-9, 23) for _ in range(1_000)]
    doubles += [float(2**power + step) for power in range(50, 90) for step in (-1, 0, 1)]
    finite = [value for value in doubles if value - value == 0]
    script = (
        "const data = require('fs').readFileSync(0);"
        "const out = [];"
        "for (let at = 0; at < data.length; at += 8) out.push(JSON.stringify(data.readDoubleBE(at)));"
        "console.log(out.join('\\n'));"
    )
    done = subprocess.run(
        [node, "-e", script],
        input=b"".join(struct.pack(">d", value) for value in finite),
        capture_output=True,
        check=True,
        timeout=60,
    )
    theirs = done.stdout.decode().split()

    assert len(finite) > 6_000
    assert [canonical_json(value).decode() for value in finite] == theirs


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), [1, {"x": float("nan")}]])
def test_number_that_json_does_not_know_is_refused(value: Any) -> None:
    """NaN differs from itself: as text it would equal itself, and a broken tool would look like a loop."""
    with pytest.raises(ValueError, match="is not a JSON number"):
        canonical_json(value)


@pytest.mark.parametrize("value", ["\ud800", {"\udfff": 1}, ["a\ud83d"]])
def test_lone_surrogate_is_refused(value: Any) -> None:
    """It has no UTF-8 form, and languages replace it in different ways."""
    with pytest.raises(ValueError, match="surrogates not allowed"):
        canonical_json(value)


@pytest.mark.parametrize(
    "value",
    [{1: 2}, {None: 1}, {("a",): 1}, {1, 2}, b"bytes", bytearray(b"bytes"), memoryview(b"bytes"), object(), 1j, [b"x"]],
    ids=repr,
)
def test_what_json_does_not_know_is_refused(value: Any) -> None:
    """Bytes are a sequence of numbers to Python; as an array they would equal a list that means something else."""
    with pytest.raises(TypeError):
        canonical_json(value)


def nested(levels: int, *, objects: bool) -> Any:
    """Return `levels` arrays or objects around a number."""
    value: Any = 1
    for _ in range(levels):
        value = {"a": value} if objects else [value]
    return value


@pytest.mark.parametrize("objects", [False, True], ids=["arrays", "objects"])
def test_nesting_ends_at_128_levels(objects: bool) -> None:
    """A published limit, so that all runtimes give up at the same place; also far below the interpreter's."""
    assert canonical_json(nested(128, objects=objects))
    with pytest.raises(ValueError, match="deeper than 128"):
        canonical_json(nested(129, objects=objects))


class Colour(int, enum.Enum):
    """An integer that prints itself as something else."""

    RED = 1


class Shade(enum.StrEnum):
    """A text with a name of its own."""

    DARK = "dark"


class Metre(float):
    """A float that prints itself as something else, as NumPy's do."""

    def __repr__(self) -> str:
        return f"Metre({float(self)})"


class Names(Mapping[str, int]):
    """A mapping that is no `dict`."""

    def __getitem__(self, key: str) -> int:
        return {"b": 2, "a": 1}[key]

    def __iter__(self) -> Iterator[str]:
        return iter(("b", "a"))

    def __len__(self) -> int:
        return 2


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Colour.RED, "1"),
        (Metre(1.5), "1.5"),
        (Shade.DARK, '"dark"'),
        ((1, 2), "[1,2]"),
        (OrderedDict(b=1, a=2), '{"a":2,"b":1}'),
        (MappingProxyType({"b": 1}), '{"b":1}'),
        (Names(), '{"a":1,"b":2}'),
    ],
    ids=repr,
)
def test_python_values_of_other_types_are_what_json_makes_of_them(value: Any, text: str) -> None:
    """Arguments come from frameworks: an enum or a NumPy scalar must hash like the JSON that went to the tool."""
    assert canonical_json(value).decode() == text


@pytest.mark.parametrize("text", ["NaN", "[1, NaN]", "-Infinity", "1e400", "[-1e999]", "{", "", "[1,]", "\ufeff1"])
def test_text_that_has_no_canonical_form_is_not_parsed(text: str) -> None:
    """Python's parser takes NaN and turns 1e400 into infinity; ours does not."""
    with pytest.raises(ValueError, match=r".+"):
        loads_strict(text)


def test_refused_number_is_quoted_in_short() -> None:
    """A number may have a megabyte of digits; the message has not."""
    with pytest.raises(ValueError, match="out of range") as refused:
        loads_strict("9" * 1_000 + ".5")

    assert len(str(refused.value)) < 100


@settings(max_examples=50)
@given(value=VALUES)
def test_parsing_gives_what_the_standard_parser_gives(value: Any) -> None:
    """Stricter, and otherwise the same."""
    text = json.dumps(value)

    assert loads_strict(text) == json.loads(text)
    assert loads_strict(text.encode()) == json.loads(text)
