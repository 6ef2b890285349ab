"""What of arguments and results says nothing about progress: the rules of normalisation, as data.

A rule that takes out too much makes healthy work look like a loop, so the defaults are short, and a tenant's own
patterns are only taken if their time is bounded: they run on text that an agent's tools hand in.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from msgspec import Struct

MAX_PATTERNS: Final = 16
MAX_PATTERN_CHARS: Final = 256
MAX_FIELD_CHARS: Final = 64

# Ways in which one pattern may match at one place. Python's `re` tries them all before it gives up, so the product
# over one pattern bounds its work per character: {1,8} twice is allowed. At 64 the worst pattern found takes 24 µs per
# character on text made for it. judgement
_MAX_WAYS = 64
_MAX_REPEAT = 64

_WRAPPER = re.compile(r"[A-Za-z][\w.:-]{0,63}", re.ASCII)
# One element of a pattern that is known to compile: escape, set, group, bar, quantifier, any other character.
_ELEMENT = re.compile(
    r"""
    \\(?P<escape>.) | \[\^?\]?(?:\\.|[^\]\\])*\]
    | (?P<open>\((?:\?:)?) (?P<special>\?)? | (?P<close>\)) | (?P<bar>\|)
    | (?P<many>[*+]|\{[0-9]*,\}) | (?P<maybe>\?) | \{(?:(?P<low>[0-9]*),)?(?P<high>[0-9]+)\}
    | .
    """,
    re.VERBOSE | re.DOTALL,
)
# Where `\b`, `^`, `$` and optional parts would match nothing at all.
_BLANKS = ("", "a", " ", "a b")


class VolatileRules(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, cache_hash=True):
    """Which parts are left out when two calls, or two results, are compared.

    Names of fields are compared without case, `_` and `-`: `messageId` is `message_id`. Immutable and hashable,
    so it may be shared between threads.

    Attributes:
        args: Fields of arguments that are about the request and not about the question.
        result: Fields of results that are removed, at any depth.
        patterns: Regular expressions of a tenant; what matches in a text is replaced. See `check_rules`.
        wrappers: Names of tags with a random part which a runtime puts around foreign content: for `untrusted`,
            `<untrusted id="a81f">` and `<<<END_untrusted-a81f>>>` are replaced, and what is between them stays.
    """

    args: tuple[str, ...] = (
        *("request_id", "req_id", "rid", "trace_id", "span_id", "correlation_id"),
        *("idempotency_key", "nonce", "call_id"),
        # The clock of whoever asks, put in by a client library.
        *("client_ts", "client_time", "client_timestamp", "sent_at", "requested_at", "request_time"),
        # Prose that a model fills in to justify a call. public: Cline and oh-my-pi strip exactly such fields.
        *("task_progress", "intent", "explanation"),
    )
    # public: OpenClaw does this for its exec and send tools.
    result: tuple[str, ...] = (
        *("messageId", "request_id", "rid", "nonce", "pid", "etag"),
        *("took", "elapsed", "duration", "cwd"),
    )
    patterns: tuple[str, ...] = ()
    wrappers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what `check_rules` refuses, so that rules which exist are rules that work."""
        check_rules(self)


@lru_cache(maxsize=4096)
def folded(name: str) -> str:
    """Return the name of a field as it is compared: lower case, without `_` and `-`. Cost: 0.1 µs once known."""
    return name.replace("_", "").replace("-", "").casefold()


def check_rules(rules: VolatileRules) -> None:
    """Refuse rules that cannot be applied in bounded time, or that would replace everything.

    A pattern must compile, be of at most 256 characters, match at least one character, and have neither
    back-references nor groups of a special kind `(?…` other than `(?:…)`; every repetition has an upper bound of at
    most 64, none is inside another, and at most 64 ways to match come together.

    Raises:
        ValueError: The message names the field, the index, the value and the remedy.

    Cost: about 50 µs per pattern.
    """
    for path, names in (("args", rules.args), ("result", rules.result)):
        for n, name in enumerate(names):
            if not folded(name) or len(name) > MAX_FIELD_CHARS:
                raise ValueError(
                    f"{path}[{n}] = {name[:80]!r} is no name of a field: give 1 to {MAX_FIELD_CHARS} characters"
                )
    for path, values in (("patterns", rules.patterns), ("wrappers", rules.wrappers)):
        if len(values) > MAX_PATTERNS:
            raise ValueError(
                f"{path}[{MAX_PATTERNS}] = {values[MAX_PATTERNS][:80]!r} is one too many: join or drop some, "
                f"at most {MAX_PATTERNS}"
            )
    for n, pattern in enumerate(rules.patterns):
        if (fault := _fault(pattern)) is not None:
            raise ValueError(f"patterns[{n}] = {pattern[:80]!r} {fault}")
    for n, wrapper in enumerate(rules.wrappers):
        if not _WRAPPER.fullmatch(wrapper):
            raise ValueError(
                f"wrappers[{n}] = {wrapper[:80]!r} is no name of a tag: give the name alone, without brackets, "
                "at most 64 letters, digits and . : _ -"
            )


def _fault(pattern: str) -> str | None:
    """Return what is wrong with a pattern and the remedy, None if nothing is."""
    if len(pattern) > MAX_PATTERN_CHARS:
        return f"has {len(pattern)} characters: split it, at most {MAX_PATTERN_CHARS}"
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"does not compile ({error}): correct it, or escape what is meant literally"
    if any(match is not None and not match.group() for match in map(compiled.search, _BLANKS)):
        return "matches nothing at all: make at least one character mandatory"
    return _slow(pattern)


def _slow(pattern: str) -> str | None:
    """Return why a pattern that compiles may take long, None if its work per character is bounded."""
    ways = 1
    # Per open group, innermost last: how many branches, and does it hold a choice or a repetition?
    groups = [(1, False)]
    is_complex = is_quantified = False  # of the element before; after a quantifier, `?` only says how greedy it is
    for element in _ELEMENT.finditer(pattern):
        part = element.groupdict()
        if part["special"]:
            return "has a group of a special kind: (?:…) is the only one allowed, write it without"
        if part["escape"] and part["escape"] in "123456789":
            return "has a back-reference: spell out what is repeated"
        if is_quantified and element.group() in "?+":
            continue
        if part["many"]:
            return f"has a repetition without an end: give a bound, as in {{1,{_MAX_REPEAT}}}"
        is_quantified = bool(part["maybe"] or part["high"])
        if is_quantified:
            high = int(part["high"] or 1)
            low = high if part["high"] and part["low"] is None else int(part["low"] or 0)
            if high > _MAX_REPEAT:
                return f"repeats up to {high} times: at most {_MAX_REPEAT}"
            if is_complex and high > 1:
                return "has a repetition or a choice inside a repetition: write the inner or the outer one out"
            ways *= high - low + 1
            groups[-1] = (groups[-1][0], True)
        elif part["bar"]:
            groups[-1] = (groups[-1][0] + 1, True)
        is_complex = False
        if part["open"]:
            groups.append((1, False))
        elif part["close"]:
            branches, is_complex = groups.pop()
            ways *= branches
            groups[-1] = (groups[-1][0], groups[-1][1] or is_complex)
    ways *= groups[0][0]
    if ways > _MAX_WAYS:
        return f"can match in {ways} ways at one place: narrow the repetitions, at most {_MAX_WAYS}"
    return None
