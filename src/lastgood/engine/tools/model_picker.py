"""`model_picker`: an agent chooses the model of its next responses itself.

The tools only say what was chosen; the choice is read from the conversation before every model call.
"""

from __future__ import annotations

from collections.abc import Sequence

from lastgood.core.model_choice import CHANGE, CHANGED, REVERT, REVERTED
from lastgood.engine.tools.tool import Tool, ToolUse
from lastgood.model.agents import AgentSpec, Effect, OnUnknown, ToolsetSpec

TYPE = "model_picker"
PICKER_TOOLS = frozenset({CHANGE, REVERT})


def choices_of(agent: AgentSpec) -> tuple[str, ...]:
    """The models that the agent may choose from; none: it may not."""
    pickers = (spec for spec in agent.toolsets if spec.type == TYPE)
    return tuple(str(model) for spec in pickers for model in spec.options.get("models") or ())


def model_picker_toolset(spec: ToolsetSpec) -> Sequence[Tool]:
    models = [str(model) for model in spec.options.get("models") or ()]
    properties = {"model": {"type": "string", "enum": models, "description": "The model to use"}}
    change = {"type": "object", "properties": properties, "required": ["model"]}
    nothing = {"type": "object", "properties": {}, "required": []}
    return [
        Tool(
            CHANGE,
            f"Changes the model that gives your next responses, until {REVERT} is called.",
            change,
            _change,
            on_unknown=OnUnknown.REPEAT,
            effect=Effect.SAFE,
        ),
        Tool(
            REVERT,
            "Returns to the model that you began with.",
            nothing,
            _revert,
            on_unknown=OnUnknown.REPEAT,
            effect=Effect.SAFE,
        ),
    ]


async def _change(use: ToolUse) -> str:
    return f"{CHANGED}{use.arguments['model']} from now on."


async def _revert(use: ToolUse) -> str:
    return f"{REVERTED}."
