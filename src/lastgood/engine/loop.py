"""The one agent loop: model → tools → model, until the model has nothing more to ask for.

Streamed or not is the same loop. It yields what it does; whoever drives it writes
each finished step down before asking for the next thing, so at any moment the
journal holds everything that need not be done again.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from lastgood.core.history import mend, mend_text
from lastgood.core.recovery import unsettled
from lastgood.engine.providers.protocol import Answer, Chunk, ModelCall, Provider
from lastgood.engine.tools.protocol import Tool, ToolFailed, ToolUse
from lastgood.errors import LastgoodError, ModelError, ModelUnknown, NeedsAnswer, TurnFailed
from lastgood.model.agents import AgentSpec, OnUnknown
from lastgood.model.attempts import Step, StepKind
from lastgood.model.events import Event, EventKind
from lastgood.model.messages import Message, Role, ToolCall, tool_result, user
from lastgood.ports import Work

#: How long a person may take to say what became of a call.
ANSWER_SECONDS = 24 * 3600.0

UNKNOWN_OUTCOME = (
    "The server was interrupted while this tool ran. Whether it took effect is unknown; it was not repeated."
)


class AgentLoop:
    def __init__(self, providers: Mapping[str, Provider], tools: Sequence[Tool]) -> None:
        self._providers = providers
        self._tools = {tool.name: tool for tool in tools}

    def check_model(self, model: str) -> None:
        self._provider(model)

    def _provider(self, model: str) -> Provider:
        name, slash, _ = model.partition("/")
        if not slash or (model not in self._providers and name not in self._providers):
            raise ModelUnknown(f"no such model: {model!r}; known are {', '.join(sorted(self._providers))}")
        return self._providers.get(model) or self._providers[name]

    async def run(self, work: Work) -> AsyncGenerator[Event | Step, None]:
        steps = list(work.steps)
        async for item in self._settle(work, steps):
            yield item
        for _ in range(work.agent.max_iterations):
            if steps and not _asks_again(steps):
                return
            async for item in self._ask_model(work, steps):
                yield item
            for call in steps[-1].message.tool_calls:
                async for item in self._call_tool(work, call, steps):
                    yield item
        if steps and _asks_again(steps):
            raise TurnFailed(f"the turn needed more than {work.agent.max_iterations} model calls")

    async def _ask_model(self, work: Work, steps: list[Step]) -> AsyncGenerator[Event | Step, None]:
        about = {
            "session": work.hold.session,
            "turn": work.turn,
            "attempt": work.hold.attempt,
            "number": work.number,
        }
        instruction = work.agent.instruction
        system = (Message(Role.SYSTEM, instruction),) if instruction else ()
        tools = tuple(self._tools[name].as_json() for name in work.agent.tools if name in self._tools)
        call = ModelCall(work.model, (*system, *work.prompt(steps)), tools, about)
        async for part in self._provider(work.model).stream(call):
            if isinstance(part, Chunk):
                yield Event(EventKind.TEXT_STREAMED, work.hold.attempt, {"content": mend(part.text)})
                continue
            yield self._finished(part, steps)
            return
        raise ModelError("the model ended its stream without an answer; nothing was committed")

    def _finished(self, answer: Answer, steps: list[Step]) -> Step:
        message = mend_text(answer.message)
        if not message.content.strip() and not message.tool_calls:
            raise ModelError("the model answered with nothing; nothing was committed. Send the turn again")
        step = Step(StepKind.MODEL, message, answer.usage)
        steps.append(step)
        return step

    async def _call_tool(
        self, work: Work, call: ToolCall, steps: list[Step]
    ) -> AsyncGenerator[Event | Step, None]:
        attempt = work.hold.attempt
        called = {"id": call.id, "name": call.name, "arguments": call.arguments}
        yield Event(EventKind.TOOL_CALLED, attempt, called)
        async for item in self._answered(work, call, await self._use(work, call, steps), steps):
            yield item

    async def _answered(
        self, work: Work, call: ToolCall, text: str, steps: list[Step]
    ) -> AsyncGenerator[Event | Step, None]:
        step = Step(StepKind.TOOL, tool_result(call.id, mend(text)))
        steps.append(step)
        answered = {"id": call.id, "name": call.name, "result": step.message.content}
        yield Event(EventKind.TOOL_ANSWERED, work.hold.attempt, answered)
        yield step

    async def _use(self, work: Work, call: ToolCall, steps: Sequence[Step]) -> str:
        """The result, or an error as a result: the model may try something else."""
        tool = self._tools.get(call.name)
        if tool is None or call.name not in work.agent.tools:
            return f"error: there is no tool named {call.name!r}"
        try:
            arguments: Any = json.loads(call.arguments or "{}")
        except ValueError as error:
            return f"error: the arguments are not JSON: {error}"
        if not isinstance(arguments, dict):
            return "error: the arguments are not a JSON object"
        use = ToolUse(
            arguments=arguments,
            # With the number of the response: some providers begin anew with their ids in each.
            key=f"{work.turn}:{sum(step.kind is StepKind.MODEL for step in steps)}:{call.id}",
            session=work.hold.session,
            turn=work.turn,
            attempt=work.hold.attempt,
            attempt_number=work.number,
            working_dir=work.working_dir,
        )
        try:
            return await tool.run(use)
        except ToolFailed as error:
            return f"error: {error}"
        except LastgoodError:
            raise
        except Exception as error:
            return f"error: the tool broke: {error!r}"

    # -- after a crash -----------------------------------------------------------

    async def _settle(self, work: Work, steps: list[Step]) -> AsyncGenerator[Event | Step, None]:
        """Gives every call of the adopted steps a result; what its tool says about repeating decides how."""
        for open_call in unsettled(steps, self._policy_of):
            call = open_call.call
            answer = work.answers.get(call.id)
            if open_call.policy is OnUnknown.REPEAT or answer == "repeat":
                async for item in self._call_tool(work, call, steps):
                    yield item
            elif open_call.policy is OnUnknown.ASK and answer is None:
                raise NeedsAnswer(
                    {
                        "kind": "unknown_outcome",
                        "call": call.id,
                        "tool": call.name,
                        "arguments": call.arguments,
                    },
                    ANSWER_SECONDS,
                )
            else:
                async for item in self._answered(work, call, UNKNOWN_OUTCOME, steps):
                    yield item

    def _policy_of(self, name: str) -> OnUnknown:
        tool = self._tools.get(name)
        return tool.on_unknown if tool else OnUnknown.FAIL

    async def title(self, agent: AgentSpec, messages: Sequence[Message]) -> str | None:
        if agent.title_model is None:
            return None
        system = Message(
            Role.SYSTEM, "Give this conversation a title of at most six words. Answer with it alone."
        )
        said = tuple(user(message.content) for message in messages if message.role is Role.USER)
        call = ModelCall(agent.title_model, (system, *said), (), {"purpose": "title"})
        async for part in self._provider(agent.title_model).stream(call):
            if isinstance(part, Answer):
                return " ".join(mend(part.message.content).split())[:80] or None
        return None


def _asks_again(steps: Sequence[Step]) -> bool:
    """The last word is not the model's, or the model asked for tools."""
    last = steps[-1]
    return last.kind is StepKind.TOOL or bool(last.message.tool_calls)
