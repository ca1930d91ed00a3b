"""The tools that come with the server, by the type an agent file names.

Making them starts nothing and reads nothing; that happens when one is called.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from lastgood.engine.tools.arguments import checked
from lastgood.engine.tools.command_environment import Environment
from lastgood.engine.tools.echo import ECHO
from lastgood.engine.tools.filesystem import filesystem_toolset
from lastgood.engine.tools.memory import memory_toolset
from lastgood.engine.tools.model_picker import model_picker_toolset
from lastgood.engine.tools.open_url import open_url_toolset
from lastgood.engine.tools.plan import plan_toolset
from lastgood.engine.tools.program_tools import LiveToolsets
from lastgood.engine.tools.session_plan import session_plan_toolset
from lastgood.engine.tools.shell import script_toolset, shell_toolset
from lastgood.engine.tools.think_and_todo import think_toolset, todo_toolset
from lastgood.engine.tools.tool import Tool, Toolset, Toolsets
from lastgood.engine.tools.user_prompt import user_prompt_toolset
from lastgood.model.agents import ToolsetSpec
from lastgood.outside.secrets import Secrets

if TYPE_CHECKING:
    from lastgood.outside.network import Network


def first_toolsets(
    secrets: Secrets, *, environment: Mapping[str, str] = os.environ, network: Network | None = None
) -> Toolsets:
    """`environment` is the server's: commands get a few harmless variables of it and no others."""
    known = Environment(environment, secrets)
    makers: dict[str, Callable[[ToolsetSpec], Sequence[Tool]]] = {
        "api": lambda spec: _api_toolset(spec, known, network),
        "echo": lambda spec: [ECHO],
        "fetch": lambda spec: _fetch_toolset(spec, known, network),
        "filesystem": lambda spec: filesystem_toolset(spec, known),
        "memory": memory_toolset,
        "model_picker": model_picker_toolset,
        "open_url": lambda spec: open_url_toolset(spec, known),
        "plan": plan_toolset,
        "script": lambda spec: script_toolset(spec, known),
        "session_plan": session_plan_toolset,
        "shell": lambda spec: shell_toolset(spec, known),
        "think": think_toolset,
        "todo": todo_toolset,
        "user_prompt": user_prompt_toolset,
    }
    return {type_: _chosen(make) for type_, make in makers.items()}


def live_toolsets(
    secrets: Secrets, *, environment: Mapping[str, str] = os.environ, network: Network | None = None
) -> LiveToolsets:
    """Those whose tools are listed before every model call. Making them starts nothing."""
    from lastgood.engine.mcp.mcp_toolset import McpToolset
    from lastgood.engine.skills.skill_toolset import SkillToolset
    from lastgood.engine.tools.a2a_toolset import A2aToolset
    from lastgood.engine.tools.background_jobs import JobToolset
    from lastgood.engine.tools.openapi_toolset import OpenApiToolset
    from lastgood.outside.network import SYSTEM

    network, known = network or SYSTEM, Environment(environment, secrets)
    return {
        "a2a": A2aToolset(known, network),
        "background_jobs": JobToolset(known),
        "mcp": McpToolset(known, network),
        "openapi": OpenApiToolset(known, network),
        "skills": SkillToolset(environment.get("HOME"), network),
    }


def _api_toolset(spec: ToolsetSpec, environment: Environment, network: Network | None) -> Sequence[Tool]:
    """Imported where an agent asks for it, as `fetch`."""
    from lastgood.engine.tools.api import api_toolset
    from lastgood.outside.network import SYSTEM

    return api_toolset(spec, environment, network or SYSTEM)


def _fetch_toolset(spec: ToolsetSpec, environment: Environment, network: Network | None) -> Sequence[Tool]:
    """Imported where an agent asks for it: its HTTP client takes longer to import than all the others."""
    from lastgood.engine.tools.fetch import fetch_toolset
    from lastgood.outside.network import SYSTEM

    return fetch_toolset(spec, environment, network or SYSTEM)


def _chosen(make: Toolset) -> Toolset:
    """Only the tools the file asks for, each with its arguments checked."""

    def made(spec: ToolsetSpec) -> Sequence[Tool]:
        wanted = spec.tools
        return [checked(tool) for tool in make(spec) if wanted is None or tool.name in wanted]

    return made
