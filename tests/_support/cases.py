"""Cases: short sequences of steps with the right verdict, and the judge that compares.

A case file is YAML. `events` are step events in short form: `repeat` expands its events, `{i}` is the number of the
innermost repeat from 1, `{i0}` from 0, `{a..z}` cycles letters, `{hex}` is 32 digits that no other position has. What a
case leaves out is filled in: version, tenant, run, incarnation, `seq`, time (2 s later than the event before), call
ids, effects from `tools`, outcome `ok`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct

from loopwarden_detectors import ladder, watch
from loopwarden_detectors.run_state import TreeState
from loopwarden_models.acks import Ack
from loopwarden_models.codec import decode_step
from loopwarden_models.events import AnyStep, root_of
from loopwarden_models.patterns import LEVEL_NAMES
from loopwarden_models.policy import Policy
from loopwarden_models.verdicts import Verdict

START_MS = 1_800_000_000_000
ENFORCE = Policy(mode="enforce")


class Said(Struct, frozen=True):
    """One verdict of a case, and the number of the event that caused it, counted from 1 after expansion."""

    at_event: int
    verdict: Verdict

    @property
    def level(self) -> int:
        """The verdict's level as a number: a stronger level compares greater."""
        return LEVEL_NAMES.index(self.verdict.level)


class Case(Struct, frozen=True):
    """One case file, expanded."""

    name: str
    kind: str
    expect: dict[str, Any]
    steps: list[AnyStep]


def load(path: Path) -> Case:
    """Read a case file and expand it to step events, decoded as from the wire."""
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    steps = [decode_step(json.dumps(event).encode()) for event in expand(data)]
    return Case(
        name=data["id"], kind=data["kind"], expect=data["expect"], steps=[step for step in steps if step is not None]
    )


def expand(case: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a case's step events with every field that the case leaves out."""
    effects: dict[str, str] = case.get("tools", {})
    attended: bool | None = case.get("policy", {}).get("attended")
    seqs: dict[str, int] = {}
    open_calls: dict[tuple[str, str], str] = {}
    now_ms = START_MS
    calls = 0
    for position, (short, number) in enumerate(_flatten(case["events"], 1)):
        event = _filled(short, number, position)
        now_ms = int(event.pop("ts_ms", now_ms + int(event.pop("dt_ms", 2_000))))
        run_id = event.setdefault("run_id", "r1")
        seqs[run_id] = seqs.get(run_id, -1) + 1
        event = {"v": 1, "tenant": "acme", "root_run_id": run_id, "incarnation": "a", "seq": seqs[run_id]} | event
        event["ts_ms"] = now_ms
        if event["type"] == "run_start" and attended is not None:
            event.setdefault("attended", attended)
        if event["type"] in ("tool_start", "tool_end"):
            event.setdefault("effect", effects.get(event["tool"], "unknown"))
            pair = (run_id, event["tool"])
            if "call_id" not in event:
                if event["type"] == "tool_end" and pair in open_calls:
                    event["call_id"] = open_calls.pop(pair)
                else:
                    calls += 1
                    event["call_id"] = f"c{calls}"
                    if event["type"] == "tool_start":
                        open_calls[pair] = event["call_id"]
        if event["type"] == "tool_end":
            event.setdefault("outcome", "ok")
        yield event


def judge(steps: list[AnyStep], policy: Policy = ENFORCE) -> list[Said]:
    """Return every verdict on `steps`. A nudge counts as acknowledged `applied` at once, and as ignored."""
    trees: dict[tuple[str, str], TreeState] = {}
    said: list[Said] = []
    for number, step in enumerate(steps, 1):
        key = (step.tenant, root_of(step))
        tree = trees.get(key)
        if tree is None:
            tree = trees[key] = TreeState(tenant=key[0], root_run_id=key[1])
        for decision in watch.observe(tree, step, policy, offset=number - 1):
            order = decision.order
            if order is not None and order.type == "nudge":
                ack = Ack(
                    v=1,
                    command_id=order.command_id,
                    tenant=order.tenant,
                    run_id=order.run_id,
                    status="applied",
                    at_ms=step.ts_ms,
                )
                ladder.acknowledge(tree, ack)
            if decision.verdict is not None:
                said.append(Said(number, decision.verdict))
    return said


def faults(case: Case, said: list[Said]) -> list[str]:
    """Return what is wrong with the verdicts of a case, empty if they are what the case expects."""
    expect = case.expect
    target: dict[str, str] = expect.get("target", {})
    meant = [one for one in said if all(getattr(one.verdict, field) == value for field, value in target.items())]
    others = [one for one in said if one not in meant] if target else said
    found = []
    if "max_level" in expect:
        highest = LEVEL_NAMES.index(expect["max_level"])
        found += [f"{_told(one)} is above {expect['max_level']}" for one in others if one.level > highest]
    if "min_level" in expect:
        by = expect.get("by_event", len(case.steps))
        if not any(one.level >= LEVEL_NAMES.index(expect["min_level"]) and one.at_event <= by for one in meant):
            found.append(f"nothing of level {expect['min_level']} by event {by}")
    if "kill_by_event" in expect:
        by = expect["kill_by_event"]
        if not any(one.verdict.level == "kill" and one.at_event <= by for one in meant):
            found.append(f"no kill by event {by}")
    return found


def _told(one: Said) -> str:
    return f"event {one.at_event}: {one.verdict.level} by {one.verdict.detector}"


def _flatten(events: list[dict[str, Any]], number: int) -> Iterator[tuple[dict[str, Any], int]]:
    for event in events:
        if "repeat" in event:
            for lap in range(1, int(event["repeat"]) + 1):
                yield from _flatten(event["events"], lap)
        else:
            yield event, number


def _filled(value: Any, number: int, position: int) -> Any:
    if isinstance(value, str):
        nonce = blake2b(f"{position}:{value}".encode(), digest_size=16).hexdigest()
        letter = "abcdefghijklmnopqrstuvwxyz"[(number - 1) % 26]
        filled = value.replace("{i0}", str(number - 1)).replace("{i}", str(number))
        return filled.replace("{a..z}", letter).replace("{hex}", nonce)
    if isinstance(value, dict):
        return {_filled(key, number, position): _filled(inner, number, position) for key, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner, number, position) for inner in value]
    return value
