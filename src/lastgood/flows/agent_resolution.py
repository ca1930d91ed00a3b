"""Resolves the agent key that a session recorded to the agent that is served."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never

from lastgood.core import agent_identity
from lastgood.errors import AgentNotFound
from lastgood.model.agents import AgentSpec
from lastgood.ports.engine import Agents


async def resolve(agents: Agents, recorded: str) -> tuple[AgentSpec, dict[str, Any]]:
    """Returns the agent, and the decision as it is stored. AgentNotFound has the reason.

    A key may name a member of a team: `key/name`.
    """
    resolution, name = _find(recorded, agents.served())
    decision = agent_identity.as_record(resolution)
    match resolution:
        case agent_identity.Exact(key) | agent_identity.Stable(key):
            agent = await agents.load(key, name)
        case agent_identity.Ambiguous() | agent_identity.Missing():
            raise AgentNotFound(f"Agent not found: {resolution.reason}", **decision)
        case _:
            assert_never(resolution)
    if name is not None:
        decision["name"] = name
    if agent.stale:
        decision["stale"] = agent.stale
    return agent, decision


def _find(recorded: str, served: Sequence[str]) -> tuple[agent_identity.Resolution, str | None]:
    """With the name of the member, if one is meant.

    The key of a URL is escaped and has no slash, so what follows a slash is a name. Read as part of the URL's
    query, it would make the team answer instead of its member.
    """
    whole = agent_identity.resolve(recorded, served)
    key, _, name = recorded.rpartition("/")
    if isinstance(whole, agent_identity.Exact) or not key or not name or "://" in recorded:
        return whole, None
    found = agent_identity.resolve(key, served)
    return (whole, None) if isinstance(found, agent_identity.Missing) else (found, name)
