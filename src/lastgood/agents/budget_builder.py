"""Builds the budgets of a file: what a turn may spend, and who is charged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lastgood.agents.findings import Findings, hint
from lastgood.agents.schema_reader import Fields
from lastgood.model.agents import Budget, ModelSpec


class BudgetBuilder:
    def __init__(self, file: Fields, agents: Mapping[str, Fields], findings: Findings) -> None:
        self._file = file
        self._agents = agents
        self._findings = findings

    def build(self, models: Mapping[str, str], specs: Mapping[str, ModelSpec]) -> tuple[Budget, ...]:
        """`models`: the model of each agent. `specs`: what is known of them, their prices among it."""
        named: dict[str, Fields] = {name: value.raw for name, value in self._file.named("budgets").items()}
        charged: dict[str, set[str]] = {name: set() for name in named}
        for agent, fields in self._agents.items():
            for one in fields.listed("budgets"):
                if one.raw not in named:
                    near = hint(one.raw, named) or "; define it there"
                    self._findings.error(one.place, f"'{one.raw}' is not in `budgets`{near}")
                else:
                    charged[one.raw].add(agent)
        built = [_budget(name, fields, frozenset(charged[name])) for name, fields in named.items()]
        everybody: Fields | None = self._file.raw("budget")
        sections = [*zip(built, named.values(), strict=True)]
        if everybody is not None:
            sections.insert(0, (_budget("", everybody, None), everybody))
        for budget, fields in sections:
            self._check_prices(budget, fields, models, specs)
        return tuple(budget for budget, _ in sections)

    def _check_prices(
        self, budget: Budget, fields: Fields, models: Mapping[str, str], specs: Mapping[str, ModelSpec]
    ) -> None:
        """A model without a price costs nothing here, so a limit in dollars would never be reached."""
        if budget.cost is None:
            return
        agents = models if budget.agents is None else budget.agents
        free = sorted({models[agent] for agent in agents if not _has_price(specs.get(models[agent]))})
        if free:
            what = (
                f"'max_cost' counts only models that have a price, and {', '.join(free)} has none; "
                "set `cost` of the model, or limit 'max_tokens'"
            )
            self._findings.warning(fields.at("max_cost"), what)


def _budget(name: str, fields: Fields, agents: frozenset[str] | None) -> Budget:
    return Budget(name, fields.raw("max_cost"), fields.raw("max_tokens"), fields.raw("max_time"), agents)


def _has_price(spec: ModelSpec | None) -> bool:
    return spec is not None and bool(spec.input_cost or spec.output_cost)


def in_use(budgets: tuple[Budget, ...]) -> Iterator[Budget]:
    """Without those that nobody is charged for or that limit nothing."""
    for budget in budgets:
        limits = (budget.cost, budget.tokens, budget.seconds)
        if budget.agents != frozenset() and any(limit is not None for limit in limits):
            yield budget
