"""Records that cannot be read: kept with the reason and their place, and nothing around them is lost."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.record.default_records import DefaultRecord
from hypothesis import given
from hypothesis import strategies as st
from tests._support.fleet import Event, Said, differences, fleet, heard, judged, looping, plain, records
from tests._support.kafka import ApacheKafka, NewTopicSpec, OutRecord
from tests._support.workers import Deployment, ack_of, wait_until

from loopwarden_models.errors import REASONS
from loopwarden_models.events import STEP_TYPES
from loopwarden_models.policy import Policy
from loopwarden_streams.ingest import Ingest
from loopwarden_streams.metrics import Metrics
from loopwarden_streams.partition import ACKS, STEPS, Partition
from loopwarden_streams.policy_follower import PolicyInForce
from loopwarden_streams.settings import Settings
from loopwarden_streams.transport import Record

ENFORCE = Policy(mode="enforce")
KEY = b"acme|bad"
GOOD: Event = {"v": 1, "type": "user_input", "tenant": "acme", "run_id": "bad", "seq": 1, "ts_ms": 1}
CALL: Event = {**GOOD, "type": "tool_end", "tool": "search"}
NO_MODELS = Mock(meaning=None)


def changed(event: Event, **fields: Any) -> bytes:
    """Return an event with some fields replaced."""
    return json.dumps({**event, **fields}).encode()


# Name, key, value, reason, field.
BAD_STEPS: list[tuple[str, bytes | None, bytes | None, str, str]] = [
    ("truncated JSON", KEY, json.dumps(GOOD).encode()[:-9], "not_json", ""),
    ("no JSON at all", KEY, b"hello", "not_json", ""),
    ("an empty value", KEY, b"", "not_json", ""),
    ("an array", KEY, b"[]", "wrong_type", ""),
    ("a text for a number", KEY, changed(GOOD, seq="1"), "wrong_type", "seq"),
    (
        "a missing field",
        KEY,
        json.dumps({k: v for k, v in GOOD.items() if k != "ts_ms"}).encode(),
        "missing_field",
        "ts_ms",
    ),
    ("an unknown version", KEY, changed(GOOD, v=2), "unsupported_version", "v"),
    ("a negative number", KEY, changed(GOOD, seq=-1), "out_of_range", "seq"),
    ("a tenant that is a path", KEY, changed(GOOD, tenant="../acme"), "bad_value", "tenant"),
    ("five megabytes", KEY, changed(CALL, result="x" * 5_000_000), "too_large", ""),
    ("no key", None, changed(GOOD), "empty_key", ""),
    ("an empty key", b"", changed(GOOD), "empty_key", ""),
    ("the key of another run", b"acme|other", changed(GOOD), "key_mismatch", ""),
    ("bytes that are not UTF-8", KEY, changed(GOOD).replace(b'"bad"', b'"b\xff\xfed"'), "not_utf8", ""),
    (
        "a hundred thousand brackets",
        KEY,
        changed(CALL)[:-1] + b',"args":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        "too_deep",
        "",
    ),
    ("not a number", KEY, changed(CALL)[:-1] + b',"cost_usd":NaN}', "not_json", ""),
    ("more than a float can hold", KEY, changed(CALL)[:-1] + b',"cost_usd":1e999}', "out_of_range", "cost_usd"),
    ("a null byte for a space", KEY, changed(GOOD).replace(b": ", b":\0"), "not_json", ""),
    ("a tombstone", KEY, None, "tombstone", ""),
    ("a hash that is not hexadecimal", KEY, changed(CALL, args_hash="not hex", result=1), "bad_value", "args_hash"),
]


class Letter(NamedTuple):
    """One record of the dead-letter topic."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, str]


async def read_letters(deployment: Deployment) -> list[Letter]:
    """Return the dead letters in the order of their sources."""
    reader = AIOKafkaConsumer(
        bootstrap_servers=deployment.bootstrap, enable_auto_commit=False, auto_offset_reset="earliest"
    )
    await reader.start()
    found: list[Letter] = []
    try:
        tps = [TopicPartition(deployment.topic("dead-letter"), number) for number in range(deployment.partitions)]
        reader.assign(tps)
        ends = await reader.end_offsets(tps)
        async with asyncio.timeout(30):
            while any([await reader.position(tp) < ends[tp] for tp in tps]):
                for records_of in (await reader.getmany(timeout_ms=100)).values():
                    found += [
                        Letter(one.partition, one.key, one.value, {name: value.decode() for name, value in one.headers})
                        for one in records_of
                    ]
    finally:
        await reader.stop()
    return sorted(found, key=lambda letter: (letter.headers["topic"], letter.partition, int(letter.headers["offset"])))


def letters(deployment: Deployment) -> list[Letter]:
    """Return the dead letters in the order of their sources."""
    return asyncio.run(read_letters(deployment))


def test_every_kind_of_bad_step_is_kept_with_its_reason_and_place(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """Whoever broke a producer must find the record, the field and the offset; the fleet must not notice."""
    runs = fleet(40, seed=41)
    good = [event for run in runs for event in run]
    around = list(records(good, 4))
    step = len(around) // len(BAD_STEPS)
    mixed: list[OutRecord] = []
    for number, (_, key, value, _, _) in enumerate(BAD_STEPS):
        mixed += around[number * step : (number + 1) * step]
        mixed.append(OutRecord(1, key, value))
    mixed += around[len(BAD_STEPS) * step :]

    with Deployment(
        apache_kafka.bootstrap,
        tmp_path,
        mode="enforce",
        max_action_age_ms=0,
        # The topic as declared would refuse the largest.
        topics={"steps": NewTopicSpec(partitions=4)},
    ) as deployment:
        worker = deployment.start().ready()
        deployment.write(mixed)
        deployment.wait_applied()

        bad = [record for record in deployment.read("steps") if record.partition == 1]
        places = {record.offset: record for record in bad}
        kept = letters(deployment)
        told = [(letter.headers["reason"], letter.headers["field"]) for letter in kept]
        assert told == [(reason, field) for _, _, _, reason, field in BAD_STEPS]
        for letter, (name, key, value, _, _) in zip(kept, BAD_STEPS, strict=True):
            offset = int(letter.headers["offset"])
            assert (letter.headers["topic"], letter.headers["partition"]) == (deployment.topic("steps"), "1"), name
            assert (places[offset].key, places[offset].value) == (key, value), name
            assert letter.key == key, name
            assert letter.value == (value or b"")[:262_144], name
            assert letter.headers["bytes"] == str(len(value or b"")), name
            assert letter.headers["detail"], name
        assert worker.metric("loopwarden_dead_letters_total") == len(BAD_STEPS)
        assert worker.metric("loopwarden_dead_letters_total", reason="unhandled") == 0
        said = heard(deployment.messages("verdicts"), deployment.messages("control.commands"))
        assert differences(judged(good, ENFORCE), said) == ""


def test_bad_answers_are_kept_and_good_ones_count(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """A runtime with a broken clock or version must not cost the others their acknowledgements."""
    with Deployment(apache_kafka.bootstrap, tmp_path, mode="enforce", max_action_age_ms=0) as deployment:
        worker = deployment.start().ready()
        deployment.write(records(looping("r1", 12, start_ms=0), deployment.partitions))
        deployment.wait_applied()
        (kill,) = [command for command in deployment.messages("control.commands") if command["type"] == "kill_run"]
        good = ack_of(deployment, kill, "applied")
        assert good.key is not None
        assert good.value is not None
        answer = json.loads(good.value)
        bad = [
            (good.key, good.value[:-5], "not_json"),
            (good.key, changed(answer, at_ms="now"), "wrong_type"),
            (good.key, changed(answer, v=3), "unsupported_version"),
            (b"acme|r2", good.value, "key_mismatch"),
            (None, good.value, "empty_key"),
            (good.key, None, "tombstone"),
            (good.key, changed(answer, detail="x" * 2_000), "out_of_range"),
        ]
        deployment.write([*(OutRecord(good.partition, key, value) for key, value, _ in bad), good], topic="acks")
        deployment.wait_applied()

        kept = letters(deployment)
        assert [letter.headers["reason"] for letter in kept] == [reason for _, _, reason in bad]
        assert {letter.headers["topic"] for letter in kept} == {deployment.topic("acks")}
        assert worker.metric("loopwarden_command_acks_total", status="applied") == 1
        states = [record["state"] for record in deployment.messages("control.state") if "run|r1" in record["key"]]
        assert states == ["kill_wanted", "killed"]


def test_a_mostly_broken_partition_is_called_broken_until_it_heals(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """A consumer that quietly files away everything looks healthy and sees nothing: it must be an alarm."""
    garbage = [OutRecord(1, KEY, b"garbage %d" % number) for number in range(300)]
    good = [event for number in range(140) for event in looping(f"r{number}", 12, start_ms=0)]
    healing = [record for record in records(good, 4) if record.partition == 1]

    with Deployment(apache_kafka.bootstrap, tmp_path, mode="enforce", max_action_age_ms=0) as deployment:
        worker = deployment.start().ready()
        topic = deployment.topic("steps")
        deployment.write(garbage)
        deployment.wait_applied()
        assert worker.metric("loopwarden_broken_stream", topic=topic, partition="1") == 1
        assert worker.get("/readyz").json()["broken"] == [1]
        # Nothing is lost without a trace: what is not kept is named by its offset.
        kept = letters(deployment)
        named = [
            int(place) for letter in kept if letter.headers["reason"] == "broken_stream" for place in numbers(letter)
        ]
        whole = [int(letter.headers["offset"]) for letter in kept if letter.headers["reason"] == "not_json"]
        assert sorted(whole + named) == list(range(len(garbage)))
        assert worker.metric("loopwarden_dead_letters_dropped_total") == len(named) > 0

        # One producer is mended, the other one is not; more good than bad comes in.
        deployment.write([*healing, *garbage[:20]])
        deployment.wait_applied()

        assert len(healing) > len(garbage) + 20
        wait_until(
            lambda: worker.metric("loopwarden_broken_stream", topic=topic, partition="1") == 0, "the partition to heal"
        )
        assert worker.get("/readyz").json()["broken"] == []


def numbers(letter: Letter) -> list[bytes]:
    """Return the offsets that a summary letter names."""
    assert letter.value is not None
    return letter.value.split(b",")


# In this process: whatever bytes come.


def as_delivered(offset: int, key: bytes | None, value: bytes | None) -> Record:
    """Return a record as the client delivers it."""
    record: Record = DefaultRecord(offset, 1_800_000_000_000, 0, key, value, [])
    return record


def test_garbage_of_one_tenant_does_not_hide_what_is_wrong_with_anothers() -> None:
    """Its flood makes the partition a broken one; the one bad record of the other is kept as it came."""
    ingest = Ingest(
        Mock(), Settings(), PolicyInForce(ENFORCE), {}, Mock(), Mock(), Mock(), Metrics(), Mock(), NO_MODELS
    )
    partition = Partition(number=0, epoch=1, next_offset={STEPS: 0, ACKS: 0})
    flood = [as_delivered(offset, b"acme|r1", b"{") for offset in range(600)]
    for chunk in (flood[:300], [*flood[300:], as_delivered(600, b"globex|r1", b"[")]):
        _, refused = ingest._judge(partition, chunk)
        told = ingest._letters(partition, STEPS, chunk, refused)

    assert ingest.broken == {0}
    assert (b"globex|r1", b"[") in [(one.key, one.value) for one in told]
    assert len(told) < 50
    assert len([one for one in told if dict(one.headers)["reason"] == b"broken_stream"]) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FIELDS = sorted({name for kind in STEP_TYPES for name in kind.__struct_encode_fields__} | {"type"})
KINDS = [str(kind.__struct_config__.tag) for kind in STEP_TYPES]


@st.composite
def mutations(draw: st.DrawFn) -> tuple[bytes | None, bytes | None]:
    """Return key and value of a record that was a step event before something happened to it."""
    event: dict[str, Any] = {**CALL, "type": draw(st.sampled_from(KINDS)), "seq": draw(st.integers(0, 50))}
    for name in draw(st.lists(st.sampled_from(FIELDS), max_size=4)):
        event[name] = draw(JSON)
    value = json.dumps(event).encode("utf-8", "surrogatepass")
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(value)))
        upto = draw(st.integers(at, min(len(value), at + 20)))
        value = value[:at] + draw(st.binary(max_size=8)) + value[upto:]
    whole = draw(st.sampled_from([value, value, value, None, b"", draw(st.binary(max_size=40))]))
    return draw(st.sampled_from([KEY, KEY, KEY, None, b"", b"acme|r0000", draw(st.binary(max_size=12))])), whole


GOOD_RECORDS = [(key, value) for _, key, value, _ in records([e for run in fleet(6, seed=42) for e in run], 1)]
GOOD_SAID = judged([json.loads(value or b"") for _, value in GOOD_RECORDS], ENFORCE)


@given(bad=st.lists(st.tuples(st.integers(0, len(GOOD_RECORDS)), mutations()), max_size=30))
def test_no_bytes_stop_a_partition_or_cost_a_good_record(
    bad: list[tuple[int, tuple[bytes | None, bytes | None]]],
) -> None:
    """The judge is total: it refuses with a reason of the closed set, and the runs beside it are judged as ever."""
    mixed: list[tuple[bytes | None, bytes | None]] = list(GOOD_RECORDS)
    for place, record in sorted(bad, key=lambda each: each[0], reverse=True):
        mixed.insert(place, record)
    settings = Settings(max_action_age_ms=0)
    rules = PolicyInForce(ENFORCE)
    ingest = Ingest(Mock(), settings, rules, {}, Mock(), Mock(), Mock(), Metrics(), Mock(), NO_MODELS)
    partition = Partition(number=0, epoch=1, next_offset={STEPS: 0, ACKS: 0})

    decisions, refused = ingest._judge(
        partition, [as_delivered(at, key, value) for at, (key, value) in enumerate(mixed)]
    )

    assert {error.reason for _, error in refused} <= set(REASONS) - {"unhandled"}
    verdicts = [decision.verdict for decision, _ in decisions if decision.verdict is not None]
    orders = [decision.order for decision, _ in decisions if decision.order is not None]
    said = Said(
        {one.verdict_id: plain(msgspec.to_builtins(one)) for one in verdicts if one.root_run_id != "bad"},
        {one.command_id: one.type for one in orders if one.root_run_id != "bad"},
    )
    assert differences(GOOD_SAID, said) == ""
    assert partition.trees.keys() - {KEY} == {key for key, _ in GOOD_RECORDS}
