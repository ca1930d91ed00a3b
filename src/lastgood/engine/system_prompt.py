"""The system message: the instruction of the agent file, and the date and environment it wants to see."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from lastgood.core.history import valid_text
from lastgood.core.speaker import HANDOFF, TRANSFER
from lastgood.engine.tools.rooted_files import read_text_under
from lastgood.engine.tools.tool import ToolFailed
from lastgood.model.agents import AgentSpec
from lastgood.model.messages import Message, Role

#: Of one prompt file. More would push out the conversation.
_MOST_BYTES = 64 * 1024


async def system_messages(
    agent: AgentSpec,
    team: AgentSpec,
    tool_usage: Iterable[str],
    working_dir: Path | None,
    now: float,
    notes: Sequence[str] = (),
) -> tuple[Message, ...]:
    """`tool_usage`: how the tools that the agent has are to be used. `notes`: what hooks add to this call."""
    instructions = _instructions(agent, team, tool_usage, working_dir, now)
    pieces = [*instructions, *await _prompt_files(agent, working_dir), *notes]
    text = "\n\n".join(piece for piece in pieces if piece.strip())
    return (Message(Role.SYSTEM, valid_text(text)),) if text else ()


def _instructions(
    agent: AgentSpec, team: AgentSpec, tool_usage: Iterable[str], working_dir: Path | None, now: float
) -> Iterator[str]:
    yield agent.instruction
    yield from tool_usage
    if agent.sub_agents:
        yield f"You can delegate a task to one of these agents with {TRANSFER}:\n" + _list(
            agent.sub_agents, team
        )
    if agent.handoffs:
        yield f"You can hand the conversation over to one of these agents with {HANDOFF}:\n" + _list(
            agent.handoffs, team
        )
    if agent.add_date:
        yield f"Today's date: {datetime.fromtimestamp(now, UTC):%Y-%m-%d}"
    if agent.add_environment_info:
        yield (
            f"Working directory: {working_dir or 'none'}\n"
            f"Operating system: {platform.system()}\nCPU architecture: {platform.machine()}"
        )


def _list(names: tuple[str, ...], team: AgentSpec) -> str:
    known = ((name, team.member(name)) for name in names)
    return "\n".join(f"- {name}: {agent.description}" for name, agent in known if agent is not None)


async def _prompt_files(agent: AgentSpec, working_dir: Path | None) -> list[str]:
    if not agent.add_prompt_files or working_dir is None:
        return []
    return await asyncio.to_thread(
        lambda: [text for name in agent.add_prompt_files if (text := prompt_file(working_dir, name))]
    )


def prompt_file(working_dir: Path, name: str) -> str | None:
    """A file that is not there is left out: it is a custom of the folder, not a duty."""
    try:
        return f"From {name}:\n{read_text_under(working_dir, name, _MOST_BYTES)}"
    except (OSError, ToolFailed):
        return None
