"""The one way from what a session recorded to the agent it means."""

from __future__ import annotations

from typing import Any, assert_never

from lastgood.core import identity
from lastgood.errors import AgentNotFound
from lastgood.model.agents import AgentSpec
from lastgood.ports import Agents


async def resolve(agents: Agents, recorded: str) -> tuple[AgentSpec, dict[str, Any]]:
    """The agent, and the decision as it is stored; AgentNotFound says why not.

    A key may name a member of a team: `key/name`.
    """
    served = agents.served()
    resolution = identity.resolve(recorded, served)
    name: str | None = None
    if isinstance(resolution, identity.Missing) and "/" in recorded:
        key, _, name = recorded.rpartition("/")
        resolution = identity.resolve(key, served)
    decision = identity.as_record(resolution)
    match resolution:
        case identity.Exact(key) | identity.Stable(key):
            agent = await agents.load(key, name)
        case identity.Ambiguous() | identity.Missing():
            raise AgentNotFound(f"agent not found: {resolution.reason}", **decision)
        case _:
            assert_never(resolution)
    if name is not None:
        decision["name"] = name
    if agent.stale:
        decision["stale"] = agent.stale
    return agent, decision
