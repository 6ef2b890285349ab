"""Step events: what a runtime reports of an agent's run, one per Kafka record on `loopwarden.steps`.

Field meanings are those of the contract (docs/contract.md). Optional fields that were not sent are `None`;
`args` and `result` are kept as raw JSON, because most are never read: their hashes decide.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

# Integers beyond 2^53 do not survive a JSON number in every language: nothing we count gets there.
MAX_INT = 2**53 - 1

Version = Annotated[Literal[1], Meta(description="Version of the contract.")]
Tenant = Annotated[
    str, Meta(min_length=1, max_length=64, description="Whose run it is: letters, digits, `.`, `_`, `-`.")
]
RunId = Annotated[str, Meta(min_length=1, max_length=128)]
Incarnation = Annotated[str, Meta(max_length=32, description="New for each process-level start or resume of the run.")]
AgentName = Annotated[str, Meta(min_length=1, max_length=128, description="Which agent; of low cardinality.")]
ToolName = Annotated[str, Meta(min_length=1, max_length=256)]
CallId = Annotated[str, Meta(min_length=1, max_length=256)]
ContentHash = Annotated[
    str, Meta(min_length=1, max_length=16, description="Hexadecimal; BLAKE2b over the canonical JSON (RFC 8785).")
]
Count = Annotated[int, Meta(ge=0, le=MAX_INT)]
Seq = Annotated[int, Meta(ge=0, le=MAX_INT, description="Strictly increasing within (run, incarnation).")]
TimestampMs = Annotated[int, Meta(ge=0, le=MAX_INT, description="Unix milliseconds.")]
DurationMs = Annotated[float, Meta(ge=0, le=1e15)]
MAX_COST_USD = 1e9
CostUsd = Annotated[float, Meta(ge=0, le=MAX_COST_USD)]
ShortText = Annotated[str, Meta(max_length=256)]


class Usage(Struct, frozen=True, gc=False, omit_defaults=True):
    """Tokens of one model call, as the provider counts them. Missing is unknown, not zero.

    Attributes:
        input_tokens: Tokens read.
        output_tokens: Tokens written.
        reasoning_tokens: Tokens of reasoning, where the provider tells them apart.
    """

    input_tokens: Count | None = None
    output_tokens: Count | None = None
    reasoning_tokens: Count | None = None


class Limits(Struct, frozen=True, gc=False, omit_defaults=True):
    """Budgets of a run's tree. A missing one leaves the policy's own limit in force.

    Attributes:
        max_steps: Tool calls.
        max_model_calls: Answers of a model.
        max_tokens: Tokens read and written.
        max_cost_usd: US dollars.
        max_duration_ms: Wall-clock time, without the waiting for people.
    """

    max_steps: Count | None = None
    max_model_calls: Count | None = None
    max_tokens: Count | None = None
    max_cost_usd: CostUsd | None = None
    max_duration_ms: Count | None = None


class ToolError(Struct, frozen=True, gc=False, omit_defaults=True, rename={"error_class": "class"}):
    """Why a call failed: the class of the error, its message, and a status such as an HTTP code.

    Attributes:
        class: Name of the exception or error kind.
        message: Its text.
        status: Number or name.
    """

    error_class: str | None = None
    message: str | None = None
    status: Annotated[int, Meta(ge=-MAX_INT, le=MAX_INT)] | str | None = None


class Step(Struct, gc=False, kw_only=True, omit_defaults=True, tag_field="type"):
    """What every step event carries. Never sent itself: one of the subclasses is.

    Attributes:
        type: What happened.
        run_id: One run of one agent.
        root_run_id: Root of the run's tree; default `run_id`.
        parent_run_id: The run that started this one.
        fidelity: `hash`: hashes, no content. `low`: made from spans without content; never killed on this alone.
    """

    v: Version
    tenant: Tenant
    run_id: RunId
    seq: Seq
    ts_ms: TimestampMs
    root_run_id: RunId | None = None
    parent_run_id: RunId | None = None
    incarnation: Incarnation | None = None
    agent: AgentName | None = None
    fidelity: ShortText | None = None


class RunStart(Step, gc=False, kw_only=True, tag="run_start"):
    """A run, or a new incarnation of one, begins.

    Attributes:
        goal: What the run is to do, as a person put it.
        attended: Whether a person is watching.
        runtime: Name and version of the runtime.
        limits: Budgets that hold for this run's tree.
    """

    goal: str | None = None
    attended: bool | None = None
    runtime: ShortText | None = None
    limits: Limits | None = None


class ModelEnd(Step, gc=False, kw_only=True, tag="model_end"):
    """A model answered.

    Attributes:
        model: Name of the model.
        text: What it said.
        reasoning: What it thought, where the provider shows it.
        usage: Tokens of this call.
        cost_usd: Price of this call in US dollars.
        duration_ms: How long the call took.
        tool_calls: How many tool calls the answer announces.
    """

    model: ShortText | None = None
    text: str | None = None
    reasoning: str | None = None
    usage: Usage | None = None
    cost_usd: CostUsd | None = None
    duration_ms: DurationMs | None = None
    tool_calls: Count | None = None


class ToolStart(Step, gc=False, kw_only=True, tag="tool_start"):
    """A tool call begins; without its `tool_end` it is in flight.

    Attributes:
        tool: Name of the tool.
        call_id: Pairs this event with its `tool_end`.
        args: The arguments: any JSON, usually an object.
        args_hash: Of the arguments as they are.
        args_norm_hash: Of the arguments after the rules of normalisation.
        effect: What the tool does to the world.
    """

    tool: ToolName
    call_id: CallId | None = None
    args: Raw | UnsetType = UNSET
    args_hash: ContentHash | None = None
    args_norm_hash: ContentHash | None = None
    effect: ShortText | None = None


class ToolEnd(Step, gc=False, kw_only=True, tag="tool_end"):
    """A tool call ended, or was refused before it ran: `outcome` tells.

    Attributes:
        tool: Name of the tool.
        call_id: Of the call; a second `tool_end` with the same one is a retry report and counts once.
        args: The arguments: any JSON, usually an object.
        args_hash: Of the arguments as they are.
        args_norm_hash: Of the arguments after the rules of normalisation.
        effect: What the tool does to the world.
        outcome: What became of the call.
        result: The result: any JSON, may be cut.
        result_hash: Of the whole result, before any cut.
        result_norm_hash: Of the whole result after the rules of normalisation.
        result_bytes: Length of the whole result.
        error: Why the call failed.
        duration_ms: How long the call took.
        cost_usd: Price of this call in US dollars.
    """

    tool: ToolName
    call_id: CallId | None = None
    args: Raw | UnsetType = UNSET
    args_hash: ContentHash | None = None
    args_norm_hash: ContentHash | None = None
    effect: ShortText | None = None
    outcome: ShortText | None = None
    result: Raw | UnsetType = UNSET
    result_hash: ContentHash | None = None
    result_norm_hash: ContentHash | None = None
    result_bytes: Count | None = None
    error: ToolError | None = None
    duration_ms: DurationMs | None = None
    cost_usd: CostUsd | None = None


class UserInput(Step, gc=False, kw_only=True, tag="user_input"):
    """A person spoke: counters of repetition start afresh."""


class ApprovalWait(Step, gc=False, kw_only=True, tag="approval_wait"):
    """The run waits for a person; the time until `approval_end` counts against no limit.

    With a `question_id` the detector puts the question where people find it and an answer finds the run.

    Attributes:
        call_id: The call that needs approval.
        question_id: Of the question; the same when a later incarnation asks for the same action again.
        tool: The tool that is to be called.
        args: Its arguments.
        args_hash: Of the arguments as they are.
        action_hash: Of the tool and `args_hash`: what an answer is for.
        question: What the agent's code wants a person to know.
        timeout_ms: After this long without an answer the question is `expired`.
    """

    call_id: CallId | None = None
    question_id: ShortText | None = None
    tool: ToolName | None = None
    args: Raw | UnsetType = UNSET
    args_hash: ContentHash | None = None
    action_hash: ContentHash | None = None
    question: str | None = None
    timeout_ms: Count | None = None


class ApprovalEnd(Step, gc=False, kw_only=True, tag="approval_end"):
    """A person decided, or nobody did.

    Attributes:
        call_id: The call that needed approval.
        decision: How it went.
        question_id: As in `approval_wait`.
        tool: As in `approval_wait`.
        action_hash: As in `approval_wait`.
    """

    call_id: CallId | None = None
    decision: ShortText | None = None
    question_id: ShortText | None = None
    tool: ToolName | None = None
    action_hash: ContentHash | None = None


class Compaction(Step, gc=False, kw_only=True, tag="compaction"):
    """The runtime shortened the model's context.

    Attributes:
        tokens_before: Size of the context before.
        tokens_after: Size of the context after.
    """

    tokens_before: Count | None = None
    tokens_after: Count | None = None


class Progress(Step, gc=False, kw_only=True, tag="progress"):
    """The runtime says that the task moved on: a test count improved, a page was covered.

    Attributes:
        note: What moved, for people.
    """

    note: str | None = None


class Message(Step, gc=False, kw_only=True, tag="message"):
    """One agent writes to another.

    Attributes:
        to_run_id: The run that is written to.
        to_agent: The agent that is written to, where its run is not known.
        text: What is said.
    """

    to_run_id: RunId | None = None
    to_agent: AgentName | None = None
    text: str | None = None


class RunEnd(Step, gc=False, kw_only=True, tag="run_end"):
    """The run is over.

    Attributes:
        status: How it ended.
        command_id: The command that ended it, if one did.
    """

    status: ShortText | None = None
    command_id: ShortText | None = None


AnyStep = (
    RunStart
    | ModelEnd
    | ToolStart
    | ToolEnd
    | UserInput
    | ApprovalWait
    | ApprovalEnd
    | Compaction
    | Progress
    | Message
    | RunEnd
)

STEP_TYPES = (
    RunStart,
    ModelEnd,
    ToolStart,
    ToolEnd,
    UserInput,
    ApprovalWait,
    ApprovalEnd,
    Compaction,
    Progress,
    Message,
    RunEnd,
)


def root_of(step: Step) -> str:
    """Return the run id at the root of the step's tree: what state and partition are keyed by."""
    return step.root_run_id or step.run_id


def step_key(tenant: str, root_run_id: str) -> bytes:
    """Return the Kafka record key of a step event or an acknowledgement: `tenant|root_run_id`."""
    return f"{tenant}|{root_run_id}".encode()
