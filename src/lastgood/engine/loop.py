"""The one agent loop: model → tools → model, until the model has nothing more to ask for.

Streamed or not is the same loop. It yields what it does; whoever drives it writes
each finished step down before asking for the next thing, so at any moment the
journal holds everything that need not be done again. A task given to another agent
is the same loop again, one stage deeper, in the same journal.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from lastgood.core.context import cap_result, repeats, without_oldest
from lastgood.core.history import mend, mend_text, repair
from lastgood.core.recovery import unsettled
from lastgood.core.team import HANDOFF, TRANSFER, speaker
from lastgood.engine.calling import Calling, Result, Said, arguments_of
from lastgood.engine.instructions import system_messages
from lastgood.engine.providers.asking import Asking, FellBack, Retried
from lastgood.engine.providers.protocol import Answer, Chunk, ChunkKind, ModelCall, Providers
from lastgood.engine.providers.references import AUTO
from lastgood.engine.runtimes import Runtimes
from lastgood.engine.stage import Stage
from lastgood.engine.team import DEEPEST, task_definition, task_of
from lastgood.engine.tools.protocol import ToolFailed, Toolsets
from lastgood.errors import ContextOverflow, Garbled, LoopDetected, ModelError, NeedsAnswer
from lastgood.model.agents import AgentSpec, ModelSpec, OnUnknown, Safety
from lastgood.model.attempts import Step, StepKind
from lastgood.model.events import Event, EventKind
from lastgood.model.ids import SessionId
from lastgood.model.messages import Message, Role, ToolCall, as_json, tool_result, user
from lastgood.model.options import CallOptions
from lastgood.model.sessions import Usage
from lastgood.ports import Work

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

Items = AsyncGenerator[Event | Step, None]


class AgentLoop:
    def __init__(
        self,
        providers: Providers,
        toolsets: Toolsets,
        *,
        now: Callable[[], float],
        safety: Safety = Safety.RESTRICTED,
        work_dirs: Path | None = None,
        working_dir_root: Path | None = None,
        scrub: Callable[[str], str] = str,
    ) -> None:
        """`scrub` takes keys out of what tools say, before anybody sees or keeps it."""
        self._asking = Asking(providers)
        self._runtimes = Runtimes(toolsets, work_dirs, working_dir_root)
        self._calling = Calling(self._runtimes, safety)
        self._now = now
        self._scrub = scrub

    # -- what the flows ask ----------------------------------------------------------

    def check_model(self, model: str, agent: AgentSpec | None = None) -> None:
        self._asking.check(model, agent.models if agent else {})

    @property
    def any_model(self) -> ModelSpec:
        """Who answers to `auto`."""
        return self._asking.models(AUTO, (), {}, "")[0]

    def answer_with(self, model: ModelSpec) -> None:
        """To `auto`, where no key is there. Said before the first turn."""
        self._asking.otherwise = model

    def check_working_dir(self, path: str) -> str:
        return self._runtimes.check(path)

    async def forget(self, session: SessionId) -> None:
        await self._runtimes.forget(session)

    async def close(self) -> None:
        await self._asking.close()

    async def title(self, agent: AgentSpec, messages: Sequence[Message]) -> str | None:
        if agent.title_model is None:
            return None
        system = Message(
            Role.SYSTEM, "Give this conversation a title of at most six words. Answer with it alone."
        )
        said = tuple(user(message.content) for message in messages if message.role is Role.USER)
        models = self._asking.models(agent.title_model, (), agent.models, "")
        call = ModelCall(models[0], (system, *said), about={"purpose": "title"})
        async with aclosing(self._asking.ask(models, call, agent.fallback)) as parts:
            async for part in parts:
                if isinstance(part, Answer):
                    return " ".join(mend(part.message.content).split())[:80] or None
        return None

    async def run(self, work: Work) -> Items:
        own_steps = [step for step in work.steps if not step.within]
        stage = Stage(work.agent, work.earlier, work.own, own_steps, options=work.options)
        async with aclosing(self._converse(work, stage)) as items:
            async for item in items:
                yield item

    # -- one conversation ----------------------------------------------------------

    async def _converse(self, work: Work, stage: Stage) -> Items:
        async with aclosing(self._settle(work, stage)) as items:
            async for item in items:
                yield item
        most = stage.entry.max_iterations or MOST_RESPONSES
        while stage.asks_again:
            if stage.responses >= most:
                raise LoopDetected(f"the turn needed more than {most} model calls; nothing was committed")
            if stage.steps and not stage.within:
                async with aclosing(self._hear(work, stage)) as items:
                    async for item in items:
                        yield item
            async with aclosing(self._ask_model(work, stage)) as items:
                async for item in items:
                    yield item
            _check_for_loops(stage)
            for call in stage.steps[-1].message.tool_calls:
                if call.name in stage.options.tool_names:
                    continue
                async with aclosing(self._call_tool(work, stage, call)) as items:
                    async for item in items:
                        yield item

    async def _hear(self, work: Work, stage: Stage) -> Items:
        """What was said to the turn meanwhile, after the results and before the model is asked again."""
        for step in await work.steers():
            stage.steps.append(step)
            yield Event(
                EventKind.USER_SAID, work.hold.attempt, {"message": as_json(step.message), "steer": True}
            )
            yield step

    async def _ask_model(self, work: Work, stage: Stage) -> Items:
        """One response, of a view that is made shorter for as long as the model finds it too long."""
        while True:
            try:
                async with aclosing(self._ask_once(work, stage)) as items:
                    async for item in items:
                        yield item
                return
            except ContextOverflow:
                left_out = without_oldest(stage.earlier, stage.left_out)
                if left_out is None:
                    raise
                stage.left_out = left_out
                data = {"left_out": left_out, "of": len(stage.earlier)}
                yield Event(EventKind.HISTORY_SHORTENED, work.hold.attempt, data)

    async def _ask_once(self, work: Work, stage: Stage) -> Items:
        agent = stage.agent
        # An override is for the agent the turn was asked of; the others keep what their file says.
        ref = work.model if agent is work.agent else agent.model
        chain = self._asking.models(ref, agent.fallback.models, work.agent.models, work.turn)
        models = tuple(_with_options(model, stage.options) for model in chain)
        call = await self._model_call(work, stage, models[0])
        asked = models[0]
        async with aclosing(self._asking.ask(models, call, agent.fallback)) as parts:
            async for part in parts:
                match part:
                    case Chunk(text, kind):
                        yield _streamed(work, stage, kind, text)
                    case FellBack():
                        asked = part.to
                        yield Event(EventKind.MODEL_FELL_BACK, work.hold.attempt, part.as_json())
                    case Retried():
                        yield Event(EventKind.MODEL_RETRIED, work.hold.attempt, part.as_json())
                    case Answer():
                        step = _finished(part, asked, stage)
                        if calls := step.message.tool_calls:
                            step = replace(step, effects=self._effects(work, stage, calls))
                        yield _answered(work, stage, asked, step.usage, part.cut_short)
                        stage.steps.append(step)
                        yield step
                        return
        raise ModelError("the model ended its stream without an answer; nothing was committed")

    async def _model_call(self, work: Work, stage: Stage, model: ModelSpec) -> ModelCall:
        agent = stage.agent
        theirs = stage.options.tool_names
        ours = self._calling.tools(work, stage)
        tools = [tool.as_json() for name, tool in ours.items() if name not in theirs]
        task = task_definition(agent, work.agent)
        if task is not None and TRANSFER not in theirs:
            tools.append(task)
        tools.extend(deepcopy(dict(tool)) for tool in stage.options.tools)
        needs_place = agent.add_environment_info or agent.add_prompt_files
        place = self._calling.working_dir(work) if needs_place else None
        system = await system_messages(agent, work.agent, self._runtimes.types, place, self._now())
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
            options = replace(options, tool_choice=None)  # it was obeyed; now the model may come to an end
        messages = (*system, *stage.shown())
        return ModelCall(model, messages, tuple(tools), agent.structured_output, options, about)

    # -- tools -----------------------------------------------------------------------

    def _effects(self, work: Work, stage: Stage, calls: Sequence[ToolCall]) -> tuple[str, ...]:
        """The calls that must not run twice. Stored before the first of them runs."""
        tools = self._calling.tools(work, stage)
        ours = [call for call in calls if call.name in tools and call.name not in stage.options.tool_names]
        return tuple(call.id for call in ours if tools[call.name].on_unknown is not OnUnknown.REPEAT)

    async def _call_tool(self, work: Work, stage: Stage, call: ToolCall) -> Items:
        called = {"id": call.id, "name": call.name, "arguments": call.arguments} | _who(stage)
        yield Event(EventKind.TOOL_CALLED, work.hold.attempt, called)
        if call.name == TRANSFER and stage.agent.sub_agents:
            async with aclosing(self._do_task(work, stage, call)) as items:
                async for item in items:
                    yield item
            return
        async with aclosing(self._calling.use(work, stage, call)) as said:
            async for part in said:
                match part:
                    case Said(text):
                        data = {"id": call.id, "content": mend(text)} | _who(stage)
                        yield Event(EventKind.TOOL_STREAMED, work.hold.attempt, data)
                    case Result(text, has_effects):
                        answer = self._answer(work, stage, call, text, has_effects=has_effects)
                        async with aclosing(answer) as items:
                            async for item in items:
                                yield item
        speaks = speaker(stage.entry, stage.conversation()) if call.name == HANDOFF else stage.agent
        if speaks is not stage.agent:
            stage.agent = speaks
            yield Event(EventKind.AGENT_SWITCHED, work.hold.attempt, {"agent": speaks.name})

    async def _answer(
        self, work: Work, stage: Stage, call: ToolCall, text: str, *, has_effects: bool = False
    ) -> Items:
        capped = cap_result(mend(self._scrub(text)), stage.agent.max_tool_result_tokens)
        message = tool_result(call.id, capped.text)
        effects = (call.id,) if has_effects else ()
        step = Step(StepKind.TOOL, message, within=stage.within, full=capped.full, effects=effects)
        stage.steps.append(step)
        data = {"id": call.id, "name": call.name, "result": capped.text} | _who(stage)
        yield Event(EventKind.TOOL_ANSWERED, work.hold.attempt, data)
        yield step

    async def _do_task(self, work: Work, stage: Stage, call: ToolCall) -> Items:
        """The other agent's steps are journaled with ours; its last word is the result."""
        try:
            if len(stage.callers) >= DEEPEST:
                raise ToolFailed("this task is a task of a task too often already; do it yourself")
            other, task = task_of(stage.agent, work.agent, arguments_of(call))
        except ToolFailed as error:
            async with aclosing(self._answer(work, stage, call, f"error: {error}")) as items:
                async for item in items:
                    yield item
            return
        within = stage.place_of(call.id) + "/"
        inner = Stage(
            entry=other,
            earlier=(),
            own=lambda steps: repair((task, *(step.message for step in steps))),
            steps=[step for step in work.steps if step.within == within],
            within=within,
            callers=(*stage.callers, stage.agent),
        )
        try:
            async with aclosing(self._converse(work, inner)) as items:
                async for item in items:
                    yield item
            said = inner.steps[-1].message.content
        except LoopDetected as error:
            said = f"error: {other.name} did not finish: {error}"
        async with aclosing(self._answer(work, stage, call, said)) as items:
            async for item in items:
                yield item

    # -- after a crash -----------------------------------------------------------

    async def _settle(self, work: Work, stage: Stage) -> Items:
        """Gives every call of the adopted steps a result; what its tool says about repeating decides how."""
        tools = self._calling.tools(work, stage)

        def policy_of(name: str) -> OnUnknown:
            if name == TRANSFER:
                return OnUnknown.REPEAT  # what was done of the task is in the journal, and is not done again
            return tools[name].on_unknown if name in tools else OnUnknown.FAIL

        for open_call in unsettled(stage.steps, policy_of):
            call = open_call.call
            if call.name in stage.options.tool_names:
                continue
            answer = work.answers.get(call.id)
            if open_call.policy is OnUnknown.REPEAT or answer == "repeat":
                async with aclosing(self._call_tool(work, stage, call)) as items:
                    async for item in items:
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
                answered = self._answer(work, stage, call, UNKNOWN_OUTCOME, has_effects=True)
                async with aclosing(answered) as items:
                    async for item in items:
                        yield item


# -- what is told -------------------------------------------------------------------


def _who(stage: Stage) -> dict[str, str]:
    """Named where it is not the agent that answers the user: its words are not the answer."""
    return {"agent": stage.agent.name} if stage.within else {}


def _with_options(model: ModelSpec, options: CallOptions) -> ModelSpec:
    """The settings of the file, and over them those of the request."""
    asked = {name: getattr(options, name) for name in _SETTINGS}
    settled = {name: value for name, value in asked.items() if value is not None}
    return replace(model, **settled) if settled else model


def _streamed(work: Work, stage: Stage, kind: ChunkKind, text: str) -> Event:
    told = EventKind.TEXT_STREAMED if kind is ChunkKind.TEXT else EventKind.REASONING_STREAMED
    data = {"content": mend(text)}
    return Event(told, work.hold.attempt, data | _who(stage) if stage.within else data)


def _answered(work: Work, stage: Stage, model: ModelSpec, usage: Usage, cut_short: bool) -> Event:
    data: dict[str, Any] = {
        "model": model.ref,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cost": usage.cost,
    }
    if cut_short:
        data["cut_short"] = True
    return Event(EventKind.MODEL_ANSWERED, work.hold.attempt, data | _who(stage))


def _finished(answer: Answer, model: ModelSpec, stage: Stage) -> Step:
    message = mend_text(answer.message)
    if message.is_blank and not message.tool_calls:
        raise Garbled("the model answered with nothing; nothing was committed. Send the turn again")
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
    )


def _check_for_loops(stage: Stage) -> None:
    batches = [step.message.tool_calls for step in stage.steps if step.kind is StepKind.MODEL]
    most = stage.agent.max_consecutive_tool_calls
    if batches[-1] and repeats(batches, most):
        raise LoopDetected(f"the model asked {most} times in a row for the same calls; nothing was committed")
