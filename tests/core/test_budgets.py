"""What a turn may spend, as a table."""

from __future__ import annotations

import pytest

from lastgood.core.budgets import exceeded
from lastgood.model.agents import Budget
from lastgood.model.attempts import Step, StepKind
from lastgood.model.messages import assistant, tool_result
from lastgood.model.sessions import Usage


def response(agent: str = "", tokens: int = 10, cost: float = 0.5) -> Step:
    return Step(StepKind.MODEL, assistant("a"), Usage(tokens, tokens, cost), agent=agent)


RESULT = Step(StepKind.TOOL, tool_result("c", "r"), Usage(1000, 1000, 100.0))
TEAM = Budget("team", tokens=20, agents=frozenset({"a"}))


@pytest.mark.parametrize(
    ("budget", "agent", "steps", "seconds", "expected"),
    [
        (Budget(tokens=21), "a", [response()], 0.0, None),
        (Budget(tokens=20), "a", [response()], 0.0, "the budget of 20 tokens is used up"),
        (Budget(cost=0.6), "a", [response(), RESULT], 0.0, None),
        (Budget(cost=0.5), "a", [response()], 0.0, "the budget of $0.5 is used up"),
        (Budget(seconds=9), "a", [], 8.9, None),
        (Budget(seconds=9), "a", [], 9.0, "the budget of 9 s is used up"),
        (TEAM, "a", [response("b")], 0.0, None),
        (TEAM, "b", [response("a")], 0.0, None),
        (TEAM, "a", [response("a"), response("b")], 0.0, "the budget 'team' of 20 tokens is used up"),
        (Budget(), "a", [response()], 1e9, None),
    ],
)
def test_exceeded(
    budget: Budget, agent: str, steps: list[Step], seconds: float, expected: str | None
) -> None:
    assert exceeded([budget], agent, steps, seconds) == expected


def test_one_of_several_budgets_is_enough() -> None:
    assert exceeded([Budget(tokens=100), Budget("b", tokens=20)], "a", [response()], 0.0) is not None
    assert exceeded([], "a", [response()], 0.0) is None
