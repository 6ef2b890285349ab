"""Orders that are out, until they have landed: sent once more, alarmed, and answered with a wider kill.

Ticks ask `look`. What it finds is a level, not an edge: after a crash the next tick finds it again, under the same ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from loopwarden_detectors.base import KILL
from loopwarden_detectors.ladder import Alarm, Decision, Order
from loopwarden_detectors.pauses import end_of_wait, is_held
from loopwarden_detectors.stops import StopState, bind, command_key, family_of
from loopwarden_models.commands import ANY_INCARNATION, CommandType, Reason
from loopwarden_models.hashes import derived_id
from loopwarden_models.ids import command_id
from loopwarden_models.patterns import LevelName
from loopwarden_models.verdicts import Evidence, Verdict

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState, TreeState
    from loopwarden_models.policy import Policy

DETECTOR: Final = "landing"
PATTERNS: Final[dict[Alarm, str]] = {
    "unanswered": "order_unanswered",
    "unconfirmed": "kill_unconfirmed",
    "failed": "kill_failed",
    "violation": "step_after_kill",
}
_BITS: Final[dict[Alarm, int]] = {"unanswered": 1, "unconfirmed": 2, "failed": 4, "violation": 8}

# An order goes out twice: whoever does not answer two does not answer a third. control-plane
_MAX_SENDS: Final = 2


def note_sent(tree: TreeState, own_id: str, issued_at_ms: int, now_ms: int) -> None:
    """Note with every run that an order binds that it went out.

    Args:
        tree: Changed in place.
        own_id: Id of the command.
        issued_at_ms: When it went out first, in Unix milliseconds.
        now_ms: Time of the partition's clock.
    """
    for run in tree.runs.values():
        stop = run.stop
        if stop is not None and stop.command_id == own_id:
            stop.issued_at_ms, stop.sent_ms = issued_at_ms, now_ms
            stop.sends += 1


def withhold(tree: TreeState, own_id: str) -> bool:
    """Keep back a kill that was decided; nothing of it is out.

    Returns:
        False if a runtime has answered it: it went out in another life, and there is nothing to keep back.
    """
    stops = [run.stop for run in tree.runs.values() if run.stop is not None and run.stop.command_id == own_id]
    if any(stop.heard_ms >= 0 or stop.applied_ms >= 0 for stop in stops):
        return False
    for stop in stops:
        stop.is_withheld = True
    return True


def is_waited_for(tree: TreeState) -> bool:
    """Return whether an order to a run of the tree is out, or kept back, and has not landed, or a run is paused.

    Cost: 0.1 µs a run.
    """
    return any(run.stop is not None and is_held(run, run.stop) for run in tree.runs.values()) or any(
        True for _ in open_orders(tree)
    )


def open_orders(tree: TreeState) -> Iterator[str]:
    """Yield how far each order has come that is out: `sent`, `received`, `applied`, `unconfirmed` or `withheld`."""
    for run in tree.runs.values():
        stop = run.stop
        if stop is None:
            continue
        if stop.is_withheld:
            if not run.is_over and stop.incarnation == run.incarnations:
                yield "withheld"
        elif _is_out(run, stop):
            if stop.told & _BITS["unconfirmed"]:
                yield "unconfirmed"
            else:
                yield "applied" if stop.applied_ms >= 0 else "received" if stop.heard_ms >= 0 else "sent"


def look(tree: TreeState, now_ms: int, policy: Policy, *, act: bool = True) -> list[Decision]:
    """Look at the orders of a tree that are out.

    * Nobody has answered for `ladder.receive_timeout_ms`: the same command once more; then an alarm.
    * A runtime has answered, and not confirmed the end within the grace and `ladder.confirm_timeout_ms`: an alarm.
    * A runtime failed to carry out a kill: an alarm, and once a wider kill.
    * Nobody said what is to become of a paused run for `ladder.pause_timeout_ms`: it is killed.

    Args:
        tree: What was done is noted in it.
        now_ms: Time of the partition's clock, in Unix milliseconds.
        policy: In force for the tenant.
        act: False while far behind: nothing is sent, and it is due at a later tick.

    Returns:
        Decisions to publish. A tree of one command gets one of each kind, whatever the number of its runs.

    Cost: 1 µs a run; asked of trees with such an order alone.
    """
    decisions: list[Decision] = []
    silent: dict[str, list[tuple[str, RunState, StopState]]] = {}
    for run_id, run in list(tree.runs.items()):
        stop = run.stop
        if stop is None or not (_is_out(run, stop) or is_held(run, stop)):
            continue
        rules = policy.of(tree.tenant, run.agent, tree.root_run_id) if policy.is_layered else policy
        if is_held(run, stop):
            if act and _may_kill(stop, rules, now_ms):
                decisions += end_of_wait(tree, run_id, run, stop, rules, now_ms)
            continue
        has_refused = stop.has_failed or (stop.is_unsupported and stop.level >= KILL)
        if has_refused and stop.applied_ms < 0:
            decisions += _look_at_failure(tree, run_id, run, stop, rules, now_ms, act=act)
        elif stop.steps_after and not stop.is_wider and act and not run.is_over:
            # The step itself was judged too late to act on it.
            decisions += answer_violation(tree, run_id, run, rules, now_ms)
        elif stop.heard_ms < 0 and not stop.is_undelivered:
            silent.setdefault(stop.command_id, []).append((run_id, run, stop))
        elif stop.level >= KILL and not stop.is_undelivered:
            decisions += _look_at_end(tree, run_id, run, stop, rules, now_ms)
    for waiting in silent.values():
        decisions += _look_at_silence(tree, waiting, policy, now_ms, act=act)
    return decisions


def answer_violation(
    tree: TreeState, run_id: str, run: RunState, policy: Policy, now_ms: int, *, act: bool = True
) -> list[Decision]:
    """Answer a step that began after its run's kill was applied: an alarm, and once a wider kill."""
    stop = run.stop
    if stop is None:
        return []
    note = f"a step began after kill {stop.command_id} was applied{_by(run)}"
    return _widen(tree, run_id, run, stop, policy, now_ms, "violation", note, act=act)


def _is_out(run: RunState, stop: StopState) -> bool:
    if stop.sent_ms < 0 or stop.is_withheld or stop.is_closed:
        return False
    if stop.applied_ms < 0:
        if run.is_over or stop.incarnation != run.incarnations:
            return False  # it ended by itself, or what was taken up gets an order of its own
        return not stop.is_undelivered or stop.has_failed or stop.is_unsupported
    return stop.level >= KILL and not stop.is_dead


def _look_at_silence(
    tree: TreeState, waiting: list[tuple[str, RunState, StopState]], policy: Policy, now_ms: int, *, act: bool
) -> list[Decision]:
    run_id, run, stop = next((one for one in waiting if one[2].is_named), waiting[0])
    rules = policy.of(tree.tenant, run.agent, tree.root_run_id) if policy.is_layered else policy
    elapsed_ms = now_ms - stop.sent_ms
    if elapsed_ms < rules.ladder.receive_timeout_ms:
        return []
    if stop.sends < _MAX_SENDS and elapsed_ms < stop.ttl_ms:
        if not act:
            return []
        note = f"nobody answered for {elapsed_ms // 1_000} s: sent once more"
        return [Decision(verdict=None, order=_order(tree, run_id, run, stop, rules, note))]
    silent = [one for one in waiting if not one[2].told & _BITS["unanswered"]]
    if not silent:
        return []
    for _, _, each in silent:
        each.told |= _BITS["unanswered"]
    others = f" and {len(silent) - 1} more of its tree" if len(silent) > 1 else ""
    kind = "kill" if stop.level >= KILL else "pause"
    note = f"nobody answered {kind} {stop.command_id} of run {run_id}{others}; {_last_heard(run)}"
    return [_alarm(tree, run_id, run, stop, "unanswered", note, now_ms)]


def _look_at_end(
    tree: TreeState, run_id: str, run: RunState, stop: StopState, policy: Policy, now_ms: int
) -> list[Decision]:
    waited_ms = now_ms - stop.heard_ms
    if waited_ms < policy.ladder.kill_grace_ms + policy.ladder.confirm_timeout_ms:
        return []
    if stop.told & _BITS["unconfirmed"]:
        return []
    stop.told |= _BITS["unconfirmed"]
    tools = tuple(dict.fromkeys(run.tool_name(number) for number in run.open_tools or ()))
    what = "applied" if stop.applied_ms >= 0 else "received"
    waits_for = f"; waiting for {', '.join(tools[:3])}" if tools else ""
    note = f"kill {stop.command_id} was {what}, the end is not confirmed after {waited_ms // 1_000} s{waits_for}"
    return [_alarm(tree, run_id, run, stop, "unconfirmed", f"{note}; {_last_heard(run)}", now_ms, tools=tools[:6])]


def _look_at_failure(
    tree: TreeState, run_id: str, run: RunState, stop: StopState, policy: Policy, now_ms: int, *, act: bool
) -> list[Decision]:
    if stop.level < KILL or stop.is_unsupported or stop.is_wider:
        if stop.told & _BITS["failed"]:
            return []
        stop.told |= _BITS["failed"]
        cannot = "cannot do it" if stop.is_unsupported else "failed"
        kind = "kill" if stop.level >= KILL else "pause"
        return [_alarm(tree, run_id, run, stop, "failed", f"{kind} {stop.command_id}: the runtime {cannot}", now_ms)]
    note = f"the runtime failed to carry out kill {stop.command_id}{_by(run)}"
    return _widen(tree, run_id, run, stop, policy, now_ms, "failed", note, act=act)


def _widen(
    tree: TreeState,
    run_id: str,
    run: RunState,
    stop: StopState,
    policy: Policy,
    now_ms: int,
    alarm: Alarm,
    note: str,
    *,
    act: bool,
) -> list[Decision]:
    """Say it once, and kill the run with all below it in any incarnation, once and for as long as kills are allowed."""
    is_told = bool(stop.told & _BITS[alarm])
    stop.told |= _BITS[alarm]
    order = None
    if act and not stop.is_wider and _may_kill(stop, policy, now_ms):
        order = _wider(tree, run_id, run, stop, policy, note, now_ms)
    if is_told and order is None:
        return []
    # The order has a verdict of its own if the alarm was said before: one id says one thing.
    own_id = derived_id("ordered", order.command_id) if is_told and order is not None else None
    said = _alarm(tree, run_id, run, stop, alarm, note, now_ms, order=order, own_id=own_id)
    return [said]


def _may_kill(stop: StopState, policy: Policy, now_ms: int) -> bool:
    """The operator may have switched the rule off since."""
    return not hasattr(policy, stop.detector) or policy.mode_of(stop.detector, now_ms) == "enforce"


def _wider(
    tree: TreeState, run_id: str, run: RunState, stop: StopState, policy: Policy, note: str, now_ms: int
) -> Order:
    own_id = command_id(
        tree.tenant, run_id, ANY_INCARNATION, stop.detector, stop.command_id[:16], f"wider:{stop.command_id}"
    )
    wider = StopState(
        command_id=own_id,
        incarnation=0,
        level=int(KILL),
        ordered_ms=now_ms,
        is_of_tree=True,
        pattern=stop.pattern,
        detector=stop.detector,
        count=stop.count,
        is_any=True,
        is_wider=True,
        former_key=command_key(stop.command_id),
        ttl_ms=policy.ladder.command_ttl_ms,
    )
    bind(family_of(tree, run_id).values(), wider, run)
    assert run.stop is not None  # noqa: S101 - just bound
    return _order(tree, run_id, run, run.stop, policy, note)


def _order(tree: TreeState, run_id: str, run: RunState, stop: StopState, policy: Policy, note: str) -> Order:
    """Return the order that a stop stands for, named as it went out first."""
    is_kill = stop.level >= KILL
    kind: CommandType = "kill_run" if is_kill else "pause_run"
    if stop.is_of_tree and not stop.is_wider:
        run_id, run = tree.root_run_id, tree.subject(run)
    elif not stop.is_named:
        for named_id, named in tree.runs.items():
            if named.stop is not None and named.stop.command_id == stop.command_id and named.stop.is_named:
                run_id, run = named_id, named
    return Order(
        command_id=stop.command_id,
        type=kind,
        tenant=tree.tenant,
        run_id=run_id,
        root_run_id=tree.root_run_id,
        incarnation=ANY_INCARNATION if stop.is_any else run.incarnation or ANY_INCARNATION,
        scope="tree" if stop.is_of_tree else "run",
        reason=Reason(pattern=stop.pattern, detector=stop.detector, count=stop.count, note=note[:256]),
        message_id=None,
        ttl_ms=stop.ttl_ms or policy.ladder.command_ttl_ms,
        grace_ms=policy.ladder.kill_grace_ms if is_kill else None,
        issued_at_ms=stop.issued_at_ms if stop.issued_at_ms >= 0 else None,
        is_wider=stop.is_wider,
        is_in_force=stop.is_wider and stop.applied_ms >= 0,
    )


def _alarm(
    tree: TreeState,
    run_id: str,
    run: RunState,
    stop: StopState,
    alarm: Alarm,
    note: str,
    now_ms: int,
    *,
    order: Order | None = None,
    own_id: str | None = None,
    tools: tuple[str, ...] = (),
) -> Decision:
    level: LevelName = "kill" if order is not None else "observe"
    return Decision(
        verdict=Verdict(
            v=1,
            verdict_id=own_id or derived_id(alarm, stop.command_id, run_id),
            tenant=tree.tenant,
            run_id=run_id,
            root_run_id=tree.root_run_id,
            incarnation=run.incarnation,
            at_ms=now_ms,
            detector=DETECTOR,
            pattern=PATTERNS[alarm],
            level=level,
            mode="enforce",
            loop_id=stop.command_id[:16],
            episode=0,
            evidence=Evidence(
                count=stop.steps_after if alarm == "violation" else stop.sends,
                first_seq=max(run.seq, 0),
                last_seq=max(run.seq, 0),
                window_ms=max(0, now_ms - stop.ordered_ms),
                tools=list(tools),
                note=note[:512],
            ),
            command_id=order.command_id if order is not None else stop.command_id,
        ),
        order=order,
        alarm=alarm,
    )


def _last_heard(run: RunState) -> str:
    return f"last heard of: {run.host}" if run.host else "no runtime of it was heard of"


def _by(run: RunState) -> str:
    return f" by {run.host}" if run.host else ""
