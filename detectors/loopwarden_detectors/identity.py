"""When are two steps the same? Keys of a tool call and of its result (docs/detectors.md).

The runtime's hashes decide; content is hashed here only if a runtime sent none. Nothing that is missing ever
equals anything.
"""

from __future__ import annotations

import re
from functools import lru_cache
from zlib import crc32

from msgspec import UNSET, Raw, UnsetType

from loopwarden_models.canonical import loads_strict
from loopwarden_models.effects import CLOCK, EFFECTS, POLL, UNKNOWN, WAIT_TOOLS
from loopwarden_models.errors import InvalidEvent
from loopwarden_models.events import ToolEnd, ToolError, ToolStart
from loopwarden_models.hashes import content_hash, stable_key
from loopwarden_models.policy import Policy

_MASK = 0xFFFF_FFFF_FFFF_FFFF
# An odd constant (2^64 / golden ratio) so that a tool which echoes its arguments does not cancel them out.
_SPREAD = 0x9E37_79B9_7F4A_7C15

FULL, EMPTY_ANSWER, NEGATIVE_ANSWER = range(3)
_EMPTY = frozenset({"", "[]", "{}", "null", "[[]]"})
# A longer text says more than that there is nothing.
_MAX_NEGATIVE_BYTES = 96
# What runtimes write where a command printed nothing: the model must be told something.
_NO_OUTPUT = re.compile(
    r"[(<\[]?(?:[\w.-]+\s){0,5}?(?:(?:with\s)?no|without(?:\sany)?|did(?:\snot|n't)\sproduce\sany)\soutput"
    r"(?:\sor\serrors?)?[.!]?[)>\]]?",
    re.IGNORECASE,
)
# "No such file" is an error that somebody reports as success; whoever answers in another language answers `[]`.
_NEGATIVE = re.compile(
    r"(?:(?:error|warning|info|result)s?\s*:\s*)?"
    r"(?:no|0|zero|none)\s(?:[\w.-]+\s){0,3}?"
    r"(?:match(?:es)?|results?|rows?|hits?|items?|entries|records?|files?|data|found|such file or directory)"
    r"(?:\s(?:were\s)?(?:found|returned|available))?[.!]?"
    r"|(?:[\w.-]+\s){0,3}?not found[.!]?|\(?(?:none|empty|nothing found)\)?[.!]?"
    r'|\{\s*"(?:results?|items?|rows?|data|matches|hits)"\s*:\s*(?:\[\s*\]|null)\s*\}',
    re.IGNORECASE,
)

# Names that say "I am asked again and again". Only where nothing is declared. public: Hermes.
_POLL_NAMES = ("_poll", "_get_result", "_status")

# A shell command that only sleeps, as the whole of one argument. The text must be short: what is longer does more.
_SLEEP = re.compile(rb'"\s*sleep\s+[0-9.]+[smh]?\s*;?\s*"')
_MAX_SLEEP_BYTES = 64

# Keys of tool names. A memo of a pure function: it changes no answer, it saves 0.7 µs per event.
_MAX_TOOL_KEYS = 10_000
_tool_keys: dict[str, int] = {}


def tool_key(tool: str) -> int:
    """Return the 64-bit key of a tool's name. Cost: a dict look-up once it is known."""
    key = _tool_keys.get(tool)
    if key is None:
        if len(_tool_keys) >= _MAX_TOOL_KEYS:
            _tool_keys.clear()
        key = _tool_keys[tool] = stable_key(tool)
    return key


def call_id_key(call_id: str | None) -> int:
    """Return the 32-bit key by which a call id is remembered, 0 if there is no id. Cost: 0.1 µs."""
    return crc32(call_id.encode()) if call_id is not None else 0


def call_key(step: ToolEnd | ToolStart) -> int:
    """Return the key of (tool, arguments), 0 if the arguments are missing.

    Raises:
        InvalidEvent: The hash is not hexadecimal, or the arguments have no canonical form.

    Cost: about 0.2 µs with a hash; without one that of hashing the arguments.
    """
    text = step.args_norm_hash or step.args_hash
    if text is None:
        if _is_missing(step.args):
            return 0
        text = _hash_raw(step.args, "args")
    return (tool_key(step.tool) ^ _hash_value(text, "args_hash")) or 1


def result_key(step: ToolEnd) -> int:
    """Return the key of the result, or of the error where there is no result; 0 if neither is known.

    Raises:
        InvalidEvent: As `call_key`.

    Cost: as `call_key`.
    """
    text = step.result_norm_hash or step.result_hash
    if text is None:
        if _is_missing(step.result):
            return 0 if step.error is None else _error_key(step.error)
        text = _hash_raw(step.result, "result")
    return _hash_value(text, "result_hash") or 1


def keys_of(step: ToolEnd) -> tuple[int, int]:
    """Return `(call_key(step), result_key(step))`, in one step where the runtime sent both hashes.

    Raises:
        InvalidEvent: As `call_key`.

    Cost: about 0.35 µs with both hashes, half of asking for each.
    """
    args = step.args_norm_hash or step.args_hash
    result = step.result_norm_hash or step.result_hash
    if args is not None and result is not None and args.isalnum() and result.isalnum():
        try:
            return (_tool_keys[step.tool] ^ int(args, 16)) or 1, int(result, 16) or 1
        except (KeyError, ValueError):
            pass  # a tool not seen before, or no hexadecimal: the long way adds the one and names the other
    return call_key(step), result_key(step)


def set_key(keys: set[int]) -> int:
    """Return the key of a set of keys, whatever their order: the identity of a loop of several calls."""
    total = 0
    for key in keys:
        mixed = key * _SPREAD & _MASK
        total += mixed ^ mixed >> 29  # not the sum alone: {1, 4} and {2, 3} are different loops
    return (total & _MASK) or 1


def effect_of(step: ToolEnd, policy: Policy) -> str:
    """Return what the tool does to the world: policy over runtime over the tool's name. Cost: 0.1 µs."""
    if policy.effects and (declared := policy.effects.get(step.tool)) is not None:
        return declared
    effect = step.effect
    if effect is not None and effect != UNKNOWN and effect in EFFECTS:
        return effect
    return POLL if step.tool.endswith(_POLL_NAMES) else UNKNOWN


def is_wait(step: ToolEnd, effect: str) -> bool:
    """Return whether the call only let time pass: a clock, a tool named after waiting, or a shell that slept.

    Cost: 0.05 µs; 1 µs for a short command that mentions sleep.
    """
    if effect == CLOCK or step.tool in WAIT_TOOLS:
        return True
    args = step.args
    if args is UNSET or len(args) > _MAX_SLEEP_BYTES:
        return False
    raw = bytes(args)
    return b"sleep" in raw and _SLEEP.search(raw) is not None


def emptiness(step: ToolEnd) -> int:
    """Return what an answer holds: `FULL`, `EMPTY_ANSWER` (nothing at all), or `NEGATIVE_ANSWER` ("not found").

    An answer that is not reported is not empty: what is missing proves nothing.

    Cost: 0.1 µs; 0.3 µs for a short answer that was seen lately, 1 µs for another one.
    """
    size = step.result_bytes
    if size == 0:
        return EMPTY_ANSWER
    result = step.result
    if result is UNSET or (size is not None and size > _MAX_NEGATIVE_BYTES) or len(result) > _MAX_NEGATIVE_BYTES:
        return FULL
    return _emptiness(bytes(result))


@lru_cache(2_048)
def _emptiness(result: bytes) -> int:
    text = result.decode("utf-8", "replace").strip().strip('"').strip()
    if text in _EMPTY or _NO_OUTPUT.fullmatch(text):
        return EMPTY_ANSWER
    return NEGATIVE_ANSWER if _NEGATIVE.fullmatch(text) else FULL


def is_empty(step: ToolEnd) -> bool:
    """Return whether the answer is there and holds nothing: empty text, `[]` or `{}`. Cost: as `emptiness`."""
    return emptiness(step) == EMPTY_ANSWER


def _is_missing(value: Raw | UnsetType) -> bool:
    return value is UNSET or bytes(value) == b"null"


def _hash_value(text: str, field: str) -> int:
    # `int` alone would take signs, white space and underscores as well.
    if text.isalnum():
        try:
            return int(text, 16)
        except ValueError:
            pass
    raise InvalidEvent("bad_value", f"{text!r} is not hexadecimal", field=field)


def _hash_raw(value: Raw | UnsetType, field: str) -> str:
    try:
        return content_hash(loads_strict(bytes(value) if value is not UNSET else b"null"))
    except RecursionError:
        raise InvalidEvent("too_deep", "nested too deeply to be hashed", field=field) from None
    except ValueError as error:
        reason = "too_deep" if "nested deeper" in str(error) else "out_of_range"
        raise InvalidEvent(reason, str(error)[:200], field=field) from None


def _error_key(error: ToolError) -> int:
    if error.error_class is None and error.message is None and error.status is None:
        return 0
    return stable_key(f"{error.error_class}\0{error.status}\0{error.message}") or 1
