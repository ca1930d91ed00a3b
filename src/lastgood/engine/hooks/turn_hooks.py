"""The hooks of one turn: at which moments they run, and what follows from what they say.

What they decide or add is a step in the journal before anything follows from it: an attempt that adopts
these steps sees the same prompt and the same decisions, and runs no hook again for what is finished.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lastgood.core.history import valid_text
from lastgood.core.hooks import (
    Blocks,
    HookDecision,
    Proceeds,
    Verdict,
    has_run,
    matching,
    prompt_notes,
    ruled,
    since_response,
)
from lastgood.core.speaker import last_request
from lastgood.core.tool_permissions import Asks
from lastgood.engine.agent_run import Stage
from lastgood.engine.hooks.runner import AskModel, HookPlace, HookRunner
from lastgood.engine.tools.arguments import arguments_of
from lastgood.engine.tools.tool import ToolFailed
from lastgood.errors import HookBlocked, LoopDetected, NeedsAnswer, TurnFailed
from lastgood.model.attempts import CallRuling, Step, StepKind, ToolOutcome
from lastgood.model.events import Event, HookDenied, HookWarned
from lastgood.model.hooks import HookEvent
from lastgood.model.messages import Message, Role, ToolCall, as_chat, assistant
from lastgood.ports.engine import Emit, Work

_BEFORE_TOOL = (HookEvent.TOOL_INPUT_TRANSFORM, HookEvent.PRE_TOOL_USE, HookEvent.TOOL_GUARD)


@dataclass(frozen=True, slots=True)
class Ruling:
    """What hooks made of a call: the call as it is to run, and whether it may."""

    call: ToolCall
    decision: HookDecision | None = None
    reason: str = ""


def known_ruling(stage: Stage, call: ToolCall) -> Ruling | None:
    """What is in the journal about this call. It counts even if the file has no such hook any more: a person
    may have been asked about the arguments that it left, and approved these."""
    known = ruled(stage.steps, call)
    if known is None:
        return None
    decision = HookDecision(known.ruling) if known.ruling else None
    return Ruling(known.message.tool_calls[0], decision, known.reason)


@dataclass(frozen=True, slots=True)
class TurnHooks:
    runner: HookRunner
    work: Work
    folder: Callable[[], Path | None]
    ask: AskModel
    emit: Emit

    # -- the turn ------------------------------------------------------------------------

    async def around(self, stage: Stage, running: Coroutine[Any, Any, None]) -> None:
        """The whole turn. One that waits for a person has not ended."""
        try:
            await running
        except NeedsAnswer:
            raise
        except TurnFailed as error:
            fields = {"notification_level": "error", "notification_message": error.message}
            if not isinstance(error, HookBlocked):
                await self.observe(stage, HookEvent.ON_ERROR, **fields)
            await self.observe(stage, HookEvent.NOTIFICATION, **fields)
            await self.observe(stage, HookEvent.SESSION_END, reason="other")
            raise
        except asyncio.CancelledError:
            self._observe_later(stage, HookEvent.SESSION_END, reason="other")
            raise
        await self.observe(stage, HookEvent.SESSION_END, reason="other")

    async def around_response(self, stage: Stage, running: Coroutine[Any, Any, None]) -> None:
        """One response of the model, and the calls in it."""
        try:
            await running
        except NeedsAnswer:
            raise
        except TurnFailed as error:
            match error:
                case HookBlocked():
                    reason = "hook_blocked"
                case LoopDetected():
                    reason = "loop_detected"
                case _:
                    reason = "error"
            await self.observe(stage, HookEvent.TURN_END, reason=reason)
            raise
        except asyncio.CancelledError:
            self._observe_later(stage, HookEvent.TURN_END, reason="canceled")
            raise
        await self.observe(stage, HookEvent.TURN_END, reason="continue" if stage.asks_again else "normal")

    async def open(self, stage: Stage) -> None:
        """HookBlocked: a hook refuses the input, or ended the turn in an attempt that this one continues."""
        if (ended := next((step for step in stage.steps if step.ruling == "block"), None)) is not None:
            raise hook_blocked(ended.reason)
        if (stage.within or self.work.opens_session) and not has_run(stage.steps, HookEvent.SESSION_START):
            await self._add_context(stage, HookEvent.SESSION_START, source="startup")
        if stage.within:
            return
        submits = HookEvent.USER_FOLLOWUP_SUBMIT if self.work.is_followup else HookEvent.USER_PROMPT_SUBMIT
        prompt = last_request(self.work.own(()))
        if prompt and not has_run(stage.steps, HookEvent.USER_FOLLOWUP_SUBMIT, HookEvent.USER_PROMPT_SUBMIT):
            await self._add_context(stage, submits, prompt=prompt)

    async def take_steers(self, stage: Stage, steers: list[str]) -> None:
        """Before they are in the journal: a refused steer stays in the queue."""
        await self._add_context(stage, HookEvent.USER_STEERING_MESSAGES_SUBMIT, steering_messages=steers)

    # -- models --------------------------------------------------------------------------

    async def before_model(self, stage: Stage) -> None:
        if not has_run(since_response(stage.steps), HookEvent.TURN_START):
            await self._add_context(stage, HookEvent.TURN_START)
        if matching(stage.agent.hooks, HookEvent.BEFORE_LLM_CALL):
            messages = [as_chat(message) for message in stage.shown()]
            verdict = await self._run(
                stage, HookEvent.BEFORE_LLM_CALL, iteration=stage.responses + 1, messages=messages
            )
            if isinstance(verdict, Blocks):
                raise hook_blocked(verdict.reason)

    def notes(self, stage: Stage) -> list[str]:
        return prompt_notes(stage.steps)

    async def after_model(self, stage: Stage, step: Step) -> None:
        """Before the response is in the journal: a response that is lost is observed again."""
        fields = {
            "stop_response": step.message.content,
            "last_user_message": last_request(stage.conversation()),
        }
        usage = {"input_tokens": step.usage.input_tokens, "output_tokens": step.usage.output_tokens}
        await self.observe(
            stage,
            HookEvent.AFTER_LLM_CALL,
            model_id=step.model,
            usage=usage,
            cost=step.usage.cost or None,
            **fields,
        )
        if not step.message.tool_calls:
            await self.observe(stage, HookEvent.STOP, **fields)

    # -- tools ---------------------------------------------------------------------------

    async def before_tool(self, stage: Stage, call: ToolCall) -> Ruling:
        """The guard comes last: it judges the arguments that the tool will run with."""
        hooks = stage.agent.hooks
        if not any(matching(hooks, event, call.name) for event in _BEFORE_TOOL):
            return Ruling(call)
        try:
            arguments = arguments_of(call)
        except ToolFailed:
            return Ruling(call)  # it cannot run
        ruling = await self._judge(stage, call, arguments)
        step = Step(
            StepKind.HOOK,
            assistant("", ruling.call),
            within=stage.within,
            hook=HookEvent.PRE_TOOL_USE,
            ruling=ruling.decision or "",
            reason=ruling.reason,
        )
        await self._journal(stage, step)
        if ruling.decision is HookDecision.DENY:
            ran = ruling.call
            denied = HookDenied(ran.id, ran.name, ran.arguments, ruling.reason, stage.sub_agent)
            await self.emit(Event(self.work.hold.attempt, denied))
        return ruling

    async def _judge(self, stage: Stage, call: ToolCall, arguments: Mapping[str, Any]) -> Ruling:
        decision, reason = None, ""
        for event in _BEFORE_TOOL:
            match await self._run_tool(stage, event, call, tool_input=dict(arguments)):
                case Blocks(refusal):
                    return Ruling(call, HookDecision.DENY, valid_text(refusal))
                case None:
                    continue
                case Proceeds() as found:
                    if found.arguments is not None:
                        arguments = {**arguments, **found.arguments}
                        call = replace(call, arguments=json.dumps(arguments))
                    # ASK is stricter than ALLOW; a denial has returned already.
                    if found.decision is not None and decision is not HookDecision.ASK:
                        decision, reason = found.decision, valid_text(found.reason)
        return Ruling(call, decision, reason)

    async def settle(self, stage: Stage, call: ToolCall, ruling: Ruling, asks: Asks | None) -> Asks | None:
        """Returns the question that remains after the hooks have decided. ToolFailed: a hook denies the
        call."""
        if ruling.decision is HookDecision.ASK:
            why = f": {ruling.reason}" if ruling.reason else ""
            return asks or Asks(f"a hook asks for approval{why}")
        if asks is None:
            return None
        if ruling.decision is HookDecision.ALLOW:
            await self._approve(stage, call, HookEvent.PRE_TOOL_USE, ruling.reason)
            return None
        if stage.answer_to(call, self.work.answers) is not None:
            return asks  # a person has been asked
        verdict = await self._run_tool(
            stage, HookEvent.PERMISSION_REQUEST, call, tool_input=arguments_of(call)
        )
        if isinstance(verdict, Blocks):
            raise ToolFailed(f"a hook denied {call.name}: {verdict.reason}")
        if verdict is not None and verdict.decision is HookDecision.ALLOW:
            await self._approve(stage, call, HookEvent.PERMISSION_REQUEST, verdict.reason)
            return None
        return asks

    async def _approve(self, stage: Stage, call: ToolCall, event: HookEvent, reason: str) -> None:
        """On the record before the call runs: rules required a person."""
        said = f"a hook approved {call.name}" + (f": {valid_text(reason)}" if reason else "")
        step = Step(
            StepKind.HOOK,
            Message(Role.SYSTEM, ""),
            within=stage.within,
            hook=event,
            ruling=HookDecision.ALLOW,
            reason=said,
            on_record=CallRuling(call, stage.place_of(call.id), stage.agent.name, said, is_allowed=True),
        )
        await self._journal(stage, step)

    async def decided(self, stage: Stage, call: ToolCall, ruling: Ruling, *, allowed: bool) -> None:
        answer = stage.answer_to(call, self.work.answers)
        if answer is not None:
            source = "user_approved" if allowed else "user_rejected"
        elif ruling.decision in (HookDecision.ALLOW, HookDecision.DENY):
            source = f"pre_tool_use_hook_{ruling.decision}"
        else:
            source = f"permissions_{'allow' if allowed else 'deny'}"
        await self.observe(
            stage,
            HookEvent.ON_TOOL_APPROVAL_DECISION,
            tool_name=call.name,
            tool_use_id=call.id,
            tool_input=_readable(call),
            approval_decision="allow" if allowed else "deny",
            approval_source=source,
        )

    def hides_output(self, stage: Stage, call: ToolCall) -> bool:
        """Output that a hook may rewrite is not shown before the hook has seen it."""
        return bool(matching(stage.agent.hooks, HookEvent.TOOL_RESPONSE_TRANSFORM, call.name))

    async def after_tool(
        self, stage: Stage, call: ToolCall, text: str, outcome: ToolOutcome
    ) -> tuple[str, str | None]:
        """The result as hooks leave it, and why one of them ends the turn, if one does."""
        fields = {"tool_input": _readable(call), "tool_error": outcome is not ToolOutcome.DONE}
        changed = await self._run_tool(
            stage, HookEvent.TOOL_RESPONSE_TRANSFORM, call, tool_response=text, **fields
        )
        if isinstance(changed, Proceeds) and changed.response is not None:
            text = valid_text(changed.response)
        verdict = await self._run_tool(stage, HookEvent.POST_TOOL_USE, call, tool_response=text, **fields)
        return text, verdict.reason if isinstance(verdict, Blocks) else None

    # -- running them --------------------------------------------------------------------

    async def observe(self, stage: Stage, event: HookEvent, **given: Any) -> None:
        await self._run(stage, event, **given)

    def _observe_later(self, stage: Stage, event: HookEvent, **given: Any) -> None:
        if hooks := matching(stage.agent.hooks, event):
            place, fields = self._place(stage, event), self._given(stage, event, given)
            self.runner.later(self.runner.dispatch(event, hooks, fields, place))

    async def _add_context(self, stage: Stage, event: HookEvent, **given: Any) -> None:
        verdict = await self._run(stage, event, **given)
        if isinstance(verdict, Blocks):
            raise hook_blocked(verdict.reason)
        if verdict is not None:
            message = Message(Role.SYSTEM, valid_text(verdict.context))
            await self._journal(stage, Step(StepKind.HOOK, message, within=stage.within, hook=event))

    async def _run_tool(self, stage: Stage, event: HookEvent, call: ToolCall, **given: Any) -> Verdict | None:
        return await self._run(
            stage, event, call.name, call.id, tool_name=call.name, tool_use_id=call.id, **given
        )

    async def _run(
        self, stage: Stage, event: HookEvent, tool: str = "", call_id: str = "", **given: Any
    ) -> Verdict | None:
        """None: the agent has no such hooks."""
        hooks = matching(stage.agent.hooks, event, tool)
        if not hooks:
            return None
        place, fields = self._place(stage, event, call_id), self._given(stage, event, given, call_id)
        verdict = await self.runner.dispatch(event, hooks, fields, place)
        for warning in verdict.warnings:
            warned = HookWarned(event.value, valid_text(warning), stage.sub_agent)
            await self.emit(Event(self.work.hold.attempt, warned))
        return verdict

    def _place(self, stage: Stage, event: HookEvent, call_id: str = "") -> HookPlace:
        key = f"{self.work.turn}:{stage.place_of(call_id or event.value)}"
        return HookPlace(self.folder(), key, self.work.number, self.ask)

    def _given(
        self, stage: Stage, event: HookEvent, given: Mapping[str, Any], call_id: str = ""
    ) -> dict[str, Any]:
        place = self._place(stage, event, call_id)
        common = {
            "session_id": self.work.hold.session,
            "cwd": str(place.folder or ""),
            "hook_event_name": event.value,
            "agent_name": stage.agent.name,
            "turn_id": self.work.turn,
            "attempt": self.work.number,
            "key": place.key,
        }
        return {**common, **{name: value for name, value in given.items() if value is not None}}

    async def _journal(self, stage: Stage, step: Step) -> None:
        stage.steps.append(step)
        await self.emit(step)


def hook_blocked(reason: str) -> HookBlocked:
    return HookBlocked(f"A hook of the agent file ended the turn: {reason}. Nothing was committed")


def _readable(call: ToolCall) -> dict[str, Any]:
    try:
        return arguments_of(call)
    except ToolFailed:
        return {}
