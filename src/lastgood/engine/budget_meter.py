"""What a turn has spent so far, of all its agents together."""

from __future__ import annotations

import time

from lastgood.core.budgets import exceeded
from lastgood.errors import BudgetExceeded
from lastgood.model.agents import AgentSpec
from lastgood.model.attempts import Step, StepKind
from lastgood.ports.engine import Work


class BudgetMeter:
    def __init__(self, work: Work) -> None:
        self._budgets = work.agent.budgets
        self._responses = [step for step in work.steps if step.kind is StepKind.MODEL]
        self._began = time.monotonic()

    def add(self, step: Step) -> None:
        if step.kind is StepKind.MODEL:
            self._responses.append(step)

    def check(self, agent: AgentSpec) -> None:
        """BudgetExceeded: the model may not be called again."""
        why = exceeded(self._budgets, agent.own_name, self._responses, time.monotonic() - self._began)
        if why is not None:
            raise BudgetExceeded(f"The turn was stopped: {why}. Nothing was committed")
