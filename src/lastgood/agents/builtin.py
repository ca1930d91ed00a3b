"""The agents that come with Lastgood."""

from __future__ import annotations

import hashlib

from lastgood.model.agents import AgentSpec

SCRIPTED = "builtin/scripted"


def digest(*parts: str) -> str:
    return "sha256:" + hashlib.sha256("\n".join(parts).encode()).hexdigest()


def scripted_agent(key: str = SCRIPTED) -> AgentSpec:
    """Offline and deterministic: what the demo talks to, and what the tests judge by."""
    description = "answers without a network; directives in your text tell it what to do"
    return AgentSpec(
        key=key,
        name="scripted",
        model=SCRIPTED,
        digest=digest("scripted", "1", description),
        description=description,
        tools=("echo",),
    )
