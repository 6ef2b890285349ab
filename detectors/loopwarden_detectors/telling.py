"""What a verdict tells people, made from what was found: the evidence, what is done about it, and why it happens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from loopwarden_detectors.causes import probable_cause
from loopwarden_models.patterns import LevelName, Mode, advice_of
from loopwarden_models.verdicts import Evidence, Verdict

if TYPE_CHECKING:
    from loopwarden_detectors.base import Finding
    from loopwarden_detectors.run_state import RunState, TreeState
    from loopwarden_models.recoveries import RecoveryLevel, RecoveryName

_NOTHING: Final = (None, None)


def tell(
    tree: TreeState,
    run: RunState,
    finding: Finding,
    *,
    verdict_id: str,
    run_id: str,
    incarnation: str,
    loop_id: str,
    level: LevelName,
    mode: Mode,
    episode: int,
    at_ms: int,
    seq: int,
    is_again: bool,
    vetoed_from: LevelName | None = None,
    command_id: str | None = None,
) -> Verdict:
    """Return the verdict on a finding.

    Args:
        tree: Of the run.
        run: The run that is judged, or that answers for its tree.
        finding: What was found.
        verdict_id: Derived, as `run_id`, `incarnation` and `loop_id` are known to the ladder.
        run_id: Of the run that is judged.
        incarnation: Its own, `""` if that is not known.
        loop_id: 16 hex digits.
        level: After the veto, or what was ordered.
        mode: How far it is acted on.
        episode: 0 for a verdict of its own about an order.
        at_ms: Event time of the judgement.
        seq: The deciding step.
        is_again: A nudge, or more, was said of this loop before.
        vetoed_from: The level before the veto.
        command_id: What was ordered.

    Cost: that of `probable_cause`, 0.45 µs for the recovery, and of making the records.
    """
    recovery, recovery_level = recovery_of(run, finding, level, is_again=is_again)
    return Verdict(
        v=1,
        verdict_id=verdict_id,
        tenant=tree.tenant,
        run_id=run_id,
        root_run_id=tree.root_run_id,
        incarnation=incarnation,
        at_ms=at_ms,
        detector=finding.detector,
        pattern=finding.pattern,
        level=level,
        mode=mode,
        loop_id=loop_id,
        episode=episode,
        evidence=Evidence(
            count=finding.count,
            threshold=finding.threshold,
            first_seq=finding.first_seq,
            last_seq=seq,
            window_ms=max(0, at_ms - finding.first_ms),
            tools=list(finding.tools),
            limit=finding.limit,
            used=finding.used,
            allowed=finding.allowed,
            note=finding.note,
        ),
        vetoed_from=vetoed_from,
        command_id=command_id,
        recovery=recovery,
        recovery_level=recovery_level,
        probable_cause=probable_cause(run, finding),
        model=finding.model,
    )


def recovery_of(
    run: RunState, finding: Finding, level: LevelName, *, is_again: bool
) -> tuple[RecoveryName | None, RecoveryLevel | None]:
    """Return what is done about a finding at this level, and whether that advises, insists or stops: L1, L2, L3.

    It hangs on what was said before and on no acknowledgement: the same events give the same answer.

    Cost: 0.45 µs.
    """
    if level in ("pause", "kill"):
        # A limit that was agreed on ends an attended run as well.
        waits = level == "pause" or (run.attended and not finding.is_hard)
        return ("ask_a_person" if waits else "end_with_a_report"), "L3"
    if level == "break":
        return "circuit_breaker", "L2"
    if level != "nudge" or not finding.needs_nudge:
        return _NOTHING
    advice = advice_of(finding.pattern, finding.detector)
    return _NOTHING if advice is None else (advice, "L2" if is_again else "L1")
