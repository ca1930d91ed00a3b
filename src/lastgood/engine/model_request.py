"""What one model call asks for: the prompt, the tools on offer, and the settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from lastgood.core.model_router import route
from lastgood.core.secret_shapes import redacted
from lastgood.core.speaker import TRANSFER, last_request
from lastgood.engine.agent_run import Stage
from lastgood.engine.providers.provider import ModelCall
from lastgood.engine.system_prompt import system_messages
from lastgood.engine.team_tools import task_definition
from lastgood.engine.tool_calls import ToolCaller
from lastgood.engine.tools.tool import DESCRIPTION, Tool, is_described
from lastgood.model.agents import ModelSpec
from lastgood.model.attempts import Step
from lastgood.model.call_options import CallOptions
from lastgood.model.events import ModelAnswered
from lastgood.ports.engine import Work
from lastgood.time_slices import paced_map

_SETTINGS = (
    "temperature",
    "top_p",
    "max_tokens",
    "frequency_penalty",
    "presence_penalty",
    "parallel_tool_calls",
)
#: Settings that the file has in `provider_opts`.
_PROVIDER_OPTIONS = ("top_k", "min_p", "repetition_penalty")


async def model_call(
    tool_caller: ToolCaller, work: Work, stage: Stage, model: ModelSpec, notes: Sequence[str], now: float
) -> ModelCall:
    """`notes`: what hooks add to the prompt of this call."""
    agent = stage.agent
    place = tool_caller.working_dir(work) if agent.add_environment_info or agent.add_prompt_files else None
    usage = tool_caller.instructions(work, stage)
    system = await system_messages(agent, work.agent, usage, place, now, notes)
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
        model, messages, _tool_definitions(tool_caller, work, stage), agent.structured_output, options, about
    )


def routed(ref: str, models: Mapping[str, ModelSpec], stage: Stage) -> str:
    """The model that the request is for, where the file sends requests to several."""
    spec = models.get(ref)
    if spec is None or not spec.routes:
        return ref
    return route(last_request(stage.conversation()), spec.routes) or ref


def _tool_definitions(tool_caller: ToolCaller, work: Work, stage: Stage) -> tuple[dict[str, Any], ...]:
    """The agent's own, then the request's. Where names clash, the request's tool is meant."""
    theirs = stage.options.tool_names
    ours = tool_caller.tools(work, stage)
    describes = stage.agent.add_description_parameter
    tools = [
        _described(tool) if describes else tool.as_json() for name, tool in ours.items() if name not in theirs
    ]
    task = task_definition(stage.agent, work.agent)
    if task is not None and TRANSFER not in theirs:
        tools.append(task)
    return (*tools, *(deepcopy(dict(tool)) for tool in stage.options.tools))


def _described(tool: Tool) -> dict[str, Any]:
    plain = tool.as_json()
    if not is_described(tool):
        parameters = plain["function"]["parameters"]
        about = {"type": "string", "description": "What this call is for, in one short sentence for people"}
        parameters["properties"] = {**(parameters.get("properties") or {}), DESCRIPTION: about}
        parameters["required"] = [*(parameters.get("required") or ()), DESCRIPTION]
    return plain


def with_options(model: ModelSpec, options: CallOptions) -> ModelSpec:
    """The settings of the file, overridden by those of the request."""
    settled = _set_in(options, _SETTINGS)
    if options.reasoning_effort is not None:
        settled["thinking"] = options.reasoning_effort
    if more := _set_in(options, _PROVIDER_OPTIONS):
        settled["options"] = {**model.options, **more}
    return replace(model, **settled) if settled else model


def _set_in(options: CallOptions, names: Sequence[str]) -> dict[str, Any]:
    asked = {name: getattr(options, name) for name in names}
    return {name: value for name, value in asked.items() if value is not None}


def answered(model: ModelSpec, step: Step, stage: Stage) -> ModelAnswered:
    """The event of a response."""
    used = step.usage
    facts = used.input_tokens, used.output_tokens, used.cost, step.cut_short
    return ModelAnswered(model.ref, *facts, stage.sub_agent, stage.agent.name, step.context_size or None)
