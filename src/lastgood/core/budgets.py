"""Decides whether a turn may spend more.

What was spent is read off its steps, those of the attempt it continues among them: a retry that adopts them
goes on with what is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lastgood.model.agents import Budget
from lastgood.model.attempts import Step, StepKind
from lastgood.model.sessions import Usage


def exceeded(budgets: Iterable[Budget], agent: str, responses: Sequence[Step], seconds: float) -> str | None:
    """Why this agent may not call its model again; None: it may. `seconds`: how long the turn has worked."""
    for budget in budgets:
        if budget.agents is not None and agent not in budget.agents:
            continue
        if (limit := _limit_reached(budget, _spent(budget, responses), seconds)) is not None:
            name = f"the budget {budget.name!r}" if budget.name else "the budget"
            return f"{name} of {limit} is used up"
    return None


def _spent(budget: Budget, responses: Sequence[Step]) -> Usage:
    counted = (
        step.usage
        for step in responses
        if step.kind is StepKind.MODEL and (budget.agents is None or step.agent in budget.agents)
    )
    return sum(counted, Usage())


def _limit_reached(budget: Budget, spent: Usage, seconds: float) -> str | None:
    if budget.cost is not None and spent.cost >= budget.cost:
        return f"${budget.cost:g}"
    if budget.tokens is not None and spent.input_tokens + spent.output_tokens >= budget.tokens:
        return f"{budget.tokens:,} tokens"
    if budget.seconds is not None and seconds >= budget.seconds:
        return f"{budget.seconds:g} s"
    return None
