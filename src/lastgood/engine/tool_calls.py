"""Calling a tool: may it be called, with what, and what did it say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lastgood.core.session_rules import judging_call
from lastgood.core.tool_permissions import Allowed, Asks, Denied
from lastgood.engine.stage import Stage
from lastgood.engine.team_tools import handoff_tool
from lastgood.engine.toolboxes import Toolboxes
from lastgood.engine.tools.tool import Tool, ToolFailed, ToolUse
from lastgood.errors import LastgoodError
from lastgood.model.agents import OnUnknown, Safety
from lastgood.model.messages import ToolCall
from lastgood.model.rules import RuleLayer
from lastgood.ports import Work
from lastgood.time_slices import paced

#: Shows output while the tool runs.
Stream = Callable[[str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Result:
    text: str
    has_effects: bool = False  # a tool that is not repeatable ran


class ToolCaller:
    def __init__(self, runtimes: Toolboxes, safety: Safety) -> None:
        self._runtimes = runtimes
        self._safety = safety

    def tools(self, work: Work, stage: Stage) -> Mapping[str, Tool]:
        built = self._runtimes.of(work.hold.session, work.agent).tools_of(stage.agent)
        handoff = handoff_tool(stage.agent, work.agent)
        return {**built, handoff.name: handoff} if handoff else built

    def working_dir(self, work: Work) -> Path | None:
        return self._runtimes.working_dir(work.hold.session, work.working_dir)

    async def use(self, work: Work, stage: Stage, call: ToolCall, stream: Stream) -> Result:
        """A tool's error is a result: the model may try something else.

        What `stream` raises is no tool error: it stops the tool and ends the turn.
        """
        tool = self.tools(work, stage).get(call.name)
        if tool is None:
            return Result(f"error: unknown tool {call.name!r}")
        try:
            arguments = arguments_of(call)
            working_dir = self.working_dir(work)
            await self._check(stage, tool, arguments, working_dir, await work.rules())
        except ToolFailed as error:
            return Result(f"error: {error}")
        said: asyncio.Queue[str | None] = asyncio.Queue()
        use = ToolUse(
            arguments=arguments,
            key=f"{work.turn}:{stage.place_of(call.id)}",
            session=work.hold.session,
            turn=work.turn,
            attempt=work.hold.attempt,
            attempt_number=work.number,
            working_dir=working_dir,
            messages=stage.conversation(),
            say=said.put_nowait,
        )
        running = asyncio.create_task(_run(tool, use))
        running.add_done_callback(lambda _: said.put_nowait(None))
        try:
            while (text := await said.get()) is not None:
                await stream(text)
            text = "error: the tool was cancelled" if running.cancelled() else running.result()
            return Result(text, has_effects=tool.on_unknown is not OnUnknown.REPEAT)
        finally:
            # Cancelling the loop cancels the tool, and waits until it has stopped.
            running.cancel()
            await asyncio.wait({running})

    async def _check(
        self,
        stage: Stage,
        tool: Tool,
        arguments: dict[str, Any],
        place: Path | None,
        rules: tuple[RuleLayer, ...],
    ) -> None:
        """Delegating a task adds no rights: every agent of the chain must be allowed to make the call."""
        root = str(place) if place else ""
        for agent in (*stage.callers, stage.agent):
            call = tool.name, tool.effect, arguments
            match await paced(judging_call(agent, self._safety, rules, *call, root=root)):
                case Denied(reason):
                    raise ToolFailed(
                        f"{tool.name} is not allowed: {reason}. The operator can allow it with an "
                        "`allow` rule in the agent file or with --safety"
                    )
                case Asks(reason):
                    raise ToolFailed(
                        f"{tool.name} needs human approval, which is not available yet: {reason}"
                    )
                case Allowed():
                    pass


async def _run(tool: Tool, use: ToolUse) -> str:
    try:
        return await tool.run(use)
    except ToolFailed as error:
        return f"error: {error}"
    except LastgoodError:
        raise
    except Exception as error:
        return f"error: the tool failed unexpectedly: {error!r}"


def arguments_of(call: ToolCall) -> dict[str, Any]:
    try:
        arguments: Any = json.loads(call.arguments or "{}")
    except ValueError as error:
        raise ToolFailed(f"the arguments are not valid JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise ToolFailed("the arguments are not a JSON object")
    return arguments
