"""Tools that belong to a program that has to run: what the loop needs of them.

Other tools are built from their spec alone. These are listed before every model call, because the program may
have stopped, restarted, or changed its tools.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lastgood.engine.tools.tool import Tool
from lastgood.model.agents import ToolsetSpec
from lastgood.model.ids import SessionId, TenantId


@dataclass(frozen=True, slots=True)
class SessionPlace:
    """Whose program it is, and where it works."""

    tenant: TenantId
    session: SessionId
    working_dir: Path | None


@dataclass(frozen=True, slots=True)
class Offer:
    """`problem`: why tools are missing, for the model and for people. `is_required`: the turn fails without
    them. `label`: goes before a tool's name if another tool of the agent has that name."""

    tools: tuple[Tool, ...] = ()
    instruction: str = ""
    problem: str = ""
    is_required: bool = False
    label: str = ""


class LiveProgram(Protocol):
    """One program of one session."""

    async def offer(self) -> Offer:
        """Starts it if it does not run. What goes wrong is in the offer."""
        ...

    async def close(self) -> None: ...


class LiveToolset(Protocol):
    def program(self, spec: ToolsetSpec, place: SessionPlace) -> LiveProgram:
        """Starts nothing yet."""
        ...

    async def close(self) -> None:
        """Ends all programs."""
        ...


#: By the type an agent file names.
LiveToolsets = Mapping[str, LiveToolset]
