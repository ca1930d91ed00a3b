"""The loop and its `emit`: a step is journaled before anything follows, and a lost attempt ends the turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from lastgood.engine.providers.provider import Chunk, ModelAnswer, ModelCall
from lastgood.engine.tools.tool import Tool, ToolUse
from lastgood.errors import AttemptLost
from lastgood.model.agents import AgentSpec
from lastgood.model.attempts import Step
from lastgood.model.events import Event, EventKind
from lastgood.model.messages import Message, Role, ToolCall, assistant
from lastgood.model.sessions import Usage
from lastgood.model.usage import ModelAsked
from tests.bench.loop import BenchWork
from tests.engines import Kit, toolsets

pytestmark = pytest.mark.anyio

MODEL = "builtin/once"
WORK = BenchWork(AgentSpec("a", "a", MODEL, "", toolsets=toolsets("noisy")), MODEL)


class OneCall:
    """Calls the tool once, then answers."""

    async def stream(self, call: ModelCall) -> AsyncGenerator[Chunk | ModelAnswer, None]:
        if call.messages[-1].role is Role.TOOL:
            yield ModelAnswer(assistant("done"), Usage(1, 1))
            return
        calls = (ToolCall("call_1", "noisy", "{}"),)
        yield ModelAnswer(Message(Role.ASSISTANT, "", calls), Usage(1, 1))


class Noisy:
    """A tool that speaks, then runs until it is stopped or `may_end` is set."""

    def __init__(self) -> None:
        self.began = self.was_stopped = False
        self.may_end = asyncio.Event()

    async def run(self, use: ToolUse) -> str:
        self.began = True
        use.say("working")
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.was_stopped = True
            raise
        return "ran"

    @property
    def tool(self) -> Tool:
        return Tool("noisy", "Speaks.", {"type": "object"}, self.run)


async def test_I10_an_attempt_lost_while_a_tool_streams_ends_the_turn_and_is_no_tool_result() -> None:
    noisy = Noisy()
    steps: list[Step] = []

    async def emit(item: Event | Step | ModelAsked) -> None:
        if isinstance(item, Step):
            steps.append(item)
        elif isinstance(item, Event) and item.kind is EventKind.TOOL_STREAMED:
            raise AttemptLost()

    with pytest.raises(AttemptLost):
        await Kit({MODEL: OneCall()}, (noisy.tool,)).engine().run(WORK, emit)
    assert noisy.was_stopped
    assert [step.message.role for step in steps] == [Role.ASSISTANT]


async def test_I33_no_tool_starts_before_the_journal_has_its_call() -> None:
    noisy = Noisy()
    noisy.may_end.set()
    began_before: list[bool] = []

    async def emit(item: Event | Step | ModelAsked) -> None:
        if isinstance(item, Step):
            await asyncio.sleep(0)  # the journal takes its time
            began_before.append(noisy.began)

    await Kit({MODEL: OneCall()}, (noisy.tool,)).engine().run(WORK, emit)
    assert began_before == [False, True, True]
