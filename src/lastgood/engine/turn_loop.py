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
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from lastgood.core.context import cap_result, without_oldest
from lastgood.core.history import valid_message, valid_text, with_unique_call_ids
from lastgood.core.hooks import HookDecision
from lastgood.core.recovery import not_begun, unsettled
from lastgood.core.secret_shapes import redaction
from lastgood.core.speaker import HANDOFF, TRANSFER, goes_on_as
from lastgood.core.todo import shared_note
from lastgood.engine.agent_run import Stage
from lastgood.engine.budget_meter import BudgetMeter
from lastgood.engine.delegation import fork_stage, prompt_step, task_stage
from lastgood.engine.hooks.turn_hooks import Ruling, TurnHooks, hook_blocked, known_ruling
from lastgood.engine.model_request import answered, model_call, routed, with_options
from lastgood.engine.providers.fallback_chain import FallbackChain, FellBack, Requested, Retried
from lastgood.engine.providers.provider import Chunk, ChunkKind, ModelAnswer
from lastgood.engine.team_tools import TASK_TOOL
from lastgood.engine.tool_calls import AdmittedCall, Result, ToolCaller
from lastgood.engine.tools.tool import ForkRequested, ToolFailed
from lastgood.errors import ContextOverflow, LoopDetected, ModelError, ModelGarbled, NeedsAnswer
from lastgood.model.agents import AgentSpec, ModelSpec, OnUnknown
from lastgood.model.answers import AnswerAction, QuestionKind
from lastgood.model.attempts import CallRuling, Step, StepKind, ToolOutcome
from lastgood.model.events import (
    AgentSwitched,
    Event,
    EventData,
    HistoryShortened,
    ReasoningStreamed,
    TextStreamed,
    ToolAnswered,
    ToolCalled,
    ToolStreamed,
    UserSaid,
)
from lastgood.model.hooks import HookEvent
from lastgood.model.messages import ToolCall, tool_result
from lastgood.model.usage import ModelAsked
from lastgood.ports.engine import Emit, Work
from lastgood.time_slices import paced

#: How long a person may take to decide about a call with an unknown outcome.
ANSWER_SECONDS = 24 * 3600.0
#: Default limit of an agent without one: no turn runs forever.
MOST_RESPONSES = 200

UNKNOWN_OUTCOME = (
    "The server was interrupted while this tool ran. Whether it took effect is unknown; it was not repeated."
)


@dataclass(frozen=True, slots=True)
class TurnLoop:
    """The models and tools of the process, and the one turn they work on."""

    models: FallbackChain
    tool_caller: ToolCaller
    now: Callable[[], float]
    scrub: Callable[[str], str]  # removes secrets from tool results
    work: Work
    emit: Emit
    hooks: TurnHooks | None = None  # None: no agent of the file has any
    meter: BudgetMeter | None = None  # None: the file has no budgets

    async def run(self) -> None:
        work = self.work
        own_steps = [step for step in work.steps if not step.within]
        stage = Stage(work.agent, work.earlier, work.own, own_steps, options=work.options)
        running = self._converse(stage)
        await (running if self.hooks is None else self.hooks.around(stage, running))

    async def _converse(self, stage: Stage) -> None:
        await self.tool_caller.prepare(self.work, stage)
        if self.hooks is not None:
            await self.hooks.open(stage)
        await self._settle_open_calls(stage)
        most = stage.entry.max_iterations or MOST_RESPONSES
        while stage.asks_again:
            if stage.responses >= most:
                await self._observe(
                    stage,
                    HookEvent.ON_MAX_ITERATIONS,
                    notification_level="warning",
                    notification_message=f"the turn needs more than {most} model calls",
                )
                raise LoopDetected(f"the turn needed more than {most} model calls; nothing was committed")
            if stage.steps and not stage.within:
                await self._take_steers(stage)
            running = self._respond(stage)
            await (running if self.hooks is None else self.hooks.around_response(stage, running))
            if stage.steps[-1].hands_to:
                await self._switch(stage, stage.speaker(), "force_handoff")

    async def _respond(self, stage: Stage) -> None:
        if self.meter is not None:
            self.meter.check(stage.agent)
        if self.hooks is not None:
            await self.hooks.before_model(stage)
        await self._call_model(stage)
        stage.check_for_loops()
        for call in stage.steps[-1].message.tool_calls:
            if call.name not in stage.options.tool_names:
                await self._call_tool(stage, call)

    async def _switch(self, stage: Stage, agent: AgentSpec, kind: str) -> None:
        await self._observe_switch(stage, stage.agent, agent, kind)
        stage.agent = agent
        await self._event(AgentSwitched(agent.name))

    async def _take_steers(self, stage: Stage) -> None:
        """Input that arrived during the turn goes after the tool results, before the next model call."""
        steers = await self.work.steers()
        if steers and self.hooks is not None:
            await self.hooks.take_steers(stage, [step.message.content for step in steers])
        for step in steers:
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
        await self.tool_caller.prepare(work, stage)
        # An override is for the agent the turn was addressed to; the others keep what their file says.
        ref = self.tool_caller.model_for_response(work, stage)
        ref = ref or (work.model if agent is work.agent else agent.model)
        ref = routed(ref, work.agent.models, stage)
        chain = self.models.models(ref, agent.fallback.models, work.agent.models, work.turn)
        models = tuple(with_options(model, stage.options) for model in chain)
        model = models[0]
        notes = () if self.hooks is None else self.hooks.notes(stage)
        call = await model_call(self.tool_caller, work, stage, model, notes, self.now())
        began = self.now()
        async with aclosing(self.models.ask(models, call, agent.fallback)) as parts:
            async for part in parts:
                match part:
                    case Chunk(text, kind):
                        await self.emit(self._streamed(stage, kind, text))
                    case Requested(requested):
                        self.models.context_size(requested)  # is learned while the model answers
                        await self.emit(ModelAsked(requested.ref))
                    case FellBack():
                        model = part.to
                        await self._event(part.as_event())
                    case Retried():
                        await self._event(part.as_event())
                    case ModelAnswer():
                        step = self._step_of(part, model, stage, began)
                        if self.hooks is not None:
                            await self.hooks.after_model(stage, step)
                        await self._event(answered(model, step, stage))
                        await self._finish(stage, step)
                        return
        raise ModelError("the model ended its stream without a response; nothing was committed")

    def _step_of(self, answer: ModelAnswer, model: ModelSpec, stage: Stage, began: float) -> Step:
        message = with_unique_call_ids(valid_message(answer.message))
        if message.is_blank and not message.tool_calls:
            raise ModelGarbled(
                "the model returned an empty answer; nothing was committed. Send the turn again"
            )
        return Step(
            StepKind.MODEL,
            message,
            answer.usage,
            within=stage.within,
            left_out=stage.left_out,
            cut_short=answer.cut_short,
            model=model.ref,
            context_size=self.models.context_size(model),
            agent="" if self.meter is None else stage.agent.own_name,
            effects=self._effects(stage, message.tool_calls) if message.tool_calls else (),
            hands_to="" if message.tool_calls else goes_on_as(stage.entry, stage.agent),
            seconds=max(self.now() - began, 0.0),
            ended_at=self.now(),
        )

    def _effects(self, stage: Stage, calls: Sequence[ToolCall]) -> tuple[str, ...]:
        """The calls that must not run twice. Stored before the first of them runs."""
        tools = self.tool_caller.tools(self.work, stage)
        ours = [call for call in calls if call.name in tools and call.name not in stage.options.tool_names]
        return tuple(call.id for call in ours if tools[call.name].on_unknown is not OnUnknown.REPEAT)

    # -- tools -----------------------------------------------------------------------

    async def _call_tool(self, stage: Stage, call: ToolCall) -> None:
        call = stage.redacted(call)
        ruling = known_ruling(stage, call)
        if ruling is None:
            ruling = Ruling(call) if self.hooks is None else await self.hooks.before_tool(stage, call)
        call = ruling.call
        admitted = await self._admit(stage, ruling)
        who = stage.sub_agent
        answer = stage.answer_to(call, self.work.answers)
        if answer is None or not answer.is_about_input:  # else clients know of the call since it asked
            await self._event(ToolCalled(call.id, call.name, call.arguments, who))
        if isinstance(admitted, Result):
            await self._answer(stage, call, admitted)
            return
        if admitted.tool is TASK_TOOL:
            await self._delegate(stage, call)
            return

        is_hidden = self.hooks is not None and self.hooks.hides_output(stage, call)

        async def stream(text: str) -> None:
            if not is_hidden:
                await self._event(ToolStreamed(call.id, await self._clean(stage, text), who))

        try:
            result = await self.tool_caller.use(self.work, stage, call, admitted, stream)
        except ForkRequested as fork:
            await self._delegate(stage, call, fork)
            return
        except NeedsAnswer:
            await self._observe(stage, HookEvent.ON_USER_INPUT)
            raise
        await self._answer(stage, call, result)
        if call.name == HANDOFF and (speaks := stage.speaker()) is not stage.agent:
            await self._switch(stage, speaks, "handoff")

    async def _admit(self, stage: Stage, ruling: Ruling) -> AdmittedCall | Result:
        call, hooks = ruling.call, self.hooks
        if ruling.decision is HookDecision.DENY:
            admitted: AdmittedCall | Result = Result(
                f"error: a hook denied {call.name}: {ruling.reason}", ToolOutcome.DENIED
            )
        elif hooks is None:
            return await self.tool_caller.admit(self.work, stage, call)
        else:
            try:
                settle = partial(hooks.settle, stage, call, ruling)
                admitted = await self.tool_caller.admit(self.work, stage, call, settle)
            except NeedsAnswer:
                await self._observe(stage, HookEvent.ON_USER_INPUT)
                raise
        if hooks is not None:
            await hooks.decided(stage, call, ruling, allowed=isinstance(admitted, AdmittedCall))
        return admitted

    async def _answer(self, stage: Stage, call: ToolCall, result: Result) -> None:
        text, blocked = await self._clean(stage, self.scrub(result.text)), None
        if self.hooks is not None and result.outcome is not ToolOutcome.DENIED:
            text, blocked = await self.hooks.after_tool(stage, call, text, result.outcome)
        capped = cap_result(text, stage.agent.max_tool_result_tokens)
        failed, denied = result.outcome is not ToolOutcome.DONE, None
        if result.outcome is ToolOutcome.DENIED and not result.is_rejected:
            reason = capped.text.removeprefix("error: ")
            denied = CallRuling(call, stage.place_of(call.id), stage.agent.name, reason)
        shown = capped.text + result.note
        await self._event(ToolAnswered(call.id, call.name, shown, stage.sub_agent, failed))
        step = Step(
            StepKind.TOOL,
            tool_result(call.id, shown),
            within=stage.within,
            full=capped.full,
            effects=(call.id,) if result.has_effects else (),
            outcome=result.outcome,
            seconds=result.seconds,
            ended_at=self.now(),
            on_record=denied,
        )
        if blocked is not None:
            # In the journal, so that no attempt that continues this one gets past it.
            step = replace(step, hook=HookEvent.POST_TOOL_USE, ruling="block", reason=blocked)
        await self._finish(stage, step)
        if blocked is not None:
            raise hook_blocked(blocked)

    async def _clean(self, stage: Stage, text: str) -> str:
        return valid_text(await paced(redaction(text)) if stage.agent.redact_secrets else text)

    async def _delegate(self, stage: Stage, call: ToolCall, fork: ForkRequested | None = None) -> None:
        """Its steps are journaled with ours; its last message is the result. `fork`: a skill that it runs."""
        try:
            if fork is None:
                inner = task_stage(self.work, stage, call)
            else:
                inner = fork_stage(self.work, stage, call, fork, self.models)
        except ToolFailed as error:
            await self._answer(stage, call, Result(f"error: {error}", ToolOutcome.FAILED))
            return
        other = inner.entry
        if fork is not None and not inner.steps:
            await self._finish(inner, prompt_step(fork, inner.within))
        if fork is None:
            await self._observe_switch(stage, stage.agent, other, "transfer_task")
        try:
            await self._converse(inner)
            result = Result(inner.steps[-1].message.content, ToolOutcome.DONE)
        except LoopDetected as error:
            result = Result(f"error: {other.name} did not finish: {error}", ToolOutcome.FAILED)
        if fork is None:
            await self._observe_switch(stage, other, stage.agent, "transfer_task_return")
        await self._observe(
            stage,
            HookEvent.SUBAGENT_STOP,
            agent_name=other.name,
            parent_session_id=self.work.hold.session,
            stop_response=result.text,
        )
        note = shared_note(result.text, inner.shared_todos, inner.shared_list())
        await self._answer(stage, call, replace(result, note=note))

    # -- after a crash -----------------------------------------------------------

    async def _settle_open_calls(self, stage: Stage) -> None:
        """Gives every call of the adopted steps a result, by its tool's policy for unknown outcomes."""
        tools = self.tool_caller.tools(self.work, stage)

        def policy_of(name: str) -> OnUnknown:
            if name == TRANSFER:
                return OnUnknown.REPEAT  # its finished steps are in the journal and are not repeated
            return tools[name].on_unknown if name in tools else OnUnknown.FAIL

        found = unsettled(stage.steps, policy_of)
        waiting = not_begun([one.call for one in found], stage.place_of(""), self.work.waited_at)
        for open_call in found:
            call = open_call.call
            if call.name in stage.options.tool_names:
                continue
            ruling = known_ruling(stage, call)
            ran = stage.redacted(call) if ruling is None else ruling.call
            answer = stage.answer_to(ran, self.work.answers)
            repeats = answer is not None and answer.action is AnswerAction.REPEAT
            if call in waiting or open_call.policy is OnUnknown.REPEAT or repeats:
                await self._call_tool(stage, call)
                continue
            if open_call.policy is OnUnknown.ASK and answer is None:
                question = {
                    "kind": QuestionKind.UNKNOWN_OUTCOME.value,
                    "place": stage.place_of(call.id),
                    "call": ran.id,
                    "tool": ran.name,
                    "arguments": ran.arguments,
                    "definition": self.tool_caller.definition_of(self.work, stage, ran.name),
                }
                raise NeedsAnswer(question, ANSWER_SECONDS)
            unknown = Result(UNKNOWN_OUTCOME, ToolOutcome.UNKNOWN, has_effects=True)
            await self._answer(stage, ran, unknown)

    # -- hooks that only watch --------------------------------------------------------

    async def _observe(self, stage: Stage, event: HookEvent, **given: Any) -> None:
        if self.hooks is not None:
            await self.hooks.observe(stage, event, **given)

    async def _observe_switch(self, stage: Stage, before: AgentSpec, after: AgentSpec, kind: str) -> None:
        names = {"from_agent": before.name, "to_agent": after.name, "agent_switch_kind": kind}
        await self._observe(stage, HookEvent.ON_AGENT_SWITCH, **names)

    # -- what is emitted -----------------------------------------------------------

    async def _event(self, data: EventData) -> None:
        await self.emit(Event(self.work.hold.attempt, data))

    async def _finish(self, stage: Stage, step: Step) -> None:
        stage.steps.append(step)
        if self.meter is not None:
            self.meter.add(step)
        await self.emit(step)

    def _streamed(self, stage: Stage, kind: ChunkKind, text: str) -> Event:
        streamed = TextStreamed if kind is ChunkKind.TEXT else ReasoningStreamed
        return Event(self.work.hold.attempt, streamed(valid_text(text), stage.sub_agent))
