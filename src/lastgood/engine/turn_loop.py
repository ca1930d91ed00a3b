"""One turn: model → tools → model, until the model calls no more tools.

Streamed or not is the same loop. `emit` returns after the journal has the step it was given, so the
journal always holds everything that need not be done again. A task delegated to another agent is the
same loop, one stage deeper, in the same journal.

An `emit` that raises (the attempt was lost, the store is gone) ends the turn. It is never called inside
a block that turns errors into tool results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from lastgood.core.context import cap_result, repeats, without_oldest
from lastgood.core.history import mend, mend_text, repair
from lastgood.core.recovery import unsettled
from lastgood.core.secret_shapes import redacted, without_secret_shapes
from lastgood.core.speaker import HANDOFF, TRANSFER, speaker
from lastgood.engine.providers.fallback_chain import FallbackChain, FellBack, Retried
from lastgood.engine.providers.provider import Chunk, ChunkKind, ModelAnswer, ModelCall
from lastgood.engine.stage import Stage
from lastgood.engine.system_prompt import system_messages
from lastgood.engine.team_tools import DEEPEST, task_definition, task_of
from lastgood.engine.tool_calls import Result, ToolCaller, arguments_of
from lastgood.engine.tools.tool import ToolFailed
from lastgood.errors import ContextOverflow, Garbled, LoopDetected, ModelError, NeedsAnswer
from lastgood.model.agents import ModelSpec, OnUnknown
from lastgood.model.answers import AnswerAction, QuestionKind
from lastgood.model.attempts import Step, StepKind, ToolOutcome
from lastgood.model.call_options import CallOptions
from lastgood.model.events import (
    AgentSwitched,
    Event,
    EventData,
    HistoryShortened,
    ModelAnswered,
    ReasoningStreamed,
    TextStreamed,
    ToolAnswered,
    ToolCalled,
    ToolStreamed,
    UserSaid,
)
from lastgood.model.messages import ToolCall, tool_result
from lastgood.ports.engine import Emit, Work
from lastgood.time_slices import paced_map

#: How long a person may take to say what became of a call.
ANSWER_SECONDS = 24 * 3600.0
#: Where an agent sets no limit: no turn goes on for ever.
MOST_RESPONSES = 200

UNKNOWN_OUTCOME = (
    "The server was interrupted while this tool ran. Whether it took effect is unknown; it was not repeated."
)

_SETTINGS = (
    "temperature",
    "top_p",
    "max_tokens",
    "frequency_penalty",
    "presence_penalty",
    "parallel_tool_calls",
)


@dataclass(frozen=True, slots=True)
class TurnLoop:
    """The models and tools of the process, and the one turn they work on."""

    models: FallbackChain
    calling: ToolCaller
    now: Callable[[], float]
    scrub: Callable[[str], str]  # removes secrets from tool results
    work: Work
    emit: Emit

    async def run(self) -> None:
        work = self.work
        own_steps = [step for step in work.steps if not step.within]
        await self._converse(Stage(work.agent, work.earlier, work.own, own_steps, options=work.options))

    async def _converse(self, stage: Stage) -> None:
        await self.calling.prepare(self.work, stage)
        await self._settle_open_calls(stage)
        most = stage.entry.max_iterations or MOST_RESPONSES
        while stage.asks_again:
            if stage.responses >= most:
                raise LoopDetected(f"the turn needed more than {most} model calls; nothing was committed")
            if stage.steps and not stage.within:
                await self._take_steers(stage)
            await self._call_model(stage)
            _check_for_loops(stage)
            for call in stage.steps[-1].message.tool_calls:
                if call.name not in stage.options.tool_names:
                    await self._call_tool(stage, call)

    async def _take_steers(self, stage: Stage) -> None:
        """Input that arrived during the turn goes after the tool results, before the next model call."""
        for step in await self.work.steers():
            await self._event(UserSaid(step.message, steer=True))
            await self._finish(stage, step)

    # -- models ----------------------------------------------------------------------

    async def _call_model(self, stage: Stage) -> None:
        """One response. The view of the history is shortened for as long as the model finds it too long."""
        while True:
            try:
                await self._call_model_once(stage)
                return
            except ContextOverflow:
                left_out = without_oldest(stage.earlier, stage.left_out)
                if left_out is None:
                    raise
                stage.left_out = left_out
            await self._event(HistoryShortened(left_out, len(stage.earlier)))

    async def _call_model_once(self, stage: Stage) -> None:
        agent, work = stage.agent, self.work
        await self.calling.prepare(work, stage)
        # An override is for the agent the turn was addressed to; the others keep what their file says.
        ref = work.model if agent is work.agent else agent.model
        chain = self.models.models(ref, agent.fallback.models, work.agent.models, work.turn)
        models = tuple(_with_options(model, stage.options) for model in chain)
        model = models[0]
        call = await self._model_call(stage, model)
        async with aclosing(self.models.ask(models, call, agent.fallback)) as parts:
            async for part in parts:
                match part:
                    case Chunk(text, kind):
                        await self.emit(self._streamed(stage, kind, text))
                    case FellBack():
                        model = part.to
                        await self._event(part.as_event())
                    case Retried():
                        await self._event(part.as_event())
                    case ModelAnswer():
                        step = self._step_of(part, model, stage)
                        await self._event(_answered(model, step, _sub_agent(stage)))
                        await self._finish(stage, step)
                        return
        raise ModelError("the model ended its stream without a response; nothing was committed")

    def _step_of(self, answer: ModelAnswer, model: ModelSpec, stage: Stage) -> Step:
        message = mend_text(answer.message)
        if message.is_blank and not message.tool_calls:
            raise Garbled("the model returned an empty answer; nothing was committed. Send the turn again")
        usage = answer.usage
        if model.input_cost or model.output_cost:
            cost = usage.input_tokens * model.input_cost + usage.output_tokens * model.output_cost
            usage = replace(usage, cost=cost / 1e6)
        return Step(
            StepKind.MODEL,
            message,
            usage,
            within=stage.within,
            left_out=stage.left_out,
            cut_short=answer.cut_short,
            model=model.ref,
            effects=self._effects(stage, message.tool_calls) if message.tool_calls else (),
        )

    def _effects(self, stage: Stage, calls: Sequence[ToolCall]) -> tuple[str, ...]:
        """The calls that must not run twice. Stored before the first of them runs."""
        tools = self.calling.tools(self.work, stage)
        ours = [call for call in calls if call.name in tools and call.name not in stage.options.tool_names]
        return tuple(call.id for call in ours if tools[call.name].on_unknown is not OnUnknown.REPEAT)

    async def _model_call(self, stage: Stage, model: ModelSpec) -> ModelCall:
        agent, work = stage.agent, self.work
        place = (
            self.calling.working_dir(work) if agent.add_environment_info or agent.add_prompt_files else None
        )
        usage = self.calling.instructions(work, stage)
        system = await system_messages(agent, work.agent, usage, place, self.now())
        about = {
            "session": work.hold.session,
            "turn": work.turn,
            "attempt": work.hold.attempt,
            "number": work.number,
        }
        if stage.within:
            about["within"] = stage.within
        options = stage.options
        if stage.responses and options.tool_choice not in (None, "auto", "none"):
            # The first response obeyed it. If it still held, the model could never end the turn.
            options = replace(options, tool_choice=None)
        messages = (*system, *stage.shown())
        if agent.redact_secrets:
            messages = tuple(await paced_map(redacted, messages))
        return ModelCall(
            model, messages, self._tool_definitions(stage), agent.structured_output, options, about
        )

    def _tool_definitions(self, stage: Stage) -> tuple[dict[str, Any], ...]:
        """The agent's own, then the request's. Where names clash, the request's tool is meant."""
        theirs = stage.options.tool_names
        ours = self.calling.tools(self.work, stage)
        tools = [tool.as_json() for name, tool in ours.items() if name not in theirs]
        task = task_definition(stage.agent, self.work.agent)
        if task is not None and TRANSFER not in theirs:
            tools.append(task)
        return (*tools, *(deepcopy(dict(tool)) for tool in stage.options.tools))

    # -- tools -----------------------------------------------------------------------

    async def _call_tool(self, stage: Stage, call: ToolCall) -> None:
        if stage.agent.redact_secrets:
            call = replace(call, arguments=without_secret_shapes(call.arguments))
        delegates = call.name == TRANSFER and bool(stage.agent.sub_agents)
        admitted = None if delegates else await self.calling.admit(self.work, stage, call)
        who = _sub_agent(stage)
        answer = self.work.answers.get(stage.place_of(call.id))
        if answer is None or not answer.is_about_input:  # else clients know of the call since it asked
            await self._event(ToolCalled(call.id, call.name, call.arguments, who))
        if admitted is None:
            await self._delegate(stage, call)
            return
        if isinstance(admitted, Result):
            await self._answer(stage, call, admitted)
            return

        async def stream(text: str) -> None:
            await self._event(ToolStreamed(call.id, self._clean(stage, text), who))

        result = await self.calling.use(self.work, stage, call, admitted, stream)
        await self._answer(stage, call, result)
        speaks = speaker(stage.entry, stage.conversation()) if call.name == HANDOFF else stage.agent
        if speaks is not stage.agent:
            stage.agent = speaks
            await self._event(AgentSwitched(speaks.name))

    async def _answer(self, stage: Stage, call: ToolCall, result: Result) -> None:
        capped = cap_result(self._clean(stage, self.scrub(result.text)), stage.agent.max_tool_result_tokens)
        await self._event(ToolAnswered(call.id, call.name, capped.text, _sub_agent(stage)))
        step = Step(
            StepKind.TOOL,
            tool_result(call.id, capped.text),
            within=stage.within,
            full=capped.full,
            effects=(call.id,) if result.has_effects else (),
            outcome=result.outcome,
            seconds=result.seconds,
        )
        await self._finish(stage, step)

    def _clean(self, stage: Stage, text: str) -> str:
        return mend(without_secret_shapes(text) if stage.agent.redact_secrets else text)

    async def _delegate(self, stage: Stage, call: ToolCall) -> None:
        """The other agent's steps are journaled with ours; its last message is the result."""
        try:
            if len(stage.callers) >= DEEPEST:
                raise ToolFailed(f"tasks are nested too deeply (limit {DEEPEST}); do it yourself")
            other, task = task_of(stage.agent, self.work.agent, arguments_of(call))
        except ToolFailed as error:
            await self._answer(stage, call, Result(f"error: {error}", ToolOutcome.FAILED))
            return
        within = stage.place_of(call.id) + "/"
        inner = Stage(
            entry=other,
            earlier=(),
            own=lambda steps: repair((task, *(step.message for step in steps))),
            steps=[step for step in self.work.steps if step.within == within],
            within=within,
            callers=(*stage.callers, stage.agent),
        )
        try:
            await self._converse(inner)
            result = Result(inner.steps[-1].message.content, ToolOutcome.DONE)
        except LoopDetected as error:
            result = Result(f"error: {other.name} did not finish: {error}", ToolOutcome.FAILED)
        await self._answer(stage, call, result)

    # -- after a crash -----------------------------------------------------------

    async def _settle_open_calls(self, stage: Stage) -> None:
        """Gives every call of the adopted steps a result, by its tool's policy for unknown outcomes."""
        tools = self.calling.tools(self.work, stage)

        def policy_of(name: str) -> OnUnknown:
            if name == TRANSFER:
                return OnUnknown.REPEAT  # its finished steps are in the journal and are not repeated
            return tools[name].on_unknown if name in tools else OnUnknown.FAIL

        has_begun = True  # calls run one after the other: none after one that waited for a person has begun
        for open_call in unsettled(stage.steps, policy_of):
            call = open_call.call
            if call.name in stage.options.tool_names:
                continue
            place = stage.place_of(call.id)
            answer = self.work.answers.get(place)
            waited = answer is not None and (answer.is_about_approval or answer.is_about_input)
            has_begun = has_begun and not waited
            repeats = answer is not None and answer.action is AnswerAction.REPEAT
            if not has_begun or open_call.policy is OnUnknown.REPEAT or repeats:
                await self._call_tool(stage, call)
            elif open_call.policy is OnUnknown.ASK and answer is None:
                question = {
                    "kind": QuestionKind.UNKNOWN_OUTCOME.value,
                    "place": place,
                    "call": call.id,
                    "tool": call.name,
                    "arguments": call.arguments,
                }
                raise NeedsAnswer(question, ANSWER_SECONDS)
            else:
                unknown = Result(UNKNOWN_OUTCOME, ToolOutcome.UNKNOWN, has_effects=True)
                await self._answer(stage, call, unknown)

    # -- what is emitted -----------------------------------------------------------

    async def _event(self, data: EventData) -> None:
        await self.emit(Event(self.work.hold.attempt, data))

    async def _finish(self, stage: Stage, step: Step) -> None:
        stage.steps.append(step)
        await self.emit(step)

    def _streamed(self, stage: Stage, kind: ChunkKind, text: str) -> Event:
        streamed = TextStreamed if kind is ChunkKind.TEXT else ReasoningStreamed
        return Event(self.work.hold.attempt, streamed(mend(text), _sub_agent(stage)))


def _sub_agent(stage: Stage) -> str | None:
    """Returns None for the agent that answers the user. What any other one says is not the answer."""
    return stage.agent.name if stage.within else None


def _with_options(model: ModelSpec, options: CallOptions) -> ModelSpec:
    """The settings of the file, overridden by those of the request."""
    asked = {name: getattr(options, name) for name in _SETTINGS}
    settled = {name: value for name, value in asked.items() if value is not None}
    return replace(model, **settled) if settled else model


def _answered(model: ModelSpec, step: Step, agent: str | None) -> ModelAnswered:
    used = step.usage
    return ModelAnswered(model.ref, used.input_tokens, used.output_tokens, used.cost, step.cut_short, agent)


def _check_for_loops(stage: Stage) -> None:
    batches = [step.message.tool_calls for step in stage.steps if step.kind is StepKind.MODEL]
    most = stage.agent.max_consecutive_tool_calls
    if batches[-1] and repeats(batches, most):
        raise LoopDetected(
            f"the model repeated the same tool calls {most} times in a row; nothing was committed"
        )
