"""What the guard answers, whom it answers for, and the exceptions that it raises."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct


class Action(StrEnum):
    """What the agent's code has to do before its next step.

    `ALLOW`: go on. `BLOCK`: do not make this call; give `Decision.message` to the model as its result. `CACHED`: the
    same, with `Decision.result` (reserved, not used in this release). `PAUSE`: wait, see `RunGuard.wait_if_paused`.
    `STOP`: end the run; every later answer is `STOP`, too.
    """

    ALLOW = "allow"
    BLOCK = "block"
    CACHED = "cached"
    PAUSE = "pause"
    STOP = "stop"


class Decision(Struct, frozen=True, gc=False):
    """The answer to `before_model` and `before_tool`.

    Attributes:
        action: What to do.
        reason: For logs and people; empty for `ALLOW`.
        command_id: The command behind it, if there is one.
        retry_after_ms: For `BLOCK`: milliseconds until the tool may be tried again.
        message: Text for the model in place of a result: short, stable, and it says what to do.
        result: For `CACHED`: the earlier answer.
        question_id: The question that a person has to answer, or has answered: a good idempotency key for the call.
    """

    action: Action
    reason: str = ""
    command_id: str | None = None
    retry_after_ms: int | None = None
    message: str | None = None
    result: object | None = None
    question_id: str | None = None

    @property
    def allowed(self) -> bool:
        """True if the step may be taken."""
        return self.action is Action.ALLOW


ALLOW: Final = Decision(Action.ALLOW)


class RunKey(Struct, frozen=True, gc=False):
    """Identity of one incarnation of one run. Hand it to whoever starts a child run, also in another process.

    Attributes:
        tenant: Whose run it is.
        run_id: The run; the same after a resume.
        root_run_id: The run at the top of the tree.
        incarnation: New for each `Guard.run()`: a restarted run is not hit by a command for its former life.
        parent_run_id: Who started this run.
        ancestors: `(run_id, incarnation)` from the root down to the parent. An empty incarnation is unknown.
    """

    tenant: str
    run_id: str
    root_run_id: str
    incarnation: str
    parent_run_id: str | None = None
    ancestors: tuple[tuple[str, str], ...] = ()


class StopCause(Struct, frozen=True, gc=False):
    """Why a gate was shut.

    Attributes:
        status: `killed` or `limit`: the status that `run_end` will have.
        reason: For people.
        command_id: The command that ended the run, if one did.
        append_ms: When the broker appended that command; for latencies.
        confirm: Whether the end of the run is acknowledged with `confirmed_dead`.
        grace_ms: How long its processes may go on; `None` where the order does not say.
    """

    status: str
    reason: str
    command_id: str | None = None
    append_ms: int | None = None
    confirm: bool = False
    grace_ms: int | None = None


class LoopwardenStopped(BaseException):
    """The run was stopped by a command or by one of its limits, and must not go on.

    Not an `Exception`, for the reason that `KeyboardInterrupt` is none: agent frameworks and tools catch `Exception`,
    hand its text to the model as a tool's result and continue. Code that owns the run catches this by name, and
    `finally` blocks run as always. The gate does not depend on it: who swallows it gets `STOP` at the next step.

    Attributes:
        reason: Why, for people.
        command_id: The command that asked for it; `None` when the run reached a limit of its own.
        status: `killed` or `limit`, as in the `run_end` event.
        exit_code: For a process whose only purpose was this run: distinct from success and from a crash, and not to
            be retried by an orchestrator.
    """

    exit_code: Final = 86

    def __init__(self, reason: str, command_id: str | None = None, status: str = "killed") -> None:
        super().__init__(reason, command_id, status)
        self.reason = reason
        self.command_id = command_id
        self.status = status

    def __str__(self) -> str:
        return self.reason


class SpawnRefusedError(Exception):
    """A run must not start this child: its tree would be deeper or wider than the guard allows.

    An `Exception`, other than a stop: the parent goes on, and a framework gives the text to the model as the result of
    the call.

    Attributes:
        reason: The limit and its value, for people.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.reason}. Do not start another run: do the work yourself, or answer with what you have."


def fit(text: str, limit: int) -> str:
    """Return `text`, or a stand-in of at most `limit` characters that is different for different texts.

    Ids that are longer than the contract allows would be refused at the detector's edge. A plain cut would merge
    ids that differ at the end only, so the tail becomes a hash.
    """
    if len(text) <= limit:
        return text
    from hashlib import blake2b  # noqa: PLC0415 - rare, and hashlib costs 3 ms to import

    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{text[: limit - 17]}~{digest}"
