"""The agents served now, by source key. Which of them a session means is decided in core/identity."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lastgood.errors import AgentNotFound
from lastgood.model.agents import AgentSpec


class Catalog:
    def __init__(self, agents: Iterable[AgentSpec]) -> None:
        self._agents = {agent.key: agent for agent in agents}

    def served(self) -> Sequence[str]:
        return tuple(self._agents)

    async def load(self, key: str) -> AgentSpec:
        try:
            return self._agents[key]
        except KeyError:
            raise AgentNotFound(f"no agent is served under {key!r}") from None
