"""Spans of attempts, model calls and tool calls.

They nest by the attempt's id, which every model call and every tool call carries. What is
current in a task would not do: a run outlives the request that began it, others attach to
it, and what an async generator makes current is visible to any task that drives it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Tracer, set_span_in_context

from lastgood.core.speaker import HANDOFF, TRANSFER
from lastgood.engine.providers.provider import Chunk, ModelAnswer, ModelCall, Provider, Providers
from lastgood.engine.tools.tool import NeedsInput, Tool, Toolset, Toolsets, ToolUse
from lastgood.errors import ModelGarbled
from lastgood.flows.running_attempts import RunningAttempts
from lastgood.flows.turn_outcome import Outcome
from lastgood.model.agents import AgentSpec, ModelSpec, ToolsetSpec
from lastgood.model.attempts import AttemptStatus, Step
from lastgood.model.events import Event, ToolAnswered, ToolCalled
from lastgood.model.ids import AttemptId, SessionId
from lastgood.model.messages import Message
from lastgood.model.usage import ModelAsked
from lastgood.ports.engine import Emit, Engine, Work
from lastgood.tracing import semconv
from lastgood.tracing.request_spans import begun_in
from lastgood.tracing.span_errors import TOOL_FAILED, fail, fail_with

#: Who serves the agents.
US = "lastgood"

#: How the work of a turn that is stored nowhere ended; every other turn has the outcome of its attempt.
ANSWERED = "answered"

_FAILED = (AttemptStatus.FAILED, AttemptStatus.INTERRUPTED)


@dataclass(slots=True)
class _CallSpan:
    id: str
    span: Span
    ran: bool = False


@dataclass(slots=True)
class _Attempt:
    """An attempt at work, and its open tool calls: one, or more where a call is a task for another agent."""

    id: AttemptId
    span: Span
    is_held: bool  # its outcome will be reported
    calls: list[_CallSpan] = field(default_factory=list)

    @property
    def innermost(self) -> Span:
        return self.calls[-1].span if self.calls else self.span


class WorkSpans:
    """Keeps the attempts that are at work here."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._attempts: dict[AttemptId, _Attempt] = {}
        self._is_held: Callable[[AttemptId], bool] = lambda _: False
        self._tools = {HANDOFF, TRANSFER}

    def follow(self, live: RunningAttempts) -> None:
        self._is_held = lambda attempt: live.get(attempt) is not None
        live.on_ended(self._ended)

    # -- attempts ------------------------------------------------------------------

    def begin(self, work: Work) -> _Attempt:
        agent, hold = work.agent.name, work.hold
        span = self._tracer.start_span(
            f"invoke_agent {agent}",
            begun_in(),
            attributes={
                semconv.OPERATION: "invoke_agent",
                semconv.PROVIDER: US,
                semconv.AGENT: agent,
                semconv.CONVERSATION: hold.session,
                semconv.TURN: work.turn,
                semconv.ATTEMPT: hold.attempt,
                semconv.NUMBER: work.number,
            },
        )
        attempt = _Attempt(hold.attempt, span, self._is_held(hold.attempt))
        self._attempts[hold.attempt] = attempt
        return attempt

    def saw(self, attempt: _Attempt, event: Event) -> None:
        match event.data:
            case ToolCalled(id, name):
                self._call(attempt, id, name)
            case ToolAnswered(id, _, result):
                self._answered(attempt, id, result)
            case _:
                pass

    def worked(self, attempt: _Attempt, error: BaseException | None) -> None:
        """The engine is done with it. Its outcome is reported later, if the attempt is held."""
        for call in reversed(attempt.calls):
            if error is not None:
                fail_with(call.span, error)
            call.span.end()
        attempt.calls.clear()
        if attempt.is_held:
            return
        if error is None:
            self._end(attempt, ANSWERED)
        elif isinstance(error, Exception):
            fail_with(attempt.span, error)
            self._end(attempt, AttemptStatus.FAILED.value)
        else:
            self._end(attempt, AttemptStatus.CANCELLED.value)

    def _ended(self, outcome: Outcome) -> None:
        attempt = self._attempts.get(outcome.attempt) if outcome.attempt is not None else None
        if attempt is None:
            return  # a turn without a model
        if outcome.status in _FAILED:
            fail(attempt.span, outcome.error.code if outcome.error else semconv.OTHER)
        self._end(attempt, outcome.status.value)

    def _end(self, attempt: _Attempt, outcome: str) -> None:
        attempt.span.set_attribute(semconv.OUTCOME, outcome)
        attempt.span.end()
        # A tool that took no notice of its end may still run when the attempt restarts.
        if self._attempts.get(attempt.id) is attempt:
            del self._attempts[attempt.id]

    # -- models --------------------------------------------------------------------

    def ask(self, call: ModelCall) -> Span:
        about = call.about
        attributes = {
            semconv.OPERATION: "chat",
            semconv.PROVIDER: semconv.provider_of(call.model),
            semconv.MODEL: call.model.model,
        }
        if "session" in about:
            attributes[semconv.CONVERSATION] = about["session"]
        if "purpose" in about:
            attributes[semconv.PURPOSE] = about["purpose"]
        attempt = self._attempts.get(about.get("attempt", ""))
        above = set_span_in_context(attempt.innermost, Context()) if attempt else begun_in()
        return self._tracer.start_span(f"chat {call.model.model}", above, SpanKind.CLIENT, attributes)

    # -- tools ---------------------------------------------------------------------

    def know(self, tool: str) -> None:
        self._tools.add(tool)

    def running(self, attempt: AttemptId) -> _CallSpan | None:
        found = self._attempts.get(attempt)
        return found.calls[-1] if found and found.calls else None

    def _call(self, attempt: _Attempt, id: str, name: str) -> None:
        # A model may call anything, also what is no name at all.
        name = name if name in self._tools else semconv.OTHER
        span = self._tracer.start_span(
            f"execute_tool {name}",
            set_span_in_context(attempt.innermost, Context()),
            attributes={semconv.OPERATION: "execute_tool", semconv.TOOL: name, semconv.CALL: id},
        )
        attempt.calls.append(_CallSpan(id, span))

    def _answered(self, attempt: _Attempt, id: str, result: str) -> None:
        if not attempt.calls or attempt.calls[-1].id != id:
            return  # nothing was called: the result says that the outcome is unknown
        call = attempt.calls.pop()
        # A tool that ran has set its status already. A call that was denied, or of an unknown tool, has not.
        if not call.ran and result.startswith("error: "):
            fail(call.span, TOOL_FAILED)
        call.span.end()


# -- around the seams ----------------------------------------------------------------


class TracedEngine:
    def __init__(self, engine: Engine, spans: WorkSpans) -> None:
        self._engine = engine
        self._spans = spans

    async def run(self, work: Work, emit: Emit) -> None:
        attempt = self._spans.begin(work)
        ended: BaseException | None = None

        async def traced(item: Event | Step | ModelAsked) -> None:
            if isinstance(item, Event):
                self._spans.saw(attempt, item)
            await emit(item)

        try:
            await self._engine.run(work, traced)
        except BaseException as error:
            ended = error
            raise
        finally:
            self._spans.worked(attempt, ended)

    def check_model(self, model: str, agent: AgentSpec | None = None) -> None:
        self._engine.check_model(model, agent)

    def check_working_dir(self, path: str) -> str:
        return self._engine.check_working_dir(path)

    async def title(self, agent: AgentSpec, messages: Sequence[Message]) -> str | None:
        return await self._engine.title(agent, messages)

    def idle_sessions(self) -> Sequence[SessionId]:
        return self._engine.idle_sessions()

    async def forget(self, session: SessionId) -> None:
        await self._engine.forget(session)


class TracedProviders:
    def __init__(self, providers: Providers, spans: WorkSpans) -> None:
        self._providers = providers
        self._spans = spans

    def find(self, model: ModelSpec) -> Provider:
        return TracedProvider(self._providers.find(model), self._spans)

    def named(self, model: ModelSpec) -> ModelSpec:
        return self._providers.named(model)

    def has_key(self, model: ModelSpec) -> bool:
        return self._providers.has_key(model)

    def context_size(self, model: ModelSpec) -> int:
        return self._providers.context_size(model)

    async def close(self) -> None:
        await self._providers.close()


class TracedProvider:
    def __init__(self, provider: Provider, spans: WorkSpans) -> None:
        self._provider = provider
        self._spans = spans

    async def stream(self, call: ModelCall) -> AsyncGenerator[Chunk | ModelAnswer, None]:
        span, began, spoken = self._spans.ask(call), time.perf_counter(), False
        try:
            async with aclosing(self._provider.stream(call)) as parts:
                async for part in parts:
                    if not spoken:
                        spoken = True
                        span.set_attribute(semconv.FIRST_CHUNK, time.perf_counter() - began)
                    if isinstance(part, ModelAnswer):
                        # Now: the consumer stores it before it asks for more.
                        _finish(span, part)
                    yield part
            if span.is_recording():
                fail(span, ModelGarbled.code)
        except BaseException as error:
            if span.is_recording():
                fail_with(span, error)
            raise
        finally:
            if span.is_recording():
                span.end()


def _finish(span: Span, answer: ModelAnswer) -> None:
    reason = "length" if answer.cut_short else "tool_calls" if answer.message.tool_calls else "stop"
    span.set_attribute(semconv.FINISHED, [reason])
    span.set_attribute(semconv.TOKENS_IN, answer.usage.input_tokens)
    span.set_attribute(semconv.TOKENS_OUT, answer.usage.output_tokens)
    span.end()


def traced_toolsets(toolsets: Toolsets, spans: WorkSpans) -> Toolsets:
    return {type_: _traced_toolset(make, spans) for type_, make in toolsets.items()}


def _traced_toolset(make: Toolset, spans: WorkSpans) -> Toolset:
    def made(spec: ToolsetSpec) -> Sequence[Tool]:
        return [_traced_tool(tool, spans) for tool in make(spec)]

    return made


def _traced_tool(tool: Tool, spans: WorkSpans) -> Tool:
    """A call is seen when it is announced and when it is answered; here, whether the tool failed."""
    spans.know(tool.name)

    async def run(use: ToolUse) -> str:
        call = spans.running(use.attempt)
        if call is not None:
            call.ran = True
        try:
            return await tool.run(use)
        except NeedsInput:
            raise
        except BaseException as error:
            if call is not None:
                fail_with(call.span, error)
            raise

    return replace(tool, run=run)
