"""The agents that this server offers, by the keys that clients send."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote_plus, unquote, unquote_plus

from lastgood.core.input_checks import check_text
from lastgood.errors import InvalidRequest
from lastgood.flows.agent_resolution import resolve
from lastgood.model.agents import AUTO, AgentOrigin, AgentSpec
from lastgood.ports.engine import Agents


class AgentDirectory:
    def __init__(
        self,
        agents: Agents,
        can_answer: Callable[[AgentSpec], bool] = lambda _: True,
        auto_model: Callable[[], str] = lambda: AUTO,
    ) -> None:
        self._agents = agents
        self.can_answer = can_answer  # whether its model has a provider and a key
        self.auto_model = auto_model  # what `auto` means on this server

    def list_keys(self) -> Sequence[str]:
        return self._agents.served()

    def origin(self, key: str) -> AgentOrigin:
        return self._agents.origin(key)

    async def load(self, key: str) -> AgentSpec:
        return await self._agents.load(key)

    async def resolve(self, recorded: str) -> tuple[AgentSpec, dict[str, Any]]:
        """Returns the agent for a key, and how it was found. AgentNotFound if none or several match."""
        return await resolve(self._agents, recorded)

    def default_key(self) -> str:
        """Returns the only key. Empty if there are several: then the first run names one."""
        served = self._agents.served()
        return served[0] if len(served) == 1 else ""

    def canonical_key(self, key: str, name: str | None = None) -> str:
        """Returns the key in one spelling, whether a client escaped it once or twice.

        Keys that are not served any more are accepted: they are recorded and compared as sent.
        """
        if not key or name == "":
            raise InvalidRequest("The path has no agent key; GET /api/agents lists them")
        check_text(key, "the agent")
        key = _as_served(key, self._agents.served())
        return key if name is None else f"{key}/{name}"


def _as_served(key: str, served: Sequence[str]) -> str:
    """An exact match comes first: a key may contain a percent sign."""
    if _is_served(key, served):
        return key
    if "://" in key:
        return quote_plus(key)
    # Clients send spaces as %20, as in a path, or as +, as in a query.
    return next((one for one in (unquote(key), unquote_plus(key)) if _is_served(one, served)), key)


def _is_served(key: str, served: Sequence[str]) -> bool:
    """Alone, or with a member of its team."""
    return key in served or key.rpartition("/")[0] in served
