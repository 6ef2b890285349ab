"""A run's life in its tree: how it begins, resumes, waits for people and ends, and which of its events count."""

from __future__ import annotations

from typing import Final
from zlib import crc32

from loopwarden_detectors.base import KILL
from loopwarden_detectors.budget import OwnBudget
from loopwarden_detectors.denied import forget_denials
from loopwarden_detectors.identity import call_id_key
from loopwarden_detectors.insisting import insists
from loopwarden_detectors.ladder import Decision, RecordChange
from loopwarden_detectors.new_numbers import renumber
from loopwarden_detectors.questions import end_of_pause
from loopwarden_detectors.restart_loop import findings_of, fingerprint_of
from loopwarden_detectors.rings import OTHER_TOOL, holds_key
from loopwarden_detectors.run_state import (
    MAX_FORMER_INCARNATIONS,
    MAX_OPEN_CALLS,
    MAX_PENDING,
    MAX_RUNS_PER_TREE,
    RunState,
    TreeState,
)
from loopwarden_detectors.stops import copy_of, is_killed_now, is_under_kill
from loopwarden_models.control_state import RunStateName
from loopwarden_models.events import AnyStep, ApprovalEnd, ApprovalWait, Limits, RunEnd, RunStart, ToolStart
from loopwarden_models.hashes import stable_key
from loopwarden_models.policy import Policy

# The first event of a tree dates its wall clock. A source whose clock is days behind would have used up any limit
# with its second, correct event. judgement
MAX_LATE_MS: Final = 3_600_000

# For people alone: the beginning is enough to find it by.
MAX_HOST_BYTES: Final = 64

# A layer of the policy is found by it; of a longer name the beginning counts.
MAX_AGENT_CHARS: Final = 64

_LOW = 0xFFFF_FFFF
# The key under which a pause is among a run's pending approvals: no call id has it, they have 32 bits.
_PAUSE = 1 << 32


def admit(tree: TreeState, step: AnyStep, latest_ms: int | None) -> RunState | None:
    """Return the run of the step, its clock advanced, or `None` for a duplicate or a late copy.

    A missing incarnation is the current one. An incarnation that was seen before the current one is a late copy,
    whatever its `seq`.

    Args:
        tree: Changed in place, unless `None` is returned.
        step: The event.
        latest_ms: Upper bound of the event's time: a clock that runs ahead is cut to it. A clock that goes back
            stands still.

    Cost: 0.3 µs.
    """
    ts_ms = step.ts_ms
    if latest_ms is not None and ts_ms > latest_ms:
        ts_ms = max(latest_ms, 0)
    run = tree.runs.get(step.run_id)
    if run is None:
        run = _open_run(tree, step, ts_ms, latest_ms)
    incarnation = step.incarnation
    if incarnation is not None and incarnation != run.incarnation:
        if run.former is not None and stable_key(incarnation) in run.former:
            return None
        _start_incarnation(tree, run, incarnation)
    elif step.seq <= run.seq:
        return None
    run.seq = step.seq
    if step.fidelity == "low":
        run.is_low_fidelity = True
    if ts_ms > run.now_ms:
        run.now_ms = ts_ms
        if ts_ms > tree.now_ms:  # noqa: PLR1730 - max() costs three times as much, once per event
            tree.now_ms = ts_ms
    return run


def _open_run(tree: TreeState, step: AnyStep, ts_ms: int, latest_ms: int | None) -> RunState:
    runs = tree.runs
    if not runs and not tree.evicted_runs:
        tree.started_ms = ts_ms if latest_ms is None else max(ts_ms, latest_ms - MAX_LATE_MS)
        tree.now_ms = ts_ms
    if len(runs) >= MAX_RUNS_PER_TREE:
        _evict_idlest(tree)
    run = runs[step.run_id] = RunState(
        incarnation=step.incarnation or "",
        started_ms=ts_ms,
        now_ms=ts_ms,
        forgotten=tree.forgotten,
        forgotten_rungs=tree.forgotten_rungs,
        agent=(step.agent or "")[:MAX_AGENT_CHARS],
    )
    if step.run_id != tree.root_run_id:
        _note_birth(tree, run, step)
    root = runs.get(tree.root_run_id)
    if root is not None:
        run.attended = root.attended  # who watches the root watches its children, unless one says otherwise
    parent = runs.get(step.parent_run_id or tree.root_run_id, root)
    if parent is not None and parent is not run and parent.stop is not None and parent.stop.is_of_tree:
        # Born while its tree is being ended: the order is for it as well. It has been sent as often as it will be.
        run.stop = copy_of(parent.stop, run)
        run.stop.sends += 1
        if run.stop.sent_ms >= 0:
            run.stop.sent_ms = max(run.stop.sent_ms, ts_ms)
    return run


def _note_birth(tree: TreeState, run: RunState, step: AnyStep) -> None:
    """Note where in the tree a run stands. A run that left memory and comes back is no new child of its parent."""
    parent_id = step.parent_run_id or tree.root_run_id
    parent = tree.runs.get(parent_id)
    run.parent_key = crc32(parent_id.encode())
    run.level = 2 if parent is None or parent is run else parent.level + 1
    tree.depth = max(tree.depth, run.level)
    if parent is not None and parent is not run and (type(step) is RunStart or step.seq == 0):
        parent.children += 1
        tree.widest = max(tree.widest, parent.children)


def hear_person(tree: TreeState, run: RunState) -> None:
    """Note that a person spoke to a run: what it repeated, and whom it started, counts no more."""
    run.start_segment()
    if run.children:
        run.children = 0
        tree.widest = max(known.children for known in tree.runs.values())


def _evict_idlest(tree: TreeState) -> None:
    """Drop the run that ended or was heard of longest ago. The tree's counters keep what it used."""
    run_id, idlest = min(
        tree.runs.items(), key=lambda item: (item[0] == tree.root_run_id, not item[1].is_over, item[1].now_ms, item[0])
    )
    _end_waits(tree, idlest)
    loops = idlest.loops or ()
    tree.forgotten = max(tree.forgotten, idlest.forgotten, *(loop.verdicts for loop in loops))
    tree.forgotten_rungs = max(tree.forgotten_rungs, idlest.forgotten_rungs, *(loop.rungs for loop in loops))
    tree.evicted_runs += 1
    del tree.runs[run_id]


def _start_incarnation(tree: TreeState, run: RunState, incarnation: str) -> None:
    former = [] if run.former is None else run.former
    former.append(stable_key(run.incarnation))
    run.former = former[-MAX_FORMER_INCARNATIONS:]
    # A run that comes back from under a kill which nobody saw land goes on where it was: the first step that
    # continues the loop ends it again. Any other resume begins a segment.
    if is_killed_now(run):
        renumber(run)
    else:
        run.start_segment()
    run.incarnation = incarnation
    run.incarnations += 1
    run.seq = run.progress_seq = -1
    run.is_over = run.is_low_fidelity = False
    for loop in run.loops or ():
        loop.stops = 0
    run.insist_seq = min(run.insist_seq, 0)  # the goal is the same, and `seq` begins anew
    run.open_calls = run.open_tools = None
    _end_waits(tree, run)


def start_run(tree: TreeState, run: RunState, step: RunStart, policy: Policy) -> None:
    """Note what a run declares at its start, or at a resume: nothing that was used is given back."""
    if step.attended is not None:
        run.attended = step.attended
    if step.agent is not None:
        run.agent = step.agent[:MAX_AGENT_CHARS]
    if step.runtime is not None and not run.host:
        hear_host(run, step.runtime)
    if step.goal is not None:
        run.insist_seq = step.seq if insists(step.goal) else -1
    run.is_over = False
    if not (run.calls or run.texts):
        pass  # nothing to forget: most runs start once
    elif run.stop is None or not is_under_kill(run.stop) or run.stop.incarnation == run.incarnations:
        run.start_segment()  # else the resume of a killed run, see `_start_incarnation`
    is_root = step.run_id == tree.root_run_id
    if is_root and step.goal:
        run.task = fingerprint_of(tree.tenant, run.agent, step.goal, policy.volatile)
    limits = step.limits
    if limits is None:
        return
    if is_root:
        effective = _filled_up(limits, policy.budget.limits)
        if effective != tree.limits:
            # Raised by a person, perhaps: what was said of the old limits is said again of the new ones.
            tree.limits = effective
            _say_limits_again(tree)
    elif run.own is None:
        run.own = OwnBudget(limits=limits, started_ms=run.now_ms)
    else:
        run.own.limits = limits
        _say_limits_again(run)


def _filled_up(declared: Limits, default: Limits) -> Limits:
    """Return the declared limits, the missing ones taken from the policy; its step limit is graded and stays there."""
    return Limits(
        max_steps=declared.max_steps,
        max_model_calls=default.max_model_calls if declared.max_model_calls is None else declared.max_model_calls,
        max_tokens=default.max_tokens if declared.max_tokens is None else declared.max_tokens,
        max_cost_usd=default.max_cost_usd if declared.max_cost_usd is None else declared.max_cost_usd,
        max_duration_ms=default.max_duration_ms if declared.max_duration_ms is None else declared.max_duration_ms,
    )


def _say_limits_again(memory: RunState | TreeState) -> None:
    for loop in memory.loops or ():
        if loop.is_limit:
            loop.start_segment()


def end_run(tree: TreeState, run: RunState, step: RunEnd) -> list[Decision]:
    """Note that a run is over. What it repeated is forgotten: the memory of ended children would fill the tree's.

    A run that failed under a kill nobody saw land may be taken up where it was, and goes on in the memory of its loop.

    Returns:
        How its record changes, if a kill is out that found nothing to do; the end of a question, if it was paused.
    """
    run.is_over = True
    run.open_calls = run.open_tools = None
    _end_waits(tree, run)
    if run.task:
        run.findings = findings_of(run)
    status = step.status
    if not (is_killed_now(run) and status == "failed"):
        run.start_segment()
    stop = run.stop
    if stop is not None and stop.level < KILL and stop.incarnation == run.incarnations:
        if status == "awaiting_approval":
            return []  # its code has returned; a person may still say what becomes of the run
        return [Decision(verdict=None, question=end_of_pause(tree, run, step.run_id, stop, "expired"))]
    if stop is None or not is_killed_now(run) or stop.applied_ms >= 0 or not stop.is_named:
        return []
    if stop.is_of_tree and not tree.is_over:
        return []  # its children look at the same record
    state: RunStateName = "open"
    own_id = stop.command_id
    if status == "killed":
        if step.command_id is None or step.command_id == own_id:
            return []  # the acknowledgement puts it in force
        # Somebody else's order was there first. What this kill has written over must go on to hold.
        state, own_id = "killed", step.command_id[:64]
    record = RecordChange(tenant=tree.tenant, run_id=step.run_id, state=state, command_id=own_id)
    return [Decision(verdict=None, record=record)]


def hear_host(run: RunState, host: str) -> None:
    """Note which runtime was heard of last."""
    run.host = host.encode("utf-8", "replace")[:MAX_HOST_BYTES].decode("utf-8", "ignore")


def open_call(run: RunState, step: ToolStart) -> bool:
    """Note a call in flight; return whether it is new: a node that runs again after a resume reports known ids."""
    key = call_id_key(step.call_id)
    if step.call_id is not None and (_open_place(run, key) >= 0 or is_known_call(run, key)):
        return False
    opened = run.open_calls = [] if run.open_calls is None else run.open_calls
    tools = run.open_tools
    if tools is None or len(tools) != len(opened):  # of a snapshot that knows no tools
        tools = run.open_tools = bytearray([OTHER_TOOL]) * len(opened)
    if len(opened) >= MAX_OPEN_CALLS:
        del opened[0], tools[0]
    opened.append(key << 32 | min(run.now_ms - run.started_ms, _LOW))
    tools.append(run.tool_number(step.tool))
    return True


def close_call(run: RunState, key: int) -> int | None:
    """Take a call out of those in flight; return the event time of its start, `None` if none was seen."""
    place = _open_place(run, key)
    if place < 0 or run.open_calls is None:
        return None
    if run.open_tools is not None and len(run.open_tools) == len(run.open_calls):
        del run.open_tools[place]
    return run.started_ms + (run.open_calls.pop(place) & _LOW)


def _open_place(run: RunState, key: int) -> int:
    for place, known in enumerate(run.open_calls or ()):
        if known >> 32 == key:
            return place
    return -1


def is_known_call(run: RunState, key: int) -> bool:
    """Return whether a call with this id has ended already. Cost: 0.1 µs."""
    return holds_key(run.call_ids, key.to_bytes(4, "little"))


def start_approval(tree: TreeState, run: RunState, step: ApprovalWait) -> None:
    """Note that the run waits for a person."""
    _start_wait(tree, run, call_id_key(step.call_id))


def end_approval(tree: TreeState, run: RunState, step: ApprovalEnd) -> None:
    """Note that a person decided, or nobody did. What was approved is counted anew: a person looked at it."""
    key = call_id_key(step.call_id)
    end_wait(tree, run, key)
    if step.decision != "approved":
        return
    forget_denials(run)
    if step.call_id is None:
        run.start_segment()
    else:
        run.approved = [*(run.approved or ()), key][-MAX_PENDING:]


def take_approval(run: RunState, key: int) -> bool:
    """Return whether the call that ends now was approved by a person, once."""
    if run.approved is None or key not in run.approved:
        return False
    run.approved.remove(key)
    return True


def pause(tree: TreeState, run: RunState) -> None:
    """Note that the run's gate is shut until a person opens it: its wall clock stands still."""
    _start_wait(tree, run, _PAUSE)


def goes_on(tree: TreeState, run: RunState, began_ms: int | None) -> bool:
    """Look at a step of a run that was told to stop.

    Args:
        tree: Changed in place, as is `run`, whose `stop` is there.
        run: The run that made the step.
        began_ms: When the step began, by the source's clock; `None` if nothing tells. Then it began with the event
            before it: an agent does one thing after another.

    Returns:
        Whether the step began after the run's end was applied, which must not happen. A paused run that goes on was
        resumed by a person, so what it repeats is counted anew.
    """
    stop = run.stop
    if stop is None:
        return False
    if began_ms is None:
        began_ms = stop.last_ms
    stop.last_ms = run.now_ms
    if not 0 <= stop.applied_ms < began_ms or stop.incarnation != run.incarnations:
        return False
    if stop.level >= KILL:
        stop.steps_after += 1
        return True
    end_wait(tree, run, _PAUSE)
    run.stop = None
    run.start_segment()
    return False


def _start_wait(tree: TreeState, run: RunState, key: int) -> None:
    waits = run.waits = [] if run.waits is None else run.waits
    if (key and key in waits) or len(waits) >= MAX_PENDING:
        return
    if not waits and run.own is not None:
        run.own.waiting_since_ms = tree.now_ms
    waits.append(key)
    if not tree.waits:
        tree.waiting_since_ms = tree.now_ms
    tree.waits += 1


def end_wait(tree: TreeState, run: RunState, key: int) -> None:
    """Note that a run does not wait for `key` any more; an end without an id ends the oldest wait."""
    waits = run.waits
    if not waits:
        return
    if key in waits:
        waits.remove(key)
    elif not key or 0 in waits:
        waits.remove(0 if 0 in waits else waits[0])
    else:
        return
    _count_waits_down(tree, run, 1)


def _end_waits(tree: TreeState, run: RunState) -> None:
    if run.waits:
        pending = len(run.waits)
        run.waits = None
        _count_waits_down(tree, run, pending)


def _count_waits_down(tree: TreeState, run: RunState, ended: int) -> None:
    tree.waits -= ended
    if not tree.waits:
        tree.waited_ms += tree.now_ms - tree.waiting_since_ms
    if not run.waits and run.own is not None:
        run.own.waited_ms += tree.now_ms - run.own.waiting_since_ms
        run.own.waiting_since_ms = -1
