"""Does a policy make sense as a whole? Thresholds that rise, that can be reached, and exemptions of something."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from loopwarden_models.effects import EFFECTS
from loopwarden_models.nudge_words import check_nudges
from loopwarden_models.rule_config import Config, RuleConfig
from loopwarden_models.step_rules import MAX_ENDS

if TYPE_CHECKING:
    from loopwarden_models.policy import Policy

# What the memory of a run can hold (loopwarden_detectors.rings): a threshold beyond it is never reached.
_MAX_REMEMBERED: Final = 40
_MAX_LAPS: Final = 20


def _is_rule(policy: Policy, part: str) -> bool:
    return isinstance(getattr(policy, part), RuleConfig)


def check_sense(policy: Policy) -> None:
    """Refuse what can never fire or fires in the wrong order.

    Raises:
        ValueError: The message names the path, the value and the remedy.

    Cost: 50 µs, once a policy.
    """
    for part in policy.__struct_fields__:
        config = getattr(policy, part)
        if isinstance(config, RuleConfig) and config.until is not None and config.mode != "off":
            raise ValueError(f"{part}.until = {config.until} ends nothing: it belongs to `mode: off`; remove it")
        for names in config.rising if isinstance(config, Config) else ():
            numbers = [n for name in names if (n := getattr(config, name)) is not None]
            if numbers != sorted(numbers):
                path = f"{part}.{', '.join(names)}"
                raise ValueError(
                    f"{path} = {numbers} must not fall from the weaker to the stronger level: raise the later ones"
                )
    check_nudges(policy.nudges, {part: 0 for part in policy.__struct_fields__ if _is_rule(policy, part)})
    for tool, effect in policy.effects.items():
        if effect not in EFFECTS:
            raise ValueError(f"effects.{tool} = {effect!r} is not one of {', '.join(sorted(EFFECTS))}")

    if policy.cycle.kill_laps > _MAX_LAPS:
        raise ValueError(
            f"cycle.kill_laps = {policy.cycle.kill_laps} can never be reached: of the shortest cycle {_MAX_LAPS} laps "
            f"are remembered; write at most {_MAX_LAPS}"
        )
    if policy.interleaved_repeat.kill > _MAX_REMEMBERED:
        raise ValueError(
            f"interleaved_repeat.kill = {policy.interleaved_repeat.kill} can never be reached: only "
            f"{_MAX_REMEMBERED} calls are remembered; write at most {_MAX_REMEMBERED}"
        )
    if policy.fleet_breaker.window_ms % 1_000:
        raise ValueError(
            f"fleet_breaker.window_ms = {policy.fleet_breaker.window_ms} is not a number of whole seconds, which is "
            "how calls are added up; write one such as 30000"
        )
    if policy.restart_loop.nudge > MAX_ENDS:
        raise ValueError(
            f"restart_loop.nudge = {policy.restart_loop.nudge} can never be reached: the ends of {MAX_ENDS} runs are "
            f"remembered of a task; write at most {MAX_ENDS}"
        )
    radius = policy.blast_radius
    if radius.kills_per_min > radius.kills_per_min_total:
        raise ValueError(
            f"blast_radius.kills_per_min = {radius.kills_per_min} can never be reached: all tenants together have "
            f"kills_per_min_total = {radius.kills_per_min_total}; lower the one or raise the other"
        )
