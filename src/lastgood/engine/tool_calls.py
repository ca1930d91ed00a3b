"""Tool calls: permission, arguments and result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from lastgood.core.approval import literal_rule
from lastgood.core.model_choice import chosen_model
from lastgood.core.session_rules import judging_call
from lastgood.core.speaker import TRANSFER
from lastgood.core.tool_permissions import Allowed, Asks, Denied
from lastgood.engine.agent_run import Stage
from lastgood.engine.team_tools import TASK_TOOL, handoff_tool
from lastgood.engine.toolboxes import Toolboxes
from lastgood.engine.tools.arguments import arguments_of
from lastgood.engine.tools.deferred import offered_tools
from lastgood.engine.tools.model_picker import PICKER_TOOLS, choices_of
from lastgood.engine.tools.program_tools import SessionPlace
from lastgood.engine.tools.tool import (
    DESCRIPTION,
    ForkRequested,
    NeedsInput,
    Tool,
    ToolFailed,
    ToolInterrupted,
    ToolUse,
    is_described,
)
from lastgood.errors import LastgoodError, NeedsAnswer
from lastgood.model.agents import OnUnknown, Safety
from lastgood.model.answers import Answer, AnswerAction, QuestionKind
from lastgood.model.attempts import StepKind, ToolOutcome
from lastgood.model.messages import ToolCall
from lastgood.model.rules import RuleLayer
from lastgood.ports.engine import Work
from lastgood.time_slices import paced

_CANCELLED = ("error: the tool was cancelled", ToolOutcome.UNKNOWN)

#: Shows output while the tool runs.
Stream = Callable[[str], Awaitable[None]]

#: Turns the question that the rules require into the one that is asked; None: no approval is needed.
Settle = Callable[[Asks | None], Awaitable[Asks | None]]


@dataclass(frozen=True, slots=True)
class Result:
    text: str
    outcome: ToolOutcome
    has_effects: bool = False  # a tool that is not repeatable ran
    seconds: float = 0.0
    is_rejected: bool = False  # by a person, whose answer is on record
    note: str = ""  # follows the text, whole, however much of that is shown


@dataclass(frozen=True, slots=True)
class AdmittedCall:
    """A call that may run."""

    tool: Tool
    arguments: dict[str, Any]
    working_dir: Path | None


class ToolCaller:
    def __init__(self, toolboxes: Toolboxes, safety: Safety, approval_seconds: float) -> None:
        """`approval_seconds`: how long a person may take to approve a call."""
        self._toolboxes = toolboxes
        self._safety = safety
        self._approval_seconds = approval_seconds

    def tools(self, work: Work, stage: Stage) -> Mapping[str, Tool]:
        toolbox = self._toolboxes.of(work.hold.session, work.agent)
        built = toolbox.tools_of(stage.agent)
        if deferred := toolbox.deferred_of(stage.agent):
            built = offered_tools(built, deferred, stage.conversation())
        if _is_overridden(work, stage) and choices_of(stage.agent):
            built = {name: tool for name, tool in built.items() if name not in PICKER_TOOLS}
        handoff = handoff_tool(stage.agent, work.agent)
        return {**built, handoff.name: handoff} if handoff else built

    async def prepare(self, work: Work, stage: Stage) -> None:
        """Starts the programs that the agent's tools belong to, and lists their tools."""
        if any(spec.type in self._toolboxes.live_types for spec in stage.agent.toolsets):
            place = SessionPlace(work.hold.tenant, work.hold.session, self.working_dir(work))
            await self._toolboxes.of(work.hold.session, work.agent).ask_programs(stage.agent, place)

    def model_for_response(self, work: Work, stage: Stage) -> str | None:
        """The model for the next response, where a toolset names one for its results, the first of them, or
        the agent has chosen one."""
        models = self._toolboxes.of(work.hold.session, work.agent).models_of(stage.agent)
        if models:
            steps = reversed(stage.steps)
            asked = next((step.message.tool_calls for step in steps if step.kind is StepKind.MODEL), ())
            named = next((models[call.name] for call in asked if call.name in models), None)
            if named is not None:
                return named
        choices = () if _is_overridden(work, stage) else choices_of(stage.agent)
        return chosen_model(stage.conversation(), choices) if choices else None

    def instructions(self, work: Work, stage: Stage) -> Iterator[str]:
        return self._toolboxes.of(work.hold.session, work.agent).instructions_of(stage.agent)

    def working_dir(self, work: Work) -> Path | None:
        return self._toolboxes.working_dir(work.hold.session, work.working_dir)

    async def admit(
        self, work: Work, stage: Stage, call: ToolCall, settle: Settle | None = None
    ) -> AdmittedCall | Result:
        """Decides whether the call may run, before any event is emitted. Returns a result with the reason if
        it may not. NeedsAnswer: it needs approval. Nothing has run yet.

        `settle`: applies the decisions of hooks; it cannot allow what the rules deny.
        """
        gives_task = call.name == TRANSFER and bool(stage.agent.sub_agents)
        tool = TASK_TOOL if gives_task else self.tools(work, stage).get(call.name)
        if tool is None:
            return Result(f"error: unknown tool {call.name!r}", ToolOutcome.FAILED)
        if (rejection := _rejection(call, stage.answer_to(call, work.answers))) is not None:
            return rejection
        try:
            arguments, working_dir = arguments_of(call), self.working_dir(work)
            if stage.agent.add_description_parameter and not is_described(tool):
                arguments.pop(DESCRIPTION, None)  # for people; the tool knows no such argument
            asks = await self._check(stage, tool, arguments, working_dir, await work.rules())
            if any(step.within == f"{stage.place_of(call.id)}/" for step in work.steps):
                return AdmittedCall(tool, arguments, working_dir)  # a task that was allowed, and has begun
            if settle is not None:
                asks = await settle(asks)
            if asks is not None:
                self._check_answer(work, stage, call, asks)
        except ToolFailed as error:
            return Result(f"error: {error}", ToolOutcome.DENIED)
        return AdmittedCall(tool, arguments, working_dir)

    async def use(
        self, work: Work, stage: Stage, call: ToolCall, admitted: AdmittedCall, stream: Stream
    ) -> Result:
        """A tool's error is a result: the model may try something else.

        What `stream` raises is no tool error: it stops the tool and ends the turn. ForkRequested: the loop
        has to run the same agent on a prompt of its own, whose answer is the result.
        """
        tool = admitted.tool
        said: asyncio.Queue[str | None] = asyncio.Queue()
        use = ToolUse(
            arguments=admitted.arguments,
            key=f"{work.turn}:{stage.place_of(call.id)}",
            session=work.hold.session,
            turn=work.turn,
            attempt=work.hold.attempt,
            attempt_number=work.number,
            working_dir=admitted.working_dir,
            messages=stage.conversation(),
            shared_todos=stage.shared_todos,
            answer=stage.answer_to(call, work.answers),
            say=said.put_nowait,
            notes=work.notes,
            program_tools=self._toolboxes.of(work.hold.session, work.agent).program_tools(
                stage.agent, tool.name
            ),
        )
        running, began = asyncio.create_task(_run(tool, use)), time.monotonic()
        running.add_done_callback(lambda _: said.put_nowait(None))
        try:
            while (text := await said.get()) is not None:
                await stream(text)
            try:
                text, outcome = _CANCELLED if running.cancelled() else running.result()
            except NeedsInput as needed:
                text, outcome = self._ask_for_input(work, stage, call, needed)
            has_effects = tool.on_unknown is not OnUnknown.REPEAT
            return Result(text, outcome, has_effects, time.monotonic() - began)
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
    ) -> Asks | None:
        """Delegating a task adds no rights: every agent of the chain must be allowed to make the call.
        Returns the question for a person, if approval is needed. ToolFailed: it is denied."""
        root = str(place) if place else ""
        asks: Asks | None = None
        for agent in (*stage.callers, stage.agent):
            call = tool.name, tool.effect, arguments
            match await paced(judging_call(agent, self._safety, rules, *call, root=root)):
                case Denied() as denied:
                    raise ToolFailed(denial(tool.name, denied))
                case Asks() as found:
                    asks = asks or found
                case Allowed():
                    pass
        return asks

    def definition_of(self, work: Work, stage: Stage, tool: str) -> str:
        return self._toolboxes.of(work.hold.session, work.agent).definition_of(stage.agent, tool)

    def _check_answer(self, work: Work, stage: Stage, call: ToolCall, asks: Asks) -> None:
        """Here an answer approves the call, or repeats one that was approved before its outcome was lost, or
        has what it asked for after it was approved."""
        answer = stage.answer_to(call, work.answers)
        definition = self.definition_of(work, stage, call.name)
        if answer is not None and answer.definition == definition:
            return
        if not work.can_ask:
            raise ToolFailed(
                f"{call.name} needs human approval, which is not available on this API: {asks.reason}"
            )
        # The agent file may have changed meanwhile: the same call would run another command.
        changed = "; its definition in the agent file changed after it was approved" if answer else ""
        question = {
            "kind": QuestionKind.APPROVAL.value,
            "place": stage.place_of(call.id),
            "call": call.id,
            "tool": call.name,
            "arguments": call.arguments,
            "agent": stage.agent.name,
            "reason": f"{asks.reason}{changed}",
            "definition": definition,
        }
        raise NeedsAnswer(question, self._approval_seconds)

    def _ask_for_input(
        self, work: Work, stage: Stage, call: ToolCall, needed: NeedsInput
    ) -> tuple[str, ToolOutcome]:
        """NeedsAnswer: the turn waits. Returns an error for the model if approvals are not available."""
        if not work.can_ask:
            return (
                f"error: {call.name} needs an answer from a person, which is not available on this API",
                ToolOutcome.FAILED,
            )
        question = {
            "kind": QuestionKind.ELICITATION.value,
            "place": stage.place_of(call.id),
            "call": call.id,
            "tool": call.name,
            "arguments": call.arguments,
            "agent": stage.agent.name,
            "message": needed.message,
            "title": needed.title,
            "schema": None if needed.schema is None else dict(needed.schema),
            "url": needed.url,
            "state": None if needed.state is None else dict(needed.state),
            "definition": self.definition_of(work, stage, call.name),
        }
        raise NeedsAnswer(question, self._approval_seconds)


def _is_overridden(work: Work, stage: Stage) -> bool:
    """Whether a person chose the model. That is for the agent that the turn is addressed to."""
    return stage.agent is work.agent and work.has_chosen_model


def _rejection(call: ToolCall, answer: Answer | None) -> Result | None:
    """A person's rejection counts even if nothing asks for approval by now: rules and hooks may have changed
    while the person decided."""
    if answer is None or answer.action is not AnswerAction.REJECT:
        return None
    why = f": {answer.reason}" if answer.reason else ""
    text = f"error: a person rejected this call of {call.name}{why}"
    return Result(text, ToolOutcome.DENIED, is_rejected=True)


async def _run(tool: Tool, use: ToolUse) -> tuple[str, ToolOutcome]:
    try:
        return await tool.run(use), ToolOutcome.DONE
    except ToolFailed as error:
        is_unknown = isinstance(error, ToolInterrupted)
        return f"error: {error}", ToolOutcome.UNKNOWN if is_unknown else ToolOutcome.FAILED
    except (LastgoodError, NeedsInput, ForkRequested):
        raise
    except Exception as error:
        return f"error: the tool failed unexpectedly: {error!r}", ToolOutcome.FAILED


def denial(tool: str, denied: Denied) -> str:
    """Ends with the line to paste."""
    line = orjson.dumps([literal_rule(tool)]).decode()
    remedy = denied.remedy or (
        "use --safety balanced (asks a person), "
        f"or add this line to the agent file: permissions: {{allow: {line}}}"
    )
    return f"{tool} is not allowed: {denied.reason}. To allow it, {remedy}"
