"""What the end of a run has probably saved. An estimate for a dashboard: nobody knows what would have been."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import TreeState
    from loopwarden_models.policy import Policy


def saved_usd(tree: TreeState, policy: Policy) -> float:
    """Return what the tree would have spent from now on to the nearer of its limits, of steps and of cost.

    At the pace of all its calls until now. 0 where no cost was reported, and where neither limit is set: without an end
    there is no sum.

    Args:
        tree: Of the run that was ended; unchanged.
        policy: In force for the run.

    Cost: 1 µs, once a kill.
    """
    limits = tree.limits or policy.budget.limits
    left = []
    if limits.max_steps is not None:
        left.append(tree.cost_usd / max(1, tree.attempts) * (limits.max_steps - tree.attempts))
    if limits.max_cost_usd is not None:
        left.append(limits.max_cost_usd - tree.cost_usd)
    return max(0.0, min(left)) if left and tree.cost_usd else 0.0
