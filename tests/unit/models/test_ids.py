"""Ids of verdicts and commands, and where a tenant's commands are."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwarden_models.ids import command_id, control_partition, murmur2, verdict_id

VERDICT: dict[str, Any] = {
    "tenant": "acme",
    "run_id": "r-42",
    "incarnation": "7f3c",
    "detector": "cycle",
    "loop_id": "00112233445566aa",
    "episode": 1,
}
COMMAND = VERDICT | {"episode": "nudge:1"}


def test_same_finding_has_the_same_id() -> None:
    """Events processed again after a crash must say the same thing again, not a new one."""
    assert verdict_id(**VERDICT) == verdict_id(**VERDICT)
    assert command_id(**COMMAND) == command_id(**COMMAND)


@pytest.mark.parametrize("part", VERDICT)
def test_every_part_makes_another_finding(part: str) -> None:
    """A command for another incarnation or episode that has a known id would be taken for done."""
    assert verdict_id(**VERDICT | {part: 2 if part == "episode" else "other"}) != verdict_id(**VERDICT)
    assert command_id(**COMMAND | {part: "other"}) != command_id(**COMMAND)


def test_verdict_and_command_of_one_finding_differ() -> None:
    """They are looked up side by side in post-mortems."""
    assert verdict_id(**VERDICT) != command_id(**VERDICT | {"episode": "1"})


@given(tenant=st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True), partitions=st.integers(1, 64))
def test_partition_exists(tenant: str, partitions: int) -> None:
    """A negative hash must not give a negative partition."""
    assert 0 <= control_partition(tenant, partitions) < partitions


def test_hash_with_the_sign_bit_set_is_masked_not_negated() -> None:
    """Java clears the sign bit. Taking the absolute value instead sends this tenant elsewhere."""
    tenant = next(name for name in map(str, range(100)) if murmur2(name.encode()) >> 31)
    negative = murmur2(tenant.encode()) - 2**32

    assert control_partition(tenant, 7) == (negative & 0x7FFFFFFF) % 7


def test_tenants_are_spread_over_the_partitions() -> None:
    """One partition with all tenants would be one reader's bottleneck."""
    count = Counter(control_partition(f"tenant-{n}", 8) for n in range(800))

    assert set(count) == set(range(8))
    assert max(count.values()) < 200


@given(data=st.binary(max_size=40))
def test_murmur2_is_a_number_of_32_bits(data: bytes) -> None:
    """Python's integers do not overflow by themselves."""
    assert 0 <= murmur2(data) < 2**32
