"""Normalisation: what is volatile becomes equal, what is data stays different. Each row has a healthy twin."""

# ruff: noqa: S108 - paths in /tmp are texts here, no file is opened

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from loopwarden_detectors.normalise import (
    MAX_TEXT_BYTES,
    normalised_args,
    normalised_key,
    normalised_result,
    replace_volatile,
)
from loopwarden_models.canonical import canonical_json
from loopwarden_models.volatile import MAX_PATTERNS, VolatileRules, check_rules

RULES = VolatileRules()

# (what it is about, one text, the same text a moment later)
SAME = [
    ("date and time", "at 2025-11-08T13:49:53.140Z: idle", "at 2025-11-08T13:51:16.418Z: idle"),
    ("date and time, zone", "2025-11-08 23:59:59+01:00 up", "2025-11-09 00:00:04 +0100 up"),
    ("date and time, minutes", "modified 2025-11-08 13:49", "modified 2025-11-09 13:50"),
    ("date and time, web log", "[19/Nov/2025:00:04:32 +0000] GET /", "[20/Nov/2025:00:05:26 +0000] GET /"),
    ("date and time, header", "Date: Sun, 06 Nov 1994 08:49:37 GMT", "Date: Sun, 06 Nov 1994 08:49:38 GMT"),
    ("date and time, compact", "run 20251119T000811Z", "run 20251119T001102Z"),
    ("clock", "12:30:45,123 INFO ready", "12:31:02,007 INFO ready"),
    ("clock, listing", "root 4096 Nov  9 06:52 a.txt", "root 4096 Nov  9 06:53 a.txt"),
    ("clock, time delta", "passed after 0:00:05.120", "passed after 0:00:06.002"),
    ("epoch, labelled", "ts=1762609775511 idle", "ts=1762609776018 idle"),
    ("epoch, cut JSON", '{"created_at": 1762609775, "lines": [', '{"created_at": 1762609999, "lines": ['),
    ("duration, pytest", "3 passed in 1.02s", "3 passed in 1.04s"),
    ("duration, ms", "done (512 ms)", "done (1033 ms)"),
    ("duration, words", "took 5 seconds", "took 12 seconds"),
    ("duration, shell", "real\t0m1.234s", "real\t1m2.001s"),
    ("UUID", "job 123e4567-e89b-12d3-a456-426614174000", "job a9787cd8-6fda-46e1-ad69-bdf742dcae20"),
    ("UUID, prefix", "run_0920c4e0-4422-4e39-967a-85ff08398c55", "run_a9787cd8-6fda-46e1-ad69-bdf742dcae20"),
    ("ULID", "id 01ARZ3NDEKTSV4RRFFQ69G5FAV", "id 01BX5ZZKBKACTAV9WEVGEMMVRZ"),
    ("address", "<function f at 0x75da4bed2550>", "<function f at 0x79dd4e092550>"),
    ("path, tempfile", "open /tmp/tmpab12cd/x.py", "open /tmp/tmpq7_9zk/x.py"),
    ("path, tempfile, eight", "/tmp/tmpk3jw0q_z.json", "/tmp/tmpabcdefgh.json"),
    ("path, mktemp", "/var/tmp/tmp.AbC123xyZ9", "/var/tmp/tmp.qqqqqqqqqq"),
    ("path, mktemp with a name", "/tmp/xyz.AbC123", "/tmp/xyz.Zq81Bb"),
    ("path, pytest", "/tmp/pytest-of-root/pytest-1/test_a0", "/tmp/pytest-of-root/pytest-12/test_a0"),
    ("path, linker", "ld: /tmp/ccAbC123.o: undefined `f'", "ld: /tmp/ccq7Zzz1.o: undefined `f'"),
    ("line by line", "12:30:45 a\n12:30:46 a\n", "12:31:45 a\n12:31:46 a\n"),
]

DIFFERENT = [
    ("percentage", "12 % done", "13 % done"),
    ("page", "page 2 of 9", "page 3 of 9"),
    ("count of failures", "5 failed in 1.02s", "4 failed in 1.02s"),
    ("plain date", "due 2024-01-01", "due 2024-01-02"),
    ("plain date, slashes", "due 2024/01/01", "due 2024/01/02"),
    ("day and month", "Nov  8 06:52 a.txt", "Nov  9 06:52 a.txt"),
    ("commit id", "HEAD 9fceb02d0ae598e95dc970b74767f19372d61af8", "HEAD 1fceb02d0ae598e95dc970b74767f19372d61af8"),
    ("short commit id", "9fceb02", "9fceb03"),
    ("digest", "sha256:0123456789abcdef0123456789abcdef", "sha256:0123456789abcdef0123456789abcdee"),
    ("chain address", f"0x{'ab' * 20}", f"0x{'ab' * 19}ac"),
    ("small hexadecimal", "flags 0x1f", "flags 0x2f"),
    ("a log that grew", "12:30:45 a\n12:30:46 a\n", "12:31:45 a\n12:31:46 a\n12:31:47 a\n"),
    ("a step of progress", "[00:12<01:20] 12/100", "[00:12<01:20] 13/100"),
    ("unit of data", "15 MB", "16 MB"),
    ("size in a listing", "4800512 Nov  9 06:52 /tmp/tcc.iso", "5767168 Nov  9 06:53 /tmp/tcc.iso"),
    ("ten digits without a name", "free 1762609775", "free 1762609776"),
    ("ten digits, named a size", "size=1762609775", "size=1762609776"),
    ("line and column", "a.py:12:30: E501", "a.py:12:31: E501"),
    ("minutes and a frame", "00:12:7f", "00:13:7f"),
    ("line and column of a linter", "  12:30  error  no-undef", "  12:31  error  no-undef"),
    ("hardware address", "02:42:ac:11:00:02", "02:42:ac:11:00:03"),
    ("no time of day", "aspect 25:30", "aspect 25:31"),
    ("version", "pytest 8.3.1", "pytest 8.3.2"),
    ("word after the unit", "3 sets", "4 sets"),
    ("name in /tmp", "/tmp/out1.geojson", "/tmp/out2.geojson"),
    ("extension in /tmp", "/tmp/out.geojson", "/tmp/out.parquet"),
    ("word in /tmp", "/tmp/tmpfile_1", "/tmp/tmpfile_2"),
    ("capital in /tmp", "/tmp/app.Dockerfile", "/tmp/app.Makefiles"),
    ("26 digits", "01234567890123456789012345", "01234567890123456789012346"),
    ("only white space at the end", "ok", "ok\n"),
]


def text(value: str) -> bytes:
    """Return a text as a runtime sends it."""
    return json.dumps(value).encode()


def result(value: Any) -> Any:
    """Return the normalised form of a result, parsed."""
    return json.loads(normalised_result(json.dumps(value).encode(), RULES))


@pytest.mark.parametrize(("before", "after"), [row[1:] for row in SAME], ids=[row[0] for row in SAME])
def test_a_volatile_part_makes_no_difference(before: str, after: str) -> None:
    """Otherwise a loop whose answers carry a time or a random id is never seen. Alike as text, field and no JSON."""
    assert normalised_key(text(before), RULES) == normalised_key(text(after), RULES)
    assert normalised_result(text(before), RULES) != text(before)
    assert result({"out": [before]}) == result({"out": [after]})
    assert normalised_key(before.encode(), RULES) == normalised_key(after.encode(), RULES)
    assert normalised_key(text(before)[:-1], RULES) == normalised_key(text(after)[:-1], RULES)


@pytest.mark.parametrize(("before", "after"), [row[1:] for row in DIFFERENT], ids=[row[0] for row in DIFFERENT])
def test_data_makes_a_difference(before: str, after: str) -> None:
    """A run that gets on must not look like one that stands still: a false stop costs more than a late one."""
    assert normalised_key(text(before), RULES) != normalised_key(text(after), RULES)
    assert normalised_key(before.encode(), RULES) != normalised_key(after.encode(), RULES)


def test_the_number_of_lines_and_words_stays() -> None:
    """Replaced, not deleted: that is what keeps a growing log different."""
    log = "12:30:45 start\n2025-11-08T13:49:53Z took 5s at 0x75da4bed2550\n"

    assert result(log) == "<time> start\n<time> took <duration> at <address>\n"


@pytest.mark.parametrize(
    "name", ["messageId", "message_id", "Request-ID", "rid", "PID", "etag", "took", "elapsed", "cwd"]
)
def test_a_field_about_the_answer_itself_is_removed_at_any_depth(name: str) -> None:
    """Names are written in many ways; `messageId` is `message_id`."""
    assert result({"rows": [{name: 17, "id": 1}]}) == {"rows": [{"id": 1}]}


def test_json_in_a_text_is_compared_by_its_fields() -> None:
    """Most tools hand their JSON on as a text, inside a list of contents."""
    first = {"content": [{"type": "text", "text": '{"request_id": "a1", "rows": 3}'}]}
    again = {"content": [{"type": "text", "text": '{"rows": 3, "request_id": "b2"}'}]}
    grown = {"content": [{"type": "text", "text": '{"rows": 4, "request_id": "b2"}'}]}

    assert result(first) == result(again) != result(grown)


@pytest.mark.parametrize(
    ("name", "value", "volatile"),
    [
        ("ts", 1762609775, True),
        ("timestamp", 1762609775511, True),
        ("time", 1762609775.25, True),
        ("created_at", "1762609775", True),
        ("updatedAt", 1762609775, True),
        ("start_ms", 1762609775511, True),
        ("expires", 1762609775, True),
        ("date", [1762609775], True),
        ("bytes", 1762609775, False),
        ("format", 1762609775, False),
        ("items", 1762609775511, False),
        ("ts", 17, False),
        ("timeout_ms", 5000, False),
        ("created", "2024-01-01", False),
        ("updated", True, False),
    ],
)
def test_a_unix_time_counts_as_one_only_under_the_name_of_a_time(name: str, value: Any, volatile: bool) -> None:
    """A number of ten digits is a size, an account, a phone: the name decides."""
    if isinstance(value, list):
        assert result({name: value}) == {name: ["<time>"]}
    else:
        assert result({name: value}) == {name: "<time>" if volatile else value}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xff\xfe12:30:45",
        b'"cut off in 1.02s',
        b'{"a": NaN, "t": "12:30:45"}',
        b'"\\ud800 in 1.02s"',
        b"[" * 100_000,
        b"[" * 200 + b"]" * 200,
        b"1" * 10_000,
        b'{"a":1e999}',
    ],
    ids=[
        "empty",
        "not UTF-8",
        "cut",
        "NaN",
        "lone surrogate",
        "open brackets",
        "deep",
        "long number",
        "beyond a double",
    ],
)
def test_what_is_no_json_is_text(raw: bytes) -> None:
    """Whatever a tool prints must have a key: an exception would cost the verdict, not only this comparison."""
    once = normalised_result(raw, RULES)

    assert normalised_key(raw, RULES) != 0
    assert b"1.02s" not in once
    assert b"12:30:45" not in once


def test_the_middle_of_a_long_result_counts_as_it_is() -> None:
    """Head and tail are normalised, nothing is skipped: a difference in the middle must not vanish."""
    filler = "x\n" * (MAX_TEXT_BYTES // 2)

    def key(head: str, middle: str, tail: str) -> int:
        return normalised_key((head + filler + middle + filler + tail).encode(), RULES)

    assert key("12:30:45\n", "row 1\n", "in 1.02s") == key("12:31:45\n", "row 1\n", "in 1.04s")
    assert key("12:30:45\n", "row 1\n", "in 1.02s") != key("12:30:45\n", "row 2\n", "in 1.02s")
    assert key("", "12:30:45\n", "") != key("", "12:30:46\n", "")


@pytest.mark.parametrize(
    "unit",
    [
        "1",
        "0x",
        ":",
        "a",
        "12:",
        "1 ",
        "1.",
        "1.5 ",
        "/tmp/",
        "/tmp/a.",
        "deadbeef-",
        "2024-01-01 ",
        "1h1m",
        "01",
        "\\n1",
    ],
)
def test_one_megabyte_of_one_thing_is_done(unit: str) -> None:
    """0.3 s at most. A pattern that backtracks from every character would need hours, and the test would not end."""
    megabyte = unit * (2**20 // len(unit))

    assert replace_volatile(megabyte, RULES)
    assert normalised_result(megabyte.encode(), RULES)


@pytest.mark.parametrize(
    ("args", "left"),
    [
        ({"request_id": "a", "q": 1}, {"q": 1}),
        ({"Correlation-Id": "a", "idempotencyKey": "b", "q": 1}, {"q": 1}),
        ({"task_progress": "- [x] a", "path": "a.py"}, {"path": "a.py"}),
        ({"meta": {"trace_id": "a"}, "q": 1}, {"meta": {}, "q": 1}),
        ({"calls": [{"call_id": "a", "q": 1}]}, {"calls": [{"q": 1}]}),
        ({"intent": "look", "command": "ls \n"}, {"command": "ls"}),
        ({"command": "ls \n"}, {"command": "ls"}),
        ({"nonce": 1, "dry_run": False}, {"dry_run": False}),
        ({"nonce": 1, "filter": {}}, {"filter": {}}),
        ("ls  ", "ls"),
    ],
)
def test_a_field_about_the_request_is_taken_out_of_the_arguments(args: Any, left: Any) -> None:
    """A model that justifies each call in new words still makes the same call."""
    assert normalised_args(json.dumps(args, indent=1).encode(), RULES) == canonical_json(left)


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"q": 1},
        {"request_id": "a"},
        {"intent": "a", "nonce": 2},
        {"meta": {"trace_id": "a"}},
        {"date": "2024-01-01", "page": 2, "offset": 100, "cursor": "01ARZ3NDEKTSV4RRFFQ69G5FAV"},
        {"at": "2025-11-08T13:49:53.140Z", "timeout": "30s", "ts": 1762609775},
        {"a": "text ", "b": "text "},
        [],
        17,
        None,
        "ls",
    ],
)
def test_arguments_without_a_field_about_the_request_keep_their_hash(args: Any) -> None:
    """Pages, dates and cursors are the question. One argument always remains, or all calls would be equal."""
    assert normalised_args(json.dumps(args).encode(), RULES) is None


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"\xff", b'{"nonce":1,"a":NaN}', b'{"nonce":1,"a":"\\ud800"}', b"[" * 99_999]
)
def test_arguments_without_a_canonical_form_keep_their_hash(raw: bytes) -> None:
    """What was cut or broken on its way cannot be compared by its parts."""
    assert normalised_args(raw, RULES) is None


def test_a_tenants_pattern_and_wrapper_are_replaced_too() -> None:
    """Random marks around foreign content, and ids of a house's own making."""
    rules = VolatileRules(patterns=(r"JOB-(\d){1,12}", r"\bx{3}"), wrappers=("untrusted",))

    def key(value: str) -> int:
        return normalised_key(text(value), rules)

    assert key("JOB-17 ok in 1.02s") == key("JOB-18 ok in 1.04s") != key("JOB-18 failed in 1.04s")
    assert key('<untrusted id="a1">hi</untrusted>') == key('<untrusted id="b2">hi</untrusted>')
    assert key("<<<END_untrusted-a1>>> hi") == key("<<<END_untrusted-b2>>> hi")
    assert key('<untrusted id="a1">hi</untrusted>') != key('<untrusted id="a1">ho</untrusted>')


@pytest.mark.parametrize(
    "pattern",
    [
        r"JOB-\d{1,12}",
        r"(?:Jan|Feb) \d\d?",
        r"\[worker [0-9]{1,3}\]",
        r"[+*]{1,4}x",
        r"a{x}",
        r"v\d(?:\.\d)?",
        r"\{\d{1,3}\}",
    ],
)
def test_a_bounded_pattern_is_taken(pattern: str) -> None:
    """The rules against slow patterns must leave the everyday ones alone."""
    check_rules(VolatileRules(patterns=(pattern,)))


@pytest.mark.parametrize(
    ("pattern", "remedy"),
    [
        ("(", "correct it"),
        ("a" * 257, "split it"),
        (r"(\w)\1", "spell out"),
        (r"(?P<x>a)(?P=x)", r"\(\?:…\)"),
        (r"(?=a)b", r"\(\?:…\)"),
        (r"(?i)b", r"\(\?:…\)"),
        (r"id=\w+", "give a bound"),
        (r"a.*b", "give a bound"),
        (r"a{2,}b", "give a bound"),
        (r"(?:a{1,9}){1,9}b", "write the inner"),
        (r"(?:a|a){9}b", "write the inner"),
        (r"((a?)){9}b", "write the inner"),
        (r"a{1,65}b", "at most 64"),
        (r"a{15}{15}b", "correct it"),
        (r"a{0,16}a{0,16}b", "narrow"),
        (r"(a|a)" * 9, "narrow"),
        (r"a?", "mandatory"),
        (r"\b", "mandatory"),
        (r"a|", "mandatory"),
    ],
)
def test_a_pattern_that_may_take_long_or_matches_nothing_is_refused(pattern: str, remedy: str) -> None:
    """It would run on text that an agent's tools hand in. The message names index, pattern and remedy."""
    with pytest.raises(ValueError, match=remedy) as caught:
        VolatileRules(patterns=("ok", pattern))

    assert "patterns[1]" in str(caught.value)
    assert repr(pattern[:80]) in str(caught.value)


@pytest.mark.parametrize(
    ("rules", "path"),
    [
        ({"patterns": [f"p{n}" for n in range(MAX_PATTERNS + 1)]}, "patterns[16]"),
        ({"wrappers": ["a", "<b>"]}, "wrappers[1]"),
        ({"args": ["__"]}, "args[0]"),
        ({"result": ["x" * 65]}, "result[0]"),
        ({"fields": []}, "fields"),
    ],
)
def test_rules_from_a_policy_file_are_checked(rules: dict[str, Any], path: str) -> None:
    """A slip in the file is found when it is read, not when the first result comes."""
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(rules, VolatileRules)

    assert path in str(caught.value)


FOOTER = "1 hit: Art. 14.2\n--\nsearches so far: {n} · context used {p}%"


def test_running_totals_below_a_line_of_dashes_are_no_answer() -> None:
    """A runtime counts for the model, and the clause found stays the same."""
    texts = {replace_volatile(FOOTER.format(n=n, p=2 * n), VolatileRules()) for n in (3, 17, 204)}

    assert len(texts) == 1


@pytest.mark.parametrize(
    "text", ["3 hits\n--\nall shown", "a | b\n--\n1 | 2\n3 | 4\n5 | 6\n7 | 8", "page 3 of 9", "--\n", "x\n--\n"]
)
def test_what_stands_above_the_line_and_what_is_longer_stays(text: str) -> None:
    """A table is data, and so is a text without such a line."""
    other = text.replace("3", "4").replace("7", "8")

    assert (replace_volatile(text, VolatileRules()) == replace_volatile(other, VolatileRules())) is (text == other)
