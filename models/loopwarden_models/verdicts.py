"""Verdicts: what was seen in a run, with the evidence, on `loopwarden.verdicts`. For people and dashboards."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from loopwarden_models.commands import CommandId, EvidenceRange
from loopwarden_models.events import Count, Incarnation, RunId, Seq, ShortText, Tenant, TimestampMs, ToolName, Version
from loopwarden_models.patterns import LevelName


class Evidence(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The steps that a verdict rests on: numbers and names, never content.

    Attributes:
        count: Repetitions, laps, errors or units of a budget, as the detector defines them.
        threshold: The value of `count` at which this level begins.
        first_seq: First step of the pattern.
        last_seq: The step that decided.
        window_ms: Event time between the two.
        tools: The tools involved, in order of the pattern, at most six.
        limit: Name of the budget (`max_steps`), for budget verdicts.
        used: Units of that budget used.
        allowed: Units of that budget that the run may use.
        note: One sentence for people.
    """

    count: Count
    threshold: Count = 0
    first_seq: Seq = 0
    last_seq: Seq = 0
    window_ms: Count = 0
    tools: list[ToolName] = []
    limit: ShortText | None = None
    used: Annotated[float, Meta(ge=0)] | None = None
    allowed: Annotated[float, Meta(ge=0)] | None = None
    note: Annotated[str, Meta(max_length=512)] = ""


class Verdict(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A detector's finding about a run at one step. The id is derived, so a replay says it again, not anew.

    Attributes:
        verdict_id: Derived from the run, its incarnation, the detector, the loop and the episode.
        run_id: The run that is judged.
        root_run_id: Root of the run's tree.
        incarnation: The incarnation that was judged.
        at_ms: Event time of the deciding step, in Unix milliseconds.
        detector: The rule that saw it.
        pattern: Public name of what is wrong.
        level: What the evidence asks for after the progress veto, whatever the mode.
        mode: How far this pattern is acted on.
        episode: Counts the verdicts of one loop identity, from 1.
        evidence: What the verdict rests on.
        vetoed_from: The level before signs of progress lowered it.
        command_id: The command that was issued because of it at this step.
        source: Where the steps lie.
        recovery: What is done about it at this level, by name (`patterns`); what would be done, if the mode holds it
            back.
        recovery_level: `L1` the first nudge, `L2` a later one or a break, `L3` pause, kill, and a break of all runs.
        probable_cause: What probably stands behind it, by name; its text and countermeasure are in `causes`.
        policy: Version of the policy that it was judged by: its own name for itself, `@`, and a hash of what holds for
            this tenant.
        model: Where the verdict rests on the meaning of texts, the models that were asked, with their versions.
    """

    v: Version
    verdict_id: CommandId
    tenant: Tenant
    run_id: RunId
    root_run_id: RunId
    incarnation: Incarnation
    at_ms: TimestampMs
    detector: ShortText
    pattern: ShortText
    level: LevelName
    mode: ShortText
    loop_id: Annotated[str, Meta(max_length=16, description="Loop identity, 16 hex digits.")]
    episode: Count
    evidence: Evidence
    vetoed_from: LevelName | None = None
    command_id: CommandId | None = None
    source: EvidenceRange | None = None
    recovery: ShortText | None = None
    recovery_level: ShortText | None = None
    probable_cause: ShortText | None = None
    policy: ShortText | None = None
    model: ShortText | None = None
