"""Decides what the hooks of an event mean together, and what of their output belongs to a prompt.

One hook that refuses is enough. A hook that did not complete refuses where its event guards a tool call, and
where its file says so. Knows no process and no clock: callers run the hooks and pass what came back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any

from lastgood.model.attempts import Step, StepKind
from lastgood.model.hooks import HookEvent, HookSpec, OnHookError
from lastgood.model.messages import ToolCall

#: The exit code by which a command refuses.
REFUSES = 2
#: The `schema` of a hook whose model decides about a tool call.
JUDGEMENT = "pre_tool_use_decision"
_MOST_OF_STDERR = 1000


class Rewrites(Enum):
    NOTHING = "nothing"
    INPUT = "updated_input"
    RESPONSE = "updated_tool_response"


class HookDecision(StrEnum):
    """In rising order: the strictest of several hooks counts."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


_STRICTNESS = {None: 0, HookDecision.ALLOW: 1, HookDecision.ASK: 2, HookDecision.DENY: 3}


@dataclass(frozen=True, slots=True)
class Contract:
    """What the hooks of an event can do. `fails_closed`: one that does not complete refuses."""

    matched: bool = False  # for some tools only
    blocks: bool = False
    fails_closed: bool = False
    decides: bool = False  # `permission_decision` counts
    context: bool = False  # its text goes into the prompt
    rewrites: Rewrites = Rewrites.NOTHING


_OBSERVES = Contract()
_SUBMIT = Contract(blocks=True, context=True)
CONTRACTS: Mapping[HookEvent, Contract] = {
    HookEvent.TOOL_INPUT_TRANSFORM: Contract(matched=True, blocks=True, rewrites=Rewrites.INPUT),
    HookEvent.TOOL_GUARD: Contract(matched=True, blocks=True, fails_closed=True, decides=True),
    HookEvent.PRE_TOOL_USE: Contract(
        matched=True, blocks=True, fails_closed=True, decides=True, rewrites=Rewrites.INPUT
    ),
    HookEvent.PERMISSION_REQUEST: Contract(matched=True, blocks=True, decides=True),
    HookEvent.ON_TOOL_APPROVAL_DECISION: _OBSERVES,
    HookEvent.TOOL_RESPONSE_TRANSFORM: Contract(matched=True, rewrites=Rewrites.RESPONSE),
    HookEvent.POST_TOOL_USE: Contract(matched=True, blocks=True),
    HookEvent.SESSION_START: Contract(context=True),
    HookEvent.USER_PROMPT_SUBMIT: _SUBMIT,
    HookEvent.USER_FOLLOWUP_SUBMIT: _SUBMIT,
    HookEvent.USER_STEERING_MESSAGES_SUBMIT: _SUBMIT,
    HookEvent.TURN_START: Contract(context=True),
    HookEvent.BEFORE_LLM_CALL: Contract(blocks=True),
    HookEvent.AFTER_LLM_CALL: _OBSERVES,
    HookEvent.TURN_END: _OBSERVES,
    HookEvent.STOP: _OBSERVES,
    HookEvent.SUBAGENT_STOP: _OBSERVES,
    HookEvent.ON_AGENT_SWITCH: _OBSERVES,
    HookEvent.ON_USER_INPUT: _OBSERVES,
    HookEvent.ON_MAX_ITERATIONS: _OBSERVES,
    HookEvent.ON_ERROR: _OBSERVES,
    HookEvent.NOTIFICATION: _OBSERVES,
    HookEvent.SESSION_END: _OBSERVES,
}


# -- which hooks run -------------------------------------------------------------------------


def matching(hooks: Iterable[HookSpec], event: HookEvent, tool: str = "") -> list[HookSpec]:
    """In the order of the file; a hook that is written twice runs once."""
    found: list[HookSpec] = []
    for hook in hooks:
        if hook.event is event and _fits(hook.matcher, tool) and hook not in found:
            found.append(hook)
    return found


def _fits(matcher: str, tool: str) -> bool:
    return matcher in ("", "*") or re.fullmatch(matcher, tool) is not None


# -- what one hook said ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HookOutput:
    """A hook that completed. None: it said nothing about this."""

    context: str = ""
    warning: str = ""
    blocks: bool = False
    reason: str = ""
    decision: HookDecision | None = None
    arguments: Mapping[str, Any] | None = None
    response: str | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A hook that did not complete: it crashed, timed out, or said something that has no meaning."""

    problem: str


def read_reply(hook: HookSpec, code: int | None, stdout: str, stderr: str) -> HookOutput | Failure:
    """What a command said. No code: its time was up."""
    if code is None:
        return Failure(f"it timed out after {hook.seconds:g} s")
    said = stdout.strip()
    if code == REFUSES:
        return HookOutput(blocks=True, reason=stderr.strip()[:_MOST_OF_STDERR] or _reason_in(said))
    if code != 0:
        why = f": {error}" if (error := stderr.strip()[-_MOST_OF_STDERR:]) else ""
        return Failure(f"it ended with status {code}{why}")
    if said.startswith("{"):
        try:
            return read_json(hook, json.loads(said))
        except (ValueError, RecursionError) as error:
            return Failure(f"its output is not valid JSON: {error}")
    if said and hook.strict_output:
        return Failure("its output must be one JSON object or empty (`strict_output`)")
    return HookOutput(context=said if CONTRACTS[hook.event].context else "")


def _reason_in(said: str) -> str:
    """Commands that refuse by their exit code often say why in JSON."""
    try:
        found = json.loads(said)
    except (ValueError, RecursionError):
        return ""
    reason = found.get("reason") or found.get("stop_reason") if isinstance(found, dict) else None
    return reason if isinstance(reason, str) else ""


_FIELDS: Mapping[str, type] = {
    "continue": bool,
    "stop_reason": str,
    "suppress_output": bool,
    "system_message": str,
    "decision": str,
    "reason": str,
    "hook_specific_output": dict,
}
_SPECIFIC: Mapping[str, type] = {
    "hook_event_name": str,
    "permission_decision": str,
    "permission_decision_reason": str,
    "updated_input": dict,
    "updated_tool_response": str,
    "additional_context": str,
    "metadata": dict,
}


def read_json(hook: HookSpec, said: Any) -> HookOutput | Failure:
    """What a hook said, parsed. Fields that have no meaning for its event are ignored."""
    if not isinstance(said, dict):
        return Failure("its output is not a JSON object")
    own = {name: value for name, value in said.items() if value is not None}
    specific = own.get("hook_specific_output")
    specific = {k: v for k, v in specific.items() if v is not None} if isinstance(specific, dict) else {}
    if wrong := _wrong_types(own, _FIELDS) or _wrong_types(specific, _SPECIFIC):
        return Failure(wrong)
    if "updated_messages" in specific and CONTRACTS[hook.event].blocks:
        # It may have removed a secret. The original messages would contain it.
        return HookOutput(blocks=True, reason="a hook cannot rewrite the conversation (`updated_messages`)")
    if own.get("decision", "block") not in ("block", ""):
        return Failure(f"`decision` must be `block`, not {own['decision']!r}")
    verdict = specific.get("permission_decision") or None
    if verdict is not None and verdict not in list(HookDecision):
        return Failure(f"`permission_decision` must be allow, ask or deny, not {verdict!r}")
    if hook.strict_output and (unknown := _unknown(own, specific)):
        return Failure(f"unknown output field {unknown!r} (`strict_output`)")
    contract = CONTRACTS[hook.event]
    stops = own.get("continue") is False
    return HookOutput(
        context=specific.get("additional_context", "") if contract.context else "",
        warning=own.get("system_message", ""),
        blocks=stops or own.get("decision") == "block",
        reason=(own.get("stop_reason", "") if stops else "")
        or own.get("reason", "")
        or specific.get("permission_decision_reason", ""),
        decision=HookDecision(verdict) if verdict and contract.decides else None,
        arguments=specific.get("updated_input") if contract.rewrites is Rewrites.INPUT else None,
        response=specific.get("updated_tool_response") if contract.rewrites is Rewrites.RESPONSE else None,
    )


def read_judgement(hook: HookSpec, text: str) -> HookOutput | Failure:
    """What a model said. One that does not decide clearly has not completed."""
    if hook.schema != JUDGEMENT:
        return HookOutput(context=text.strip())
    # Models like to wrap it in a sentence or a code block.
    begins, ends = text.find("{"), text.rfind("}")
    try:
        said = json.loads(text[begins : ends + 1]) if 0 <= begins < ends else None
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict) or said.get("decision") not in list(HookDecision):
        return Failure("its model did not answer with a decision")
    return HookOutput(decision=HookDecision(said["decision"]), reason=str(said.get("reason") or ""))


def _wrong_types(given: Mapping[str, Any], known: Mapping[str, type]) -> str | None:
    for name, value in given.items():
        if name in known and not isinstance(value, known[name]):
            return f"`{name}` has the wrong type in its output"
    return None


def _unknown(own: Mapping[str, Any], specific: Mapping[str, Any]) -> str | None:
    return next((one for one in own if one not in _FIELDS), None) or next(
        (one for one in specific if one not in _SPECIFIC), None
    )


# -- what they mean together -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Proceeds:
    """`arguments` and `response` replace those of the call; None: they stay."""

    context: str = ""
    decision: HookDecision | None = None
    reason: str = ""
    arguments: Mapping[str, Any] | None = None
    response: str | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Blocks:
    reason: str
    warnings: tuple[str, ...] = ()


Verdict = Proceeds | Blocks


def combine(event: HookEvent, replies: Sequence[tuple[HookSpec, HookOutput | Failure]]) -> Verdict:
    """In the order of the file, whichever hook ended first."""
    contract = CONTRACTS[event]
    refusals: list[str] = []
    contexts: list[str] = []
    warnings: list[str] = []
    decision: HookDecision | None = None
    reason = ""
    arguments: dict[str, Any] | None = None
    response: str | None = None
    for hook, reply in replies:
        if isinstance(reply, Failure):
            failed = f"the {event} hook {hook.label!r} failed: {reply.problem}"
            if contract.fails_closed or (contract.blocks and hook.on_error is OnHookError.BLOCK):
                refusals.append(failed)
            elif contract.rewrites is Rewrites.RESPONSE and hook.on_error is OnHookError.BLOCK:
                response = f"error: the result is withheld, because {failed}"
            elif hook.on_error is not OnHookError.IGNORE:
                warnings.append(failed)
            continue
        if reply.blocks and not contract.blocks:
            warnings.append(f"the {event} hook {hook.label!r} tried to stop the turn; this event cannot")
        elif reply.blocks or reply.decision is HookDecision.DENY:
            refusals.append(reply.reason or f"the {event} hook {hook.label!r} refused it")
        elif _STRICTNESS[reply.decision] > _STRICTNESS[decision]:
            decision, reason = reply.decision, reply.reason
        contexts += [reply.context] if reply.context else []
        warnings += [reply.warning] if reply.warning else []
        arguments = {**(arguments or {}), **reply.arguments} if reply.arguments else arguments
        response = reply.response if reply.response is not None else response
    if refusals:
        return Blocks("\n".join(refusals), tuple(warnings))
    return Proceeds("\n".join(contexts), decision, reason, arguments, response, tuple(warnings))


# -- what the journal knows of them ------------------------------------------------------------

#: What the model is shown for the rest of the turn, and what only its next response is made with.
_FOR_THE_TURN = (
    HookEvent.USER_PROMPT_SUBMIT,
    HookEvent.USER_FOLLOWUP_SUBMIT,
    HookEvent.USER_STEERING_MESSAGES_SUBMIT,
)


def has_run(steps: Sequence[Step], *events: HookEvent) -> bool:
    """Whether the hooks of one of these events have run in this attempt, or in the one it continues."""
    return any(step.kind is StepKind.HOOK and step.hook in events for step in steps)


def since_response(steps: Sequence[Step]) -> Sequence[Step]:
    """What followed the last response of the model."""
    last = max((place for place, step in enumerate(steps) if step.kind is StepKind.MODEL), default=-1)
    return steps[last + 1 :]


def prompt_notes(steps: Sequence[Step]) -> list[str]:
    """The text of hooks that the next model call is made with, apart from the conversation."""
    own = [step for step in steps if step.kind is StepKind.HOOK and step.hook in _FOR_THE_TURN]
    now = [
        step
        for step in since_response(steps)
        if step.kind is StepKind.HOOK and step.hook == HookEvent.TURN_START
    ]
    return [step.message.content for step in (*own, *now) if step.message.content]


def ruled(steps: Sequence[Step], call: ToolCall) -> Step | None:
    """What the hooks decided about this call before the process died or the turn waited.

    By count where a provider gave two calls one id: each of them has a ruling of its own.
    """
    recent = since_response(steps)
    answered = sum(step.kind is StepKind.TOOL and step.message.tool_call_id == call.id for step in recent)
    rulings = [
        step
        for step in recent
        if step.kind is StepKind.HOOK and any(one.id == call.id for one in step.message.tool_calls)
    ]
    return rulings[answered] if len(rulings) > answered else None
