"""The policy: every threshold, mode, declared effect and limit. This file is the default policy.

A policy file (YAML) overrides single values; what it does not name keeps the value given here. Beside each
number stands where it comes from: *public* = a named system ships it, *measured* = counted on recorded runs of
real agents, *judgement* = ours, and the first thing to re-tune.
"""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta, field

from loopwarden_models.breaker_config import BreakerConfig
from loopwarden_models.call_rules import (
    ChangingRepeatConfig,
    CycleConfig,
    DeniedConfig,
    ExactRepeatConfig,
    FrozenPollConfig,
    InterleavedRepeatConfig,
    NoProgressConfig,
    ParamWalkConfig,
    ResweepConfig,
    RetryStormConfig,
    SameErrorConfig,
    SameErrorRawConfig,
    SameOutputConfig,
    SelfAppendConfig,
    SleepOnlyConfig,
    UnknownToolConfig,
)
from loopwarden_models.errors import ConfigError
from loopwarden_models.events import MAX_INT, Limits
from loopwarden_models.hashes import stable_key
from loopwarden_models.patterns import Mode
from loopwarden_models.policy_errors import explain
from loopwarden_models.policy_layers import agents_of, check_shape, holds_key, layers_for, merged, values_of
from loopwarden_models.policy_sense import check_sense
from loopwarden_models.rule_config import Config, Percent, RuleConfig
from loopwarden_models.semantic_rules import SemanticRepeatConfig
from loopwarden_models.step_rules import (
    ContextRotConfig,
    NearTextConfig,
    PingPongConfig,
    ReflectionConfig,
    RestartLoopConfig,
    SilentRunConfig,
    TextChantConfig,
)
from loopwarden_models.tenant_config import TenantLimitsConfig
from loopwarden_models.volatile import VolatileRules

# Pairs of tenant and agent whose policy is kept. One of them costs a millisecond to make.
MAX_RESOLVED = 10_000


class RateConfig(RuleConfig, frozen=True):
    """Tool calls of one run per minute (`rate`)."""

    rising: ClassVar[tuple[tuple[str, ...], ...]] = (("observe_per_min", "nudge_per_min", "kill_per_min"),)

    # judgement: a busy agent calls a tool every other second; a fan-out may double that for a moment.
    observe_per_min: Annotated[int, Meta(ge=30, le=1_000_000)] = 120
    # judgement
    nudge_per_min: Annotated[int, Meta(ge=30, le=1_000_000)] = 240
    # A burst is not a loop: nothing stronger than a nudge unless an operator sets a number here.
    kill_per_min: Annotated[int, Meta(ge=30, le=1_000_000)] | None = None


class PolicyLimits(Limits, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Limits as a policy writes them: a misspelt one must not be a limit that does not exist.

    The last three are the policy's alone: what spawns itself without end does not decide how often it may.

    Attributes:
        max_output_bytes: Bytes that tools put out, of the whole tree.
        max_depth: Levels of the tree, the root's included.
        max_children: Runs that one run started since a person spoke to it.
    """

    max_output_bytes: Annotated[int, Meta(ge=0, le=MAX_INT)] | None = None
    max_depth: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    max_children: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None


class BudgetConfig(RuleConfig, frozen=True):
    """Limits of a run's tree (`budget`). What `run_start.limits` declares takes the place of these."""

    rising: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("observe_steps", "nudge_steps", "max_steps_if_stuck"),
        ("observe_percent", "nudge_percent"),
    )

    # measured: of 175 healthy coding runs 10 pass 60 steps, 3 pass 80, 1 passes 100.
    observe_steps: Annotated[int, Meta(ge=1)] = 60
    # measured: 3 of 175 pass it
    nudge_steps: Annotated[int, Meta(ge=1)] = 80
    # Ends the run only if another detector has seen something too.
    # public: Qwen-Code 100.
    max_steps_if_stuck: Annotated[int, Meta(ge=1)] = 100
    limits: PolicyLimits = PolicyLimits(
        # public: Qwen-Code 1,000.
        max_steps=1_000,
        # measured: healthy coding runs cost $0.34 at the median, $1.50 at most. public: SWE-agent $3.
        max_cost_usd=3.0,
        # judgement; reports of 153 GB of logs.
        max_output_bytes=50_000_000,
        # judgement; reports of agents that start themselves without end.
        max_depth=6,
        # public: Hermes allows 50 sub-agents a turn.
        max_children=50,
    )
    # Levels of the tree, and children of one run. judgement
    observe_depth: Annotated[int, Meta(ge=1)] = 4
    # judgement
    observe_children: Annotated[int, Meta(ge=1)] = 25
    # public: Redpanda warns at 80 %; the toolkit of Microsoft at 50, 75, 90 and 95 %.
    observe_percent: Percent = 80
    # public: Microsoft's toolkit alerts at 90 % among others
    nudge_percent: Percent = 90


class LadderConfig(Config, frozen=True):
    """From a verdict to a command, per loop identity."""

    # public: Stella. A second nudge comes when the count doubles (public: senpi).
    max_nudges_per_loop: Annotated[int, Meta(ge=0, le=10)] = 2
    # Advice itself can become the loop. judgement
    max_nudges_per_run: Annotated[int, Meta(ge=0, le=100)] = 6
    # A step up needs the nudge to have been applied and the loop to have come back this often since. judgement
    returns_after_nudge: Annotated[int, Meta(ge=1, le=100)] = 2
    # ... or no acknowledgement for this long, in event time. judgement
    ack_timeout_ms: Annotated[int, Meta(ge=1_000)] = 30_000
    # How long a run may not use a tool at level break. public: pybreaker and Resilience4j 60 s.
    tool_block_ms: Annotated[int, Meta(ge=1_000, le=3_600_000)] = 60_000
    # Life of a command. judgement
    command_ttl_ms: Annotated[int, Meta(ge=1_000, le=3_600_000)] = 120_000
    # How long running code may go on after the gate is shut. judgement
    kill_grace_ms: Annotated[int, Meta(ge=0, le=600_000)] = 5_000
    # A kill or pause that nobody answers goes out once more after this long, and is alarmed after the same. judgement
    receive_timeout_ms: Annotated[int, Meta(ge=1_000, le=600_000)] = 10_000
    # How long after its grace a killed run may take to be confirmed dead before that is alarmed. judgement
    confirm_timeout_ms: Annotated[int, Meta(ge=1_000, le=600_000)] = 10_000
    # A paused run whose question nobody answers for this long is killed; a person can release it. None = it waits.
    # judgement: an hour is longer than a meeting, and shorter than a shift.
    pause_timeout_ms: Annotated[int, Meta(ge=1_000, le=604_800_000)] | None = 3_600_000


class BlastRadiusConfig(Config, frozen=True):
    """How much may be killed by mistake: beyond it kills are decided in shadow, and one alarm says so.

    Counts are of all workers together: each has the share of its partitions, rounded up.
    """

    # judgement, after Envoy's automatic ejector: at most 10 % at a time, and an `enforcing` percentage for the start.
    kills_per_min: Annotated[int, Meta(ge=0, le=1_000_000)] = 10
    # Of all tenants together; the top of the file decides.
    kills_per_min_total: Annotated[int, Meta(ge=0, le=1_000_000)] = 60
    # Of a tenant's live runs within ten minutes; 100 = no such limit. At least `killed_min` runs.
    killed_percent: Annotated[int, Meta(ge=0, le=100)] = 10
    killed_min: Annotated[int, Meta(ge=0, le=1_000_000)] = 2
    # Part of the runs that `enforce` applies to, by a hash of the root run; the others are as in `warn`.
    enforce_share: Annotated[float, Meta(ge=0, le=1)] = 1.0


class Policy(Config, frozen=True, dict=True):
    """What is watched, how strictly, and what may be done about it.

    `tenants`, `agents` and `tools` hold what is otherwise there (`policy_layers`): `of` and `for_tool` return the
    policy that is in force for a run, and for a call of it.

    `mode` holds for every detector that says `inherit`: `off`, `shadow` (record only), `warn` (up to a nudge,
    the rest is recorded as "would have") or `enforce`. A first deployment warns; enforce when the recorded
    kills have been reviewed.
    """

    version: Annotated[str, Meta(max_length=64)] = "default-1"
    mode: Mode = "warn"
    # Declared effects by tool name: read, write, poll, clock or unknown. Wins over what the runtime says.
    effects: dict[str, str] = field(default_factory=dict)
    # By rule, what a nudge of it tells the model, in place of the runtime's own text; `{tool}` and `{count}` are filled
    # in. It goes out as free text, so runtimes show it only if they are told to (`allow_free_text`).
    nudges: dict[str, str] = field(default_factory=dict)
    # What is left out when two calls, or two results, are compared.
    volatile: VolatileRules = VolatileRules()
    exact_repeat: ExactRepeatConfig = ExactRepeatConfig()
    changing_repeat: ChangingRepeatConfig = ChangingRepeatConfig()
    frozen_poll: FrozenPollConfig = FrozenPollConfig()
    cycle: CycleConfig = CycleConfig()
    interleaved_repeat: InterleavedRepeatConfig = InterleavedRepeatConfig()
    same_error: SameErrorConfig = SameErrorConfig()
    same_error_raw: SameErrorRawConfig = SameErrorRawConfig()
    same_output: SameOutputConfig = SameOutputConfig()
    unknown_tool: UnknownToolConfig = UnknownToolConfig()
    denied: DeniedConfig = DeniedConfig()
    retry_storm: RetryStormConfig = RetryStormConfig()
    resweep: ResweepConfig = ResweepConfig()
    self_append: SelfAppendConfig = SelfAppendConfig()
    param_walk: ParamWalkConfig = ParamWalkConfig()
    text_chant: TextChantConfig = TextChantConfig()
    near_text: NearTextConfig = NearTextConfig()
    semantic_repeat: SemanticRepeatConfig = SemanticRepeatConfig()
    reflection: ReflectionConfig = ReflectionConfig()
    context_rot: ContextRotConfig = ContextRotConfig()
    no_progress: NoProgressConfig = NoProgressConfig()
    sleep_only: SleepOnlyConfig = SleepOnlyConfig()
    rate: RateConfig = RateConfig()
    budget: BudgetConfig = BudgetConfig()
    ping_pong: PingPongConfig = PingPongConfig()
    silent_run: SilentRunConfig = SilentRunConfig()
    fleet_breaker: BreakerConfig = BreakerConfig()
    restart_loop: RestartLoopConfig = RestartLoopConfig()
    tenant_limits: TenantLimitsConfig = TenantLimitsConfig()
    ladder: LadderConfig = LadderConfig()
    blast_radius: BlastRadiusConfig = BlastRadiusConfig()
    tenants: dict[str, dict[str, Any]] = field(default_factory=dict)
    agents: dict[str, dict[str, Any]] = field(default_factory=dict)
    tools: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what can never fire or fires in the wrong order.

        Raises:
            ValueError: The message names the path, the value and the remedy.
        """
        check_sense(self)
        layers = self._layers()
        is_partial = self.blast_radius.enforce_share < 1
        _keep(self, "is_layered", is_partial or any(layers.values()))
        _keep(
            self,
            "has_wall_clock",
            self.budget.limits.max_duration_ms is not None or holds_key(layers, "max_duration_ms"),
        )
        hard = self.budget.limits.max_steps
        # A limit below the steps that are observed is a limit, too: of six the seventh ends the run.
        observed = self.budget.observe_steps
        _keep(self, "first_graded_step", observed if hard is None else min(observed, hard + 1))
        silences = [self.silent_run.observe_ms, self.silent_run.tool_limit_ms, self.silent_run.kill_ms]
        for key in ("observe_ms", "tool_limit_ms", "kill_ms"):
            silences += [value for value in values_of(layers, key) if isinstance(value, int)]
        _keep(self, "least_silence_ms", min(value for value in silences if value is not None))
        _keep(self, "_resolved", {})
        _keep(self, "stamps", {})
        _keep(self, "_by_tool", {})
        _keep(self, "_softened", None)

    # Made once, at the first question; they are no part of what the policy says.
    is_layered: ClassVar[bool]
    has_wall_clock: ClassVar[bool]
    first_graded_step: ClassVar[int]
    least_silence_ms: ClassVar[int]
    _resolved: ClassVar[dict[tuple[str, str], Policy]]
    _by_tool: ClassVar[dict[str, Policy]]
    _softened: ClassVar[Policy | None]
    # What `policy_version.stamp` has found out.
    stamps: ClassVar[dict[str, str]]

    def mode_of(self, detector: str, at_ms: int = 0) -> Mode:
        """Return the mode that is in force for `detector` at `at_ms`. Cost: 0.1 µs."""
        config: RuleConfig = getattr(self, detector)
        own = config.mode
        if own == "inherit" or (own == "off" and config.has_ended(at_ms)):
            return self.mode
        return own

    def of(self, tenant: str, agent: str, root_run_id: str | None = None) -> Policy:
        """Return the policy in force for the runs of an agent (`""` = not known) of a tenant.

        Args:
            tenant: Of the run.
            agent: Of the run.
            root_run_id: Of its tree: where `enforce` applies to a part of the runs, it says whether to this one.

        Cost: 0.2 µs with layers, once the pair was seen, 1 µs more where a share is set; ask `is_layered` before.
        """
        key = (tenant, agent)
        found = self._resolved.get(key)
        if found is None:
            if len(self._resolved) >= MAX_RESOLVED:
                self._resolved.clear()
            found = self._resolved[key] = self._resolve(tenant, agent)
        share = found.blast_radius.enforce_share
        if root_run_id is None or share >= 1 or stable_key(root_run_id) < share * 2**64:
            return found
        return found.softened()

    def softened(self) -> Policy:
        """Return this policy with every `enforce` lowered to `warn`. Cost: 0.1 µs after the first time."""
        if self._softened is None:
            soft = _soft(self)
            _keep(soft, "_by_tool", {tool: _soft(policy) for tool, policy in self._by_tool.items()})
            _keep(self, "_softened", soft)
        assert self._softened is not None  # noqa: S101 - just made
        return self._softened

    def for_tool(self, tool: str) -> Policy:
        """Return the policy in force for a call of `tool`, from a policy that `of` returned. Cost: 0.05 µs."""
        return self._by_tool.get(tool, self)

    @classmethod
    def from_builtins(cls, data: object) -> Policy:
        """Build a policy from parsed YAML or JSON.

        Raises:
            ConfigError: A field that does not exist, a wrong type or range, thresholds that fall or can never be
                reached, an exemption without an end, in the file or in one of its layers. The message names the path,
                the value and the remedy.
        """
        if data is None:
            return DEFAULT_POLICY
        if not isinstance(data, dict):
            raise ConfigError(f"policy: {data!r} is no mapping; write one setting a line, as `mode: warn`")
        check_shape(data)
        policy = _convert(data, data)
        for tenant in ("", *policy.tenants):
            for agent in ("", *sorted(agents_of(data, tenant))):
                policy.of(tenant, agent)
        return policy

    def _resolve(self, tenant: str, agent: str) -> Policy:
        data = msgspec.to_builtins(self, builtin_types=(dt.date,))
        for name in ("tenants", "agents", "tools"):
            del data[name]
        tools: dict[str, dict[str, Any]] = {}
        policy = self
        for path, layer in layers_for(self._layers(), tenant, agent):
            own = {key: value for key, value in layer.items() if key != "tools"}
            data = merged(data, own)
            policy = _convert(data, own, path)
            for tool, of_tool in layer.get("tools", {}).items():
                tools[tool] = merged(tools.get(tool, {}), of_tool)
                _with_tool(data, tool, tools[tool], f"{path}.tools.{tool}".lstrip("."))
        resolved = _convert(data, {}) if policy is self else policy
        by_tool = {tool: _with_tool(data, tool, of_tool, f"tools.{tool}") for tool, of_tool in tools.items()}
        _keep(resolved, "_by_tool", by_tool)
        return resolved

    def _layers(self) -> dict[str, Any]:
        return {"tenants": self.tenants, "agents": self.agents, "tools": self.tools}


def _keep(policy: Policy, name: str, value: object) -> None:
    msgspec.structs.force_setattr(policy, name, value)


def _soft(policy: Policy) -> Policy:
    changes: dict[str, Any] = {"mode": "warn"} if policy.mode == "enforce" else {}
    for part in policy.__struct_fields__:
        config = getattr(policy, part)
        if isinstance(config, RuleConfig) and config.mode == "enforce":
            changes[part] = msgspec.structs.replace(config, mode="warn")
    return msgspec.structs.replace(policy, **changes)


def _with_tool(data: dict[str, Any], tool: str, layer: dict[str, Any], path: str) -> Policy:
    own = {key: value for key, value in layer.items() if key != "effect"}
    effects = {"effects": {tool: layer["effect"]}} if "effect" in layer else {}
    return _convert(merged(merged(data, own), effects), own, path)


def _convert(data: dict[str, Any], written: dict[str, Any], layer: str = "") -> Policy:
    try:
        return msgspec.convert(data, Policy)
    except msgspec.ValidationError as error:
        raise ConfigError(explain(error, written or data, Policy, layer)) from None


DEFAULT_POLICY = Policy()
