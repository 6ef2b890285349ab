"""How much may be killed by mistake."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loopwarden_models.policy import BlastRadiusConfig
from loopwarden_streams.kill_budget import MINUTE_MS, SHARE_WINDOW_MS, KillBudget

NOW = 1_800_000_000_000
LIMITS = BlastRadiusConfig()
FEW = BlastRadiusConfig(killed_percent=100)


def killed(
    budget: KillBudget, asked: int, limits: BlastRadiusConfig = LIMITS, *, tenant: str = "acme", **at: float
) -> int:
    """Return how many of so many kills go out, all at once."""
    options = {"share": 1.0, "now_ms": NOW} | at
    went = 0
    for _ in range(asked):
        if budget.refusal(tenant, limits, share=options["share"], now_ms=int(options["now_ms"])) is None:
            budget.note(tenant, int(options["now_ms"]))
            went += 1
    return went


def test_a_tenant_has_ten_kills_a_minute() -> None:
    """And again ten in the next one."""
    budget = KillBudget(LIMITS)

    assert killed(budget, 50, FEW) == 10
    assert killed(budget, 50, FEW, now_ms=NOW + MINUTE_MS - 1) == 0
    assert killed(budget, 50, FEW, now_ms=NOW + MINUTE_MS) == 10


def test_all_tenants_together_have_sixty() -> None:
    """A faulty rule hits them all."""
    budget = KillBudget(LIMITS)

    assert sum(killed(budget, 9, FEW, tenant=f"t{n}") for n in range(20)) == 60


def test_a_tenth_of_the_live_runs_within_ten_minutes_and_two_at_least() -> None:
    """Runs that were killed were alive as well: the share does not shrink as they go."""
    for live, allowed in ((0, 2), (5, 2), (29, 3), (60, 6)):
        budget = KillBudget(LIMITS)
        budget.set_live({"acme": live})
        assert killed(budget, 50) == allowed, live

    budget = KillBudget(LIMITS)
    budget.set_live({"acme": 40})
    went = killed(budget, 50) + killed(budget, 50, now_ms=NOW + 2 * MINUTE_MS)
    assert went == 4
    assert killed(budget, 50, now_ms=NOW + SHARE_WINDOW_MS) == 4


def test_a_worker_has_the_share_of_its_partitions() -> None:
    """Three of twelve partitions: a quarter, rounded up, and never nothing."""
    assert killed(KillBudget(LIMITS), 50, FEW, share=0.25) == 3
    assert killed(KillBudget(LIMITS), 50, FEW, share=0.01) == 1
    assert killed(KillBudget(LIMITS), 50, share=0.25) == 1


def test_one_tenants_kills_are_not_anothers() -> None:
    """Beside the total."""
    budget = KillBudget(LIMITS)
    killed(budget, 50)

    assert killed(budget, 50, tenant="globex") == 2


def test_no_kills_at_all_can_be_allowed() -> None:
    """All is decided, and nothing is done."""
    assert killed(KillBudget(LIMITS), 5, BlastRadiusConfig(kills_per_min=0)) == 0


def test_the_refusal_says_which_limit() -> None:
    """A person has to know what to raise."""
    budget = KillBudget(LIMITS)
    killed(budget, 50, FEW)
    told = budget.refusal("acme", FEW, share=1.0, now_ms=NOW)
    assert told == "10 kills within a minute, 10 are allowed on this worker"

    told = budget.refusal("acme", LIMITS, share=1.0, now_ms=NOW + 2 * MINUTE_MS)
    assert told == "10 of 10 runs killed within ten minutes, 2 are allowed on this worker"


@given(
    asked=st.lists(st.tuples(st.integers(0, 120_000), st.sampled_from("abc")), max_size=200),
    per_min=st.integers(0, 5),
    total=st.integers(5, 12),
)
def test_no_minute_ever_sees_more_than_allowed(asked: list[tuple[int, str]], per_min: int, total: int) -> None:
    """However the questions lie in time."""
    limits = BlastRadiusConfig(kills_per_min=per_min, kills_per_min_total=total, killed_percent=100)
    budget, went, now_ms = KillBudget(limits), list[tuple[int, str]](), NOW
    for gap_ms, tenant in asked:
        now_ms += gap_ms
        if budget.refusal(tenant, limits, share=1.0, now_ms=now_ms) is None:
            budget.note(tenant, now_ms)
            went.append((now_ms, tenant))

    for at_ms, _ in went:
        minute = [tenant for other_ms, tenant in went if at_ms - MINUTE_MS < other_ms <= at_ms]
        assert len(minute) <= total
        assert all(minute.count(tenant) <= per_min for tenant in "abc")
