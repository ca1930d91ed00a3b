"""The agents that come with Lastgood: one that needs no network, and the agent files beside this module."""

from __future__ import annotations

import hashlib
from pathlib import Path

from lastgood.model.agents import AgentSpec, ToolsetSpec

SCRIPTED = "builtin/scripted"
BUILTIN_NAMES = ("default", "coder", SCRIPTED)


def digest(*parts: str) -> str:
    return "sha256:" + hashlib.sha256("\n".join(parts).encode()).hexdigest()


def scripted_agent(key: str = SCRIPTED) -> AgentSpec:
    """Offline and deterministic; used by the demo and the tests."""
    description = "offline model for demos and tests, controlled by directives in the message"
    return AgentSpec(
        key=key,
        name="scripted",
        model=SCRIPTED,
        digest=digest("scripted", "1", description),
        description=description,
        toolsets=(ToolsetSpec("echo"),),
    )


def builtin_file(name: str) -> bytes:
    return (Path(__file__).parent / f"{name}.yaml").read_bytes()
