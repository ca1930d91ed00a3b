"""A turn stops when its budget is used up, and leaves no trace (I2)."""

from __future__ import annotations

import json

import pytest

from lastgood.errors import BudgetExceeded
from lastgood.model.agents import Budget
from tests.agents.corpus import errors_of, parse, warnings_of
from tests.flows.cluster import Cluster

pytestmark = pytest.mark.anyio

CALLS = "\n".join(f'!tool echo {{"text": "{word}"}}' for word in "abc") + "\n!say done"


async def test_I2_a_turn_that_has_used_up_its_budget_calls_no_model_again(cluster: Cluster) -> None:
    node = await cluster.node(agents=[cluster.agent(budgets=(Budget(tokens=1),))])
    session = await cluster.session(node)
    outcome = await cluster.say(node, session, CALLS)
    assert isinstance(outcome.error, BudgetExceeded)
    assert "1 tokens" in outcome.error.message
    assert len(cluster.world.prompts) == 1
    assert await cluster.turns(session) == ()
    # The next turn has a budget of its own; its only response may cost more than what is left.
    assert (await cluster.good(node, session, "!say short")).messages[-1].content == "short"


async def test_a_retry_continues_with_what_is_left(cluster: Cluster) -> None:
    node = await cluster.node(agents=[cluster.agent(budgets=(Budget(tokens=1),))])
    session = await cluster.session(node)
    for _ in range(2):
        outcome = await cluster.say(node, session, CALLS, key="k")
        assert isinstance(outcome.error, BudgetExceeded)
    assert len(cluster.world.prompts) == 1


async def test_time_counts(cluster: Cluster) -> None:
    node = await cluster.node(agents=[cluster.agent(budgets=(Budget(seconds=0.0),))])
    outcome = await cluster.say(node, await cluster.session(node), "!say one")
    assert isinstance(outcome.error, BudgetExceeded)
    assert cluster.world.prompts == []


async def test_a_named_budget_is_of_the_agents_that_name_it(cluster: Cluster) -> None:
    """The helper has used up its budget after one response; the agent that asked it goes on."""
    budgets = (Budget("help", tokens=1, agents=frozenset({"helper"})),)
    helper = cluster.agent(name="helper", budgets=budgets)
    root = cluster.agent(budgets=budgets, sub_agents=("helper",), members={"helper": helper})
    node = await cluster.node(agents=[root])
    session = await cluster.session(node)
    task = json.dumps({"agent": "helper", "task": "!say helped"})
    turn = await cluster.good(node, session, f"!tool transfer_task {task}\n!say done")
    assert turn.messages[-1].content == "done"
    longer = json.dumps({"agent": "helper", "task": CALLS})
    outcome = await cluster.say(node, session, f"!tool transfer_task {longer}\n!say done")
    assert isinstance(outcome.error, BudgetExceeded)
    assert "'help'" in outcome.error.message


FILE = """models: {m: {provider: openai, model: x, cost: {input: 1, output: 2}}}
budget: {max_cost: 1, max_time: 1m}
budgets: {tight: {max_tokens: 5}, unused: {max_tokens: 1}}
agents:
  root: {model: m, budgets: [tight]}
  other: {model: m}
"""


def test_budgets_of_a_file() -> None:
    assert warnings_of(FILE) == []
    agents = parse(FILE).agents
    everybody = Budget("", 1.0, None, 60.0)
    assert agents["root"].budgets == (everybody, Budget("tight", tokens=5, agents=frozenset({"root"})))
    assert agents["other"].budgets == agents["root"].budgets
    [(line, message)] = errors_of(FILE.replace("[tight]", "[tigth]"))
    assert (line, "did you mean 'tight'" in message) == (5, True)


def test_a_limit_in_dollars_needs_prices() -> None:
    [(line, message)] = warnings_of(FILE.replace(", cost: {input: 1, output: 2}", ""))
    assert line == 2
    assert "counts only models that have a price" in message
